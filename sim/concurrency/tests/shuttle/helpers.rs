//! Helpers of the scenarios.

use std::sync::Arc;
use std::time::Duration;

use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    Config, ErrorKind, GetOutcome, GetSlice, MissCause, Options, PutOutcome, PutSlice, Result,
    Store,
};
use pagelith_io::buffer::AlignedBuf;
use pagelith_io::clock::Clock;
use pagelith_sim::clock::SimClock;

use super::env::World;
use super::history::History;

/// One store, and the history of its threads' calls.
pub struct Scenario {
    pub store: Arc<Store>,
    pub history: History,
    /// Length of every object in bytes.
    pub len: usize,
    pub clock: SimClock,
    slow_reads: bool,
}

impl Scenario {
    pub fn new(world: &World, config: &Config, len: usize) -> Arc<Scenario> {
        let (store, clock) = (world.open(config), world.sim.clock.clone());
        Arc::new(Scenario {
            store,
            history: History::default(),
            len,
            clock,
            slow_reads: world.slow_reads,
        })
    }

    /// The store of the next process, with the same history; `end` ends this process.
    pub fn reopened(
        self: Arc<Scenario>,
        world: &World,
        config: &Config,
        end: impl FnOnce(Store),
    ) -> Arc<Scenario> {
        let Ok(scenario) = Arc::try_unwrap(self) else { panic!("a thread is left") };
        let Ok(store) = Arc::try_unwrap(scenario.store) else { panic!("a thread is left") };
        end(store);
        Arc::new(Scenario { store: world.open(config), ..scenario })
    }

    /// Puts an object by itself.
    pub fn put(&self, key: u64, value: u64) -> Result<PutOutcome> {
        let begun = self.history.begin_put(key, value);
        let bytes = bytes_of(value, self.len);
        let put = PutSlice { key: part(key, 0), pieces: &[&bytes] };
        let outcome = self.store.put_batch(&[put], Options::default()).remove(0);
        self.history.end(begun, outcome == Ok(PutOutcome::Stored));
        outcome
    }

    /// The value found, after a check; `None` for a miss.
    pub fn get(&self, key: u64) -> Option<u64> {
        let mut to = AlignedBuf::new(self.len).expect("memory");
        self.get_into(key, &mut to)
    }

    /// Like [`Scenario::get`], into memory that cannot be read into directly.
    pub fn get_unaligned(&self, key: u64) -> Option<u64> {
        let mut to = AlignedBuf::new(self.len + 1).expect("memory");
        self.get_into(key, &mut to[1..])
    }

    fn get_into(&self, key: u64, to: &mut [u8]) -> Option<u64> {
        let from = self.history.now();
        let get = GetSlice { key: part(key, 0), range: None, pieces: &mut [to] };
        let outcome = self.store.get_batch(&mut [get], Options::default()).remove(0);
        let found = hit_value(outcome, to)?;
        self.history.judge(key, from, found);
        Some(found)
    }

    /// Removes component 0 of a page, and its group.
    pub fn remove(&self, key: u64) {
        self.remove_part(key, 0);
    }

    pub fn remove_part(&self, key: u64, component: u64) {
        let begun = self.history.begin_remove(key);
        let removed =
            self.assert_in_time(|| self.store.remove(&[part(key, component)], Options::default()));
        assert!(removed.is_ok(), "{removed:?}");
        self.history.end(begun, true);
    }

    pub fn flush(&self) {
        let flushed = self.assert_in_time(|| self.store.flush(Options::default()));
        assert!(flushed.is_ok(), "{flushed:?}");
    }

    /// Makes a call that waits for the flusher. A caller that misses its wake-up returns at the
    /// deadline of ten simulated seconds; nothing else takes half as long.
    fn assert_in_time<T>(&self, what: impl FnOnce() -> T) -> T {
        let from = self.clock.now();
        let result = what();
        let took = self.clock.now().since(from);
        assert!(
            self.slow_reads || took < Duration::from_secs(5),
            "wake-up was missed took={took:?}"
        );
        result
    }

    /// Clears the namespace; `keys` are all keys in it.
    pub fn clear(&self, keys: &[u64]) {
        let begun: Vec<_> = keys.iter().map(|key| self.history.begin_remove(*key)).collect();
        let cleared = self.store.clear(namespace().id(), Options::default());
        assert!(cleared.is_ok(), "{cleared:?}");
        begun.into_iter().for_each(|b| self.history.end(b, true));
    }

    /// Nothing was found damaged, and after a clear the arena is empty.
    pub fn ends_clean(&self) {
        // The flusher holds the frames that it writes.
        self.flush();
        let stats = self.store.stats();
        assert_eq!((stats.damaged, stats.read_errors, stats.flush_errors), (0, 0, 0), "{stats:?}");
        self.clear(&[]);
        let stats = self.store.stats();
        assert_eq!(
            (stats.dram_bytes, stats.waiting_bytes, stats.groups_waiting),
            (0, 0, 0),
            "{stats:?}"
        );
    }
}

/// The value of a hit.
pub fn hit_value(outcome: Result<GetOutcome>, to: &[u8]) -> Option<u64> {
    match outcome {
        Ok(GetOutcome::Hit { bytes, .. }) => {
            assert_eq!(bytes, to.len() as u64);
            Some(value_of(to))
        }
        Ok(GetOutcome::Miss(MissCause::Absent | MissCause::Gone)) => None,
        other => panic!("unexpected outcome of get {other:?}"),
    }
}

/// Whether the outcome is allowed for a put that runs concurrently with others.
pub fn is_allowed(outcome: &Result<PutOutcome>) -> bool {
    match outcome {
        Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent) => true,
        Ok(_) => false,
        Err(error) => error.kind == ErrorKind::Busy,
    }
}

fn namespace() -> Namespace {
    Namespace { model: "m".into(), ..Namespace::default() }
}

/// Component `component` of page `page`.
pub fn part(page: u64, component: u64) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(
        namespace().id(),
        PrefixHash(hash),
        Role::Target,
        "kv",
        &format!("c{component}"),
        Shard::Whole,
    )
    .expect("a key")
}

/// `len` bytes, each of which depends on the value.
pub fn bytes_of(value: u64, len: usize) -> Vec<u8> {
    let word = value.to_le_bytes();
    (0..len).map(|i| word[i % 8].wrapping_add((i / 8) as u8)).collect()
}

/// The value that all of `bytes` encode.
pub fn value_of(bytes: &[u8]) -> u64 {
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert!(bytes == bytes_of(value, bytes.len()), "bytes of several values first={value}");
    value
}

/// Runs each on its own thread, and joins all.
pub fn run_all(threads: Vec<Box<dyn FnOnce() + Send>>) {
    let running: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    running.into_iter().for_each(|t| t.join().expect("no panic"));
}

/// A thread for [`run_all`] with a reference to the scenario.
pub fn thread(
    scenario: &Arc<Scenario>,
    body: impl FnOnce(&Scenario) + Send + 'static,
) -> Box<dyn FnOnce() + Send> {
    let scenario = scenario.clone();
    Box::new(move || body(&scenario))
}

/// Puts both components of a page as a group.
pub fn put_pair(p: &Scenario, page: u64, value: u64) -> Result<PutOutcome> {
    let begun = p.history.begin_put(page, value);
    let bytes = bytes_of(value, p.len);
    let pieces = [&bytes[..]];
    let group = [0, 1].map(|c| PutSlice { key: part(page, c), pieces: &pieces });
    let outcome = p.store.put_groups(&[&group], Options::default()).remove(0);
    p.history.end(begun, outcome == Ok(PutOutcome::Stored));
    outcome
}

/// Gets both components of a page in one batch, which is one index lookup; returns the values
/// found.
pub fn get_pair(p: &Scenario, page: u64) -> [Option<u64>; 2] {
    let (mut a, mut b) = (vec![0; p.len], vec![0; p.len]);
    let from = p.history.now();
    let mut gets = [(0, &mut a), (1, &mut b)].map(|(c, to)| (part(page, c), [&mut to[..]]));
    let mut gets: Vec<_> =
        gets.iter_mut().map(|(key, pieces)| GetSlice { key: *key, range: None, pieces }).collect();
    let outcomes = p.store.get_batch(&mut gets, Options::default());
    drop(gets);
    let mut outcomes =
        outcomes.into_iter().zip([&a, &b]).map(|(outcome, to)| hit_value(outcome, to));
    let found = [(); 2].map(|()| outcomes.next().expect("two outcomes"));
    found.into_iter().flatten().for_each(|value| p.history.judge(page, from, value));
    found
}
