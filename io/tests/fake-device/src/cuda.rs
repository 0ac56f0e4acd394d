//! The functions of libcuda.so.1.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null;

use crate::world::{Fault, current, set_current, world};
use crate::{exported, host, name_of, object, status};

const NOT_READY: c_int = 600;

fn code(fault: Fault) -> c_int {
    match fault {
        Fault::NotInitialised => 3,
        Fault::NoContext => 201,
        Fault::OtherContext => 400,
        Fault::Invalid => 1,
        Fault::NoSuchDevice => 101,
        Fault::OutOfMemory => 2,
        Fault::AlreadyRegistered => 712,
        Fault::NotRegistered => 713,
        Fault::Lost => 719,
    }
}

fn name(code: c_int) -> *const c_char {
    let name = match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        712 => c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        713 => c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => return null(),
    };
    name.as_ptr()
}

/// Write what a call returns through its pointer.
unsafe fn filled<T>(result: crate::world::Result<T>, to: *mut T) -> c_int {
    match result {
        Ok(value) => {
            // SAFETY: the caller passed a pointer to a variable of this type.
            unsafe { *to = value };
            0
        }
        Err(fault) => code(fault),
    }
}

fn initialised() -> crate::world::Result<()> {
    if world().is_initialised { Ok(()) } else { Err(Fault::NotInitialised) }
}

exported! {
    fn cuInit(_flags: c_uint) -> c_int {
        let mut world = world();
        world.is_initialised = true;
        if world.faults.devices == 0 { 100 } else { 0 }
    }

    fn cuGetErrorName(code: c_int, to: *mut *const c_char) -> c_int {
        *to = name(code);
        if (*to).is_null() { 1 } else { 0 }
    }

    fn cuDriverGetVersion(version: *mut c_int) -> c_int {
        *version = 12_040;
        0
    }

    fn cuDeviceGetCount(count: *mut c_int) -> c_int {
        let result = initialised().map(|()| world().faults.devices.cast_signed());
        filled(result, count)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
        let known = world().check_device(ordinal.cast_unsigned());
        filled(initialised().and(known).map(|()| ordinal), device)
    }

    fn cuDeviceGetName(to: *mut c_char, length: c_int, _device: c_int) -> c_int {
        let name = c"Fake GPU".to_bytes_with_nul();
        assert!(name.len() <= length as usize);
        to.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
        0
    }

    fn cuDeviceGetPCIBusId(to: *mut c_char, length: c_int, _device: c_int) -> c_int {
        let name = c"0000:FA:0E.0".to_bytes_with_nul();
        assert!(name.len() <= length as usize);
        to.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
        0
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
        *bytes = 80 << 30;
        0
    }

    fn cuDevicePrimaryCtxGetState(
        device: c_int, flags: *mut c_uint, active: *mut c_int
    ) -> c_int {
        *flags = 0;
        *active = c_int::from(world().has_primary(device.cast_unsigned()));
        0
    }

    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
        let result = world().retain(device.cast_unsigned()).map(object);
        filled(result, context)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
        let result = world().release(device.cast_unsigned());
        status(result, code)
    }

    fn cuCtxGetCurrent(context: *mut *mut c_void) -> c_int {
        filled(initialised().map(|()| object(current())), context)
    }

    fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
        if !context.is_null() && !world().is_context(name_of(context)) {
            return code(Fault::NoContext);
        }
        set_current(name_of(context));
        0
    }

    fn cuCtxGetDevice(device: *mut c_int) -> c_int {
        let result = world().current_device().map(u32::cast_signed);
        filled(result, device)
    }

    fn cuMemHostRegister_v2(base: *mut c_void, bytes: usize, _flags: c_uint) -> c_int {
        let result = world().register(host(base), bytes);
        status(result, code)
    }

    fn cuMemHostUnregister(base: *mut c_void) -> c_int {
        let result = world().unregister(host(base));
        status(result, code)
    }

    fn cuPointerGetAttributes(
        count: c_uint, names: *mut c_int, values: *mut *mut c_void, address: u64
    ) -> c_int {
        let Some((device, start, bytes)) = world().owner(address) else {
            return code(Fault::Invalid);
        };
        for at in 0..count as usize {
            let value = *values.add(at);
            match *names.add(at) {
                2 => *value.cast::<c_uint>() = 2,
                9 => *value.cast::<c_int>() = device.cast_signed(),
                11 => *value.cast::<u64>() = start,
                12 => *value.cast::<usize>() = bytes,
                _ => return code(Fault::Invalid),
            }
        }
        0
    }

    fn cuStreamCreate(stream: *mut *mut c_void, _flags: c_uint) -> c_int {
        let result = world().new_stream().map(object);
        filled(result, stream)
    }

    fn cuStreamDestroy_v2(stream: *mut c_void) -> c_int {
        let result = world().destroy_stream(name_of(stream));
        status(result, code)
    }

    fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> c_int {
        let result = world().wait(name_of(stream), name_of(event));
        status(result, code)
    }

    fn cuEventCreate(event: *mut *mut c_void, _flags: c_uint) -> c_int {
        let result = world().new_event().map(object);
        filled(result, event)
    }

    fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
        let result = world().destroy_event(name_of(event));
        status(result, code)
    }

    fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
        let result = world().record(name_of(event), name_of(stream));
        status(result, code)
    }

    // An event that was never recorded is done.
    fn cuEventQuery(event: *mut c_void) -> c_int {
        match world().query(name_of(event)) {
            Ok(Some(false)) => NOT_READY,
            Ok(Some(true) | None) => 0,
            Err(fault) => code(fault),
        }
    }

    fn cuMemcpyHtoDAsync_v2(
        to: u64, from: *const c_void, bytes: usize, stream: *mut c_void
    ) -> c_int {
        let result = world().copy_in(to, host(from), bytes, name_of(stream));
        status(result, code)
    }

    fn cuMemcpyDtoHAsync_v2(
        to: *mut c_void, from: u64, bytes: usize, stream: *mut c_void
    ) -> c_int {
        let result = world().copy_out(host(to), from, bytes, name_of(stream));
        status(result, code)
    }
}
