//! A parent's model of a store, from its children's logs: which objects may and must be found.

use std::collections::{BTreeMap, HashMap};

use pagelith::{Options, Store};

use super::content::{COMPONENTS, key, version_of};
use super::workload::read_page;
use super::{LogEntry, Page};

/// The state of a page.
#[derive(Clone, Debug, Default)]
struct PageState {
    /// Versions that may be found, and when the put of each was acknowledged: those without a later
    /// acknowledged removal.
    may: Vec<(u64, u64)>,
    /// When the present version was acknowledged, unless a removal has begun since.
    acked: Option<u64>,
    /// Whether a flush that began after the acknowledgement has completed.
    durable: bool,
    /// Whether a flush has reported that it could not be made durable.
    given_up: bool,
}

/// The state of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Clears {
    began: u64,
    ended: u64,
}

/// Time of an acknowledgement that never came.
const NEVER: u64 = u64::MAX;

/// All pages of a store that appear in the logs.
#[derive(Debug, Default)]
pub struct Model {
    now: u64,
    pages: BTreeMap<Page, PageState>,
    clears: HashMap<u8, Clears>,
    flushes: HashMap<u64, u64>,
    /// When the pending put of a page began.
    begun: HashMap<Page, u64>,
    /// Whether a child has reclaimed a segment, so that pages may be missing.
    pub evicts: bool,
    /// Whether more is put than the store holds: a reclaim is not logged if the child is killed
    /// before its next flush.
    pub wraps: bool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Pages that were present, with correct bytes.
    pub here: usize,
    /// Of those, pages that a completed flush had covered.
    pub durable: usize,
    /// Pages that were removed or cleared, and are gone.
    pub gone: usize,
    /// Pages that a completed flush had covered, and that are missing.
    pub lost: usize,
    /// Pages that were removed or cleared, and are present: only on a device that lied about those
    /// writes.
    pub undone: usize,
}

/// Faults of a store's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// None that affects durable data.
    Healthy,
    /// Reads failed or returned wrong bytes: an object that exists may turn out to be damaged when
    /// it is got, and its group is gone from then on.
    Failing,
    /// It acknowledged writes and lost them: a removal may be lost with them.
    Lying,
}

impl Model {
    /// The model of an empty store; `wraps` if more will be put than it holds.
    pub fn of_a_store(wraps: bool) -> Model {
        Model { wraps, ..Model::default() }
    }

    /// Apply a log entry.
    pub fn apply(&mut self, word: LogEntry) {
        self.now += 1;
        let now = self.now;
        match word {
            LogEntry::Opening | LogEntry::Opened => {}
            LogEntry::PutBegins(page, version) => {
                self.begun.insert(page, now);
                self.page(page).may.push((version, NEVER));
            }
            LogEntry::Stored(page, version) => {
                let mut may = self.page(page).may.iter_mut();
                may.find(|(v, _)| *v == version).expect("a put that began").1 = now;
                self.page(page).given_up = false;
                self.acked(page);
            }
            LogEntry::Present(page, version) => {
                // Its bytes were not stored.
                self.page(page).may.retain(|(v, _)| *v != version);
                self.acked(page);
            }
            LogEntry::RemoveBegins(page) => forget_ack(self.page(page)),
            LogEntry::Removed(page) => self.page(page).may.clear(),
            LogEntry::ClearBegins(namespace) => {
                self.clears.entry(namespace).or_default().began = now;
                self.of(namespace).for_each(forget_ack);
            }
            LogEntry::Cleared(namespace) => {
                let clears = self.clears.entry(namespace).or_default();
                clears.ended = now;
                let began = clears.began;
                // A put that was pending when the clear began may have come after it.
                self.of(namespace).for_each(|known| known.may.retain(|(_, acked)| *acked > began));
            }
            LogEntry::FlushBegins(number) => {
                self.flushes.insert(number, now);
            }
            LogEntry::Flushed(number) => {
                let began = self.flushes.remove(&number).expect("a flush that began");
                for known in self.pages.values_mut() {
                    known.durable |= !known.given_up && known.acked.is_some_and(|at| at < began);
                }
            }
            LogEntry::Reclaimed => self.evicts = true,
            LogEntry::Failed => panic!("the child failed"),
        }
    }

    fn page(&mut self, page: Page) -> &mut PageState {
        self.pages.entry(page).or_default()
    }

    fn of(&mut self, namespace: u8) -> impl Iterator<Item = &mut PageState> {
        self.pages
            .iter_mut()
            .filter(move |(page, _)| page.namespace == namespace)
            .map(|(_, known)| known)
    }

    fn acked(&mut self, page: Page) {
        let (now, begun) = (self.now, self.begun.remove(&page).expect("a put that began"));
        let clears = self.clears.get(&page.namespace).copied().unwrap_or_default();
        // A put that overlapped a clear may be on either side of it.
        if clears.began <= clears.ended && clears.ended < begun {
            self.page(page).acked.get_or_insert(now);
        }
    }

    /// A flush reported objects lost: no object that is not durable by now is guaranteed, until it
    /// is stored again.
    pub fn some_are_lost(&mut self) {
        self.pages.values_mut().for_each(|known| known.given_up |= !known.durable);
    }

    /// Versions of a page that may be found.
    pub fn may(&self, page: Page) -> Vec<u64> {
        self.pages
            .get(&page)
            .map_or(Vec::new(), |known| known.may.iter().map(|(version, _)| *version).collect())
    }

    /// Compare with the contents of `store`, and continue from them.
    pub fn check(&mut self, store: &Store) -> Tally {
        let tally = self.check_on_failing_device(store, Device::Healthy);
        assert!(
            tally.lost == 0 || self.evicts || self.wraps,
            "{} durable pages are missing",
            tally.lost
        );
        tally
    }

    /// As [`Model::check`], but durable pages may be missing, and faults of `device` are permitted.
    pub fn check_on_failing_device(&mut self, store: &Store, device: Device) -> Tally {
        let mut tally = Tally::default();
        let evicts = self.evicts || self.wraps;
        for (&page, known) in &mut self.pages {
            let keys = [0, 1].map(|c| key(page, c));
            // The opened store reclaims too, but not between two calls about one page.
            let _pin = store.pin(&keys);
            let (mut exist, mut read) = both_answers(store, page, &keys);
            let found = read.iter().flatten().count();
            if device != Device::Healthy && found < 2 {
                let here =
                    (read.iter().zip(0..)).filter_map(|(bytes, c)| Some((c, bytes.as_ref()?)));
                for (c, bytes) in here {
                    let may: Vec<u64> = known.may.iter().map(|(version, _)| *version).collect();
                    let found = version_of(page, c, bytes, &may);
                    let undone = may.is_empty() && device == Device::Lying;
                    let right = undone || found.is_some_and(|v| may.contains(&v));
                    assert!(right, "wrong bytes {page:?} {c} {known:?}");
                }
                exist = store.exists_batch(&keys, Options::default());
                read = [None, None];
            }
            let hit = [0, 1].map(|c| read[c].is_some());
            assert_eq!(hit, exist[..], "get and exists differ {page:?} {:?}", store.stats());
            let [Some(k), Some(v)] = read else {
                assert_eq!(hit, [false; 2], "group is not whole {page:?} {known:?} {store:?}");
                if known.durable {
                    tally.lost += 1;
                    if !evicts {
                        eprintln!("durable page is missing {page:?} {known:?}");
                    }
                }
                tally.gone += usize::from(known.may.is_empty());
                *known = PageState { may: std::mem::take(&mut known.may), ..PageState::default() };
                continue;
            };
            let may: Vec<u64> = known.may.iter().map(|(version, _)| *version).collect();
            if may.is_empty() && device == Device::Lying {
                tally.undone += 1;
                continue;
            }
            assert!(!may.is_empty(), "removed or cleared page is back {page:?}");
            let found = [k, v]
                .iter()
                .enumerate()
                .map(|(c, b)| version_of(page, c, b, &may))
                .collect::<Vec<_>>();
            for (component, found) in COMPONENTS.iter().zip(&found) {
                let found = found.unwrap_or_else(|| panic!("wrong bytes {page:?} {component}"));
                assert!(may.contains(&found), "stale bytes {page:?} {component} {found} {known:?}");
            }
            let short = found.iter().zip(0..).any(|(_, c)| super::content::length(page, c) < 8);
            assert!(short || found[0] == found[1], "components of two versions {page:?} {found:?}");
            tally.here += 1;
            tally.durable += usize::from(known.durable);
            // Pages found after a kill stay: recovery has synced them.
            (known.acked, known.durable) = (Some(0), true);
            if !evicts && !short {
                known.may.retain(|(version, _)| Some(*version) == found[0]);
            }
        }
        // The dead child has no pending calls.
        let now = self.now;
        self.pages
            .values_mut()
            .flat_map(|known| &mut known.may)
            .for_each(|(_, acked)| *acked = now.min(*acked));
        self.clears.values_mut().for_each(|clears| clears.ended = clears.ended.max(clears.began));
        self.begun.clear();
        self.flushes.clear();
        tally
    }
}

/// Results of exists and get for a page. A store that was killed while reclaim held its last
/// segment may have to clear a namespace to make room, regardless of pins, and counts that: both
/// are then asked again.
fn both_answers(
    store: &Store,
    page: Page,
    keys: &[pagelith::layouts::key::ObjectKey],
) -> (Vec<bool>, [Option<Vec<u8>>; 2]) {
    loop {
        let forgotten = store.stats().namespaces_forgotten;
        let exist = store.exists_batch(keys, Options::default());
        let read = read_page(store, page);
        if store.stats().namespaces_forgotten == forgotten {
            return (exist, read);
        }
        println!("a namespace was forgotten between two questions");
    }
}

fn forget_ack(known: &mut PageState) {
    (known.acked, known.durable) = (None, false);
}
