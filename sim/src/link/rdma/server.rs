//! The server's end of one-sided transfers: its pushes become WRITEs where the client has sent
//! targets, and references to the client's memory become READs.
//!
//! Invariants:
//! - The memory of a work request is the server's again with its completion, not before.
//! - A WRITE and the packet that announces it are sent together, also for an operation that is
//!   retracted afterwards.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};
use pagelith_transport::link::{LinkEvent, Push};

use super::fabric::{Completion, Fabric};
use super::memory::Target;

/// Most work requests in the send queue, unless one push alone has more.
const REQUESTS_MAX: usize = 16;
/// Most bytes posted for one operation, unless one push alone has more.
const OP_BYTES_MAX: u64 = 128 << 10;

/// A part of a push: its offset in the item, and how its bytes travel.
pub(in crate::link) enum Segment {
    /// On the stream.
    Stream(u64, Vec<u8>),
    /// By a WRITE of this many bytes.
    Placed(u64, u64),
}

/// How a push travels.
pub(in crate::link) enum Placement {
    /// All of it on the stream: no byte has a target.
    Stream(Push),
    /// The send queue is full.
    Full(Push),
    /// By these parts, in order. A notice with this number follows the WRITEs.
    Placed(OpId, u32, Vec<Segment>, u64),
}

/// A work request that has not completed.
enum Posted {
    Write { op: OpId, token: u64, requests: usize, bytes: u64 },
    Read { range: ItemRange, retracted: bool },
}

/// A finished work request.
pub(in crate::link) enum Finished {
    Pushed(LinkEvent),
    /// A READ; `true` if it was executed and not retracted.
    Fetched(ItemRange, bool, Vec<Part>),
}

/// One-sided transfers at the server's end.
pub(in crate::link) struct RdmaServer {
    /// The address of each region, as the client sent it.
    bases: Vec<u64>,
    targets: BTreeMap<OpId, Vec<Target>>,
    posted: BTreeMap<u64, Posted>,
    /// Notices posted so far.
    notices: u64,
    owes_notice: bool,
    /// Planted bug: the base of another region is added.
    pub has_wrong_base: bool,
    /// Planted bug: a notice is posted before the WRITEs that it is to follow.
    pub has_early_notice: bool,
}

impl RdmaServer {
    pub fn new(bases: Vec<u64>) -> RdmaServer {
        let (targets, posted) = Default::default();
        let (notices, owes_notice, has_wrong_base, has_early_notice) = Default::default();
        RdmaServer {
            bases,
            targets,
            posted,
            notices,
            owes_notice,
            has_wrong_base,
            has_early_notice,
        }
    }

    pub fn add_targets(&mut self, op: OpId, targets: Vec<Target>) {
        self.targets.insert(op, targets);
    }

    /// The operation ends: nothing is posted for it any more.
    pub fn forget(&mut self, op: OpId) {
        self.targets.remove(&op);
    }

    /// Whether work requests have not completed.
    pub fn is_busy(&self) -> bool {
        !self.posted.is_empty()
    }

    /// The parts of a push that have targets: offset in the push, address and length.
    fn targets_of(&self, push: &Push, len: u64) -> Vec<(u64, u64, u64)> {
        let end = push.offset + len;
        let of_item = |target: &&Target| target.item == push.item;
        let targets = self.targets.get(&push.op).into_iter().flatten().filter(of_item);
        let part_of = |target: &Target| {
            let (from, to) =
                (target.offset.max(push.offset), (target.offset + target.len).min(end));
            let region = target.region as usize + usize::from(self.has_wrong_base);
            let base = self.bases.get(region % self.bases.len())?;
            let address = base + target.at + from.checked_sub(target.offset)?;
            (from < to).then(|| (from - push.offset, address, to - from))
        };
        targets.filter_map(part_of).collect()
    }

    /// Posts the WRITEs of a push, if there are targets and there is room.
    pub fn place(&mut self, fabric: &mut Fabric, now: Mono, push: Push) -> Placement {
        let len: u64 = push.parts.iter().map(|part| part.len() as u64).sum();
        let targets = self.targets_of(&push, len);
        if targets.is_empty() {
            return Placement::Stream(push);
        }
        let (mut requests, mut of_op) = (0, 0);
        for posted in self.posted.values() {
            if let Posted::Write { op, requests: own, bytes, .. } = posted {
                requests += own;
                of_op += if *op == push.op { *bytes } else { 0 };
            }
        }
        let is_full = requests > 0 && requests + targets.len() > REQUESTS_MAX;
        if is_full || of_op > 0 && of_op + len > OP_BYTES_MAX {
            return Placement::Full(push);
        }
        let all: Vec<u8> = push.parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        let (mut segments, mut done) = (Vec::new(), 0);
        let stream = |segments: &mut Vec<Segment>, from: u64, to: u64| {
            if from < to {
                let bytes = all[from as usize..to as usize].to_vec();
                segments.push(Segment::Stream(push.offset + from, bytes));
            }
        };
        for (at, _, bytes) in &targets {
            stream(&mut segments, done, *at);
            segments.push(Segment::Placed(push.offset + at, *bytes));
            done = at + bytes;
        }
        stream(&mut segments, done, len);
        let Push { op, item, token, parts, .. } = push;
        let notice = self.notices + 1;
        if self.has_early_notice {
            self.owes_notice = true;
            self.post_notice(fabric, now);
        }
        let id = fabric.post(now, true, parts, &targets);
        let requests = targets.len();
        self.posted.insert(id, Posted::Write { op, token, requests, bytes: len });
        self.owes_notice = !self.has_early_notice;
        Placement::Placed(op, item, segments, notice)
    }

    /// Posts the notice that the last WRITEs are to be followed by.
    pub fn post_notice(&mut self, fabric: &mut Fabric, now: Mono) {
        if std::mem::take(&mut self.owes_notice) {
            self.notices += 1;
            fabric.post_notice(now);
        }
    }

    /// Reads bytes that the client refers to into exposed memory; `None` if the reference is to no
    /// region.
    pub fn read(
        &mut self,
        fabric: &mut Fabric,
        now: Mono,
        range: ItemRange,
        pieces: &[ShownPiece],
        parts: Vec<Part>,
    ) -> Option<()> {
        let mut at = 0;
        let target = |piece: &ShownPiece| {
            let address = self.bases.get(piece.region as usize)? + piece.at;
            at += piece.length;
            Some((at - piece.length, address, piece.length))
        };
        let targets: Vec<_> = pieces.iter().map(target).collect::<Option<_>>()?;
        let id = fabric.post(now, false, parts, &targets);
        self.posted.insert(id, Posted::Read { range, retracted: false });
        Some(())
    }

    /// Retracts the READs of an operation: their memory comes back with their completions.
    pub fn retract(&mut self, op: OpId) {
        for posted in self.posted.values_mut() {
            if let Posted::Read { range, retracted } = posted {
                *retracted |= range.0 == op;
            }
        }
    }

    /// A work request has completed.
    pub fn completed(&mut self, completion: Completion) -> Option<Finished> {
        let Completion { id, executed, parts } = completion;
        Some(match self.posted.remove(&id)? {
            Posted::Write { op, token, .. } => {
                Finished::Pushed(LinkEvent::Pushed { op, token, sent: executed, parts })
            }
            Posted::Read { range, retracted } => {
                Finished::Fetched(range, executed && !retracted, parts)
            }
        })
    }
}
