//! The well-behaved tenant: it puts objects, reads them repeatedly, and compares every byte.

use std::time::{Duration, Instant};

use pagelith::client::Client;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::{GetOutcome, GetSlice, Options, PutSlice};
use serde_json::{Value, json};

use super::{Stop, Tenant, rounded};

/// Number of its objects, and their length in bytes.
const OBJECTS: u64 = 256;
const OBJECT_BYTES: usize = 64 << 10;
/// Objects per batch.
const BATCH: usize = 8;
/// Pause between two batches, in which an inference engine would compute.
const PACE: Duration = Duration::from_millis(5);
/// Number of batches between two rounds of pin, lease, put and remove.
const HOLD_EVERY: u64 = 50;
const TIMEOUT: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_millis(50);

/// The results of a phase.
#[derive(Default)]
pub struct Phase {
    batches_us: Vec<u32>,
    pub missed: u64,
}

impl Phase {
    fn percentile_us(&self, per_mille: usize) -> f64 {
        let mut sorted = self.batches_us.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * per_mille / 1000).copied().unwrap_or(0).into()
    }

    /// The 99th percentile of the latency of batches, in microseconds.
    pub fn p99_us(&self) -> f64 {
        self.percentile_us(990)
    }

    pub fn json(&self) -> Value {
        let (p50, p99) = (rounded(self.percentile_us(500)), rounded(self.p99_us()));
        json!({ "batches": self.batches_us.len(), "missed": self.missed, "p50_us": p50, "p99_us": p99 })
    }
}

/// The tenant.
pub struct WellBehavedTenant<'a> {
    tenant: &'a Tenant,
    store: Client,
    expected: Vec<Vec<u8>>,
    batches: u64,
}

impl WellBehavedTenant<'_> {
    pub fn new(tenant: &Tenant) -> WellBehavedTenant<'_> {
        let store = Client::to(&tenant.address, Some(&tenant.key), TIMEOUT).expect("attached");
        let bytes = |n: u64| {
            (0..OBJECT_BYTES as u64).map(|i| ((i * 31) ^ (i >> 8) ^ (n * 7919)) as u8).collect()
        };
        let behaved = WellBehavedTenant {
            tenant,
            store,
            expected: (0..OBJECTS).map(bytes).collect(),
            batches: 0,
        };
        for (n, bytes) in (0..).zip(&behaved.expected) {
            behaved.put(n, bytes);
        }
        behaved
    }

    fn key(&self, n: u64) -> ObjectKey {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&n.to_le_bytes());
        let namespace = self.tenant.namespace;
        ObjectKey::new(namespace, PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole)
            .expect("a key")
    }

    fn put(&self, n: u64, bytes: &[u8]) {
        let put = PutSlice { key: self.key(n), pieces: &[bytes] };
        self.store.put_batch(&[put], Options::default()).remove(0).expect("put");
    }

    /// Run batches for `time`, while `others` runs until it is stopped.
    pub fn work(&mut self, time: Duration, others: impl FnOnce(&Stop) + Send) -> Phase {
        let stop = Stop::default();
        std::thread::scope(|scope| {
            scope.spawn(|| others(&stop));
            let (began, mut phase) = (Instant::now(), Phase::default());
            while began.elapsed() < time {
                self.batch(&mut phase);
                stop.within(PACE);
            }
            stop.now();
            phase
        })
    }

    fn batch(&mut self, phase: &mut Phase) {
        self.batches += 1;
        let numbers: Vec<u64> =
            (0..BATCH as u64).map(|i| (self.batches * 37 + i * 11) % OBJECTS).collect();
        let mut to = vec![vec![0; OBJECT_BYTES]; BATCH];
        let mut pieces: Vec<[&mut [u8]; 1]> = to.iter_mut().map(|to| [&mut to[..]]).collect();
        let keys = numbers.iter().map(|n| self.key(*n));
        let gets = keys.zip(&mut pieces).map(|(key, pieces)| GetSlice { key, range: None, pieces });
        let mut gets: Vec<_> = gets.collect();
        let began = Instant::now();
        let outcomes = self.store.get_batch(&mut gets, Options::default());
        phase.batches_us.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
        for ((n, outcome), bytes) in numbers.iter().zip(outcomes).zip(&to) {
            match outcome.expect("an outcome") {
                GetOutcome::Hit { .. } => {
                    assert!(*bytes == self.expected[*n as usize], "wrong bytes object={n}")
                }
                GetOutcome::Miss(_) => phase.missed += 1,
            }
        }
        if self.batches.is_multiple_of(HOLD_EVERY) {
            self.hold(&numbers);
        }
    }

    /// Pin and lease these objects; put another one, and remove it.
    fn hold(&self, numbers: &[u64]) {
        let keys: Vec<_> = numbers.iter().map(|n| self.key(*n)).collect();
        let pin = self.store.pin(&keys, Options::default()).expect("pinned");
        self.store.lease(&keys, LEASE, Options::default()).expect("leased");
        let passing = OBJECTS + self.batches;
        self.put(passing, &self.expected[0]);
        self.store.remove(&[self.key(passing)], Options::default()).expect("removed");
        drop(pin);
    }

    /// Flush all objects.
    pub fn end(self) {
        self.store.flush(Options::default()).expect("flushed");
    }
}
