//! A bound device: its context, which each call applies, and the copies that callers gave up.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::calls::{Called, Calls, Opaque, failed};
use super::copies::{CallerStream, Copies, Work};
use super::driver::Device;
use super::error::Result;
use super::range::DeviceRange;
use crate::buffer::KeepAlive;
use crate::verbs::Place;

const SYSFS: &str = "/sys";

/// A device that is bound: the right to lock memory for it and to name memory of it. Clones share
/// the binding, which ends with the last of them and of what they made.
#[derive(Clone)]
pub struct DeviceHandle(pub(super) Arc<Bound>);

/// See [`DeviceHandle`].
pub(super) struct Bound {
    calls: Arc<dyn Calls>,
    device: Device,
    context: Opaque,
    node: Option<u32>,
    /// Streams without work.
    idle: Mutex<Vec<Opaque>>,
    /// Copies that were dropped before the device was done with them.
    late: Mutex<Vec<Work>>,
}

impl DeviceHandle {
    pub(super) fn bind(calls: Arc<dyn Calls>, device: Device) -> Result<DeviceHandle> {
        let context = calls.bind(device)?;
        let mut bound = Bound {
            calls,
            device,
            context,
            node: None,
            idle: Mutex::default(),
            late: Mutex::default(),
        };
        // A place that is not known costs speed only.
        let pci = bound.call(|calls| calls.pci(device.ordinal)).ok().flatten();
        let place = pci.and_then(|pci| Place::of_pci_device(Path::new(SYSFS), &pci).ok());
        bound.node = place.and_then(|place| place.node);
        tracing::info!(%device, node = ?bound.node, "device bound");
        Ok(DeviceHandle(Arc::new(bound)))
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.0.device
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
        self.0.reap();
        self.0.late().len()
    }
}

impl Bound {
    pub fn device(&self) -> Device {
        self.device
    }

    /// Call the driver in the device's context, and give the thread its own back.
    pub fn call<T>(&self, call: impl FnOnce(&dyn Calls) -> Called<T>) -> Result<T> {
        let calls = &*self.calls;
        let in_context = || {
            let own = calls.current()?;
            if own == Some(self.context) {
                return call(calls);
            }
            calls.make_current(Some(self.context))?;
            let result = call(calls);
            if let Err(why) = calls.make_current(own) {
                let error = failed(calls, self.device, why);
                tracing::error!(%error, "the thread keeps the device's context");
            }
            result
        };
        in_context().map_err(|why| failed(calls, self.device, why))
    }

    /// A stream without work.
    pub fn take_stream(&self) -> Result<Opaque> {
        let idle = self.idle().pop();
        idle.map_or_else(|| self.call(|calls| calls.create_stream()), Ok)
    }

    /// Keep the stream of finished work for other work.
    pub fn return_stream(&self, stream: Opaque) {
        self.idle().push(stream);
    }

    /// Keep the memory of work until the device is done with it.
    pub fn keep_late(&self, work: Work) {
        self.late().push(work);
    }

    /// Release the memory of late copies with which the device is done now.
    fn reap(&self) {
        let late = std::mem::take(&mut *self.late());
        let (done, late): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|work| work.is_done(self).unwrap_or(false));
        self.late().extend(late);
        for work in done {
            work.end(self);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Opaque>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> MutexGuard<'_, Vec<Work>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.reap();
        let late = std::mem::take(&mut *self.late());
        if !late.is_empty() {
            // The device may still use the memory, and the context with it.
            let (device, copies) = (self.device, late.len());
            tracing::error!(%device, copies, "device is not done with copies: memory is leaked");
            std::mem::forget(late);
            return;
        }
        let streams = std::mem::take(&mut *self.idle());
        let ended = self.call(|calls| {
            // SAFETY: idle streams are used by nothing else, and not after this.
            streams.into_iter().try_for_each(|stream| unsafe { calls.destroy_stream(stream) })?;
            Ok(())
        });
        let released = self.calls.unbind(self.device.ordinal);
        let released = released.map_err(|why| failed(&*self.calls, self.device, why));
        if let Err(error) = ended.and(released) {
            // As after the engine has ended the driver.
            tracing::debug!(%error, "device is not released");
        }
    }
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceHandle({}, node={:?})", self.0.device, self.0.node)
    }
}
