//! DRAM and SSD log without bytes, with the policies of the store. A request does what a cache
//! controller does to the store: it looks up the longest stored prefix, gets it, and puts the rest.
//!
//! With states a prefix is of use only up to a page that has its state, as in models with recurrent
//! layers. The last whole page of a request gets one.

use std::sync::Arc;

use pagelith_tiers::policy::admission::{Admission, BatchKind, PolicyKey, TouchedPage};
use pagelith_tiers::policy::{
    FramePolicy, LastRequests, Predictions, Recency, SegmentPolicy, StateLookup, SupersededStates,
    TICKS_OF_LEAVING, WATCHED_PAGES,
};

use super::blocks::{BlockState, Objects};
use super::counts::Counts;
use super::dram::{Dram, fingerprint};
use super::log::{BLOCK_BYTES, SimulatedLog};
use super::policy::StatesRule;
use super::requests::Request;

/// Blocks of a batch, as `pagelith replay` and SGLang's HiCache have them.
const BATCH_BLOCKS: usize = 128;

/// The hash of an object, for admission and predictions.
fn hash_of(object: u32) -> u64 {
    fingerprint(object) as u64
}

/// The SSD tier.
struct Ssd {
    log: SimulatedLog,
    admission: Option<Admission>,
    /// Share of the blocks put that may be written.
    write_budget: Option<f64>,
}

/// The two tiers, either of which may be absent.
pub(super) struct TwoTiers {
    objects: Objects,
    blocks: Vec<BlockState>,
    dram: Option<Dram>,
    ssd: Option<Ssd>,
    states_rule: StatesRule,
    superseded: SupersededStates<u32>,
    /// Hints that a session has ended.
    hints: Predictions,
    request: u64,
    counts: Counts,
}

/// What a simulation has besides tiers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) states: StatesRule,
    /// The setting `hints.trust`.
    pub(super) trust: f64,
}

impl TwoTiers {
    /// Empty tiers, with `dram` blocks of DRAM and without an SSD. Without blocks of DRAM there is
    /// none.
    ///
    /// # Errors
    /// The system has no memory, or the policy is unknown.
    pub(super) fn new(
        objects: Objects,
        (dram, ssd): (usize, usize),
        rules: Rules,
        policy: impl FnOnce(&Arc<LastRequests>) -> Option<Box<dyn FramePolicy>>,
    ) -> anyhow::Result<TwoTiers> {
        let capacity = (dram + ssd) as u64;
        let dram = Some(Dram::new(dram, objects, policy)?).filter(|_| dram > 0);
        Ok(TwoTiers {
            objects,
            blocks: vec![BlockState::default(); objects.count()],
            dram,
            ssd: None,
            states_rule: rules.states,
            superseded: SupersededStates::new(capacity),
            hints: Predictions::new(1, rules.trust, capacity),
            request: 0,
            counts: Counts::default(),
        })
    }

    /// Add an SSD of `capacity` blocks. Without admission every block is written. `write_budget` is
    /// the share of the blocks put that may be written.
    pub(super) fn add_ssd(
        &mut self,
        capacity: usize,
        reclaim: Box<dyn SegmentPolicy>,
        admission: Option<Admission>,
        write_budget: Option<f64>,
    ) {
        let log = SimulatedLog::new(capacity, self.objects, reclaim);
        self.ssd = Some(Ssd { log, admission, write_budget });
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> Counts {
        let (written, moved) = self.ssd.as_ref().map_or((0, 0), |s| (s.log.written, s.log.moved));
        Counts { written, moved, ..self.counts }
    }

    /// Kill the store and open it again: blocks that only DRAM has are lost, and admission
    /// continues with its learned state.
    pub(super) fn reopen(
        &mut self,
        policy: impl FnOnce(&Arc<LastRequests>) -> Option<Box<dyn FramePolicy>>,
        restart: impl FnOnce(&Admission) -> Admission,
    ) -> anyhow::Result<()> {
        if let Some(dram) = self.dram.as_mut() {
            *dram = Dram::new(dram.blocks(), self.objects, policy)?;
        }
        self.blocks.iter_mut().for_each(|block| block.frame = None);
        if let Some(admission) = self.ssd.as_mut().and_then(|ssd| ssd.admission.as_mut()) {
            *admission = restart(admission);
        }
        Ok(())
    }

    fn is_resident(&self, object: u32) -> bool {
        self.blocks[object as usize].is_resident()
    }

    fn leading_run(&self, blocks: &[u32]) -> usize {
        blocks.iter().take_while(|block| self.is_resident(**block)).count()
    }

    /// One request.
    pub(super) fn request(&mut self, request: &Request<'_>) {
        self.request += 1;
        let Request { blocks, whole, .. } = *request;
        if !self.hints.is_empty() {
            blocks.iter().for_each(|block| _ = self.hints.request(hash_of(*block)));
        }
        let present = self.leading_run(blocks);
        let found = match self.objects.state_blocks {
            0 => present,
            _ => self.look_up_states(&blocks[..whole], present),
        };
        let mut hits = 0;
        while hits < found {
            let batch = hits..found.min(hits + BATCH_BLOCKS);
            let run = batch.start + self.leading_run(&blocks[batch.clone()]);
            self.get(&blocks[batch.start..run], batch.start);
            hits = run;
            if run < batch.end {
                break;
            }
        }
        if self.objects.state_blocks > 0 && found > 0 {
            self.get_state(blocks[found - 1], found - 1);
        }
        let absent = if self.objects.state_blocks > 0 { present.max(hits) } else { hits };
        let orphans = blocks[absent..].iter().filter(|block| self.is_resident(**block)).count();
        self.counts.requested += blocks.len() as u64;
        self.counts.orphans += orphans as u64;
        for first in (hits..blocks.len()).step_by(BATCH_BLOCKS) {
            let end = blocks.len().min(first + BATCH_BLOCKS);
            self.put(&blocks[first..end], first);
        }
        if self.objects.state_blocks > 0 && whole > 0 {
            self.put_state(blocks[whole - 1], whole - 1);
        }
        if request.ends_session {
            self.end_session(blocks);
        }
    }

    /// The usable prefix of these pages, of which `present` are: up to the last page that has a
    /// state.
    fn look_up_states(&mut self, pages: &[u32], present: usize) -> usize {
        let present = present.min(pages.len());
        let objects = self.objects;
        let has_state = |page: &u32| self.is_resident(objects.state(*page));
        let states: Vec<bool> = pages[..present].iter().map(has_state).collect();
        let usable = states.iter().rposition(|state| *state).map_or(0, |page| page + 1);
        // A lookup touches all pages that it finds.
        (0..present).for_each(|page| self.touch(pages[page], page));
        for page in (0..usable).filter(|page| states[*page]) {
            if self.states_rule == StatesRule::Refresh || page + 1 == usable {
                self.touch(objects.state(pages[page]), page);
            }
        }
        if self.states_rule == StatesRule::Supersede {
            let superseded = self.superseded.look_up(&StateLookup {
                hash: &|page| hash_of(objects.state(pages[page])),
                name: &|page| objects.state(pages[page]),
                pages: pages.len(),
                states: &states,
                usable,
            });
            superseded.iter().for_each(|page| self.leave_dram_first(objects.state(pages[*page])));
        }
        usable
    }

    /// Read the state from which a prompt goes on.
    fn get_state(&mut self, page: u32, depth: usize) {
        let state = self.objects.state(page);
        if self.is_resident(state) {
            self.promote(&[(state, self.recency(depth))]);
            self.write(&[state], BatchKind::Get);
        }
    }

    fn put_state(&mut self, page: u32, depth: usize) {
        let state = self.objects.state(page);
        let is_new = !self.is_resident(state);
        self.put(&[state], depth);
        if is_new && let Some(before) = self.superseded.put(hash_of(state)) {
            self.leave_dram_first(before);
        }
    }

    /// The hint that the session of this request has ended. As in the store, the head of the prompt
    /// is not watched, because other sessions may have it too.
    fn end_session(&mut self, blocks: &[u32]) {
        let last = blocks.len().saturating_sub(1);
        let first = blocks.len().saturating_sub(WATCHED_PAGES).max(1).min(last);
        let watched: Vec<u64> = blocks[first..].iter().map(|block| hash_of(*block)).collect();
        if !self.hints.predict(0, &watched) {
            return;
        }
        for block in blocks {
            self.demote(*block);
            if self.objects.state_blocks > 0 {
                self.demote(self.objects.state(*block));
            }
        }
    }

    /// An object leaves DRAM first, until its next request.
    fn leave_dram_first(&mut self, object: u32) {
        let frame = self.blocks[object as usize].frame;
        if let (Some(frame), Some(dram)) = (frame, self.dram.as_mut()) {
            dram.demote(frame);
        }
    }

    /// An object leaves both tiers first, until its next request.
    fn demote(&mut self, object: u32) {
        self.leave_dram_first(object);
        let state = &mut self.blocks[object as usize];
        let Some(ssd) = self.ssd.as_mut() else { return };
        let tick = ssd.log.now().saturating_sub(TICKS_OF_LEAVING);
        let before = std::mem::replace(&mut state.tick, tick);
        state.location.into_iter().for_each(|location| ssd.log.set_tick(location, before, tick));
    }

    fn recency(&self, depth: usize) -> Recency {
        Recency { request: self.request, depth: depth as u32 }
    }

    /// A request for an object.
    fn touch(&mut self, object: u32, depth: usize) {
        let recency = self.recency(depth);
        let now = self.ssd.as_ref().map_or(0, |ssd| ssd.log.now());
        let state = &mut self.blocks[object as usize];
        let before = std::mem::replace(&mut state.tick, now);
        if let (Some(location), Some(ssd)) = (state.location, self.ssd.as_mut()) {
            ssd.log.set_tick(location, before, now);
        }
        if let (Some(frame), Some(dram)) = (state.frame, self.dram.as_mut()) {
            dram.touch(frame, recency);
        }
    }

    /// Insert objects into DRAM that were read from SSD.
    fn promote(&mut self, read: &[(u32, Recency)]) {
        let Some(dram) = self.dram.as_mut() else { return };
        for (object, at) in read {
            if self.blocks[*object as usize].frame.is_none() {
                dram.insert(*object, *at, &mut self.blocks);
            }
        }
    }

    /// A batch of gets that all hit; those from SSD are promoted.
    fn get(&mut self, batch: &[u32], depth: usize) {
        let mut promoted = Vec::new();
        for (at, block) in batch.iter().enumerate() {
            self.touch(*block, depth + at);
            match self.blocks[*block as usize].frame {
                Some(_) => self.counts.hits_dram += 1,
                None => {
                    self.counts.hits_ssd += 1;
                    promoted.push((*block, self.recency(depth + at)));
                }
            }
        }
        self.promote(&promoted);
        self.write(batch, BatchKind::Get);
    }

    /// Write the objects of a batch that admission chooses, the last first.
    fn write(&mut self, batch: &[u32], kind: BatchKind) {
        let Some(Ssd { log, admission, write_budget }) = self.ssd.as_mut() else { return };
        let page = |object: &u32| TouchedPage {
            page: PolicyKey(hash_of(self.objects.page(*object))),
            bytes: self.objects.blocks(*object) as u64 * BLOCK_BYTES,
            depth: self.blocks[*object as usize].depth,
            on_ssd: self.blocks[*object as usize].location.is_some(),
            required: false,
            attached: self.objects.is_state(*object),
        };
        let pages: Vec<TouchedPage> = batch.iter().map(page).collect();
        let mut chosen = Vec::new();
        match admission.as_mut() {
            Some(admission) => {
                if let Some(share) = write_budget.filter(|_| kind == BatchKind::Put) {
                    let bytes: u64 = pages.iter().map(|page| page.bytes).sum();
                    admission.grant((share * bytes as f64) as u64);
                }
                admission.touch(self.request, kind, &pages, 0, &mut chosen);
            }
            None => chosen.extend(pages.iter().map(|page| !page.on_ssd)),
        }
        if kind == BatchKind::Put {
            self.counts.offered += batch.len() as u64;
            self.counts.refused += chosen.iter().filter(|chosen| !**chosen).count() as u64;
        }
        for (object, _) in batch.iter().zip(chosen).rev().filter(|(_, chosen)| *chosen) {
            if self.blocks[*object as usize].location.is_some() {
                // A batch that names a block twice.
                continue;
            }
            let before = log.written;
            log.append(*object, &mut self.blocks);
            let victims = log.take_samples();
            if let Some(admission) = admission.as_mut() {
                admission.appended((log.written - before) * BLOCK_BYTES);
                for victim in victims {
                    let page = |object| PolicyKey(hash_of(object));
                    admission.reclaim(victim.into_iter().map(|object| object.map(page)));
                }
            }
        }
    }

    /// A batch of puts: absent objects enter DRAM, and are written, the last first.
    fn put(&mut self, batch: &[u32], depth: usize) {
        let now = self.ssd.as_ref().map_or(0, |ssd| ssd.log.now());
        let mut stored = Vec::new();
        for (at, object) in batch.iter().enumerate() {
            if self.is_resident(*object) {
                continue;
            }
            let recency = self.recency(depth + at);
            let state = &mut self.blocks[*object as usize];
            (state.tick, state.depth) = (now, recency.depth);
            if let Some(dram) = self.dram.as_mut() {
                dram.insert(*object, recency, &mut self.blocks);
            }
            stored.push(*object);
        }
        self.write(&stored, BatchKind::Put);
    }
}
