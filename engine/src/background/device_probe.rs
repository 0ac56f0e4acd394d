//! Probes a failed device, so that the tier can be put back into service.
//!
//! A probe uses a segment that holds nothing. It makes the segment's new incarnation durable in
//! both copies of the manifest, writes the segment's header, syncs it, reads it back and compares.
//! A successful probe says nothing about earlier writes: those were dropped when the device failed,
//! and their segments are reclaimed like others.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, FileId, Op};
use pagelith_io::fault::{FaultOp, IoFault};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_layouts::segment::{self, SegmentIdentity};

use crate::background::log_context::LogContext;
use crate::background::log_op::LogOp;

/// The step that a probe waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeStep {
    Preparing,
    Writing,
    Syncing,
    Reading,
}

/// The probe under way, if any: its step and its segment.
#[derive(Debug, Default)]
pub(crate) struct DeviceProbe(Option<(ProbeStep, SegmentId)>);

impl DeviceProbe {
    /// Begin a probe when it is due and nothing else is under way (`is_quiet`), or continue it;
    /// true if anything was done.
    pub fn step(&mut self, cx: &mut LogContext, is_quiet: bool) -> bool {
        match self.0 {
            Some((ProbeStep::Preparing, _)) => cx.log.spare().is_some() && self.write_head(cx),
            Some((ProbeStep::Writing | ProbeStep::Syncing | ProbeStep::Reading, _)) => false,
            None => is_quiet && self.begin(cx),
        }
    }

    fn begin(&mut self, cx: &mut LogContext) -> bool {
        let now = cx.shared.now();
        let due = cx.shared.lock().ssd.as_ref().is_some_and(|s| s.health.probe_due(now));
        let quiet = cx.log.idle() && cx.log.in_flight() == 0;
        if !due || !quiet || cx.is_purging() || cx.is_closing() {
            return false;
        }
        // A probe in deleted files would succeed and prove nothing.
        if let Err(fault) = cx.volume.disk.check_names() {
            self.failed(cx, &fault.to_string(), false);
            return true;
        }
        if let Some((identity, _)) = cx.log.spare() {
            self.0 = Some((ProbeStep::Preparing, identity.segment));
            return self.write_head(cx);
        }
        match cx.prepare_free() {
            Some(segment) => self.0 = Some((ProbeStep::Preparing, segment)),
            None => {
                // Without a free segment no write can be probed: a sync must suffice, and reclaim
                // comes next.
                self.0 = Some((ProbeStep::Reading, SegmentId(0)));
                self.submit(cx, ProbeStep::Syncing, |file, _| Ok(Op::Sync { file }));
            }
        }
        true
    }

    fn write_head(&mut self, cx: &mut LogContext) -> bool {
        let Some((identity, order)) = cx.log.spare() else { return false };
        let bytes = head(cx, identity, order);
        self.submit(cx, ProbeStep::Writing, |file, offset| {
            let mut buf = AlignedBuf::new(ALIGN as usize)?;
            buf.copy_from_slice(&bytes);
            Ok(Op::Write { file, offset, parts: vec![buf.into_part()] })
        });
        true
    }

    fn submit(
        &mut self,
        cx: &mut LogContext,
        next: ProbeStep,
        op: impl FnOnce(FileId, u64) -> std::io::Result<Op>,
    ) {
        let Some((step, segment)) = self.0.as_mut() else { return };
        let (file, offset) = cx.volume.file_offset(*segment, 0);
        *step = next;
        let tag = LogOp::Probe.encode();
        if !op(file, offset).is_ok_and(|op| cx.log.submit(tag, op).is_ok()) {
            self.failed(cx, "no memory or no room in the queue", false);
        }
    }

    /// An operation of the probe ended; true if the probe succeeded.
    pub fn ended(&mut self, cx: &mut LogContext, completion: Completion) -> bool {
        let Some((step, _)) = self.0 else { return false };
        if let Err(fault) = completion.result {
            self.failed(cx, &fault.to_string(), fault.op == FaultOp::Sync);
            return false;
        }
        match step {
            ProbeStep::Preparing => false,
            ProbeStep::Writing => {
                self.submit(cx, ProbeStep::Syncing, |file, _| Ok(Op::Sync { file }));
                false
            }
            ProbeStep::Syncing if cx.log.spare().is_none() => self.succeeded(cx),
            ProbeStep::Syncing => {
                self.submit(cx, ProbeStep::Reading, |file, offset| {
                    let buf = AlignedBuf::new(ALIGN as usize)?;
                    Ok(Op::Read { file, offset, parts: vec![buf.into_part()] })
                });
                false
            }
            ProbeStep::Reading => {
                let written = cx.log.spare().map(|(identity, order)| head(cx, identity, order));
                let read = completion.op.into_parts().pop();
                if read.zip(written).is_some_and(|(part, head)| part.bytes() == head) {
                    return self.succeeded(cx);
                }
                // The device acknowledges writes that it does not make.
                self.failed(cx, "read-back differs from what was written", true);
                false
            }
        }
    }

    /// A segment could not be prepared; the probe may have waited for it.
    pub fn not_ready(&mut self, cx: &mut LogContext, fault: &IoFault) {
        if self.0.is_some() {
            // Not a failed sync: `LogEvent::ManifestFailed` reports the manifest's fault itself.
            self.failed(cx, &fault.to_string(), false);
        }
    }

    fn failed(&mut self, cx: &mut LogContext, reason: &str, sync: bool) {
        self.0 = None;
        reason.clone_into(&mut cx.reason);
        // The next probe takes another segment, if one is free.
        if let Some(segment) = cx.log.drop_spare() {
            cx.free_segment(segment);
        }
        let now = cx.shared.now();
        let mut core = cx.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let changed = ssd.health.probe_failed(sync, now);
        let state = ssd.health.state();
        drop(core);
        tracing::warn!(
            reason,
            state = state.name(),
            "test of the ssd tier failed, another one follows; check the drive"
        );
        if changed {
            cx.state_changed(reason);
        }
    }

    /// The device works. False if the log cannot continue yet, which fails the probe.
    fn succeeded(&mut self, cx: &mut LogContext) -> bool {
        self.0 = None;
        let resumed = cx.log.resume_after_sync_fault();
        if !resumed {
            self.failed(cx, "the log still has work from before the failure", false);
        }
        resumed
    }
}

fn head(cx: &LogContext, identity: SegmentIdentity, order: SegmentOrder) -> [u8; ALIGN as usize] {
    segment::encode_head(identity, order, cx.volume.geometry.segment_bytes)
}
