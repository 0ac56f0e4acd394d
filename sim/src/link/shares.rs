//! Memory and files that two ends on one host share: memory for bytes passed by reference, and
//! files that one end lends.
//!
//! The memory is real ([`pagelith_io::shm`]), within one process; its layout follows from the seed.
//! The files are those of the simulated disk. Messages about them are packets like any other: lost,
//! late and repeated.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::names::SEGMENTS;
use pagelith_layouts::wire::shown::Stretch;
use pagelith_layouts::wire::{Frame, Kind, Side};
use pagelith_transport::link::{Event, Push};
use pagelith_transport::shown::{FilePlace, Pieces, Regions, Shown};

use super::reference_check::{OutcomeCheck, sum};
use super::wire::{Packet, Wire};
use crate::disk::{Handed, SimDisk};

/// Memory and files shared by each side, from the view of one end. The default is nothing: two
/// hosts.
#[derive(Clone, Default)]
pub struct Shares {
    /// Regions of this end and of the other.
    pub regions: Regions,
    /// The disk whose segment files this end lends, and the number of its directories.
    pub lends: Option<(SimDisk, usize)>,
    /// The files that the other end lends.
    pub reads: Option<Handed>,
}

/// Shared memory and files in use.
#[derive(Default)]
pub(super) struct SharingState {
    pub shares: Shares,
    /// References sent to the other end and not yet released.
    shown: BTreeMap<Stretch, Push>,
    /// Checks that outcomes match the referenced bytes.
    outcome_check: OutcomeCheck,
}

/// The identity of a push.
fn stretch_of(push: &Push) -> Stretch {
    (push.op, push.item, push.offset)
}

/// The bytes of all parts, concatenated.
pub(super) fn concat_bytes(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().iter().copied()).collect()
}

/// All bytes of a reference.
pub(super) fn ref_bytes(shown: &Shown) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(shown.length()).unwrap_or(0)];
    shown.copy_out(0, &mut bytes);
    bytes
}

/// The completion of a push.
pub(super) fn pushed_event(push: Push, sent: bool) -> Event {
    let Push { op, token, parts, .. } = push;
    Event::Pushed { op, token, sent, parts }
}

impl SharingState {
    /// The location of a push's bytes, if they are passed by reference.
    pub fn pieces(&self, push: &Push) -> Option<Pieces> {
        let may_show = push.may_show && !self.shown.contains_key(&stretch_of(push));
        if may_show { self.shares.regions.pieces(&push.parts) } else { None }
    }

    /// Passes a push by reference.
    pub fn show(&mut self, wire: &mut Wire, side: Side, push: Push, pieces: Pieces) {
        let (stretch, bytes) = (stretch_of(&push), concat_bytes(&push.parts));
        self.outcome_check.shown(stretch, &bytes);
        wire.reference_check.show(side, stretch, sum(&bytes));
        wire.net_stats.shown += 1;
        wire.send(side, Packet::Shown { stretch, pieces });
        self.shown.insert(stretch, push);
    }

    /// Whether the file exists.
    pub fn has_file(&self, place: FilePlace) -> bool {
        self.shares.lends.as_ref().is_some_and(|(_, dirs)| place.file < *dirs)
    }

    fn in_file(&self, place: FilePlace) -> Option<Vec<u8>> {
        let (disk, _) = self.shares.lends.as_ref()?;
        disk.peek(place.file, SEGMENTS, place.at, usize::try_from(place.length).ok()?)
    }

    /// Say where all of an item lies in a file.
    pub fn lend(&mut self, wire: &mut Wire, side: Side, push: Push, place: FilePlace) {
        let (stretch, bytes) = (stretch_of(&push), self.in_file(place).unwrap_or_default());
        self.outcome_check.shown(stretch, &bytes);
        wire.reference_check.show(side, stretch, sum(&bytes));
        wire.net_stats.lent += 1;
        wire.send(side, Packet::Lent { stretch, place });
        self.shown.insert(stretch, push);
    }

    /// The other end released a reference.
    pub fn taken(&mut self, wire: &mut Wire, side: Side, stretch: Stretch) -> Option<Event> {
        wire.reference_check.forget(side, stretch);
        self.shown.remove(&stretch).map(|push| pushed_event(push, true))
    }

    /// Withdraws the references of `op`, or all.
    pub fn give_up(&mut self, wire: &mut Wire, side: Side, op: Option<OpId>, events: &mut Vec<Event>) {
        self.outcome_check.forget(op);
        for (stretch, push) in std::mem::take(&mut self.shown) {
            if op.is_some_and(|op| op != stretch.0) {
                self.shown.insert(stretch, push);
                continue;
            }
            wire.reference_check.forget(side, stretch);
            events.push(pushed_event(push, false));
        }
    }

    /// The reference that the other end sent; `None` if that end shares no such memory.
    pub fn arrived(&self, stretch: Stretch, pieces: Pieces) -> Option<Shown> {
        self.shares.regions.shown(stretch, pieces.into_iter())
    }

    /// This end reads the bytes of a reference.
    pub fn look(&self, wire: &mut Wire, side: Side, shown: &Shown) {
        let bytes = match shown.file() {
            None => ref_bytes(shown),
            Some(place) => match &self.shares.reads {
                Some(files) => files.peek(place).unwrap_or_default(),
                None => return,
            },
        };
        match wire.reference_check.look(side.other(), shown.stretch(), sum(&bytes)) {
            None => wire.net_stats.looked_late += 1,
            Some(true) => {}
            Some(false) => wire.net_stats.broken += 1,
        }
    }

    /// A request arrived at this end, or an outcome leaves it.
    pub fn passes(&mut self, wire: &mut Wire, frame: &Frame) {
        match frame.kind {
            Kind::Request => self.outcome_check.on_request(frame),
            Kind::Outcome => wire.net_stats.broken += u64::from(!self.outcome_check.outcome(frame)),
            _ => {}
        }
    }
}
