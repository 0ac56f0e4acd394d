//! The SSD log without bytes: which block is in which segment. Segments, recency and the choices of
//! reclaim are those of the store (`pagelith_tiers`); blocks have one size.
//!
//! As in the store, one segment is open, the next one is prepared, and reclaim keeps a number of
//! segments free. So the log holds fewer blocks than its segments have room for.

use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_tiers::policy::admission::VICTIM_SAMPLES;
use pagelith_tiers::policy::{ExtentFacts, SegmentPolicy, TickClock, free_segments_min};
use pagelith_tiers::ssd::segments::{SegmentState, SegmentTable};

use super::blocks::{BlockLocation, BlockState};

/// Bytes of a block. Only ratios of it matter.
pub(super) const BLOCK_BYTES: u64 = 1 << 16;
/// Segments of a log, as the default of `ssd.segment_bytes` makes them.
const SEGMENTS: usize = 64;
/// Fewest segments: one open, one prepared, one free, and one with blocks.
pub(super) const SEGMENTS_MIN: usize = 4;

/// Number of segments of a log of `capacity` blocks, and the blocks of each.
pub(super) fn segments_of(capacity: usize) -> (usize, usize) {
    let segments = capacity.clamp(SEGMENTS_MIN, SEGMENTS);
    (segments, (capacity / segments).max(1))
}

/// A log.
pub(super) struct SimulatedLog {
    table: SegmentTable,
    clock: TickClock,
    policy: Box<dyn SegmentPolicy>,
    /// Blocks appended to each segment, by position.
    records: Vec<Vec<u32>>,
    /// Positions of a segment.
    segment_blocks: usize,
    open: SegmentId,
    spare: Option<SegmentId>,
    next_order: u64,
    /// Blocks that were reinserted by reclaim, and the blocks written in all.
    pub(super) moved: u64,
    pub(super) written: u64,
    /// Sampled locations of each victim since they were taken.
    sampled: Vec<Vec<Option<u32>>>,
}

impl SimulatedLog {
    /// A log of `capacity` blocks; at least [`SEGMENTS_MIN`].
    pub(super) fn new(capacity: usize, policy: Box<dyn SegmentPolicy>) -> SimulatedLog {
        let (segments, segment_blocks) = segments_of(capacity);
        let mut log = SimulatedLog {
            table: SegmentTable::new(segments as u32),
            clock: TickClock::new(1, capacity as u64 * BLOCK_BYTES),
            policy,
            records: vec![Vec::new(); segments],
            segment_blocks,
            open: SegmentId(0),
            spare: None,
            next_order: 1,
            moved: 0,
            written: 0,
            sampled: Vec::new(),
        };
        log.open = log.prepare().unwrap_or(SegmentId(0));
        log.spare = log.prepare();
        log
    }

    /// The sampled locations of the victims since the last call.
    pub(super) fn take_samples(&mut self) -> Vec<Vec<Option<u32>>> {
        std::mem::take(&mut self.sampled)
    }

    /// The current tick.
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// A request for a block on SSD, whose last tick was `before`.
    pub(super) fn record_request(&mut self, location: BlockLocation, before: u64) {
        let now = self.clock.now();
        let segment = self.table.get_mut(location.segment);
        segment.recency_sum = segment.recency_sum.saturating_sub(before) + now;
    }

    /// Write a block that has no location. Blocks that reclaim drops to make room lose theirs.
    pub(super) fn append(&mut self, block: u32, blocks: &mut [BlockState]) {
        self.append_record(block, blocks);
        if !self.is_full() {
            return;
        }
        self.open_next();
        while self.table.count(SegmentState::Free) < free_segments_min(self.records.len()) {
            if !self.reclaim(blocks) {
                break;
            }
        }
    }

    fn append_record(&mut self, block: u32, blocks: &mut [BlockState]) {
        let records = &mut self.records[self.open.0 as usize];
        let location = BlockLocation { segment: self.open, record: records.len() as u32 };
        records.push(block);
        self.written += 1;
        self.clock.append(BLOCK_BYTES);
        let state = &mut blocks[block as usize];
        state.location = Some(location);
        self.table.add_live(self.open, state.tick);
    }

    fn is_full(&self) -> bool {
        self.records[self.open.0 as usize].len() >= self.segment_blocks
    }

    fn prepare(&mut self) -> Option<SegmentId> {
        let free = self.table.next_free()?;
        self.table.set_state(free, SegmentState::Open);
        self.table.get_mut(free).order = SegmentOrder(self.next_order);
        self.next_order += 1;
        self.records[free.0 as usize].clear();
        Some(free)
    }

    /// Seal the open segment, and open the prepared one. Reclaim keeps a segment free, so there is
    /// one.
    fn open_next(&mut self) {
        self.table.set_state(self.open, SegmentState::Sealed);
        self.open = self.spare.take().or_else(|| self.prepare()).unwrap_or(self.open);
        self.spare = self.prepare();
    }

    /// Empty one segment; false if there is no victim.
    fn reclaim(&mut self, blocks: &mut [BlockState]) -> bool {
        let sealed = self.table.sealed();
        let Some(victim) = self.policy.victim(&sealed).map(|at| sealed[at].segment) else {
            return false;
        };
        self.table.set_state(victim, SegmentState::Reclaiming);
        let records = std::mem::take(&mut self.records[victim.0 as usize]);
        let is_live = |(at, block): (usize, &u32)| {
            let location = BlockLocation { segment: victim, record: at as u32 };
            (blocks[*block as usize].location == Some(location)).then_some(*block)
        };
        let live: Vec<u32> = records.iter().enumerate().filter_map(is_live).collect();
        let sample = |at: usize| {
            let at = at * records.len() / VICTIM_SAMPLES;
            is_live((at, records.get(at)?))
        };
        self.sampled.push((0..VICTIM_SAMPLES).map(sample).collect());
        let facts = |block: &u32| ExtentFacts {
            bytes: BLOCK_BYTES,
            tick: blocks[*block as usize].tick,
            depth: blocks[*block as usize].depth,
            pinned: false,
        };
        let facts: Vec<ExtentFacts> = live.iter().map(facts).collect();
        let segment_bytes = self.segment_blocks as u64 * BLOCK_BYTES;
        let budget = (segment_bytes as f64 * self.policy.reinsert_ratio()) as u64;
        let kept = self.policy.reinsert(&facts, self.table.mean_tick(), budget);
        for block in &live {
            let state = &mut blocks[*block as usize];
            self.table.remove_live(victim, state.tick);
            state.location = None;
        }
        self.table.set_state(victim, SegmentState::Free);
        for at in &kept {
            if self.is_full() {
                self.open_next();
            }
            self.append_record(live[*at], blocks);
        }
        self.moved += kept.len() as u64;
        true
    }
}
