//! The SSD log without bytes: which object is in which segment. Segments, recency and the choices
//! of reclaim are those of the store (`pagelith_tiers`).
//!
//! As in the store, one segment is open, the next one is prepared, and reclaim keeps a number of
//! segments free. So the log holds fewer blocks than its segments have room for.

use std::collections::HashSet;

use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_tiers::policy::admission::VICTIM_SAMPLES;
use pagelith_tiers::policy::{
    LiveRecordFacts, SegmentPolicy, TICKS_OF_LEAVING, TickClock, free_segments_min,
};
use pagelith_tiers::ssd::segments::{SegmentState, SegmentTable};

use super::blocks::{BlockLocation, BlockState, Objects};

/// Bytes of a block. Only ratios of it matter.
pub(super) const BLOCK_BYTES: u64 = 1 << 16;
/// Segments of a log, as the default of `ssd.segment_bytes` makes them.
const SEGMENTS: usize = 64;
/// Fewest segments: one open, one prepared, one free, and one with blocks.
pub(super) const SEGMENTS_MIN: usize = 4;

/// Number of segments of a log of `capacity` blocks, and the blocks of each. Each has room for an
/// object of `largest` blocks if the log has room for [`SEGMENTS_MIN`] of them.
pub(super) fn segments_of(capacity: usize, largest: usize) -> (usize, usize) {
    let segments = (capacity / largest.max(1)).clamp(SEGMENTS_MIN, SEGMENTS);
    (segments, (capacity / segments).max(1))
}

/// A log.
pub(super) struct SimulatedLog {
    table: SegmentTable,
    clock: TickClock,
    policy: Box<dyn SegmentPolicy>,
    objects: Objects,
    /// Objects appended to each segment, by position.
    records: Vec<Vec<u32>>,
    /// Blocks that a segment has room for, and those that the open one has left.
    segment_blocks: usize,
    open_left: usize,
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
    /// A log of `capacity` blocks; at least [`SEGMENTS_MIN`] of the largest object.
    pub(super) fn new(
        capacity: usize,
        objects: Objects,
        policy: Box<dyn SegmentPolicy>,
    ) -> SimulatedLog {
        let (segments, segment_blocks) = segments_of(capacity, objects.state_blocks);
        let mut log = SimulatedLog {
            table: SegmentTable::new(segments as u32),
            clock: TickClock::new(TICKS_OF_LEAVING, capacity as u64 * BLOCK_BYTES),
            policy,
            objects,
            records: vec![Vec::new(); segments],
            segment_blocks,
            open_left: segment_blocks,
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

    /// The tick of an object on SSD changes from `before` to `tick`.
    pub(super) fn set_tick(&mut self, location: BlockLocation, before: u64, tick: u64) {
        let segment = self.table.get_mut(location.segment);
        segment.recency_sum = segment.recency_sum.saturating_sub(before) + tick;
    }

    /// Write an object that has no location. Objects that reclaim drops to make room lose theirs.
    pub(super) fn append(&mut self, object: u32, blocks: &mut [BlockState]) {
        if !self.fits(object) {
            self.advance(blocks);
        }
        self.append_record(object, blocks);
        if self.open_left == 0 {
            self.advance(blocks);
        }
    }

    /// Open the next segment, and reclaim until enough are free.
    fn advance(&mut self, blocks: &mut [BlockState]) {
        self.open_next();
        while self.table.count(SegmentState::Free) < free_segments_min(self.records.len()) {
            if !self.reclaim(blocks) {
                break;
            }
        }
    }

    fn append_record(&mut self, object: u32, blocks: &mut [BlockState]) {
        let records = &mut self.records[self.open.0 as usize];
        let location = BlockLocation { segment: self.open, record: records.len() as u32 };
        records.push(object);
        let bytes = self.bytes(object);
        self.written += bytes / BLOCK_BYTES;
        self.open_left = self.open_left.saturating_sub(self.objects.blocks(object));
        self.clock.append(bytes);
        let state = &mut blocks[object as usize];
        state.location = Some(location);
        self.table.add_live(self.open, state.tick);
    }

    fn bytes(&self, object: u32) -> u64 {
        self.objects.blocks(object) as u64 * BLOCK_BYTES
    }

    fn fits(&self, object: u32) -> bool {
        self.objects.blocks(object) <= self.open_left
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
        self.open_left = self.segment_blocks;
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
        let leaving = self.clock.now().saturating_sub(TICKS_OF_LEAVING);
        let live: Vec<u32> = records.iter().enumerate().filter_map(is_live).collect();
        let facts = |block: &u32| LiveRecordFacts {
            bytes: self.bytes(*block),
            tick: blocks[*block as usize].tick,
            depth: blocks[*block as usize].depth,
            pinned: false,
        };
        let facts: Vec<LiveRecordFacts> = live.iter().map(facts).collect();
        let segment_bytes = self.segment_blocks as u64 * BLOCK_BYTES;
        let budget = (segment_bytes as f64 * self.policy.reinsert_ratio()) as u64;
        let kept = self.policy.reinsert(&facts, self.table.mean_tick(), budget);
        let survivors: HashSet<u32> = kept.iter().map(|at| live[*at]).collect();
        let mut given_up: Vec<Option<u32>> = records.iter().enumerate().map(is_live).collect();
        given_up.retain(|block| block.is_none_or(|block| !survivors.contains(&block)));
        let sample = |at: usize| {
            // Objects that leave first are worth nothing.
            let stays = |block: &u32| blocks[*block as usize].tick > leaving;
            given_up.get(at * given_up.len() / VICTIM_SAMPLES)?.filter(stays)
        };
        self.sampled.push((0..VICTIM_SAMPLES).map(sample).collect());
        for block in &live {
            let state = &mut blocks[*block as usize];
            self.table.remove_live(victim, state.tick);
            state.location = None;
        }
        self.table.set_state(victim, SegmentState::Free);
        for at in &kept {
            if !self.fits(live[*at]) {
                self.open_next();
            }
            self.append_record(live[*at], blocks);
            self.moved += self.objects.blocks(live[*at]) as u64;
        }
        true
    }
}
