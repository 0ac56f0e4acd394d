//! The flusher: the one background task of the SSD tier. It takes frames, tombstones and requests
//! from the queue in order, appends them to the log, and handles the log's events
//! ([`crate::background::log_events`]).
//!
//! Reclaim, checkpoints, probes and background scrub run inside it, one step at a time, so that the
//! log has one owner and one order.

mod jobs;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::{Step, Task};
use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId, SegmentOrder, Sequence};
use pagelith_tiers::ssd::append::{RecordPlace, Unit};
use pagelith_tiers::ssd::log::Log;
use pagelith_tiers::ssd::sync::SyncId;
use rustc_hash::FxHashMap;

use crate::background::checkpoint::Checkpointing;
use crate::background::damage_flush::PendingFlush;
use crate::background::probe::Probe;
use crate::background::quarantine::Purge;
use crate::background::reclaim::{DeferredVictim, Reclaim};
use crate::background::scrub::BackgroundScrub;
use crate::background::stall::StallDetector;
use crate::memory::index::SsdPlace;
use crate::state::core::JobResult;
use crate::state::frame_access::FrameGuard;
use crate::state::shared::Shared;
use crate::state::unsaved::UnsyncedUnit;

/// Longest sleep without work: leases expire and readers leave without a signal.
const IDLE: Duration = Duration::from_millis(50);
/// Longest wait for a completion.
const WAIT: Duration = Duration::from_millis(10);

/// Tags of operations that the engine submits to the log's queue. Lower values are serial numbers
/// of checkpoints.
pub(crate) const TAG_FOOTER: u64 = 1 << 32;
pub(crate) const TAG_RECORD: u64 = 2 << 32;
pub(crate) const TAG_PROBE: u64 = 3 << 32;
pub(crate) const TAG_SCAN: u64 = 4 << 32;
pub(crate) const TAG_SCRUB: u64 = 5 << 32;
pub(crate) const TAG_READBACK: u64 = 6 << 32;

/// What the engine must do once a unit in the log is written or has failed.
pub(crate) enum PendingUnit {
    /// A frame, pinned until its write ends.
    Frame(FrameGuard),
    /// An extent that reclaim moves: fingerprint and old place of each member.
    IoResult(Vec<(u128, SsdPlace)>),
    /// Tombstones, and the request that waits for them; `None` if reclaim carries them forward.
    Tombstones(Option<u64>),
}

/// The request that a sync serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncPurpose {
    Flush(u64),
    Tombstones(u64),
    Reclaim,
    Checkpoint(u64),
}

pub(crate) struct Flusher {
    pub shared: Arc<Shared>,
    pub log: Log,
    pub units: FxHashMap<u64, PendingUnit>,
    pub written: FxHashMap<u64, UnsyncedUnit>,
    pub next_unit: u64,
    /// Segment, bytes and (data only) sequence of each appended unit that the core has not
    /// accounted for.
    appended: Vec<(SegmentId, u64, Option<Sequence>)>,
    /// A unit that waits for a free segment.
    stalled: Option<Unit>,
    /// In the order of the requests; a request that is made again keeps its identifier, hence its
    /// place.
    pub syncs: BTreeMap<SyncId, SyncPurpose>,
    /// Generations in the durable manifest; namespaces that were never cleared are absent.
    pub durable_generations: HashMap<NamespaceId, Generation>,
    /// Namespaces whose tombstones keep reclaim from emptying victims.
    pub blocked_namespaces: BTreeSet<NamespaceId>,
    /// Generations being made durable, with the request that waits for each.
    pub clears: Vec<(NamespaceId, Generation, u64)>,
    pub next_order: SegmentOrder,
    pub reclaim: Option<Reclaim>,
    /// Victims that could not be emptied, by segment.
    pub deferred_victims: HashMap<SegmentId, DeferredVictim>,
    /// Emptied victims that still have readers, and when they were emptied.
    pub draining: Vec<(SegmentId, Mono)>,
    /// `puts_refused` and the index's length when the last reclaim for index space began.
    pub refused_at_reclaim: u64,
    pub entries_at_reclaim: u64,
    pub checkpoint: Option<Checkpointing>,
    pub checkpoint_serial: u64,
    /// Flushes that wait for a checkpoint, in the order of the requests.
    pub pending_flushes: Vec<PendingFlush>,
    pub sealed_since_checkpoint: u32,
    /// Bytes written to the device before this task owned the log.
    pub bytes_before: u64,
    /// A probe of a failed device, and the purge of index entries under way.
    pub probe: Option<Probe>,
    pub purge: Option<Purge>,
    /// Requested tombstones: where each record is, which records are being read back, and which
    /// requests wait for queue space to be read back.
    pub tombstones: HashMap<u64, RecordPlace>,
    pub reading_back: HashMap<u64, (u64, SegmentId)>,
    pub to_read_back: Vec<u64>,
    pub scrub: BackgroundScrub,
    /// Detects that the device completes nothing.
    stall: StallDetector,
    /// Why the tier last stopped.
    pub reason: String,
    pub closing: Option<u64>,
    pub finished: bool,
}

impl Flusher {
    pub fn new(
        shared: Arc<Shared>,
        log: Log,
        next_order: SegmentOrder,
        serial: u64,
        bytes_before: u64,
    ) -> Flusher {
        let stall = StallDetector::new(shared.now());
        Flusher {
            shared,
            log,
            units: FxHashMap::default(),
            written: FxHashMap::default(),
            next_unit: 0,
            appended: Vec::new(),
            stalled: None,
            syncs: BTreeMap::new(),
            durable_generations: HashMap::new(),
            blocked_namespaces: BTreeSet::new(),
            clears: Vec::new(),
            next_order,
            reclaim: None,
            deferred_victims: HashMap::new(),
            draining: Vec::new(),
            refused_at_reclaim: 0,
            entries_at_reclaim: u64::MAX,
            checkpoint: None,
            checkpoint_serial: serial,
            pending_flushes: Vec::new(),
            sealed_since_checkpoint: 0,
            bytes_before,
            probe: None,
            purge: None,
            tombstones: HashMap::new(),
            reading_back: HashMap::new(),
            to_read_back: Vec::new(),
            scrub: BackgroundScrub::default(),
            stall,
            reason: String::new(),
            closing: None,
            finished: false,
        }
    }

    /// The identifier of the next unit.
    pub fn unit_id(&mut self) -> u64 {
        self.next_unit += 1;
        self.next_unit
    }

    /// Request a sync and remember its purpose.
    pub fn sync_for(&mut self, purpose: SyncPurpose) {
        let id = self.log.sync();
        self.syncs.insert(id, purpose);
    }

    /// Release memory whose hold has expired; false if the store was abandoned.
    fn expire(&self) -> bool {
        let mut core = self.shared.lock();
        if !core.stopping {
            crate::state::put_types::expire(&self.shared, &mut core);
        }
        !core.stopping
    }

    fn pump(&mut self, wait: Option<Duration>) -> bool {
        let mut events = Vec::new();
        self.log.pump(wait, &mut events);
        let any = !events.is_empty();
        for event in events {
            self.handle(event);
        }
        if any {
            let (bytes, syncs) = self.log.written();
            let mut core = self.shared.lock();
            core.counters.bytes_to_device = self.bytes_before + bytes;
            core.counters.syncs = syncs;
            drop(core);
            self.shared.progress.raise();
        }
        any
    }

    /// Keep a spare segment ready for when the open one is full.
    fn prepare_segment(&mut self) -> bool {
        // While closing, prepare one only if something remains to be written.
        let moves = self.reclaim.as_ref().is_some_and(Reclaim::needs_room);
        let done = self.closing.is_some() && self.stalled.is_none() && !moves;
        if !self.log.wants_segment() || done {
            return false;
        }
        !self.is_read_only() && self.prepare_free().is_some()
    }

    /// Record writes that the device may have: few while reads are in flight, which would queue
    /// after them.
    fn write_depth(&self) -> usize {
        let config = &self.shared.config;
        (if self.shared.has_recent_reads() {
            config.write_depth_reading()
        } else {
            config.write_depth()
        }) as usize
    }

    /// Whether the tier accepts no writes for now.
    pub fn is_read_only(&self) -> bool {
        !self.log.is_trusted() || self.shared.lock().ssd.as_ref().is_none_or(|s| !s.health.writes())
    }

    /// Stop writing if the device completed nothing for as long as a call may take, so that callers
    /// do not wait for it.
    fn detect_stall(&mut self) {
        let now = self.shared.now();
        if self.stall.observe(self.log.ended(), self.log.in_flight(), now)
            < self.shared.config.deadline()
        {
            return;
        }
        if self.shared.lock().ssd.as_mut().is_some_and(|s| s.health.stop_writing(now)) {
            self.state_changed("the device completes no submitted operation");
        }
    }

    /// Take a final checkpoint after all other work, then end the task.
    fn close(&mut self) -> bool {
        let Some(id) = self.closing else { return false };
        let waiting = self.stalled.is_some() || !self.pending_flushes.is_empty();
        if !self.log.idle() || self.reclaim.is_some() || self.checkpoint.is_some() || waiting {
            return false;
        }
        let answer = match !self.is_read_only() {
            true if self.sealed_since_checkpoint == u32::MAX => JobResult::Done,
            true => {
                self.begin_checkpoint(true);
                // A marker: on the next call no checkpoint is left to take.
                self.sealed_since_checkpoint = u32::MAX;
                return true;
            }
            false => JobResult::Done,
        };
        self.shared.lock().complete_job(id, answer);
        self.finished = true;
        self.shared.progress.raise();
        true
    }
}

impl Task for Flusher {
    fn step(&mut self) -> Step {
        if self.finished {
            return Step::Done;
        }
        if !self.expire() {
            // Abandoned: operations in flight end, and none begins.
            self.log.drop_queued();
            let mut events = Vec::new();
            if self.log.in_flight() == 0 {
                return Step::Done;
            }
            self.log.pump(Some(WAIT), &mut events);
            return Step::Again;
        }
        let mut busy = self.pump(None);
        self.detect_stall();
        busy |= self.step_purge();
        busy |= self.step_probe();
        busy |= self.step_read_back();
        busy |= self.prepare_segment();
        busy |= self.step_reclaim();
        busy |= self.refuse_jobs();
        self.log.limit_writes(self.write_depth());
        busy |= self.take_jobs();
        busy |= self.step_checkpoint();
        busy |= self.step_scrub();
        busy |= self.close();
        if busy {
            return Step::Again;
        }
        if self.log.in_flight() > 0 {
            self.pump(Some(WAIT));
            return Step::Again;
        }
        // Submit gathered records before sleeping.
        if self.pump(None) || !self.log.idle() { Step::Again } else { Step::Idle(IDLE) }
    }
}
