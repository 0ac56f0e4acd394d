//! The flusher: the one background task. It takes frames, tombstones and requests in order, gives them to
//! the log, and acts on what the log reports ([`crate::flushed`]). Reclaim and checkpoints run inside it,
//! step by step, so that the log has one owner and one order.

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

use crate::checkpoint::Checkpointing;
use crate::core::Answer;
use crate::damage::FlushBehind;
use crate::frame_io::Held;
use crate::index::SsdPlace;
use crate::probe::Trial;
use crate::quarantine::Purge;
use crate::reclaim::{Kept, Reclaim};
use crate::scrub::Background;
use crate::shared::Shared;
use crate::stuck::Stuck;

/// Longest that the flusher sleeps with nothing to do: leases end and readers leave without a signal.
const IDLE: Duration = Duration::from_millis(50);
/// Longest wait for a completion.
const WAIT: Duration = Duration::from_millis(10);

/// Tags of the operations that are submitted beside the log's own; below them are the numbers of checkpoints.
pub(crate) const TAG_FOOTER: u64 = 1 << 32;
pub(crate) const TAG_RECORD: u64 = 2 << 32;
pub(crate) const TAG_TRIAL: u64 = 3 << 32;
pub(crate) const TAG_SCAN: u64 = 4 << 32;
pub(crate) const TAG_SCRUB: u64 = 5 << 32;
pub(crate) const TAG_READBACK: u64 = 6 << 32;

/// What a unit in the log is to the engine.
pub(crate) enum Appended {
    /// A frame, held until the write is over.
    Frame(Held),
    /// An extent that reclaim wrote again: fingerprint and old place of each member.
    Moved(Vec<(u128, SsdPlace)>),
    /// Tombstones, and who waits for them; nobody for those that reclaim wrote again.
    Tombstones(Option<u64>),
}

/// Objects written and not yet durable.
pub(crate) struct Written {
    /// Of what was put.
    pub namespace: Option<NamespaceId>,
    pub members: Vec<(u128, SsdPlace)>,
    pub bytes: u64,
    /// Where reclaim took each member from; empty for what was put.
    pub from: Vec<SsdPlace>,
}

/// Why a sync was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Flush(u64),
    Tombstones(u64),
    Reclaim,
    Checkpoint(u64),
}

pub(crate) struct Flusher {
    pub shared: Arc<Shared>,
    pub log: Log,
    pub units: FxHashMap<u64, Appended>,
    pub written: FxHashMap<u64, Written>,
    pub next_unit: u64,
    /// Of each unit that was appended: its segment, its bytes and, of data, its sequence; what the core does not know yet.
    appended: Vec<(SegmentId, u64, Option<Sequence>)>,
    /// A unit that waits for a segment.
    stalled: Option<Unit>,
    /// In the order they were asked for, which those keep that are asked for again.
    pub syncs: BTreeMap<SyncId, Purpose>,
    /// Generations that the manifest durably holds; namespaces that were never cleared are not in it.
    pub durable_generations: HashMap<NamespaceId, Generation>,
    /// Namespaces whose tombstones keep victims from being emptied.
    pub stuck: BTreeSet<NamespaceId>,
    /// Generations being made durable, and who waits.
    pub clears: Vec<(NamespaceId, Generation, u64)>,
    pub next_order: SegmentOrder,
    pub reclaim: Option<Reclaim>,
    /// Victims that could not be emptied.
    pub kept: HashMap<SegmentId, Kept>,
    /// Emptied victims that somebody still reads, and since when.
    pub leaving: Vec<(SegmentId, Mono)>,
    /// Refused puts that room was made for, and entries in the index when that last began.
    pub refused_seen: u64,
    pub entries_before: u64,
    pub checkpoint: Option<Checkpointing>,
    pub checkpoint_serial: u64,
    /// Flushes that wait for a checkpoint, in the order they were asked for.
    pub behind: Vec<FlushBehind>,
    pub sealed_since_checkpoint: u32,
    /// Bytes written to the device before this task had the log.
    pub bytes_before: u64,
    /// A trial of a device that failed, and entries on their way out of the index.
    pub trial: Option<Trial>,
    pub purge: Option<Purge>,
    /// Tombstones that somebody waits for: where they lie, which are being read back, and which wait for that.
    pub tombstones: HashMap<u64, RecordPlace>,
    pub reading_back: HashMap<u64, (u64, SegmentId)>,
    pub to_read_back: Vec<u64>,
    pub scrub: Background,
    /// Whether the device ends what was submitted.
    device: Stuck,
    /// Why the tier was last stopped.
    pub reason: String,
    pub closing: Option<u64>,
    pub over: bool,
}

impl Flusher {
    pub fn new(
        shared: Arc<Shared>,
        log: Log,
        next_order: SegmentOrder,
        serial: u64,
        bytes_before: u64,
    ) -> Flusher {
        let device = Stuck::new(shared.now());
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
            stuck: BTreeSet::new(),
            clears: Vec::new(),
            next_order,
            reclaim: None,
            kept: HashMap::new(),
            leaving: Vec::new(),
            refused_seen: 0,
            entries_before: u64::MAX,
            checkpoint: None,
            checkpoint_serial: serial,
            behind: Vec::new(),
            sealed_since_checkpoint: 0,
            bytes_before,
            trial: None,
            purge: None,
            tombstones: HashMap::new(),
            reading_back: HashMap::new(),
            to_read_back: Vec::new(),
            scrub: Background::default(),
            device,
            reason: String::new(),
            closing: None,
            over: false,
        }
    }

    /// A name for the next unit.
    pub fn unit_id(&mut self) -> u64 {
        self.next_unit += 1;
        self.next_unit
    }

    /// Ask for a sync and remember why.
    pub fn sync_for(&mut self, purpose: Purpose) {
        let id = self.log.sync();
        self.syncs.insert(id, purpose);
    }

    /// Let go what holds memory back only until its time is up; false if the store is abandoned.
    fn expire(&self) -> bool {
        let mut core = self.shared.lock();
        if !core.stopping {
            crate::put::expire(&self.shared, &mut core);
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

    /// Keep a segment ready for when the open one is full.
    fn prepare_segment(&mut self) -> bool {
        // While closing, only for what is still to be written.
        let moves = self.reclaim.as_ref().is_some_and(Reclaim::needs_room);
        let done = self.closing.is_some() && self.stalled.is_none() && !moves;
        if !self.log.wants_segment() || done {
            return false;
        }
        !self.is_read_only() && self.prepare_free().is_some()
    }

    /// Writes that the device may have: few while somebody reads, who would wait for them.
    fn write_depth(&self) -> usize {
        let config = &self.shared.config;
        (if self.shared.is_read() { config.write_depth_reading() } else { config.write_depth() }) as usize
    }

    /// Whether nothing is written for now.
    pub fn is_read_only(&self) -> bool {
        !self.log.is_trusted() || self.shared.lock().ssd.as_ref().is_none_or(|s| !s.health.writes())
    }

    /// A device that ends nothing for as long as any call may take is not waited for: callers go on without it.
    fn notice_stuck(&mut self) {
        let now = self.shared.now();
        if self.device.look(self.log.ended(), self.log.in_flight(), now) < self.shared.config.deadline() {
            return;
        }
        if self.shared.lock().ssd.as_mut().is_some_and(|s| s.health.stop_writing(now)) {
            self.state_changed("nothing that was submitted ends");
        }
    }

    /// A checkpoint behind everything, then the end.
    fn close(&mut self) -> bool {
        let Some(id) = self.closing else { return false };
        let waiting = self.stalled.is_some() || !self.behind.is_empty();
        if !self.log.idle() || self.reclaim.is_some() || self.checkpoint.is_some() || waiting {
            return false;
        }
        let answer = match !self.is_read_only() {
            true if self.sealed_since_checkpoint == u32::MAX => Answer::Done,
            true => {
                self.begin_checkpoint(true);
                // Set so that the second time round there is nothing left to do.
                self.sealed_since_checkpoint = u32::MAX;
                return true;
            }
            false => Answer::Done,
        };
        self.shared.lock().answer(id, answer);
        self.over = true;
        self.shared.progress.raise();
        true
    }
}

impl Task for Flusher {
    fn step(&mut self) -> Step {
        if self.over {
            return Step::Done;
        }
        if !self.expire() {
            // Abandoned: what is under way ends, nothing new begins.
            self.log.drop_made();
            let mut events = Vec::new();
            if self.log.in_flight() == 0 {
                return Step::Done;
            }
            self.log.pump(Some(WAIT), &mut events);
            return Step::Again;
        }
        let mut busy = self.pump(None);
        self.notice_stuck();
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
        // What was only gathered is submitted before sleeping.
        if self.pump(None) || !self.log.idle() { Step::Again } else { Step::Idle(IDLE) }
    }
}
