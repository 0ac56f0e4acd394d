//! A bound device: its context, its idle streams, and the copies that callers gave up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::calls::{Called, Calls, Opaque};
use super::context::BoundContext;
use super::error::Result;
use super::kind::Device;
use super::work::Work;
use crate::buffer::Part;

/// What all handles of one binding, and all that they made, share.
pub(super) struct Bound {
    /// Locked memory shares it. Not released while the device may use it.
    pub context: Arc<BoundContext>,
    pub node: Option<u32>,
    /// Streams without work.
    idle: Mutex<Vec<Opaque>>,
    /// Copies that were dropped before the device was done with them.
    late: Mutex<Vec<Work>>,
}

impl Bound {
    pub fn new(calls: Arc<dyn Calls>, device: Device) -> Result<Bound> {
        let context = BoundContext::new(calls, device)?;
        // A node that is not known costs speed only.
        let node = context.node();
        Ok(Bound {
            context: Arc::new(context),
            node,
            idle: Mutex::default(),
            late: Mutex::default(),
        })
    }

    pub fn device(&self) -> Device {
        self.context.device()
    }

    /// See [`BoundContext::call`].
    pub fn call<T: Send>(&self, call: impl FnOnce(&dyn Calls) -> Called<T> + Send) -> Result<T> {
        self.context.call(call)
    }

    /// A stream without work.
    pub fn take_stream(&self) -> Result<Opaque> {
        let idle = self.idle().pop();
        idle.map_or_else(|| self.call(|calls| calls.create_stream()), Ok)
    }

    /// Release work with which the device is done. Returns its destinations of the host.
    pub fn end(&self, work: Work) -> Vec<Part> {
        let (idle, destinations) = work.end(&self.context);
        self.idle().extend(idle);
        destinations
    }

    /// Keep the memory of work until the device is done with it.
    pub fn keep_late(&self, work: Work) {
        self.late().push(work);
    }

    /// Release late copies with which the device is done now. Returns the number of the others.
    pub fn reap(&self) -> usize {
        // In place and under the lock: another thread must not find the list empty meanwhile.
        let mut late = self.late();
        let (mut done, mut at) = (Vec::new(), 0);
        while let Some(work) = late.get(at) {
            match work.is_done(&self.context) {
                Ok(true) => done.push(late.swap_remove(at)),
                Ok(false) | Err(_) => at += 1,
            }
        }
        let left = late.len();
        drop(late);
        for work in done {
            self.end(work);
        }
        left
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
            let (device, copies) = (self.device(), late.len());
            tracing::error!(%device, copies, "device is not done with copies: memory is leaked");
            std::mem::forget((late, self.context.clone()));
            return;
        }
        let streams = std::mem::take(&mut *self.idle());
        let ended = self.call(|calls| {
            // SAFETY: idle streams are used by nothing else, and not after this.
            streams.into_iter().try_for_each(|stream| unsafe { calls.destroy_stream(stream) })
        });
        if let Err(error) = ended {
            // As after the engine has ended the driver.
            tracing::debug!(%error, "streams are not released");
        }
    }
}
