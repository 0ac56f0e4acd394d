//! The objects that were put, and the allowed and required answers of a store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use pagelith::io::clock::Clock;

use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    AlignedBuf, ErrorKind, GetOutcome, GetSlice, MissCause, Options, PutOutcome, PutSlice, Result,
    Store,
};
use pagelith_sim::clock::SimClock;
use pagelith_sim::entropy::SplitMix64;

/// Pages from here on are in the second namespace.
pub const SECOND: u32 = 1000;

/// The namespace of a page.
pub fn namespace(page: u32) -> NamespaceId {
    Namespace { model: format!("model-{}", page / SECOND), ..Namespace::default() }.id()
}

/// A component of a page: `x` alone, `k` and `v` together, `m` and `n` attached to `k`.
pub fn key(page: u32, component: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(namespace(page), PrefixHash(hash), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

fn length(key: &ObjectKey) -> usize {
    match key.component() {
        "k" => 5000,
        "v" => 40_000,
        "m" => 4096,
        "n" => 700,
        _ => 3000,
    }
}

/// The bytes of the `version`-th put of a key.
fn bytes(key: &ObjectKey, version: usize) -> Vec<u8> {
    let mut out = vec![0; length(key)];
    let page = u32::from_le_bytes(key.hash().0[..4].try_into().expect("four bytes"));
    let seed =
        u64::from(page) << 32 | u64::from(key.component().as_bytes()[0]) << 8 | version as u64;
    SplitMix64::new(seed).fill(&mut out);
    out
}

/// The history of a key.
#[derive(Clone, Debug, Default)]
pub struct KeyHistory {
    versions: Vec<Vec<u8>>,
    /// Versions that a get may return.
    pub allowed: BTreeSet<usize>,
    /// A put of it was acked, and nothing since may have removed it.
    acked: bool,
    /// A flush covered that put: only damage excuses a miss.
    pub must: bool,
}

/// Every object that was put.
#[derive(Clone, Debug, Default)]
pub struct ExpectedObjects {
    pub things: BTreeMap<ObjectKey, KeyHistory>,
    /// Changes the bytes of all objects.
    pub salt: usize,
    /// Errors that only a fault excuses.
    pub errors: Vec<String>,
}

/// The observed contents of a store.
#[derive(Default)]
pub struct Observed {
    /// Bytes that were not put under their key, or part of a group.
    pub wrong: Vec<String>,
    /// Objects that were removed, cleared or replaced and came back.
    pub returned: BTreeSet<ObjectKey>,
    /// Objects that must be present and are missing.
    pub lost: BTreeSet<ObjectKey>,
    /// The longest duration of a get.
    pub longest: Duration,
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts =
            |keys: &BTreeSet<ObjectKey>| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        let Observed { wrong, returned, lost, .. } = self;
        write!(f, "wrong={wrong:?} returned={:?} lost={:?}", texts(returned), texts(lost))
    }
}

impl ExpectedObjects {
    /// Puts components of a page together, attached to `base` if given.
    pub fn put(&mut self, store: &Store, page: u32, base: Option<&str>, components: &[&str]) {
        let keys: Vec<ObjectKey> = components.iter().map(|c| key(page, c)).collect();
        let contents: Vec<Vec<u8>> = keys.iter().map(|k| self.next(k)).collect();
        let pieces: Vec<[&[u8]; 1]> = contents.iter().map(|new| [&new[..]]).collect();
        let objects: Vec<PutSlice<'_>> =
            keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
        let outcome = match base {
            Some(base) => store.put_attached(&[(key(page, base), &objects)], Options::default()),
            None => store.put_groups(&[&objects], Options::default()),
        };
        let outcome = outcome.into_iter().next().expect("one outcome");
        if let Err(error) = &outcome {
            self.errors.push(format!("put page={page} error={error}"));
        }
        for (key, new) in keys.into_iter().zip(contents) {
            let thing = self.things.entry(key).or_default();
            let version = thing.versions.len();
            match &outcome {
                Ok(PutOutcome::AlreadyPresent) => continue,
                Ok(PutOutcome::Stored) => {
                    (thing.allowed, thing.acked, thing.must) =
                        (BTreeSet::from([version]), true, false);
                }
                // It may have happened, or may still happen.
                Ok(_) | Err(_) => _ = thing.allowed.insert(version),
            }
            thing.versions.push(new);
        }
    }

    fn next(&self, key: &ObjectKey) -> Vec<u8> {
        bytes(key, self.salt + self.things.get(key).map_or(0, |t| t.versions.len()))
    }

    /// Flushes; covered objects must be present from now on. Returns whether it succeeded without
    /// losses.
    pub fn flush(&mut self, store: &Store) -> bool {
        let error = match store.flush(Options::default()) {
            Ok(report) if report.lost_objects == 0 => None,
            Ok(report) => Some(format!("flush {report:?}")),
            Err(error) => Some(format!("flush error={error}")),
        };
        for thing in self.things.values_mut() {
            // It does not report which objects it lost, and does not count them again.
            thing.acked &= error.is_none() || thing.must;
            thing.must = thing.acked;
        }
        self.errors.extend(error.clone());
        error.is_none()
    }

    /// The process ended: objects that no flush covered may be present or not.
    pub fn died(&mut self) {
        self.things.values_mut().for_each(|t| t.acked = t.must);
    }

    /// Removes an object, with its group and the objects attached to that.
    pub fn remove(&mut self, store: &Store, page: u32, component: &str) {
        let outcome = store.remove(&[key(page, component)], Options::default());
        let own = key(page, component);
        let gone = |k: &ObjectKey| match component {
            "x" | "m" => *k == own,
            _ => k.same_page(&own) && k.component() != "x",
        };
        self.take(outcome, gone, &format!("remove page={page}"));
    }

    /// Clears a page's namespace.
    pub fn clear(&mut self, store: &Store, page: u32) {
        let ns = namespace(page);
        let outcome = store.clear(ns, Options::default()).map(|_| ());
        self.take(outcome, |k| k.namespace() == ns, "clear");
    }

    fn take<T>(&mut self, outcome: Result<T>, gone: impl Fn(&ObjectKey) -> bool, what: &str) {
        if let Err(error) = &outcome {
            self.errors.push(format!("{what} error={error}"));
        }
        for (_, thing) in self.things.iter_mut().filter(|(key, _)| gone(key)) {
            (thing.acked, thing.must) = (false, false);
            if outcome.is_ok() {
                thing.allowed.clear();
            }
        }
    }

    /// Gets every object twice: the first get may be the one that detects the damage.
    pub fn observe(&self, store: &Store, scratch: &mut AlignedBuf) -> Observed {
        self.look_at(store, scratch, &SimClock::new(), || 0)
    }

    /// Like [`ExpectedObjects::look`], with this clock, and repeated until no fault strikes during
    /// it: an object requested in the same batch as a struck one may have been returned without it.
    pub fn look_at(
        &self,
        store: &Store,
        scratch: &mut AlignedBuf,
        clock: &SimClock,
        strikes: impl Fn() -> usize,
    ) -> Observed {
        let mut look = Observed::default();
        self.get_all_pages(store, scratch, clock, &mut look);
        let got = loop {
            let before = strikes();
            let got = self.get_all_pages(store, scratch, clock, &mut look);
            if strikes() == before {
                break got;
            }
        };
        let missing =
            |(key, thing): &(&ObjectKey, &KeyHistory)| thing.must && !got.contains_key(key);
        look.lost = self.things.iter().filter(missing).map(|(key, _)| *key).collect();
        for key in self.things.keys() {
            // A late object is not missing, so its group may be present.
            let got_of = |component| got.get(&sibling(key, component)).copied();
            let alike = |a, b| {
                got_of(a).is_none() == got_of(b).is_none()
                    || [got_of(a), got_of(b)].contains(&Some(false))
            };
            let whole = match key.component() {
                "v" => alike("k", "v"),
                "n" => alike("m", "n") && (got_of("n").is_none() || got_of("k").is_some()),
                _ => true,
            };
            if !whole {
                look.wrong.push(format!("a part of a group key={key}"));
            }
        }
        look
    }

    /// Gets every object, page after page; returns the objects found, and those that were late
    /// (false).
    fn get_all_pages(
        &self,
        store: &Store,
        scratch: &mut AlignedBuf,
        clock: &SimClock,
        look: &mut Observed,
    ) -> BTreeMap<ObjectKey, bool> {
        let keys: Vec<ObjectKey> = self.things.keys().copied().collect();
        let mut got = BTreeMap::new();
        for page in keys.chunk_by(|a, b| a.same_page(b)) {
            let mut rest = &mut scratch[..];
            let mut places = Vec::new();
            for key in page {
                // Half of them are read directly into aligned memory, the others through staging.
                let skip = if key.component().as_bytes()[0] % 2 == 0 { 0 } else { 8 };
                let (place, tail) = rest.split_at_mut((skip + length(key)).next_multiple_of(4096));
                let place = &mut place[skip..][..length(key)];
                place.fill(0xA5);
                places.push([place]);
                rest = tail;
            }
            let mut gets: Vec<GetSlice<'_, '_>> = page
                .iter()
                .zip(&mut places)
                .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
                .collect();
            let from = clock.now();
            let outcomes = store.get_batch(&mut gets, Options::default());
            look.longest = look.longest.max(clock.now().since(from));
            for ((key, place), outcome) in page.iter().zip(&places).zip(outcomes) {
                match outcome {
                    Ok(GetOutcome::Hit { .. }) => {
                        got.insert(*key, true);
                        self.judge(key, place[0], look);
                    }
                    Ok(GetOutcome::Miss(MissCause::Late)) => _ = got.insert(*key, false),
                    Ok(GetOutcome::Miss(_)) => {}
                    Err(error) if error.kind == ErrorKind::Busy => {}
                    Err(error) => look.wrong.push(format!("get failed key={key} error={error}")),
                }
            }
        }
        got
    }

    fn judge(&self, key: &ObjectKey, bytes: &[u8], look: &mut Observed) {
        let thing = &self.things[key];
        match thing.versions.iter().position(|version| **version == *bytes) {
            Some(version) if thing.allowed.contains(&version) => {}
            Some(_) => _ = look.returned.insert(*key),
            None => look.wrong.push(format!("bytes of no put key={key}")),
        }
    }
}

/// Another component of the same page.
pub fn sibling(of: &ObjectKey, component: &str) -> ObjectKey {
    ObjectKey::new(of.namespace(), of.hash(), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}
