//! The functions of libascendcl.so.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::world::{Fault, current, set_current, world};
use crate::{exported, host, name_of, object, status};

const HOST_TO_DEVICE: c_uint = 1;
const DEVICE_TO_HOST: c_uint = 2;

fn code(fault: Fault) -> c_int {
    match fault {
        Fault::NotInitialised => 100_001,
        Fault::NoContext => 107_002,
        Fault::OtherContext => 107_003,
        Fault::Invalid | Fault::AlreadyRegistered | Fault::NotRegistered => 107_000,
        Fault::NoSuchDevice => 107_001,
        Fault::OutOfMemory => 207_001,
        Fault::Lost => 507_010,
    }
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

exported! {
    fn aclInit(_path: *const c_char) -> c_int {
        let mut world = world();
        if world.is_initialised {
            return 100_002;
        }
        world.is_initialised = true;
        0
    }

    fn aclrtGetSocName() -> *const c_char {
        c"Fake NPU".as_ptr()
    }

    fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> c_int {
        (*major, *minor, *patch) = (1, 14, 0);
        0
    }

    fn aclrtGetDeviceCount(count: *mut u32) -> c_int {
        *count = world().faults.devices;
        0
    }

    fn aclrtGetDevice(device: *mut i32) -> c_int {
        let result = world().current_device().map(u32::cast_signed);
        filled(result, device)
    }

    fn aclrtSetDevice(device: i32) -> c_int {
        let result = world().retain(device.cast_unsigned()).map(set_current);
        status(result, code)
    }

    fn aclrtResetDevice(device: i32) -> c_int {
        let result = world().release(device.cast_unsigned());
        status(result, code)
    }

    fn aclrtGetCurrentContext(context: *mut *mut c_void) -> c_int {
        match current() {
            0 => code(Fault::NoContext),
            name => {
                *context = object(name);
                0
            }
        }
    }

    fn aclrtSetCurrentContext(context: *mut c_void) -> c_int {
        if !world().is_context(name_of(context)) {
            return code(Fault::NoContext);
        }
        set_current(name_of(context));
        0
    }

    fn aclrtHostRegister(
        base: *mut c_void, bytes: u64, _kind: c_uint, mapped: *mut *mut c_void
    ) -> c_int {
        *mapped = base;
        let result = world().register(host(base), bytes as usize);
        status(result, code)
    }

    fn aclrtHostUnregister(base: *mut c_void) -> c_int {
        let result = world().unregister(host(base));
        status(result, code)
    }

    fn aclrtCreateStream(stream: *mut *mut c_void) -> c_int {
        let result = world().new_stream().map(object);
        filled(result, stream)
    }

    fn aclrtDestroyStream(stream: *mut c_void) -> c_int {
        let result = world().destroy_stream(name_of(stream));
        status(result, code)
    }

    fn aclrtStreamWaitEvent(stream: *mut c_void, event: *mut c_void) -> c_int {
        let result = world().wait(name_of(stream), name_of(event));
        status(result, code)
    }

    fn aclrtCreateEvent(event: *mut *mut c_void) -> c_int {
        let result = world().new_event().map(object);
        filled(result, event)
    }

    fn aclrtDestroyEvent(event: *mut c_void) -> c_int {
        let result = world().destroy_event(name_of(event));
        status(result, code)
    }

    fn aclrtRecordEvent(event: *mut c_void, stream: *mut c_void) -> c_int {
        let result = world().record(name_of(event), name_of(stream));
        status(result, code)
    }

    // An event that was never recorded is not ready.
    fn aclrtQueryEventStatus(event: *mut c_void, done: *mut c_uint) -> c_int {
        let result = world().query(name_of(event)).map(|is| c_uint::from(is == Some(true)));
        filled(result, done)
    }

    fn aclrtMemcpyAsync(
        to: *mut c_void, room: usize, from: *const c_void, bytes: usize, kind: c_uint,
        stream: *mut c_void
    ) -> c_int {
        let stream = name_of(stream);
        let result = match kind {
            _ if bytes > room => Err(Fault::Invalid),
            HOST_TO_DEVICE => world().copy_in(to.addr() as u64, host(from), bytes, stream),
            DEVICE_TO_HOST => world().copy_out(host(to), from.addr() as u64, bytes, stream),
            _ => Err(Fault::Invalid),
        };
        status(result, code)
    }
}
