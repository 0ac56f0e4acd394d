//! Probes a failed device, and puts the tier back into service.
//!
//! A probe uses a segment that holds nothing. It makes the segment's new incarnation durable in
//! both copies of the manifest, writes the segment's head, syncs it, reads it back and compares. A
//! successful probe says nothing about earlier writes: those were dropped when the device failed,
//! and their segments are reclaimed like others.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, FileId, Op};
use pagelith_io::fault::{FaultOp, IoFault};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder};
use pagelith_layouts::segment::{self, SegmentIdentity};
use pagelith_tiers::ssd::segments::SegmentState;

use crate::background::flusher::{Flusher, TAG_PROBE};

/// The step that a probe waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preparing,
    Writing,
    Syncing,
    Reading,
}

/// A probe under way.
#[derive(Debug)]
pub(crate) struct Probe {
    stage: Stage,
    segment: SegmentId,
}

impl Flusher {
    /// Begin a probe when it is due, or continue it; true if anything was done.
    pub(crate) fn step_probe(&mut self) -> bool {
        match self.probe.as_ref().map(|t| t.stage) {
            Some(Stage::Preparing) => self.log.spare().is_some() && self.write_head(),
            Some(Stage::Writing | Stage::Syncing | Stage::Reading) => false,
            None => self.begin_probe(),
        }
    }

    fn begin_probe(&mut self) -> bool {
        let now = self.shared.now();
        let due = self.shared.lock().ssd.as_ref().is_some_and(|s| s.health.probe_due(now));
        let quiet = self.log.idle() && self.log.in_flight() == 0 && self.reclaim.is_none();
        if !due
            || !quiet
            || self.is_purging()
            || self.checkpoint.is_some()
            || self.closing.is_some()
        {
            return false;
        }
        // A probe in deleted files would succeed and prove nothing.
        if let Some(Err(fault)) = self.shared.volume.as_ref().map(|v| v.disk.check_names()) {
            self.probe_failed(&fault.to_string(), false);
            return true;
        }
        if let Some((identity, _)) = self.log.spare() {
            self.probe = Some(Probe { stage: Stage::Preparing, segment: identity.segment });
            return self.write_head();
        }
        match self.prepare_free() {
            Some(segment) => self.probe = Some(Probe { stage: Stage::Preparing, segment }),
            None => {
                // Without a free segment no write can be probed: a sync must suffice, and reclaim
                // comes next.
                self.probe = Some(Probe { stage: Stage::Reading, segment: SegmentId(0) });
                self.submit_probe(Stage::Syncing, |file, _| Ok(Op::Sync { file }));
            }
        }
        true
    }

    fn write_head(&mut self) -> bool {
        let Some((identity, order)) = self.log.spare() else { return false };
        let Some(bytes) = self.head(identity, order) else { return false };
        self.submit_probe(Stage::Writing, |file, offset| {
            let mut buf = AlignedBuf::new(ALIGN as usize)?;
            buf.copy_from_slice(&bytes);
            Ok(Op::Write { file, offset, parts: vec![buf.into_part()] })
        });
        true
    }

    fn head(&self, identity: SegmentIdentity, order: SegmentOrder) -> Option<[u8; ALIGN as usize]> {
        let volume = self.shared.volume.as_ref()?;
        Some(segment::encode_head(identity, order, volume.geometry.segment_bytes))
    }

    fn submit_probe(&mut self, stage: Stage, op: impl FnOnce(FileId, u64) -> std::io::Result<Op>) {
        let (Some(volume), Some(probe)) = (self.shared.volume.clone(), self.probe.as_mut()) else {
            return;
        };
        let (file, offset) = volume.place(probe.segment, 0);
        probe.stage = stage;
        let submitted =
            op(file, offset).ok().is_some_and(|op| self.log.submit(TAG_PROBE, op).is_ok());
        if !submitted {
            self.probe_failed("no memory or no room in the queue", false);
        }
    }

    /// An operation of the probe ended.
    pub(crate) fn probe_ended(&mut self, completion: Completion) {
        let Some(stage) = self.probe.as_ref().map(|t| t.stage) else { return };
        if let Err(fault) = completion.result {
            return self.probe_failed(&fault.to_string(), fault.op == FaultOp::Sync);
        }
        match stage {
            Stage::Preparing => {}
            Stage::Writing => self.submit_probe(Stage::Syncing, |file, _| Ok(Op::Sync { file })),
            Stage::Syncing if self.log.spare().is_none() => self.probe_succeeded(),
            Stage::Syncing => self.submit_probe(Stage::Reading, |file, offset| {
                let buf = AlignedBuf::new(ALIGN as usize)?;
                Ok(Op::Read { file, offset, parts: vec![buf.into_part()] })
            }),
            Stage::Reading => {
                let written =
                    self.log.spare().and_then(|(identity, order)| self.head(identity, order));
                let read = completion.op.into_parts().pop();
                let same = read.zip(written).is_some_and(|(part, head)| part.bytes() == head);
                match same {
                    true => self.probe_succeeded(),
                    // The device acknowledges writes that it does not make.
                    false => self.probe_failed("read-back differs from what was written", true),
                }
            }
        }
    }

    /// The segment of a probe could not be prepared.
    pub(crate) fn not_ready(&mut self, segment: SegmentId, fault: &IoFault) {
        self.free_segment(segment);
        if self.probe.is_some() {
            // Not a failed sync: `Event::ManifestFailed` reports the manifest's fault itself.
            self.probe_failed(&fault.to_string(), false);
        }
    }

    fn probe_failed(&mut self, reason: &str, sync: bool) {
        self.probe = None;
        reason.clone_into(&mut self.reason);
        // The next probe takes another segment, if one is free.
        if let Some(segment) = self.log.drop_spare() {
            self.free_segment(segment);
        }
        let now = self.shared.now();
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let changed = ssd.health.probe_failed(sync, now);
        let state = ssd.health.state();
        drop(core);
        tracing::warn!(reason, state = state.name(), "probe of the ssd tier failed");
        if changed {
            self.state_changed(reason);
        }
    }

    /// The tier is on again: queue the frames in DRAM whose writes were refused.
    fn probe_succeeded(&mut self) {
        self.probe = None;
        if !self.log.resume_after_sync_fault() {
            return self.probe_failed("the log still has work from before the failure", false);
        }
        self.deferred_victims.clear();
        let now = self.shared.now();
        let mut core = self.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            ssd.health.probe_ok(now);
        }
        let again = core.requeue_unsaved();
        // The manifest did not take these generations; their requests have failed already.
        let missing: Vec<_> = core
            .visibility
            .generations()
            .iter()
            .filter(|(ns, generation)| self.durable_generations.get(ns) != Some(generation))
            .map(|(ns, generation)| (*ns, *generation))
            .collect();
        drop(core);
        for (namespace, generation) in missing {
            self.log.raise_generation(namespace, generation);
        }
        tracing::warn!(pages = again, "ssd tier is on again");
        self.shared.progress.raise();
    }

    /// Prepare the next free segment and return it; `None` if no segment is free.
    pub(crate) fn prepare_free(&mut self) -> Option<SegmentId> {
        let mut core = self.shared.lock();
        let ssd = core.ssd.as_mut()?;
        let id = ssd.segments.next_free()?;
        ssd.segments.set_state(id, SegmentState::Open);
        let incarnation = Incarnation(ssd.segments.get(id).incarnation.0 + 1);
        drop(core);
        self.log.prepare(id, incarnation, self.next_order);
        self.next_order.0 += 1;
        Some(id)
    }

    /// Free a segment that was prepared, completely or not, and never written to.
    fn free_segment(&mut self, segment: SegmentId) {
        let mut core = self.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            // Its order is the newest of the free segments, so another one is taken next.
            ssd.segments.set_state(segment, SegmentState::Free);
        }
    }
}
