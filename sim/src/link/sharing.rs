//! Memory that two ends on one host share, for bytes passed by reference.
//!
//! The memory is real ([`pagelith_io::shm`]), within one process; its layout follows from the seed.
//! Messages about
//! it are packets like any other: lost,
//! late and repeated.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole};
use pagelith_transport::link::{LinkEvent, Push};
use pagelith_transport::shown::{LinkRegions, ShmRef};

use super::reference_check::{OutcomeCheck, sum};
use super::wire::{Packet, Wire};

/// Shared memory in use.
#[derive(Default)]
pub(super) struct SharingState {
    /// Memory that each side has handed over, as this end has it. None by default: as between two
    /// hosts.
    pub regions: LinkRegions,
    /// References sent to the other end and not yet released.
    shown: BTreeMap<ItemRange, Push>,
    /// Checks that outcomes match the referenced bytes.
    outcome_check: OutcomeCheck,
}

/// The range that a push fills.
fn item_range_of(push: &Push) -> ItemRange {
    (push.op, push.item, push.offset)
}

/// The bytes of all parts, concatenated.
pub(super) fn concat_bytes(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().iter().copied()).collect()
}

/// The locations of all parts, as `region_offset` finds each by its address and length; `None` if
/// one of them is outside of the regions, or if none has a byte.
pub(super) fn part_pieces(
    parts: &[Part],
    region_offset: impl Fn(u64, u64) -> Option<(u32, u64)>,
) -> Option<Vec<ShownPiece>> {
    let piece = |part: &Part| {
        let (region, at) = region_offset(part.addr() as u64, part.len() as u64)?;
        Some(ShownPiece::new(region, at, part.len() as u64))
    };
    let parts = parts.iter().filter(|part| !part.is_empty());
    let pieces: Vec<ShownPiece> = parts.map(piece).collect::<Option<_>>()?;
    (!pieces.is_empty()).then_some(pieces)
}

/// All bytes of a reference.
pub(super) fn ref_bytes(shown: &ShmRef) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(shown.length()).unwrap_or(0)];
    shown.copy_out(0, &mut bytes);
    bytes
}

/// The completion of a push.
pub(super) fn pushed_event(push: Push, sent: bool) -> LinkEvent {
    let Push { op, token, parts, .. } = push;
    LinkEvent::Pushed { op, token, sent, parts }
}

impl SharingState {
    /// The location of a push's bytes, if they are passed by reference.
    pub fn pieces(&self, push: &Push) -> Option<Vec<ShownPiece>> {
        let allow_ref = push.allow_ref && !self.shown.contains_key(&item_range_of(push));
        if allow_ref { self.regions.pieces(&push.parts) } else { None }
    }

    /// Passes a push by reference.
    pub fn show(&mut self, wire: &mut Wire, side: LinkRole, push: Push, pieces: Vec<ShownPiece>) {
        let (range, bytes) = (item_range_of(&push), concat_bytes(&push.parts));
        self.outcome_check.shown(range, &bytes);
        wire.reference_check.show(side, range, sum(&bytes));
        wire.net_stats.shown += 1;
        wire.send(side, Packet::ShmRef { range, pieces });
        self.shown.insert(range, push);
    }

    /// The other end released a reference.
    pub fn taken(
        &mut self,
        wire: &mut Wire,
        side: LinkRole,
        range: ItemRange,
    ) -> Option<LinkEvent> {
        wire.reference_check.forget(side, range);
        self.shown.remove(&range).map(|push| pushed_event(push, true))
    }

    /// Withdraws the references of `op`, or all.
    pub fn give_up(
        &mut self,
        wire: &mut Wire,
        side: LinkRole,
        op: Option<OpId>,
        events: &mut Vec<LinkEvent>,
    ) {
        self.outcome_check.forget(op);
        for (range, push) in std::mem::take(&mut self.shown) {
            if op.is_some_and(|op| op != range.0) {
                self.shown.insert(range, push);
                continue;
            }
            wire.reference_check.forget(side, range);
            events.push(pushed_event(push, false));
        }
    }

    /// The reference that the other end sent; `None` if that end shares no such memory.
    pub fn arrived(&self, range: ItemRange, pieces: Vec<ShownPiece>) -> Option<ShmRef> {
        self.regions.shown(range, pieces.into_iter())
    }

    /// This end reads the bytes of a reference.
    pub fn note_read(&self, wire: &mut Wire, side: LinkRole, shown: &ShmRef) {
        wire.ref_read(side, shown.range(), &ref_bytes(shown));
    }

    /// A request arrived at this end, or an outcome leaves it.
    pub fn passes(&mut self, wire: &mut Wire, frame: &Frame) {
        match frame.kind {
            FrameKind::Request => self.outcome_check.on_request(frame),
            FrameKind::Outcome => {
                wire.net_stats.broken += u64::from(!self.outcome_check.outcome(frame))
            }
            _ => {}
        }
    }
}
