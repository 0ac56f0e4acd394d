//! Admission to SSD: which of the pages that a put stores in DRAM are written to the log.
//!
//! A page is written if pages like it are requested again. "Like it" is a class, made of what is
//! known at the time ([`class`]): how often the page was touched, the gap between its last two
//! touches, its distance from the end of the request, and the turn of its chain. For a sample of
//! the pages it is counted after what time they are touched again ([`samples`]). From that follow
//! two figures for each class ([`worth`]): the share that is reused, and the expected hits for the
//! time that a page occupies its place. A page is written if
//!
//! 1. at least `min_reuse` of its class is reused within two laps of the log, and
//! 2. once reclaim has begun, its worth is at least `thrift` times the mean worth of the places
//!    that reclaim has given up lately.
//!
//! An attached object, such as a recurrent state, is written if its base was not refused.
//!
//! Invariants:
//! - Of a request no page from the first refused one on is written, except those that must be: they
//!   would be of no use without their prefix. Batches with earlier pages may follow, of a chain
//!   whose tail is put first.
//! - No clock and no randomness: time is counted in bytes that are requested, and the sample and
//!   the share of chains are chosen by hashes of the pages. The same calls give the same decisions.
//! - Before anything was learned, every page is written. What was learned long ago is forgotten.
//! - A decision changes the writes, and never the result of a get.

mod bands;
mod budget;
mod class;
mod history;
mod policy_key;
mod samples;
mod worth;

use pagelith_layouts::learned::Learned;

use bands::band_of;
use budget::WriteBudget;
use class::PageClass;
use history::{History, HistorySlot};
use samples::Samples;
use worth::Worth;

pub use policy_key::PolicyKey;

/// Steps of time in which as many bytes are requested as the SSD has.
const STEPS_PER_CAPACITY: u64 = 512;
/// Requests of which the chat turn and a refusal are remembered: more than run at the same time.
const REQUESTS: usize = 256;
/// Laps of the log within which a page that is requested again counts as reused.
const REUSE_LAPS: f64 = 2.0;
/// Parts of a lap over which its length is measured.
const LAP_PARTS: u64 = 8;
/// Touches of the sample without which nothing is learned: fewer are no evidence.
const LEARN_TOUCHES_MIN: usize = 500;
/// Most steps after which the tables are computed again: those of the SSD's bytes.
const LEARN_STEPS_MAX: u64 = STEPS_PER_CAPACITY;
/// Share of all counts that is kept when the tables are computed again.
const KEPT: f64 = 0.9;
/// Weight of the newest victim in the mean worth of what reclaim gives up.
const VICTIM_SHARE: f64 = 0.1;
/// Share of that which is kept when the tables are computed again, if reclaim gave up nothing.
const UNUSED_KEPT: f64 = 0.5;
/// Places of a victim that are examined for that.
pub const VICTIM_SAMPLES: usize = 32;

/// Names that [`AdmissionRule::of_name`] accepts, for configuration messages.
pub const ADMISSION_RULES: [&str; 3] = ["through", "worth", "second-touch"];

/// Which pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRule {
    /// All of them.
    Through,
    /// Those whose class is worth it.
    Worth,
    /// Those that were touched before.
    SecondTouch,
}

impl AdmissionRule {
    /// The rule with this name, `None` if it is unknown (see [`ADMISSION_RULES`]).
    pub fn of_name(name: &str) -> Option<AdmissionRule> {
        match name {
            "through" => Some(AdmissionRule::Through),
            "worth" => Some(AdmissionRule::Worth),
            "second-touch" => Some(AdmissionRule::SecondTouch),
            _ => None,
        }
    }
}

/// Settings of admission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdmissionSettings {
    /// Which pages are written.
    pub rule: AdmissionRule,
    /// Least share of a class that must be reused; 0 to 1.
    pub min_reuse: f64,
    /// Least worth, as a multiple of the mean worth of what reclaim gives up; 0 to 2.
    pub thrift: f64,
    /// Whether no more bytes are written than [`Admission::grant`] allows.
    pub budget: bool,
}

impl AdmissionSettings {
    /// The defaults for a rule.
    pub fn of_rule(rule: AdmissionRule) -> AdmissionSettings {
        AdmissionSettings { rule, min_reuse: 0.2, thrift: 0.9, budget: false }
    }
}

/// A page of a batch.
#[derive(Clone, Copy, Debug)]
pub struct TouchedPage {
    /// Hash of its key; of an attached object, that of its base.
    pub page: PolicyKey,
    /// Bytes that it has, or would have, in the log.
    pub bytes: u64,
    /// Pages of its prompt before it.
    pub depth: u32,
    /// Whether it has a place on SSD, or will have one.
    pub on_ssd: bool,
    /// Whether it is written in any case.
    pub required: bool,
    /// Whether it is an attached object, such as a recurrent state.
    pub attached: bool,
}

/// Whether the pages of a batch were found, or are new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Hits of a get.
    Get,
    /// Pages that a put stored.
    Put,
}

/// Counts of decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionCounts {
    /// Pages that were refused.
    pub refused: u64,
    /// Pages that were put again after they had been refused: misses that admission caused.
    pub refused_put_again: u64,
}

/// State of a request while its batches come.
#[derive(Clone, Copy, Debug, Default)]
struct RequestNote {
    request: u64,
    /// Turn of the pages that it adds to its chain.
    chat_turn: u32,
    /// Depth of the first page that was refused.
    refused: Option<u32>,
    /// The page that was touched last.
    last: Option<PolicyKey>,
}

/// Decides which pages are written.
pub struct Admission {
    settings: AdmissionSettings,
    history: History,
    samples: Samples,
    worth: Worth,
    budget: WriteBudget,
    requests: [RequestNote; REQUESTS],
    clock: TimeSteps,
    laps: LapLength,
    /// Unit at which the tables are computed again, and whether they ever were.
    learn_at: u64,
    has_learned: bool,
    /// Mean worth of what reclaim gives up; `None` while it has given up nothing.
    victim_worth: Option<f64>,
    /// Reclaim has given up something since the tables were computed.
    has_reclaimed: bool,
    counts: AdmissionCounts,
}

impl Admission {
    /// For a log of `capacity` bytes, with a history of `pages` pages in and outside of the tiers.
    pub fn new(settings: AdmissionSettings, capacity: u64, pages: u64) -> Admission {
        Admission {
            settings,
            history: History::new(pages),
            samples: Samples::new(),
            worth: Worth::new(),
            budget: WriteBudget::new(capacity),
            requests: [RequestNote::default(); REQUESTS],
            clock: TimeSteps::new(capacity),
            laps: LapLength::new(capacity),
            learn_at: STEPS_PER_CAPACITY / 2,
            has_learned: false,
            victim_worth: None,
            has_reclaimed: false,
            counts: AdmissionCounts::default(),
        }
    }

    /// What was learned, for [`Admission::restore`] after a restart; `None` before anything was.
    /// The history of the pages is not part of it.
    pub fn learned(&self) -> Option<Learned> {
        let (counts, sample_rate) = self.samples.counts();
        let (lap_units, victim_worth) = (self.laps.steps, self.victim_worth);
        self.has_learned.then_some(Learned { lap_units, victim_worth, sample_rate, counts })
    }

    /// Continue with the state learned before a restart. Called before any page is touched.
    pub fn restore(&mut self, learned: &Learned) {
        self.samples = Samples::restore(&learned.counts, learned.sample_rate);
        self.laps.steps = learned.lap_units.max(1.0);
        self.laps.is_measured = true;
        self.victim_worth = learned.victim_worth;
        self.learn();
    }

    /// Its settings.
    pub fn settings(&self) -> AdmissionSettings {
        self.settings
    }

    /// Bytes of memory that grow with `pages`. All other memory is some 3 MB.
    pub fn memory_bytes(pages: u64) -> u64 {
        history::bytes_for(pages)
    }

    /// Touch the pages of a batch, from head to tail, and append to `write` whether each is to be
    /// written. `after` is the number of pages of the request's batch that follow these. Pages of
    /// gets are decided too: one that was refused may be worth a write when it is touched again. A
    /// page that the request touched just before counts once, and is decided as before.
    pub fn touch(
        &mut self,
        request: u64,
        kind: BatchKind,
        pages: &[TouchedPage],
        after: usize,
        write: &mut Vec<bool>,
    ) {
        let RequestNote { chat_turn, mut refused, mut last, .. } = *self.note(request);
        let mut next_chat_turn = chat_turn;
        // The first page of a put is the first unknown one of its chain.
        let chain = pages.first().map_or(PolicyKey(0), |page| page.page);
        // The history is larger than the CPU's caches: its lines are fetched at the same time.
        pages.iter().for_each(|page| self.history.prefetch(page.page));
        for (at, page) in pages.iter().enumerate() {
            if page.attached {
                write.push(self.touch_attached(page));
                continue;
            }
            let touched = last.replace(page.page) != Some(page.page);
            let from_end = pages.len() - 1 - at + after;
            let touch = touched.then(|| self.touch_page(page, kind, from_end, chat_turn));
            if let Some((class, _)) = touch {
                if kind == BatchKind::Get {
                    next_chat_turn = class.chat_turn() + 1;
                }
                if !page.on_ssd && !self.admits(class, chain) {
                    refused = Some(refused.map_or(page.depth, |depth| depth.min(page.depth)));
                }
            }
            let is_behind = refused.is_some_and(|depth| depth <= page.depth);
            let is_written = !page.on_ssd && (!is_behind || page.required);
            let is_refused = !page.on_ssd && !is_written;
            self.counts.refused += u64::from(is_refused);
            match touch {
                Some((class, slot)) => {
                    let now = self.clock.step as u32;
                    self.history.set(slot, page.page, class, now, is_refused);
                }
                None if !page.on_ssd => self.history.set_refused(page.page, is_refused),
                None => {}
            }
            write.push(is_written);
        }
        *self.note(request) = RequestNote { request, chat_turn: next_chat_turn, refused, last };
    }

    /// The note of a request; a new one if it is not known.
    fn note(&mut self, request: u64) -> &mut RequestNote {
        let note = &mut self.requests[(request % REQUESTS as u64) as usize];
        if note.request != request {
            *note = RequestNote { request, ..RequestNote::default() };
        }
        note
    }

    /// Touch an attached object; returns whether it is written: unless its base was refused. Its
    /// own reuse cannot be learned. A page that is in no tier is put again when it is wanted. A
    /// state is not, so whatever leaves early would seem not to be wanted, and be refused for ever.
    fn touch_attached(&mut self, object: &TouchedPage) -> bool {
        self.advance(object.bytes);
        let now = self.clock.step as u32;
        let is_base_refused = || self.history.get(object.page, now).is_some_and(|l| l.refused);
        let is_written = !object.on_ssd && (object.required || !is_base_refused());
        self.counts.refused += u64::from(!object.on_ssd && !is_written);
        is_written
    }

    /// Time passes by these bytes.
    fn advance(&mut self, bytes: u64) {
        for _ in 0..self.clock.advance(bytes) {
            self.tick();
        }
    }

    /// Count the touch of a page; returns its class, and its slot in the history.
    fn touch_page(
        &mut self,
        page: &TouchedPage,
        kind: BatchKind,
        from_end: usize,
        chat_turn: u32,
    ) -> (PageClass, HistorySlot) {
        self.advance(page.bytes);
        let now = self.clock.step as u32;
        let (slot, last) = self.history.find(page.page, now);
        let class = match last {
            Some(last) => last.class.again(last.age, from_end),
            None => PageClass::first(from_end, chat_turn),
        };
        let is_put_again = kind == BatchKind::Put && last.is_some_and(|last| last.refused);
        self.counts.refused_put_again += u64::from(is_put_again);
        self.samples.touch(page.page, class, self.clock.step);
        (class, slot)
    }

    /// One step of time has passed.
    fn tick(&mut self) {
        self.clock.step += 1;
        self.history.tick(self.clock.step as u32);
        self.samples.advance(self.clock.step);
        if self.clock.step >= self.learn_at && self.samples.fresh() >= LEARN_TOUCHES_MIN {
            self.samples.decay(KEPT);
            if !std::mem::take(&mut self.has_reclaimed) {
                // Otherwise one victim of great worth would end all writes, and so all reclaim.
                self.victim_worth = self.victim_worth.map(|worth| worth * UNUSED_KEPT);
            }
            self.learn();
        }
    }

    /// Compute the tables from the counts, and the time at which that is done again.
    fn learn(&mut self) {
        self.worth.learn(&self.samples, REUSE_LAPS * self.laps.steps);
        // A log to which little is written takes long for a lap. A workload that has changed must
        // be noticed before.
        let half_lap = (self.laps.steps / 2.0).ceil().max(1.0) as u64;
        self.learn_at = self.clock.step + half_lap.min(LEARN_STEPS_MAX);
        self.has_learned = true;
    }

    fn admits(&self, class: PageClass, chain: PolicyKey) -> bool {
        let touched_before = class.touches() > 0;
        let by_rule = match self.settings.rule {
            AdmissionRule::Through => true,
            AdmissionRule::SecondTouch => touched_before,
            AdmissionRule::Worth => self.is_worth_it(class),
        };
        let is_kept = by_rule || (self.settings.budget && touched_before);
        is_kept && (!self.settings.budget || self.budget.allows(touched_before, chain))
    }

    fn is_worth_it(&self, class: PageClass) -> bool {
        let least = self.victim_worth.map_or(0.0, |worth| self.settings.thrift * worth);
        self.worth.reuse(class) >= self.settings.min_reuse && self.worth.worth(class, 0) >= least
    }

    /// Bytes were appended to the log, reinserted ones included.
    pub fn appended(&mut self, bytes: u64) {
        self.budget.spend(bytes);
        self.laps.append(bytes, self.clock.step);
    }

    /// Bytes more may be written.
    pub fn grant(&mut self, bytes: u64) {
        self.budget.grant(bytes);
    }

    /// Reclaim has chosen a victim: some of the places that it gives up, spread evenly over it, at
    /// most [`VICTIM_SAMPLES`]. `None` is a place whose page is no longer there. Survivors are not
    /// among them: one page of all prompts is worth as much as thousands of others.
    pub fn reclaim(&mut self, samples: impl IntoIterator<Item = Option<PolicyKey>>) {
        let now = self.clock.step as u32;
        let (mut sum, mut count) = (0.0, 0.0);
        for sample in samples {
            count += 1.0;
            if let Some(last) = sample.and_then(|page| self.history.get(page, now)) {
                sum += self.worth.worth(last.class, band_of(last.age));
            }
        }
        if count > 0.0 {
            let mean = sum / count;
            self.has_reclaimed = true;
            let before = self.victim_worth.unwrap_or(mean);
            self.victim_worth = Some(before + VICTIM_SHARE * (mean - before));
        }
    }

    /// Forget a page that was removed.
    pub fn forget(&mut self, page: PolicyKey) {
        self.history.forget(page);
    }

    /// Counts since it was created.
    pub fn counts(&self) -> AdmissionCounts {
        self.counts
    }
}

/// Time, in steps of bytes requested.
struct TimeSteps {
    step: u64,
    step_bytes: u64,
    /// Bytes requested since the step began.
    bytes: u64,
}

impl TimeSteps {
    fn new(capacity: u64) -> TimeSteps {
        TimeSteps { step: 0, step_bytes: (capacity / STEPS_PER_CAPACITY).max(1), bytes: 0 }
    }

    /// Count bytes; returns the number of steps that have passed, at most as many as matter.
    fn advance(&mut self, bytes: u64) -> u64 {
        self.bytes = self.bytes.saturating_add(bytes);
        // Mostly, and two divisions take longer than all else.
        if self.bytes < self.step_bytes {
            return 0;
        }
        let steps = self.bytes / self.step_bytes;
        self.bytes %= self.step_bytes;
        steps.min(8 * STEPS_PER_CAPACITY)
    }
}

/// Length of a lap of the log, measured over its last parts.
struct LapLength {
    /// Steps of time that a lap takes.
    steps: f64,
    part_bytes: u64,
    /// Bytes appended in the current part, and the step at which it began.
    appended: u64,
    since: u64,
    is_measured: bool,
}

impl LapLength {
    fn new(capacity: u64) -> LapLength {
        LapLength {
            steps: STEPS_PER_CAPACITY as f64,
            part_bytes: (capacity / LAP_PARTS).max(1),
            appended: 0,
            since: 0,
            is_measured: false,
        }
    }

    fn append(&mut self, bytes: u64, step: u64) {
        self.appended += bytes;
        if self.appended < self.part_bytes {
            return;
        }
        let laps = self.appended as f64 / (self.part_bytes * LAP_PARTS) as f64;
        let steps = (step - self.since) as f64 / laps;
        let share = if self.is_measured { 0.25 } else { 1.0 };
        self.steps = (self.steps + share * (steps - self.steps)).max(1.0);
        (self.appended, self.since, self.is_measured) = (0, step, true);
    }
}

#[cfg(test)]
mod tests;
