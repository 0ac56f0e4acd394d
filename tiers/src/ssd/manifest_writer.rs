//! Makes changes of the manifest durable: one copy is written and synced, then the other.
//!
//! Invariants:
//! - At any time, each block is intact in at least one copy. A change is complete once both copies
//!   have it.
//! - After a failure, the blocks of the round are suspect in the copy that was being written: torn,
//!   or written and not durable. The next round writes them again and begins with that copy,
//!   because the other one is intact.

use std::collections::BTreeSet;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::Op;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder};
use pagelith_layouts::manifest::Manifest;

use super::serial_queue::no_memory;
use super::volume::Volume;
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};

/// A change of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A segment got a new incarnation.
    Segment(SegmentId, Incarnation, SegmentOrder),
    /// A namespace's generation was raised.
    Generation(NamespaceId, Generation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ManifestStep {
    Write,
    Sync,
}

/// The changes that are being made durable.
struct Round {
    changes: Vec<Change>,
    blocks: BTreeSet<u32>,
    copy: usize,
    /// Whether `copy` is the second one, so that the other one is durable.
    second: bool,
    step: ManifestStep,
    /// Operations not yet returned by `next_op`.
    ops: Vec<Op>,
    in_flight: usize,
    fault: Option<IoFault>,
}

/// Owns the manifest and makes its changes durable, several at a time.
pub struct ManifestWriter {
    manifest: Manifest,
    waiting: Vec<Change>,
    round: Option<Round>,
    /// Blocks that may be torn or not durable in copy `first`.
    suspect: BTreeSet<u32>,
    /// The copy that the next round begins with.
    first: usize,
    bytes_written: u64,
}

/// The fault of a change for which the manifest has no fact. Callers check the room first.
fn no_room() -> IoFault {
    IoFault {
        kind: FaultKind::Invalid,
        op: FaultOp::Write,
        path: String::new(),
        offset: 0,
        errno: 0,
        detail: "the manifest has no room for another namespace; create the store with a larger namespaces_max".to_owned(),
    }
}

impl ManifestWriter {
    /// The writer of a store's manifest.
    pub fn new(manifest: Manifest) -> ManifestWriter {
        let (waiting, suspect) = (Vec::new(), BTreeSet::new());
        ManifestWriter { manifest, waiting, round: None, suspect, first: 0, bytes_written: 0 }
    }

    /// Mark a copy as outdated: the next round begins with it and writes all of it.
    pub fn suspect(&mut self, copy: usize) {
        let s = self.manifest.superblock();
        let blocks = Manifest::copy_bytes(s.segment_count, s.namespaces_max) / ALIGN;
        (self.suspect, self.first) = ((0..blocks as u32).collect(), copy);
    }

    /// The manifest, with every requested change whose round has begun.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes submitted to the device so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Request a change; [`ManifestWriter::ended`] returns it when it is complete.
    pub fn request(&mut self, change: Change) {
        self.waiting.push(change);
    }

    /// Whether any change is not complete.
    pub fn busy(&self) -> bool {
        self.round.is_some() || !self.waiting.is_empty()
    }

    /// The next operation to submit, if any. An error returns the changes that could not be
    /// started.
    pub fn next_op(&mut self, volume: &Volume) -> Result<Option<Op>, (Vec<Change>, IoFault)> {
        if self.round.is_none() && !self.waiting.is_empty() {
            self.begin(volume)?;
        }
        let Some(round) = self.round.as_mut() else { return Ok(None) };
        let op = round.ops.pop();
        round.in_flight += usize::from(op.is_some());
        Ok(op)
    }

    fn begin(&mut self, volume: &Volume) -> Result<(), (Vec<Change>, IoFault)> {
        let (mut changes, mut refused) = (Vec::new(), Vec::new());
        let mut blocks = self.suspect.clone();
        for change in std::mem::take(&mut self.waiting) {
            let block = match change {
                Change::Segment(id, incarnation, order) => {
                    self.manifest.set_segment(id, incarnation, order)
                }
                Change::Generation(ns, generation) => self.manifest.set_generation(ns, generation),
            };
            match block {
                Some(block) => {
                    blocks.insert(block);
                    changes.push(change);
                }
                None => refused.push(change),
            }
        }
        if !refused.is_empty() {
            // The others are requested again, with the same result.
            self.waiting = changes;
            return Err((refused, no_room()));
        }
        let mut round = Round {
            changes,
            blocks,
            copy: self.first,
            second: false,
            step: ManifestStep::Write,
            ops: Vec::new(),
            in_flight: 0,
            fault: None,
        };
        match self.writes(volume, &round) {
            Ok(ops) => round.ops = ops,
            Err(fault) => {
                // The changes are in the manifest, so their blocks differ from both copies.
                self.suspect = round.blocks;
                return Err((round.changes, fault));
            }
        }
        self.round = Some(round);
        Ok(())
    }

    fn writes(&mut self, volume: &Volume, round: &Round) -> Result<Vec<Op>, IoFault> {
        let mut ops = Vec::new();
        for &index in &round.blocks {
            let mut buf =
                AlignedBuf::new(ALIGN as usize).map_err(|e| no_memory(ALIGN as usize, &e))?;
            buf.copy_from_slice(&self.manifest.block(index));
            let (file, offset) = (volume.manifests[round.copy], u64::from(index) * ALIGN);
            ops.push(Op::Write { file, offset, parts: vec![buf.into_part()] });
            self.bytes_written += ALIGN;
        }
        Ok(ops)
    }

    /// Handle the completion of an operation of [`ManifestWriter::next_op`]. Returns the changes
    /// that are complete: durable, or failed. Failed changes may or may not be durable, and may be
    /// requested again.
    pub fn ended(
        &mut self,
        volume: &Volume,
        result: Result<(), IoFault>,
    ) -> Option<(Vec<Change>, Result<(), IoFault>)> {
        let round = self.round.as_mut()?;
        round.in_flight -= 1;
        if let Err(fault) = result {
            round.ops.clear();
            round.fault.get_or_insert(fault);
        }
        if round.in_flight > 0 || !round.ops.is_empty() {
            return None;
        }
        if round.fault.is_none() {
            match (round.step, round.second) {
                (ManifestStep::Write, _) => {
                    // The other copy must not change before this one is durable.
                    round.step = ManifestStep::Sync;
                    round.ops.push(Op::Sync { file: volume.manifests[round.copy] });
                    return None;
                }
                (ManifestStep::Sync, false) => {
                    (round.copy, round.second, round.step) =
                        (1 - round.copy, true, ManifestStep::Write);
                    let mut next = self.round.take()?;
                    match self.writes(volume, &next) {
                        Ok(ops) => next.ops = ops,
                        Err(fault) => next.fault = Some(fault),
                    }
                    let failed = next.fault.is_some();
                    self.round = Some(next);
                    if !failed {
                        return None;
                    }
                }
                (ManifestStep::Sync, true) => {}
            }
        }
        let round = self.round.take()?;
        match &round.fault {
            Some(_) => (self.suspect, self.first) = (round.blocks, round.copy),
            None => (self.suspect, self.first) = (BTreeSet::new(), 0),
        }
        Some((round.changes, round.fault.map_or(Ok(()), Err)))
    }
}
