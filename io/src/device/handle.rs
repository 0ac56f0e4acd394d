//! Handles of bound devices.

use std::fmt;
use std::sync::Arc;

use super::bound::Bound;
use super::calls::{Calls, Opaque};
use super::copies::{CallerStream, Copies};
use super::error::Result;
use super::kind::Device;
use super::range::DeviceRange;
use crate::buffer::KeepAlive;

/// A device that is bound: the right to lock memory for it and to name memory of it. Clones share
/// the binding, which ends with the last of them and of what they made.
#[derive(Clone)]
pub struct DeviceHandle(pub(super) Arc<Bound>);

impl DeviceHandle {
    pub(super) fn bind(calls: Arc<dyn Calls>, device: Device) -> Result<DeviceHandle> {
        let bound = Bound::new(calls, device)?;
        tracing::info!(%device, node = ?bound.node, "device bound");
        Ok(DeviceHandle(Arc::new(bound)))
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.0.device()
    }

    /// The NUMA node to which the device is attached, if it is known.
    pub fn node(&self) -> Option<u32> {
        self.0.node
    }

    /// Name `bytes` bytes of the device's memory from `address` on. `keep` is dropped with the last
    /// range and copy of them.
    ///
    /// # Errors
    /// `ForeignMemory` if the driver knows that the range is not one allocation of this device;
    /// `OutsideMemory` if it is empty; `CallFailed`.
    ///
    /// # Safety
    ///
    /// The range is memory of the device until `keep` is dropped.
    pub unsafe fn range(&self, address: u64, bytes: usize, keep: KeepAlive) -> Result<DeviceRange> {
        DeviceRange::new(&self.0, address, bytes, keep)
    }

    /// Whether the range was named through this handle, or a clone of it.
    pub fn has_named(&self, range: &DeviceRange) -> bool {
        range.is_bound_to(&self.0)
    }

    /// Whether it is a clone of `other`.
    pub fn is_clone_of(&self, other: &DeviceHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Name a stream of the caller, whose work copies can wait for. 0 is the legacy default stream.
    ///
    /// # Safety
    ///
    /// It is a stream of the device's context, and exists while the value is used.
    pub unsafe fn caller_stream(&self, stream: usize) -> CallerStream {
        CallerStream::new(Opaque(std::ptr::with_exposed_provenance_mut(stream)))
    }

    /// Begin a list of copies, on a stream of its own. They begin after the work that the stream
    /// `after` has now.
    ///
    /// # Errors
    /// `CallFailed`.
    pub fn begin(&self, after: Option<&CallerStream>) -> Result<Copies> {
        self.0.reap();
        Copies::begin(&self.0, after)
    }

    /// Copies that were dropped while the device was not done with them. Their memory is kept.
    pub fn late_copies(&self) -> usize {
        self.0.reap()
    }
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceHandle({}, node={:?})", self.0.device(), self.0.node)
    }
}
