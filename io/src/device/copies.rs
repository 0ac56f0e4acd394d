//! Copies between memory of the host and of a device.
//!
//! A list of copies holds the memory of both sides. If it is dropped before the device is done, the
//! device's binding holds it, and releases it once the device is done.

use std::fmt;
use std::sync::Arc;

use pagelith_mutants::{self as mutant, Mutant};

use super::bound::Bound;
use super::calls::Opaque;
use super::chunks::runs;
use super::error::{DeviceError, Result};
use super::range::DeviceRange;
use super::work::{Owner, Work};
use crate::buffer::Part;

/// A stream of the caller. See [`super::DeviceHandle::caller_stream`].
#[derive(Clone, Copy, Debug)]
pub struct CallerStream(Opaque);

impl CallerStream {
    pub(super) fn new(stream: Opaque) -> CallerStream {
        CallerStream(stream)
    }
}

/// Copies are added to a list before it is done.
const PENDING: &str = "the list of copies is done";

/// A list of copies in order on one stream.
#[must_use = "copies are waited for with poll"]
pub struct Copies {
    /// `None` once the device is done.
    work: Option<Work>,
    done: Vec<Part>,
    bound: Arc<Bound>,
}

impl Copies {
    pub(super) fn begin(bound: &Arc<Bound>, after: Option<&CallerStream>) -> Result<Copies> {
        let stream = bound.take_stream()?;
        let work = Work::new(stream);
        let mut copies = Copies { work: Some(work), done: Vec::new(), bound: bound.clone() };
        if let Some(after) = after {
            copies.wait_for(after)?;
        }
        Ok(copies)
    }

    /// Begin after the work that `stream` has now.
    fn wait_for(&mut self, stream: &CallerStream) -> Result<()> {
        let bound = &self.bound;
        let work = self.work.as_mut().expect(PENDING);
        let event = bound.call(|calls| calls.create_event())?;
        work.events.push(event);
        // SAFETY: the work has the event and its own stream; the caller's exists by its promise.
        bound.call(|calls| unsafe {
            calls.record(event, stream.0)?;
            calls.wait(work.stream, event)
        })
    }

    /// Keep `owner` until the device is done. It is dropped after the sources of the host.
    pub fn hold(&mut self, owner: Owner) {
        self.work.as_mut().expect(PENDING).owners.push(owner);
    }

    /// Queue a copy of all of `from` to all of `to`. After an error the memory is kept
    /// nevertheless: a part of the copy may be queued.
    ///
    /// # Errors
    /// `OutsideMemory` if the lengths differ; `ForeignMemory` if `to` is of another binding;
    /// `CallFailed`.
    pub fn to_device(&mut self, from: Part, to: &DeviceRange) -> Result<()> {
        let address = self.check(&from, to)?;
        let (base, bytes) = (from.as_ptr().expose_provenance(), from.len());
        let (bound, work) = self.pending(to);
        work.sources.push(from);
        let stream = work.stream;
        bound.call(|calls| {
            runs(base, bytes).try_for_each(|(offset, length)| {
                // SAFETY: the run is inside of both ranges. The work keeps both; nothing writes
                // the part while it exists, and the caller gave the range to this copy.
                unsafe { calls.copy_in(address + offset as u64, base + offset, length, stream) }
            })
        })
    }

    /// Queue a copy of all of `from` to all of `to`, an exclusive part.
    ///
    /// # Errors
    /// As [`Copies::to_device`]; `OutsideMemory` also if the part is not exclusive.
    pub fn to_host(&mut self, from: &DeviceRange, to: Part) -> Result<()> {
        if !to.is_exclusive() {
            return Err(DeviceError::OutsideMemory { offset: 0, bytes: from.bytes(), memory: 0 });
        }
        let address = self.check(&to, from)?;
        let (base, bytes) = (to.as_ptr().expose_provenance(), to.len());
        let (bound, work) = self.pending(from);
        work.destinations.push(to);
        let stream = work.stream;
        bound.call(|calls| {
            runs(base, bytes).try_for_each(|(offset, length)| {
                // SAFETY: the run is inside of both ranges. The work keeps both; nothing else uses
                // the part while it exists.
                unsafe { calls.copy_out(base + offset, address + offset as u64, length, stream) }
            })
        })
    }

    /// All copies are queued: record their end, for [`Copies::poll`].
    ///
    /// # Errors
    /// `CallFailed`.
    pub fn submit(&mut self) -> Result<()> {
        let work = self.work.as_mut().expect(PENDING);
        work.end_recorded(&self.bound.context)
    }

    /// Whether the device is done with the submitted copies. Each byte is then in its place.
    ///
    /// # Errors
    /// `CallFailed` if a copy failed, or the device is lost: what was copied is unknown.
    pub fn poll(&mut self) -> Result<bool> {
        let is_done =
            self.work.as_ref().map_or(Ok(true), |work| work.is_done(&self.bound.context))?;
        if let (true, Some(work)) = (is_done, self.work.take_if(|_| is_done)) {
            self.done = self.bound.end(work);
        }
        Ok(is_done)
    }

    /// The destinations of the host, in the order of the copies; none while the device is not done.
    pub fn into_parts(mut self) -> Vec<Part> {
        std::mem::take(&mut self.done)
    }

    /// The address of `range`, if a copy between both may be queued.
    fn check(&self, part: &Part, range: &DeviceRange) -> Result<u64> {
        if !range.is_bound_to(&self.bound) {
            let (device, address, bytes) = (self.bound.device(), range.address(), range.bytes());
            return Err(DeviceError::ForeignMemory { device, address, bytes });
        }
        if range.bytes() != part.len() {
            let (bytes, memory) = (part.len(), range.bytes());
            return Err(DeviceError::OutsideMemory { offset: 0, bytes, memory });
        }
        Ok(range.address())
    }

    /// The work, which keeps the range for a copy that is about to be queued.
    fn pending(&mut self, range: &DeviceRange) -> (&Bound, &mut Work) {
        let work = self.work.as_mut().expect(PENDING);
        work.keep.push(range.keep());
        (&self.bound, work)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let Some(mut work) = self.work.take() else { return };
        if mutant::on(Mutant::DeviceCopyReleased) {
            return;
        }
        if !work.has_end
            && let Err(error) = work.end_recorded(&self.bound.context)
        {
            tracing::error!(%error, "end of copies is unknown: their memory is kept");
        }
        match work.is_done(&self.bound.context) {
            Ok(true) => {
                self.bound.end(work);
            }
            Ok(false) | Err(_) => self.bound.keep_late(work),
        }
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Copies(done={})", self.work.is_none())
    }
}
