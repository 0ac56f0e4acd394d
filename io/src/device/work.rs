//! Work of a stream, and the memory that it uses until the device is done.

use std::any::Any;

use super::calls::Opaque;
use super::context::BoundContext;
use super::error::Result;
use crate::buffer::{KeepAlive, Part};

/// What must outlive a part of the host.
pub type Owner = Box<dyn Any + Send>;

/// Work of a stream, and the memory that it uses.
pub(super) struct Work {
    pub stream: Opaque,
    /// Events of the work. The last one is the end of it, if it was recorded.
    pub events: Vec<Opaque>,
    pub has_end: bool,
    /// Memory of the host that is read.
    pub sources: Vec<Part>,
    /// Memory of the host that is written, in the order of the copies.
    pub destinations: Vec<Part>,
    /// Dropped after the sources.
    pub owners: Vec<Owner>,
    pub keep: Vec<KeepAlive>,
}

impl Work {
    /// Nothing yet, on this stream.
    pub fn new(stream: Opaque) -> Work {
        Work {
            stream,
            events: Vec::new(),
            has_end: false,
            sources: Vec::new(),
            destinations: Vec::new(),
            owners: Vec::new(),
            keep: Vec::new(),
        }
    }

    /// Record the end of the work.
    pub fn end_recorded(&mut self, context: &BoundContext) -> Result<()> {
        let event = context.call(|calls| calls.create_event())?;
        // It is destroyed with the work, whether it is recorded or not.
        self.events.push(event);
        // SAFETY: the work has both.
        context.call(|calls| unsafe { calls.record(event, self.stream) })?;
        self.has_end = true;
        Ok(())
    }

    /// Whether the device is known to be done with the memory.
    pub fn is_done(&self, context: &BoundContext) -> Result<bool> {
        match self.events.last() {
            // SAFETY: the work has the event, which was recorded.
            Some(end) if self.has_end => context.call(|calls| unsafe { calls.is_done(*end) }),
            _ => Ok(false),
        }
    }

    /// Release the work, with which the device is done. Returns its stream, if that has no work
    /// any more, and the destinations of the host.
    pub fn end(self, context: &BoundContext) -> (Option<Opaque>, Vec<Part>) {
        let Work { stream, events, sources, destinations, owners, keep, .. } = self;
        let destroyed = context.call(|calls| {
            // SAFETY: the work has the events, and nothing uses them any more.
            events.iter().try_for_each(|event| unsafe { calls.destroy_event(*event) })
        });
        let idle = destroyed.map(|()| stream);
        if let Err(error) = &idle {
            tracing::warn!(%error, "stream and events stay allocated");
        }
        drop(sources);
        drop((owners, keep));
        (idle.ok(), destinations)
    }
}
