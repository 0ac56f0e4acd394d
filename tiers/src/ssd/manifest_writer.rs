//! Changing the manifest: first one copy, synced, then the other, synced. At every moment at least one copy
//! holds each block whole, and a change counts once both do.

use std::collections::BTreeSet;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::Op;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder};
use pagelith_layouts::manifest::Manifest;

use super::serial::no_memory;
use super::volume::Volume;
use pagelith_io::fault::IoFault;

/// A fact that became durable (or, after a failure, may or may not be).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A segment got a new incarnation.
    Segment(SegmentId, Incarnation, SegmentOrder),
    /// A namespace's generation was raised.
    Generation(NamespaceId, Generation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Write,
    Sync,
}

/// The changes being made durable.
struct Round {
    changes: Vec<Change>,
    blocks: BTreeSet<u32>,
    copy: usize,
    stage: Stage,
    /// Operations not yet handed out.
    ops: Vec<Op>,
    in_flight: usize,
    fault: Option<IoFault>,
}

/// Owns the manifest and makes its changes durable, several at a time.
pub struct ManifestWriter {
    manifest: Manifest,
    waiting: Vec<Change>,
    round: Option<Round>,
    bytes_written: u64,
}

impl ManifestWriter {
    /// The writer of a store's manifest.
    pub fn new(manifest: Manifest) -> ManifestWriter {
        ManifestWriter { manifest, waiting: Vec::new(), round: None, bytes_written: 0 }
    }

    /// The manifest with every change that was asked for so far and has begun to be written.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes handed to the device so far.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Ask for a change; it is answered by [`ManifestWriter::ended`].
    pub fn request(&mut self, change: Change) {
        self.waiting.push(change);
    }

    /// Whether any change is not yet durable.
    pub fn busy(&self) -> bool {
        self.round.is_some() || !self.waiting.is_empty()
    }

    /// The next operation to submit, if there is one.
    pub fn next_op(&mut self, volume: &Volume) -> Result<Option<Op>, IoFault> {
        if self.round.is_none() && !self.waiting.is_empty() {
            self.begin(volume)?;
        }
        let Some(round) = self.round.as_mut() else { return Ok(None) };
        let op = round.ops.pop();
        round.in_flight += usize::from(op.is_some());
        Ok(op)
    }

    fn begin(&mut self, volume: &Volume) -> Result<(), IoFault> {
        let changes = std::mem::take(&mut self.waiting);
        let mut blocks = BTreeSet::new();
        for change in &changes {
            let block = match *change {
                Change::Segment(id, incarnation, order) => self.manifest.set_segment(id, incarnation, order),
                Change::Generation(ns, generation) => self.manifest.set_generation(ns, generation),
            };
            blocks.extend(block);
        }
        let mut round = Round {
            changes,
            blocks,
            copy: 0,
            stage: Stage::Write,
            ops: Vec::new(),
            in_flight: 0,
            fault: None,
        };
        round.ops = self.writes(volume, &round)?;
        self.round = Some(round);
        Ok(())
    }

    fn writes(&mut self, volume: &Volume, round: &Round) -> Result<Vec<Op>, IoFault> {
        let mut ops = Vec::new();
        for &index in &round.blocks {
            let mut buf = AlignedBuf::new(ALIGN as usize).map_err(|e| no_memory(ALIGN as usize, &e))?;
            buf.copy_from_slice(&self.manifest.block(index));
            let (file, offset) = (volume.manifests[round.copy], u64::from(index) * ALIGN);
            ops.push(Op::Write { file, offset, parts: vec![buf.into_part()] });
            self.bytes_written += ALIGN;
        }
        Ok(ops)
    }

    /// An operation of [`ManifestWriter::next_op`] ended. Returns the changes that are over: durable, or
    /// failed with the fault. After a failure nothing is known of them; the caller stops trusting the tier.
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
            match (round.stage, round.copy) {
                (Stage::Write, _) => {
                    // The other copy is not touched before this one is durable.
                    round.stage = Stage::Sync;
                    round.ops.push(Op::Sync { file: volume.manifests[round.copy] });
                    return None;
                }
                (Stage::Sync, 0) => {
                    (round.copy, round.stage) = (1, Stage::Write);
                    let mut next = self.round.take()?;
                    match self.writes(volume, &next) {
                        Ok(ops) => next.ops = ops,
                        Err(fault) => return Some((next.changes, Err(fault))),
                    }
                    self.round = Some(next);
                    return None;
                }
                (Stage::Sync, _) => {}
            }
        }
        let round = self.round.take()?;
        Some((round.changes, round.fault.map_or(Ok(()), Err)))
    }
}
