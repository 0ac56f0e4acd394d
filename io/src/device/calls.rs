//! The calls of a driver that this module needs, for each driver.

use std::ffi::c_void;
use std::fmt::Debug;

use super::error::{DeviceError, Result};
use super::facts::DeviceFacts;
use super::kind::Device;

/// A context, a stream or an event of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opaque(pub *mut c_void);

// SAFETY: a driver's objects may be used on every thread whose context is theirs, and the driver
// locks them itself. The pointer is never dereferenced.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

/// A function of a driver failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub call: &'static str,
    pub code: i32,
}

/// The result of a call. `0` is success for all drivers.
pub(super) type Called<T> = std::result::Result<T, Failed>;

/// The result of the function `call`.
pub(super) fn check(call: &'static str, code: i32) -> Called<()> {
    if code == 0 { Ok(()) } else { Err(Failed { call, code }) }
}

/// A driver. All calls but `list`, `bind`, `current` and `make_current` act in the context of the
/// calling thread.
pub(super) trait Calls: Send + Sync + Debug {
    /// The name of a result, such as `CUDA_ERROR_INVALID_CONTEXT`.
    fn name_of(&self, code: i32) -> String;

    /// Initialise the driver and list its devices.
    fn list(&self) -> Called<(String, Vec<DeviceFacts>)>;

    /// Find the device's context, which the engine of this process has made, and retain it.
    fn bind(&self, device: Device) -> Result<Opaque>;
    /// Release what `bind` retained.
    fn unbind(&self, ordinal: u32) -> Called<()>;
    /// The PCI address, if the driver tells it.
    fn pci(&self, ordinal: u32) -> Called<Option<String>>;

    /// The context of the calling thread.
    fn current(&self) -> Called<Option<Opaque>>;
    /// Make `context` that of the calling thread.
    fn make_current(&self, context: Option<Opaque>) -> Called<()>;
    /// Whether `make_current` can take a thread's context away.
    fn can_leave(&self) -> bool;

    /// Lock memory of the host, and let the device access it. Addresses of the host are exposed.
    ///
    /// # Safety
    ///
    /// The range is mapped until `unlock` succeeds, and its owner allows accesses of the device.
    unsafe fn lock(&self, base: usize, bytes: usize) -> Called<()>;
    /// Undo `lock` of a range that begins there.
    fn unlock(&self, base: usize) -> Called<()>;

    /// Whether all of the range is one allocation of the device, as far as the driver tells.
    fn owns(&self, ordinal: u32, address: u64, bytes: usize) -> Called<bool>;

    /// A stream that runs concurrently with all others.
    fn create_stream(&self) -> Called<Opaque>;
    /// An event without timing.
    fn create_event(&self) -> Called<Opaque>;
    /// # Safety
    ///
    /// The stream is of `create_stream`, and not used afterwards.
    unsafe fn destroy_stream(&self, stream: Opaque) -> Called<()>;
    /// # Safety
    ///
    /// The event is of `create_event`, and not used afterwards.
    unsafe fn destroy_event(&self, event: Opaque) -> Called<()>;
    /// Let the event be done once all work that the stream has now is done.
    ///
    /// # Safety
    ///
    /// Both exist.
    unsafe fn record(&self, event: Opaque, stream: Opaque) -> Called<()>;
    /// Let later work of the stream begin once the event is done.
    ///
    /// # Safety
    ///
    /// Both exist.
    unsafe fn wait(&self, stream: Opaque, event: Opaque) -> Called<()>;
    /// Whether the event, which was recorded, is done.
    ///
    /// # Safety
    ///
    /// It exists.
    unsafe fn is_done(&self, event: Opaque) -> Called<bool>;

    /// Queue a copy from the host to the device.
    ///
    /// # Safety
    ///
    /// Both ranges exist until the copy is done. Nothing writes the source meanwhile, and nothing
    /// else uses the destination.
    unsafe fn copy_in(&self, to: u64, from: usize, bytes: usize, on: Opaque) -> Called<()>;
    /// Queue a copy from the device to the host.
    ///
    /// # Safety
    ///
    /// As `copy_in`.
    unsafe fn copy_out(&self, to: usize, from: u64, bytes: usize, on: Opaque) -> Called<()>;
}

/// The error of a failed call.
pub(super) fn failed(calls: &dyn Calls, device: Device, failed: Failed) -> DeviceError {
    let Failed { call, code } = failed;
    DeviceError::CallFailed { device, call, code, name: calls.name_of(code) }
}
