//! Client connections that count and disturb their traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagelith::io::buffer::Part;
use pagelith::layouts::ids::OpId;
use pagelith::layouts::wire::Frame;
use pagelith::layouts::wire::shown::ItemRange;
use pagelith::transport::closed::Closed;
use pagelith::transport::dial::{Dial, DialProgress, Dialing, SocketDial};
use pagelith::transport::link::{Counts, Event, Facts as LinkFacts, Link, Push, Room};
use pagelith::transport::shown::Shown;

/// Counts of a client's connections, and switches that disturb them.
#[derive(Default)]
pub struct Seen {
    pub shown: AtomicU64,
    pub landed: AtomicU64,
    pub showed: AtomicU64,
    pub sent: AtomicU64,
    /// Connections that were begun.
    pub begun: AtomicU64,
    /// The connections must end.
    pub cut: AtomicBool,
    /// Received events are discarded.
    pub deaf: AtomicBool,
    /// Offset by which views differ from the place that the store reports, in bytes.
    pub beside: AtomicU64,
}

impl Seen {
    /// Objects received by reference, received into buffers, sent by reference and sent inline,
    /// since the last call.
    pub fn take(&self) -> [u64; 4] {
        [&self.shown, &self.landed, &self.showed, &self.sent]
            .map(|count| count.swap(0, Ordering::Relaxed))
    }
}

pub struct Watching {
    pub dial: SocketDial,
    pub seen: Arc<Seen>,
}

struct Soon(Box<dyn Dialing>, Arc<Seen>);

struct Watched(Box<dyn Link>, Arc<Seen>);

impl Dial for Watching {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
        self.seen.begun.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Soon(self.dial.begin()?, self.seen.clone())))
    }
}

impl Soon {
    fn dialled(dialled: DialProgress, seen: Arc<Seen>) -> DialProgress {
        match dialled {
            DialProgress::Waiting(dialing) => DialProgress::Waiting(Box::new(Soon(dialing, seen))),
            DialProgress::Ready(link) => DialProgress::Ready(Box::new(Watched(link, seen))),
            DialProgress::Over(why) => DialProgress::Over(why),
        }
    }
}

impl Dialing for Soon {
    fn poll(self: Box<Self>) -> DialProgress {
        Soon::dialled(self.0.poll(), self.1)
    }

    fn wait(self: Box<Self>, timeout: Duration) -> DialProgress {
        Soon::dialled(self.0.wait(timeout), self.1)
    }
}

impl Watched {
    fn note(&self, events: &[Event]) {
        for event in events {
            match event {
                Event::Shown { .. } => self.1.shown.fetch_add(1, Ordering::Relaxed),
                Event::Landed { .. } => self.1.landed.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
        }
    }
}

impl Link for Watched {
    fn facts(&self) -> &LinkFacts {
        self.0.facts()
    }

    fn counts(&self) -> Counts {
        self.0.counts()
    }

    fn room(&self) -> Room {
        self.0.room()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.0.send(frame)
    }

    fn shows(&self, parts: &[Part]) -> bool {
        self.0.shows(parts)
    }

    fn place(&self, parts: &[Part]) -> Option<(u32, u64)> {
        let place = self.0.place(parts);
        self.1.showed.fetch_add(place.is_some().into(), Ordering::Relaxed);
        place
    }

    fn view(&self, stretch: ItemRange, place: (u32, u64), length: u64) -> Option<Shown> {
        let (region, at) = place;
        self.0.view(stretch, (region, at + self.1.beside.load(Ordering::Relaxed)), length)
    }

    fn push(&mut self, push: Push) -> Result<(), Push> {
        let count = if self.0.shows(&push.parts) { &self.1.showed } else { &self.1.sent };
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

    fn took(&mut self, shown: Shown) {
        self.0.took(shown);
    }

    fn nudge(&mut self) {
        self.0.nudge();
    }

    fn retract(&mut self, op: OpId) {
        self.0.retract(op);
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        if self.1.cut.load(Ordering::Relaxed) {
            self.0.close();
        }
        if self.1.deaf.load(Ordering::Relaxed) {
            return;
        }
        let had = events.len();
        self.0.poll(events);
        self.note(&events[had..]);
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration) {
        if self.1.deaf.load(Ordering::Relaxed) {
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
