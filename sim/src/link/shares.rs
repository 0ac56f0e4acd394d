//! What an end shares with the other, where both are of one host: memory that bytes are shown in.
//!
//! The memory is real ([`pagelith_io::shm`]), in one process here: what lies where in it follows from the seed. What the ends say about
//! it travels as other packets do, and is lost, late and repeated as they are.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shown::Stretch;
use pagelith_layouts::wire::{Frame, Kind, Side};
use pagelith_transport::link::{Event, Push};
use pagelith_transport::shown::{Pieces, Regions, Shown};

use super::watch::{Vouching, sum};
use super::wire::{Packet, Wire};

/// Memory that is shown, at work.
#[derive(Default)]
pub(super) struct Sharing {
    /// What each side has handed over, as this end has it. The default is nothing: as between two hosts.
    pub regions: Regions,
    /// What the other was shown, and has not taken.
    shown: BTreeMap<Stretch, Push>,
    /// Whether outcomes are of what was shown.
    vouching: Vouching,
}

/// How a push is named.
fn stretch_of(push: &Push) -> Stretch {
    (push.op, push.item, push.offset)
}

/// The bytes, one behind the other.
pub(super) fn gathered(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().iter().copied()).collect()
}

/// All that is shown in memory.
pub(super) fn copied(shown: &Shown) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(shown.length()).unwrap_or(0)];
    shown.copy_out(0, &mut bytes);
    bytes
}

/// What became of a push.
pub(super) fn over(push: Push, sent: bool) -> Event {
    let Push { op, token, parts, .. } = push;
    Event::Pushed { op, token, sent, parts }
}

impl Sharing {
    /// Where the bytes of a push lie, if they are to be shown.
    pub fn pieces(&self, push: &Push) -> Option<Pieces> {
        let may_show = push.may_show && !self.shown.contains_key(&stretch_of(push));
        if may_show { self.regions.pieces(&push.parts) } else { None }
    }

    /// Show what is pushed.
    pub fn show(&mut self, wire: &mut Wire, side: Side, push: Push, pieces: Pieces) {
        let (stretch, bytes) = (stretch_of(&push), gathered(&push.parts));
        self.vouching.shown(stretch, &bytes);
        wire.watch.show(side, stretch, sum(&bytes));
        wire.fates.shown += 1;
        wire.send(side, Packet::Shown { stretch, pieces });
        self.shown.insert(stretch, push);
    }

    /// The other has taken it.
    pub fn taken(&mut self, wire: &mut Wire, side: Side, stretch: Stretch) -> Option<Event> {
        wire.watch.forget(side, stretch);
        self.shown.remove(&stretch).map(|push| over(push, true))
    }

    /// Nothing is shown any more of `op`, or of all.
    pub fn give_up(&mut self, wire: &mut Wire, side: Side, op: Option<OpId>, events: &mut Vec<Event>) {
        self.vouching.forget(op);
        for (stretch, push) in std::mem::take(&mut self.shown) {
            if op.is_some_and(|op| op != stretch.0) {
                self.shown.insert(stretch, push);
                continue;
            }
            wire.watch.forget(side, stretch);
            events.push(over(push, false));
        }
    }

    /// What the other says it shows; `None` if it has handed over no such memory.
    pub fn arrived(&self, stretch: Stretch, pieces: Pieces) -> Option<Shown> {
        self.regions.shown(stretch, pieces.into_iter())
    }

    /// This end looks at what it was shown.
    pub fn look(&self, wire: &mut Wire, side: Side, shown: &Shown) {
        match wire.watch.look(side.other(), shown.stretch(), sum(&copied(shown))) {
            None => wire.fates.looked_late += 1,
            Some(true) => {}
            Some(false) => wire.fates.broken += 1,
        }
    }

    /// A request came to this end, or an outcome leaves it.
    pub fn passes(&mut self, wire: &mut Wire, frame: &Frame) {
        match frame.kind {
            Kind::Request => self.vouching.asked(frame),
            Kind::Outcome => wire.fates.broken += u64::from(!self.vouching.outcome(frame)),
            _ => {}
        }
    }
}
