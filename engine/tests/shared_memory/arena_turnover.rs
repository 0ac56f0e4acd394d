//! Clients that map the arena get pages that are stored and evicted meanwhile.

use pagelith::{Destination, Get, MissCause};

use super::*;

const LEN: usize = 50_000;
/// Pages of two objects each, half as many again as the arena holds.
const PAGES: u64 = 3 * (16 << 20) / (4 * LEN as u64);
/// Pages of one batch of gets.
const BATCH: u64 = 8;

/// Stops the threads of a scope also if the test fails: the scope would wait for them otherwise.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Put a page in the store's own process.
fn put_page(store: &Store, page: u64) -> pagelith::Result<PutOutcome> {
    let bytes = content(page, LEN);
    let pieces: [&[u8]; 1] = [&bytes];
    let group =
        ["k", "v"].map(|component| PutSlice { key: part(page, component), pieces: &pieces });
    store.put_groups(&[&group], Options::default()).remove(0)
}

fn gets(pages: &[u64]) -> Vec<Get> {
    let keys = pages.iter().flat_map(|page| [part(*page, "k"), part(*page, "v")]);
    let destination = || Destination::owned(AlignedBuf::new(LEN).expect("memory"));
    keys.map(|key| Get { key, range: None, destination: destination() }).collect()
}

/// Get batches of pages until requested to stop; returns the number of hits.
fn get_until(stop: &AtomicBool, client: &Client, first: u64) -> u64 {
    let (mut hits, mut round) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let pages: Vec<u64> = (0..BATCH).map(|i| (first + round * 7 + i * 5) % PAGES).collect();
        let done = client.get(gets(&pages), Options::default());
        for (at, done) in done.iter().enumerate() {
            let page = pages[at / 2];
            match &done.outcome {
                Ok(GetOutcome::Hit { .. }) => hits += 1,
                Ok(GetOutcome::Miss(MissCause::Absent)) => continue,
                other => panic!("{other:?}"),
            }
            let bytes: Vec<u8> = done.destination.pieces().flatten().copied().collect();
            assert!(bytes == content(page, LEN), "page={page}");
        }
    }
    hits
}

#[test]
fn hits_during_arena_turnover_return_their_own_bytes() {
    let process = Process::new(Rights::all(), false);
    let (client, seen) = process.client(Vec::new());
    let (client, stop) = (&client, AtomicBool::new(false));
    let hits: u64 = std::thread::scope(|scope| {
        let stop = &stop;
        let getters =
            [0, PAGES / 2].map(|first| scope.spawn(move || get_until(stop, client, first)));
        let stops = Stops(stop);
        let mut stored = 0;
        for round in 0..3 * PAGES {
            // A page that is got all the while may be here still, a lap later.
            let put = put_page(&process.store, round % PAGES);
            assert!(matches!(put, Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent)), "{put:?}");
            stored += u64::from(put == Ok(PutOutcome::Stored));
        }
        assert!(stored > 2 * PAGES, "the arena turns over: stored={stored} of={}", 3 * PAGES);
        drop(stops);
        getters.map(|getter| getter.join().expect("every hit was right")).iter().sum()
    });
    let [shown, landed, ..] = seen.take();
    assert!(hits > 0 && shown > landed, "hits are shown hits={hits} shown={shown} landed={landed}");
}
