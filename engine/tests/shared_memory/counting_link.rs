//! Client connections that count and disturb their traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagelith::io::buffer::Part;
use pagelith::layouts::ids::OpId;
use pagelith::layouts::wire::Frame;
use pagelith::layouts::wire::shm_ref::ItemRange;
use pagelith::transport::dial::{Dial, DialProgress, Dialing, SocketDial};
use pagelith::transport::link::{
    Link, LinkCapacity, LinkCounters, LinkEvent, LinkParams as LinkFacts, Push,
};
use pagelith::transport::link_error::LinkError;
use pagelith::transport::shown::ShmRef;

/// Counts of a client's connections, and switches that disturb them.
#[derive(Default)]
pub struct LinkCounts {
    pub shown: AtomicU64,
    pub landed: AtomicU64,
    pub sent_by_ref: AtomicU64,
    pub sent: AtomicU64,
    /// Connections that were begun.
    pub begun: AtomicU64,
    /// The connections must end.
    pub cut: AtomicBool,
    /// Received events are discarded.
    pub discard_events: AtomicBool,
    /// Offset by which views differ from the one that the store reports, in bytes.
    pub shift: AtomicU64,
}

impl LinkCounts {
    /// Objects received by reference, received into buffers, sent by reference and sent inline,
    /// since the last call.
    pub fn take(&self) -> [u64; 4] {
        [&self.shown, &self.landed, &self.sent_by_ref, &self.sent]
            .map(|count| count.swap(0, Ordering::Relaxed))
    }
}

pub struct CountingDial {
    pub dial: SocketDial,
    pub seen: Arc<LinkCounts>,
}

struct CountingDialing(Box<dyn Dialing>, Arc<LinkCounts>);

struct CountingLink(Box<dyn Link>, Arc<LinkCounts>);

impl Dial for CountingDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.seen.begun.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(CountingDialing(self.dial.begin()?, self.seen.clone())))
    }
}

impl CountingDialing {
    fn dialled(dialled: DialProgress, seen: Arc<LinkCounts>) -> DialProgress {
        match dialled {
            DialProgress::Waiting(dialing) => {
                DialProgress::Waiting(Box::new(CountingDialing(dialing, seen)))
            }
            DialProgress::Ready(link) => DialProgress::Ready(Box::new(CountingLink(link, seen))),
            DialProgress::Failed(why) => DialProgress::Failed(why),
        }
    }
}

impl Dialing for CountingDialing {
    fn poll(self: Box<Self>) -> DialProgress {
        CountingDialing::dialled(self.0.poll(), self.1)
    }

    fn wait(self: Box<Self>, timeout: Duration) -> DialProgress {
        CountingDialing::dialled(self.0.wait(timeout), self.1)
    }
}

impl CountingLink {
    fn note(&self, events: &[LinkEvent]) {
        for event in events {
            match event {
                LinkEvent::ReceivedRef { .. } => self.1.shown.fetch_add(1, Ordering::Relaxed),
                LinkEvent::Received { .. } => self.1.landed.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
        }
    }
}

impl Link for CountingLink {
    fn params(&self) -> &LinkFacts {
        self.0.params()
    }

    fn counts(&self) -> LinkCounters {
        self.0.counts()
    }

    fn capacity(&self) -> LinkCapacity {
        self.0.capacity()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.0.send(frame)
    }

    fn sends_by_ref(&self, parts: &[Part]) -> bool {
        self.0.sends_by_ref(parts)
    }

    fn region_offset(&self, parts: &[Part]) -> Option<(u32, u64)> {
        let region_offset = self.0.region_offset(parts);
        self.1.sent_by_ref.fetch_add(region_offset.is_some().into(), Ordering::Relaxed);
        region_offset
    }

    fn peer_ref(&self, range: ItemRange, region_offset: (u32, u64), length: u64) -> Option<ShmRef> {
        let (region, at) = region_offset;
        self.0.peer_ref(range, (region, at + self.1.shift.load(Ordering::Relaxed)), length)
    }

    fn push(&mut self, push: Push) -> Result<(), Push> {
        let count =
            if self.0.sends_by_ref(&push.parts) { &self.1.sent_by_ref } else { &self.1.sent };
        count.fetch_add(1, Ordering::Relaxed);
        self.0.push(push)
    }

    fn expose(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        parts: Vec<Part>,
    ) -> Result<(), Vec<Part>> {
        self.0.expose(op, item, offset, parts)
    }

    fn release_ref(&mut self, shown: ShmRef) {
        self.0.release_ref(shown);
    }

    fn wake_peer(&mut self) {
        self.0.wake_peer();
    }

    fn retract(&mut self, op: OpId) {
        self.0.retract(op);
    }

    fn poll(&mut self, events: &mut Vec<LinkEvent>) {
        if self.1.cut.load(Ordering::Relaxed) {
            self.0.close();
        }
        if self.1.discard_events.load(Ordering::Relaxed) {
            return;
        }
        let had = events.len();
        self.0.poll(events);
        self.note(&events[had..]);
    }

    fn wait(&mut self, events: &mut Vec<LinkEvent>, timeout: Duration) {
        if self.1.discard_events.load(Ordering::Relaxed) {
            return;
        }
        let had = events.len();
        self.0.wait(events, timeout);
        self.note(&events[had..]);
    }

    fn close(&mut self) {
        self.0.close();
    }
}
