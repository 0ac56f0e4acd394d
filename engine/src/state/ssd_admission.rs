//! Admission to SSD: asks the policy which frames are written, and counts the others.
//!
//! A refused frame may be evicted, and then its objects are gone. A flush writes all refused frames
//! that DRAM still has ([`Core::requeue_refused`]).
//!
//! Lock order: the core lock, then that of the policy, which is a leaf.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::{Mutex, MutexGuard, PoisonError};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::learned::Learned;
use pagelith_tiers::policy::admission::{
    Admission, AdmissionCounts, BatchKind, PolicyKey, TouchedPage,
};

use crate::api::outcome::FlushReport;
use crate::config::ValidConfig;
use crate::memory::frames::FrameRef;
use crate::state::core::Core;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The policy of a store; absent if every frame is written.
pub(crate) struct SsdAdmission(Option<Mutex<Granted>>);

/// The policy, and the time up to which bytes were granted to it.
struct Granted {
    policy: Admission,
    bytes_per_day: u64,
    until: Mono,
}

impl SsdAdmission {
    /// For a store of `capacity` bytes of segments, which continues with its learned state.
    pub fn new(
        config: &ValidConfig,
        capacity: u64,
        learned: Option<&Learned>,
        now: Mono,
    ) -> SsdAdmission {
        let policy = |settings| {
            let mut policy = Admission::new(settings, capacity, config.history_pages());
            learned.into_iter().for_each(|learned| policy.restore(learned));
            Granted { policy, bytes_per_day: config.write_budget(), until: now }
        };
        SsdAdmission(config.admission().map(|settings| Mutex::new(policy(settings))))
    }

    /// What it has learned, for a checkpoint.
    pub fn learned(&self) -> Option<Learned> {
        self.lock()?.policy.learned()
    }

    /// Counts of its decisions.
    pub fn counts(&self) -> AdmissionCounts {
        self.lock().map_or(AdmissionCounts::default(), |granted| granted.policy.counts())
    }

    /// Bytes were appended to the log.
    pub fn appended(&self, bytes: u64) {
        if let Some(mut granted) = self.lock() {
            granted.policy.appended(bytes);
        }
    }

    /// Reclaim has chosen a victim; `samples` as of [`Admission::reclaim`].
    pub fn reclaim<'a>(&self, samples: impl IntoIterator<Item = Option<&'a ObjectKey>>) {
        if let Some(mut granted) = self.lock() {
            granted.policy.reclaim(samples.into_iter().map(|key| key.map(policy_key)));
        }
    }

    /// Objects were removed.
    pub fn forget<'a>(&self, keys: impl IntoIterator<Item = &'a ObjectKey>) {
        if let Some(mut granted) = self.lock() {
            keys.into_iter().for_each(|key| granted.policy.forget(policy_key(key)));
        }
    }

    /// Touch pages and decide them, as of [`Admission::touch`]. Without a policy nothing is
    /// appended to `write`.
    pub fn touch(
        &self,
        now: Mono,
        request: u64,
        kind: BatchKind,
        (pages, after): (&[TouchedPage], usize),
        write: &mut Vec<bool>,
    ) {
        if let Some(mut granted) = self.lock() {
            granted.grant(now);
            granted.policy.touch(request, kind, pages, after, write);
        }
    }

    /// Whether anything may be refused.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Granted>> {
        self.0.as_ref().map(|granted| granted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Granted {
    /// Grant the bytes of the time since the last call.
    fn grant(&mut self, now: Mono) {
        let bytes =
            now.since(self.until).as_secs_f64() / DAY.as_secs_f64() * self.bytes_per_day as f64;
        // Whole bytes only, so that no time is lost when calls follow each other closely.
        if bytes >= 1.0 {
            self.policy.grant(bytes as u64);
            self.until = now;
        }
    }
}

/// The objects of a page's pool share a history. Prefix hashes scatter; their namespace, pool and
/// role are mixed in, in words: each step waits for the one before.
pub(crate) fn policy_key(key: &ObjectKey) -> PolicyKey {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut hash = word(&key.hash().0[..8]);
    for bytes in key.namespace().0.chunks(8).chain(key.pool().as_bytes().chunks(8)) {
        hash = (hash ^ word(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
    PolicyKey((hash ^ key.role() as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31))
}

/// Queue the frames of a batch of puts for the flusher, the last first, but for those that are
/// refused. `request` is its number, `last_depth` the depth of its last page.
pub(crate) fn enqueue(
    admission: &SsdAdmission,
    now: Mono,
    core: &mut Core,
    frames: &mut Vec<FrameRef>,
    (request, last_depth): (u64, u32),
) {
    if admission.is_on() {
        let (live, pages, depth) = touched_pages(core, frames);
        let (mut write, after) = (Vec::new(), last_depth.saturating_sub(depth) as usize);
        admission.touch(now, request, BatchKind::Put, (&pages, after), &mut write);
        for ((frame, page), write) in live.into_iter().zip(&pages).zip(write) {
            if !write && !page.on_ssd {
                core.refuse_frame(frame);
            }
        }
    }
    core.enqueue(frames);
}

/// The frames that are live, their pages, and the depth of the last.
fn touched_pages(core: &mut Core, frames: &[FrameRef]) -> (Vec<FrameRef>, Vec<TouchedPage>, u32) {
    let (mut live, mut pages, mut depth) = (Vec::new(), Vec::new(), 0);
    let ssd = core.ssd.as_ref();
    for frame in frames {
        let Some(f) = core.dram.frames.get_live(*frame) else { continue };
        let Some(first) = f.data.members.first() else { continue };
        depth = f.data.depth;
        live.push(*frame);
        pages.push(TouchedPage {
            page: policy_key(f.data.base.as_deref().unwrap_or(&first.key)),
            bytes: f.data.bytes() + ALIGN,
            depth: f.data.depth,
            on_ssd: !ssd.is_some_and(|ssd| ssd.queue.is_unqueued(*frame)),
            required: core.pins.any() && f.any_fingerprint(|fp| core.pins.is_pinned(fp)),
            attached: f.data.is_attached(),
        });
    }
    (live, pages, depth)
}

impl Core {
    /// Keep a frame, which its put has not queued yet, off SSD.
    fn refuse_frame(&mut self, frame: FrameRef) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        let Some(f) = self.dram.frames.get_live(frame) else { return };
        if ssd.queue.refuse(frame) {
            f.refused = true;
            self.end_write(frame);
        }
    }

    /// A frame is no longer refused: it is queued, or leaves DRAM. Returns whether it was.
    pub fn end_refusal(&mut self, frame: FrameRef) -> bool {
        let Some(f) = self.dram.frames.get_ref(frame) else { return false };
        let was_refused = std::mem::replace(&mut f.refused, false);
        if let Some(ssd) = self.ssd.as_mut().filter(|_| was_refused) {
            ssd.queue.forget_refused(frame);
        }
        was_refused
    }

    /// Queue all refused frames that DRAM has, the last first.
    pub fn requeue_refused(&mut self) {
        let Some(ssd) = self.ssd.as_ref() else { return };
        for frame in ssd.queue.refused() {
            self.requeue_frame(frame.id);
        }
    }

    /// Count a refused frame that is evicted: its objects are in no tier any more.
    pub fn count_refused_frame(&mut self, frame: FrameRef) {
        let Some(f) = self.dram.frames.get_ref(frame).filter(|f| f.refused) else { return };
        let (namespace, refused_objects) = (f.data.namespace, f.data.members.len() as u64);
        self.flushes.add(namespace, &FlushReport::refused(refused_objects));
    }
}
