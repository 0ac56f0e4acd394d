//! A replayed workload: the LRU policy compared with an independent simulation on the same
//! requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{FrameId, FramePolicy, LastRequests, Lru, Recency};

const CAPACITY: usize = 300;
const REQUESTS: usize = 4000;
const DOCUMENTS: u64 = 200;
const PAGES_PER_DOCUMENT: u64 = 40;

/// SplitMix64 (Steele, Lea, Flood 2014): a seed determines the workload.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A rank below `n`; rank r is drawn with probability proportional to 1 / (r + 1).
    fn zipf(&mut self, n: u64) -> u64 {
        let total: f64 = (1..=n).map(|rank| 1.0 / rank as f64).sum();
        let mut left = (self.next() as f64 / u64::MAX as f64) * total;
        for rank in 0..n {
            left -= 1.0 / (rank + 1) as f64;
            if left <= 0.0 {
                return rank;
            }
        }
        n - 1
    }
}

/// Requests for prefixes of documents, as lists of pages with depths, from head to tail. Documents
/// share first pages.
fn workload() -> Vec<Vec<(u64, u32)>> {
    let mut numbers = Numbers(42);
    let request = |_| {
        let document = numbers.zipf(DOCUMENTS);
        let length = 1 + numbers.next() % PAGES_PER_DOCUMENT;
        let page = |depth: u64| {
            // Ten documents share a system prompt of eight pages.
            let owner = if depth < 8 { document % 10 } else { document + 10 };
            (owner * PAGES_PER_DOCUMENT + depth, depth as u32)
        };
        (0..length).map(page).collect()
    };
    (0..REQUESTS).map(request).collect()
}

/// Simulate a request on one queue of pages in eviction order; returns the hits. The pages of a
/// request are placed after all others, the head last.
fn simulate(queue: &mut VecDeque<u64>, request: &[(u64, u32)]) -> usize {
    let mut hits = 0;
    for (already, (page, _)) in request.iter().enumerate() {
        match queue.iter().position(|known| known == page) {
            Some(at) => {
                hits += 1;
                queue.remove(at);
            }
            None if queue.len() == CAPACITY => drop(queue.pop_front()),
            None => {}
        }
        queue.insert(queue.len() - already, *page);
    }
    hits
}

struct Store {
    lru: Lru,
    last_requests: Arc<LastRequests>,
    frame_of: BTreeMap<u64, FrameId>,
    page_of: BTreeMap<FrameId, u64>,
}

impl Store {
    fn new() -> Store {
        let last_requests = Arc::new(LastRequests::new(CAPACITY).expect("memory"));
        let lru = Lru::new(last_requests.clone());
        Store { lru, last_requests, frame_of: BTreeMap::new(), page_of: BTreeMap::new() }
    }

    fn replay(&mut self, number: u64, request: &[(u64, u32)]) -> usize {
        let mut hits = 0;
        for &(page, depth) in request {
            let at = Recency { request: number, depth };
            if let Some(&frame) = self.frame_of.get(&page) {
                hits += 1;
                self.last_requests.raise(frame, at);
                continue;
            }
            let frame = if self.lru.len() == CAPACITY {
                let frame = self.lru.victim(&mut |_| true).expect("nothing is pinned");
                let left = self.page_of.remove(&frame).expect("a victim is resident");
                self.frame_of.remove(&left);
                frame
            } else {
                FrameId(self.lru.len() as u32)
            };
            self.lru.insert(frame, 4096, u128::from(page), at);
            self.frame_of.insert(page, frame);
            self.page_of.insert(frame, page);
        }
        hits
    }
}

#[test]
fn lru_on_zipf_workload_equals_independent_simulation() {
    let mut store = Store::new();
    let mut queue = VecDeque::new();
    let mut hits = 0;
    let mut asked = 0;
    for (number, request) in workload().iter().enumerate() {
        let expected = simulate(&mut queue, request);
        assert_eq!(store.replay(number as u64, request), expected, "request={number}");
        hits += expected;
        asked += request.len();
    }
    // The workload must have both hits and misses.
    assert!(hits * 10 > asked && hits * 10 < asked * 9, "hits={hits} asked={asked}");

    let drained: Vec<u64> = std::iter::from_fn(|| store.lru.victim(&mut |_| true))
        .map(|frame| store.page_of[&frame])
        .collect();
    assert_eq!(drained, Vec::from(queue));
}
