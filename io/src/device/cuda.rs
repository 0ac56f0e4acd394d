//! The CUDA driver API, from `libcuda.so.1`.
//!
//! Types and constants are those of CUDA 11.0 to 13, declared here: `CUresult` is a number, since a
//! newer driver returns codes that an older list does not have.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use super::calls::{Called, Calls, Failed, Opaque, check, failed};
use super::error::{DeviceError, Result};
use super::facts::DeviceFacts;
use super::kind::Device;
use crate::dynamic_library::{DynamicLibrary, function_table};

function_table! {
    cuInit(c_uint) -> c_int;
    cuGetErrorName(c_int, *mut *const c_char) -> c_int;
    cuDriverGetVersion(*mut c_int) -> c_int;
    cuDeviceGetCount(*mut c_int) -> c_int;
    cuDeviceGet(*mut c_int, c_int) -> c_int;
    cuDeviceGetName(*mut c_char, c_int, c_int) -> c_int;
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> c_int;
    cuDeviceTotalMem_v2(*mut usize, c_int) -> c_int;
    cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int) -> c_int;
    cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int) -> c_int;
    cuDevicePrimaryCtxRelease_v2(c_int) -> c_int;
    cuCtxGetCurrent(*mut *mut c_void) -> c_int;
    cuCtxSetCurrent(*mut c_void) -> c_int;
    cuCtxGetDevice(*mut c_int) -> c_int;
    cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> c_int;
    cuMemHostUnregister(*mut c_void) -> c_int;
    cuPointerGetAttributes(c_uint, *mut c_int, *mut *mut c_void, u64) -> c_int;
    cuStreamCreate(*mut *mut c_void, c_uint) -> c_int;
    cuStreamDestroy_v2(*mut c_void) -> c_int;
    cuStreamWaitEvent(*mut c_void, *mut c_void, c_uint) -> c_int;
    cuEventCreate(*mut *mut c_void, c_uint) -> c_int;
    cuEventDestroy_v2(*mut c_void) -> c_int;
    cuEventRecord(*mut c_void, *mut c_void) -> c_int;
    cuEventQuery(*mut c_void) -> c_int;
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, *mut c_void) -> c_int;
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, *mut c_void) -> c_int;
}

/// `CUDA_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: c_int = 201;
/// `CUDA_ERROR_NOT_INITIALIZED`; also in children forked after the initialisation.
const NOT_INITIALIZED: c_int = 3;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_MEMHOSTREGISTER_PORTABLE`: locked for all contexts.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`: without order with the legacy default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_OF_DEVICE: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_DEVICE_ORDINAL`, `_RANGE_START_ADDR`, `_RANGE_SIZE`.
const ATTRIBUTES: [c_int; 4] = [2, 9, 11, 12];
/// Longer than any name of a device.
const NAME_BYTES: usize = 256;

/// The loaded driver.
pub(super) struct Cuda(Functions);

impl Cuda {
    /// # Safety
    ///
    /// Functions of the library that have names of the driver API have its types.
    pub unsafe fn of(library: &DynamicLibrary) -> std::result::Result<Cuda, &'static str> {
        // SAFETY: the caller's promise.
        unsafe { Functions::of(library) }.map(Cuda)
    }

    fn count(&self) -> Called<u32> {
        let mut count = 0;
        // SAFETY: the call fills the number.
        match unsafe { (self.0.cuDeviceGetCount)(&mut count) } {
            NO_DEVICE => Ok(0),
            code => check("cuDeviceGetCount", code).map(|()| count.unsigned_abs()),
        }
    }

    fn device(&self, ordinal: u32) -> Called<c_int> {
        let mut device = 0;
        // SAFETY: the call fills the number.
        let code = unsafe { (self.0.cuDeviceGet)(&mut device, ordinal.cast_signed()) };
        check("cuDeviceGet", code).map(|()| device)
    }

    /// The device of the calling thread's context.
    fn current_device(&self) -> Called<c_int> {
        let mut device = 0;
        // SAFETY: the call fills the number.
        let code = unsafe { (self.0.cuCtxGetDevice)(&mut device) };
        check("cuCtxGetDevice", code).map(|()| device)
    }

    fn has_primary_context(&self, device: c_int) -> Called<bool> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the call fills both numbers.
        let code = unsafe { (self.0.cuDevicePrimaryCtxGetState)(device, &mut flags, &mut active) };
        check("cuDevicePrimaryCtxGetState", code).map(|()| active != 0)
    }

    /// The device's primary context, if the calling thread's is that one or of another device.
    fn retain(&self, of: Device, device: c_int, current: Option<Opaque>) -> Result<Opaque> {
        let error = |why| failed(self, of, why);
        let mut context = null_mut();
        // SAFETY: the call fills the pointer.
        let code = unsafe { (self.0.cuDevicePrimaryCtxRetain)(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", code).map_err(error)?;
        let context = Opaque(context);
        let is_other = match current {
            Some(current) if current != context => {
                self.current_device().map(|current| current == device).map_err(error)
            }
            _ => Ok(false),
        };
        if let Ok(false) = is_other {
            return Ok(context);
        }
        // It was retained above.
        let _ = self.unbind(of.ordinal);
        is_other.and_then(|_| {
            let found = "the device's, but not its primary one".to_owned();
            Err(DeviceError::ContextOther { device: of, call: "cuCtxGetCurrent", found })
        })
    }

    fn text(
        &self,
        call: &'static str,
        fill: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
        device: c_int,
    ) -> Called<String> {
        let mut bytes = [0u8; NAME_BYTES];
        // SAFETY: the call writes a C string of at most this length.
        let code = unsafe { fill(bytes.as_mut_ptr().cast(), NAME_BYTES as c_int, device) };
        check(call, code)?;
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn facts(&self, ordinal: u32) -> Called<DeviceFacts> {
        let device = self.device(ordinal)?;
        let mut bytes = 0;
        // SAFETY: the call fills the number.
        let code = unsafe { (self.0.cuDeviceTotalMem_v2)(&mut bytes, device) };
        check("cuDeviceTotalMem_v2", code)?;
        Ok(DeviceFacts {
            ordinal,
            model: self.text("cuDeviceGetName", self.0.cuDeviceGetName, device)?,
            pci: self.pci(ordinal)?,
            memory_bytes: Some(bytes as u64),
        })
    }

    fn create(
        call: &'static str,
        create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int,
        flags: c_uint,
    ) -> Called<Opaque> {
        let mut object = null_mut();
        // SAFETY: the call fills the pointer.
        check(call, unsafe { create(&mut object, flags) }).map(|()| Opaque(object))
    }
}

impl Calls for Cuda {
    fn name_of(&self, code: i32) -> String {
        let mut name = null();
        // SAFETY: the call fills the pointer, with a string of the library or null.
        let text = unsafe {
            (self.0.cuGetErrorName)(code, &mut name);
            (!name.is_null()).then(|| CStr::from_ptr(name))
        };
        text.map_or_else(|| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    }

    fn list(&self) -> Called<(String, Vec<DeviceFacts>)> {
        // SAFETY: the call takes flags, of which there are none.
        match unsafe { (self.0.cuInit)(0) } {
            NO_DEVICE => return Ok((String::new(), Vec::new())),
            code => check("cuInit", code)?,
        }
        let mut version = 0;
        // SAFETY: the call fills the number.
        check("cuDriverGetVersion", unsafe { (self.0.cuDriverGetVersion)(&mut version) })?;
        let version = format!("{}.{}", version / 1000, version % 1000 / 10);
        let devices = (0..self.count()?).map(|ordinal| self.facts(ordinal)).collect::<Called<_>>();
        Ok((version, devices?))
    }

    fn bind(&self, of: Device) -> Result<Opaque> {
        let error = |why| failed(self, of, why);
        let absent = |Failed { call, code }| DeviceError::ContextAbsent { device: of, call, code };
        let current = self.current().map_err(|why| match why.code {
            NOT_INITIALIZED => absent(why),
            _ => error(why),
        })?;
        let count = self.count().map_err(error)?;
        if of.ordinal >= count {
            return Err(DeviceError::NoDevice { device: of, count });
        }
        let device = self.device(of.ordinal).map_err(error)?;
        if !self.has_primary_context(device).map_err(error)? {
            // Retaining it would make one, of this process's choice and not of the engine's.
            let call = "cuDevicePrimaryCtxGetState";
            let why = match current {
                None => self.current_device().err(),
                Some(_) => None,
            };
            return Err(absent(why.unwrap_or(Failed { call, code: INVALID_CONTEXT })));
        }
        self.retain(of, device, current)
    }

    fn unbind(&self, ordinal: u32) -> Called<()> {
        let device = self.device(ordinal)?;
        // SAFETY: the context was retained, and is released once.
        check("cuDevicePrimaryCtxRelease_v2", unsafe {
            (self.0.cuDevicePrimaryCtxRelease_v2)(device)
        })
    }

    fn pci(&self, ordinal: u32) -> Called<Option<String>> {
        let device = self.device(ordinal)?;
        self.text("cuDeviceGetPCIBusId", self.0.cuDeviceGetPCIBusId, device).map(Some)
    }

    fn current(&self) -> Called<Option<Opaque>> {
        let mut context = null_mut();
        // SAFETY: the call fills the pointer.
        check("cuCtxGetCurrent", unsafe { (self.0.cuCtxGetCurrent)(&mut context) })?;
        Ok((!context.is_null()).then_some(Opaque(context)))
    }

    fn make_current(&self, context: Option<Opaque>) -> Called<()> {
        let context = context.map_or(null_mut(), |context| context.0);
        // SAFETY: the context is one that the driver returned, or none.
        check("cuCtxSetCurrent", unsafe { (self.0.cuCtxSetCurrent)(context) })
    }

    fn can_leave(&self) -> bool {
        true
    }

    unsafe fn lock(&self, base: usize, bytes: usize) -> Called<()> {
        // SAFETY: the range is mapped, by the caller's promise.
        check("cuMemHostRegister_v2", unsafe {
            (self.0.cuMemHostRegister_v2)(with_exposed_provenance_mut(base), bytes, PORTABLE)
        })
    }

    fn unlock(&self, base: usize) -> Called<()> {
        // SAFETY: the driver refuses an address that is not registered.
        check("cuMemHostUnregister", unsafe {
            (self.0.cuMemHostUnregister)(with_exposed_provenance_mut(base))
        })
    }

    fn owns(&self, ordinal: u32, address: u64, bytes: usize) -> Called<bool> {
        let (mut kind, mut device, mut start, mut length) =
            (0 as c_uint, -1 as c_int, 0u64, 0usize);
        let mut names = ATTRIBUTES;
        let mut values: [*mut c_void; 4] = [
            (&raw mut kind).cast(),
            (&raw mut device).cast(),
            (&raw mut start).cast(),
            (&raw mut length).cast(),
        ];
        // SAFETY: the call fills the four values, of the attributes' types.
        let code = unsafe {
            (self.0.cuPointerGetAttributes)(
                ATTRIBUTES.len() as c_uint,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
                address,
            )
        };
        if code == INVALID_VALUE {
            return Ok(false);
        }
        check("cuPointerGetAttributes", code)?;
        let room = (length as u64).checked_sub(address.wrapping_sub(start));
        Ok(kind == MEMORY_OF_DEVICE
            && device == ordinal.cast_signed()
            && address >= start
            && room.is_some_and(|room| bytes as u64 <= room))
    }

    fn create_stream(&self) -> Called<Opaque> {
        Cuda::create("cuStreamCreate", self.0.cuStreamCreate, NON_BLOCKING)
    }

    fn create_event(&self) -> Called<Opaque> {
        Cuda::create("cuEventCreate", self.0.cuEventCreate, DISABLE_TIMING)
    }

    unsafe fn destroy_stream(&self, stream: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("cuStreamDestroy_v2", unsafe { (self.0.cuStreamDestroy_v2)(stream.0) })
    }

    unsafe fn destroy_event(&self, event: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("cuEventDestroy_v2", unsafe { (self.0.cuEventDestroy_v2)(event.0) })
    }

    unsafe fn record(&self, event: Opaque, stream: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("cuEventRecord", unsafe { (self.0.cuEventRecord)(event.0, stream.0) })
    }

    unsafe fn wait(&self, stream: Opaque, event: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("cuStreamWaitEvent", unsafe { (self.0.cuStreamWaitEvent)(stream.0, event.0, 0) })
    }

    unsafe fn is_done(&self, event: Opaque) -> Called<bool> {
        // SAFETY: the caller's promise.
        match unsafe { (self.0.cuEventQuery)(event.0) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    unsafe fn copy_in(&self, to: u64, from: usize, bytes: usize, on: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            (self.0.cuMemcpyHtoDAsync_v2)(to, with_exposed_provenance(from), bytes, on.0)
        })
    }

    unsafe fn copy_out(&self, to: usize, from: u64, bytes: usize, on: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyDtoHAsync_v2", unsafe {
            (self.0.cuMemcpyDtoHAsync_v2)(with_exposed_provenance_mut(to), from, bytes, on.0)
        })
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cuda")
    }
}

#[cfg(test)]
#[path = "cuda_test.rs"]
mod tests;
