//! Ascend's Computing Language, from `libascendcl.so`.
//!
//! A device's default context is bound, which `aclrtSetDevice` made on the calling thread. Each
//! call of `aclrtSetDevice` keeps the device until one of `aclrtResetDevice`. No call takes a
//! thread's context away.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use super::calls::{Called, Calls, Opaque, check, failed};
use super::error::{DeviceError, Result};
use super::facts::DeviceFacts;
use super::kind::Device;
use crate::dynamic_library::{DynamicLibrary, function_table};

function_table! {
    aclInit(*const c_char) -> c_int;
    aclrtGetSocName() -> *const c_char;
    aclrtGetVersion(*mut i32, *mut i32, *mut i32) -> c_int;
    aclrtGetDeviceCount(*mut u32) -> c_int;
    aclrtGetDevice(*mut i32) -> c_int;
    aclrtSetDevice(i32) -> c_int;
    aclrtResetDevice(i32) -> c_int;
    aclrtGetCurrentContext(*mut *mut c_void) -> c_int;
    aclrtSetCurrentContext(*mut c_void) -> c_int;
    aclrtHostRegister(*mut c_void, u64, c_uint, *mut *mut c_void) -> c_int;
    aclrtHostUnregister(*mut c_void) -> c_int;
    aclrtCreateStream(*mut *mut c_void) -> c_int;
    aclrtDestroyStream(*mut c_void) -> c_int;
    aclrtStreamWaitEvent(*mut c_void, *mut c_void) -> c_int;
    aclrtCreateEvent(*mut *mut c_void) -> c_int;
    aclrtDestroyEvent(*mut c_void) -> c_int;
    aclrtRecordEvent(*mut c_void, *mut c_void) -> c_int;
    aclrtQueryEventStatus(*mut c_void, *mut c_uint) -> c_int;
    aclrtMemcpyAsync(*mut c_void, usize, *const c_void, usize, c_uint, *mut c_void) -> c_int;
}

/// `ACL_ERROR_REPEAT_INITIALIZE`.
const REPEAT_INITIALIZE: c_int = 100_002;
/// `ACL_ERROR_RT_CONTEXT_NULL`.
const CONTEXT_NULL: c_int = 107_002;
/// `ACL_HOST_REGISTER_MAPPED`.
const MAPPED: c_uint = 0;
/// `ACL_MEMCPY_HOST_TO_DEVICE`.
const HOST_TO_DEVICE: c_uint = 1;
/// `ACL_MEMCPY_DEVICE_TO_HOST`.
const DEVICE_TO_HOST: c_uint = 2;
/// `ACL_EVENT_RECORDED_STATUS_COMPLETE`.
const COMPLETE: c_uint = 1;
/// Results with their names in `acl/error_codes/rt_error_codes.h`.
const NAMES: [(c_int, &str); 9] = [
    (100_001, "ACL_ERROR_UNINITIALIZE"),
    (107_000, "ACL_ERROR_RT_PARAM_INVALID"),
    (107_001, "ACL_ERROR_RT_INVALID_DEVICEID"),
    (CONTEXT_NULL, "ACL_ERROR_RT_CONTEXT_NULL"),
    (107_003, "ACL_ERROR_RT_STREAM_CONTEXT"),
    (207_000, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT"),
    (207_001, "ACL_ERROR_RT_MEMORY_ALLOCATION"),
    (207_004, "ACL_ERROR_RT_NO_DEVICE"),
    (507_010, "ACL_ERROR_RT_LOST_HEARTBEAT"),
];

/// The loaded runtime.
pub(super) struct Ascend(Functions);

impl Ascend {
    /// # Safety
    ///
    /// Functions of the library that have names of the runtime have its types.
    pub unsafe fn of(library: &DynamicLibrary) -> std::result::Result<Ascend, &'static str> {
        // SAFETY: the caller's promise.
        unsafe { Functions::of(library) }.map(Ascend)
    }

    fn count(&self) -> Called<u32> {
        let mut count = 0;
        // SAFETY: the call fills the number.
        let code = unsafe { (self.0.aclrtGetDeviceCount)(&mut count) };
        check("aclrtGetDeviceCount", code).map(|()| count)
    }

    /// Retain the device, if `current`, the thread's context, is its default one.
    fn retain(&self, device: i32, current: Opaque) -> Called<bool> {
        // SAFETY: the call takes a number.
        check("aclrtSetDevice", unsafe { (self.0.aclrtSetDevice)(device) })?;
        // It made the default context the thread's.
        let is_default = self.current().map(|now| now == Some(current));
        if is_default != Ok(true) {
            let restored = self.make_current(Some(current));
            self.unbind(device.cast_unsigned()).and(restored)?;
        }
        is_default
    }

    fn create(
        call: &'static str,
        create: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    ) -> Called<Opaque> {
        let mut object = null_mut();
        // SAFETY: the call fills the pointer.
        check(call, unsafe { create(&mut object) }).map(|()| Opaque(object))
    }
}

impl Calls for Ascend {
    fn name_of(&self, code: i32) -> String {
        let found = NAMES.iter().find(|(known, _)| *known == code);
        found.map_or("unknown", |(_, name)| name).to_owned()
    }

    fn list(&self) -> Called<(String, Vec<DeviceFacts>)> {
        // SAFETY: without a configuration file.
        match unsafe { (self.0.aclInit)(null()) } {
            REPEAT_INITIALIZE => {}
            code => check("aclInit", code)?,
        }
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: the call fills the numbers.
        let code = unsafe { (self.0.aclrtGetVersion)(&mut major, &mut minor, &mut patch) };
        check("aclrtGetVersion", code)?;
        // SAFETY: the call takes nothing, and returns a string of the library or null.
        let model = unsafe {
            let name = (self.0.aclrtGetSocName)();
            if name.is_null() { c"unknown" } else { CStr::from_ptr(name) }
        };
        let model = model.to_string_lossy().into_owned();
        let facts =
            |ordinal| DeviceFacts { ordinal, model: model.clone(), pci: None, memory_bytes: None };
        Ok((format!("{major}.{minor}.{patch}"), (0..self.count()?).map(facts).collect()))
    }

    fn bind(&self, of: Device) -> Result<Opaque> {
        let mut device = 0;
        // SAFETY: the call fills the number.
        let code = unsafe { (self.0.aclrtGetDevice)(&mut device) };
        let call = "aclrtGetDevice";
        check(call, code).map_err(|why| match why.code {
            CONTEXT_NULL => DeviceError::ContextAbsent { device: of, call, code: why.code },
            _ => failed(self, of, why),
        })?;
        let count = self.count().map_err(|why| failed(self, of, why))?;
        if of.ordinal >= count {
            return Err(DeviceError::NoDevice { device: of, count });
        }
        if device != of.ordinal.cast_signed() {
            let found = format!("that of device {device}");
            return Err(DeviceError::ContextOther { device: of, call, found });
        }
        let call = "aclrtGetCurrentContext";
        let absent = DeviceError::ContextAbsent { device: of, call, code: CONTEXT_NULL };
        let current = self.current().map_err(|why| failed(self, of, why))?.ok_or(absent)?;
        let is_default = self.retain(device, current).map_err(|why| failed(self, of, why))?;
        if !is_default {
            let found = "the device's, but not its default one".to_owned();
            return Err(DeviceError::ContextOther { device: of, call, found });
        }
        Ok(current)
    }

    fn unbind(&self, ordinal: u32) -> Called<()> {
        // SAFETY: the device was retained, and is released once.
        check("aclrtResetDevice", unsafe { (self.0.aclrtResetDevice)(ordinal.cast_signed()) })
    }

    fn pci(&self, _ordinal: u32) -> Called<Option<String>> {
        Ok(None)
    }

    fn current(&self) -> Called<Option<Opaque>> {
        let mut context = null_mut();
        // SAFETY: the call fills the pointer.
        match unsafe { (self.0.aclrtGetCurrentContext)(&mut context) } {
            CONTEXT_NULL => Ok(None),
            code => check("aclrtGetCurrentContext", code).map(|()| Some(Opaque(context))),
        }
    }

    fn make_current(&self, context: Option<Opaque>) -> Called<()> {
        let Some(context) = context else { return Ok(()) };
        // SAFETY: the context is one that the runtime returned.
        check("aclrtSetCurrentContext", unsafe { (self.0.aclrtSetCurrentContext)(context.0) })
    }

    fn can_leave(&self) -> bool {
        false
    }

    unsafe fn lock(&self, base: usize, bytes: usize) -> Called<()> {
        // Copies use the address of the host.
        let mut mapped = null_mut();
        // SAFETY: the range is mapped, by the caller's promise; the call fills the pointer.
        check("aclrtHostRegister", unsafe {
            let base = with_exposed_provenance_mut(base);
            (self.0.aclrtHostRegister)(base, bytes as u64, MAPPED, &mut mapped)
        })
    }

    fn unlock(&self, base: usize) -> Called<()> {
        // SAFETY: the runtime refuses an address that is not registered.
        check("aclrtHostUnregister", unsafe {
            (self.0.aclrtHostUnregister)(with_exposed_provenance_mut(base))
        })
    }

    /// Older versions cannot be asked.
    fn owns(&self, _ordinal: u32, _address: u64, _bytes: usize) -> Called<bool> {
        Ok(true)
    }

    fn create_stream(&self) -> Called<Opaque> {
        Ascend::create("aclrtCreateStream", self.0.aclrtCreateStream)
    }

    fn create_event(&self) -> Called<Opaque> {
        Ascend::create("aclrtCreateEvent", self.0.aclrtCreateEvent)
    }

    unsafe fn destroy_stream(&self, stream: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("aclrtDestroyStream", unsafe { (self.0.aclrtDestroyStream)(stream.0) })
    }

    unsafe fn destroy_event(&self, event: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("aclrtDestroyEvent", unsafe { (self.0.aclrtDestroyEvent)(event.0) })
    }

    unsafe fn record(&self, event: Opaque, stream: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("aclrtRecordEvent", unsafe { (self.0.aclrtRecordEvent)(event.0, stream.0) })
    }

    unsafe fn wait(&self, stream: Opaque, event: Opaque) -> Called<()> {
        // SAFETY: the caller's promise.
        check("aclrtStreamWaitEvent", unsafe { (self.0.aclrtStreamWaitEvent)(stream.0, event.0) })
    }

    unsafe fn is_done(&self, event: Opaque) -> Called<bool> {
        let mut status = 0;
        // SAFETY: the caller's promise; the call fills the number.
        let code = unsafe { (self.0.aclrtQueryEventStatus)(event.0, &mut status) };
        check("aclrtQueryEventStatus", code).map(|()| status == COMPLETE)
    }

    unsafe fn copy_in(&self, to: u64, from: usize, bytes: usize, on: Opaque) -> Called<()> {
        let to = std::ptr::without_provenance_mut(to as usize);
        let from = with_exposed_provenance(from);
        // SAFETY: the caller's promise.
        check("aclrtMemcpyAsync", unsafe {
            (self.0.aclrtMemcpyAsync)(to, bytes, from, bytes, HOST_TO_DEVICE, on.0)
        })
    }

    unsafe fn copy_out(&self, to: usize, from: u64, bytes: usize, on: Opaque) -> Called<()> {
        let from = std::ptr::without_provenance(from as usize);
        let to = with_exposed_provenance_mut(to);
        // SAFETY: the caller's promise.
        check("aclrtMemcpyAsync", unsafe {
            (self.0.aclrtMemcpyAsync)(to, bytes, from, bytes, DEVICE_TO_HOST, on.0)
        })
    }
}

impl std::fmt::Debug for Ascend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ascend")
    }
}
