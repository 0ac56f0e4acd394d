//! Several batches of puts in flight on one session, from shared memory or from the client's own.

use pagelith::client::Session;
use pagelith::{CompletedBatch, Put, PutGroup, Source, Ticket};

use super::*;

const LEN: usize = 64 << 10;
const OBJECTS: u64 = 16;
/// Batches in flight.
const DEPTH: u64 = 4;

/// A client that shares memory for this many batches, or one with as much private memory.
fn client(
    process: &Process,
    batches: u64,
    shows: bool,
) -> (Client, Arc<LinkCounts>, Vec<AlignedBuf>) {
    let (buffers, region) = AlignedBuf::shown((batches * OBJECTS) as usize, LEN).expect("memory");
    let (client, seen) = process.client(shows.then_some(region).into_iter().collect());
    (client, seen, buffers)
}

fn pages(batch: u64) -> std::ops::Range<u64> {
    batch * OBJECTS..(batch + 1) * OBJECTS
}

fn submit(session: &mut Session, batch: u64, buffers: &mut Vec<AlignedBuf>) -> Ticket {
    let put = |page| {
        let mut buffer = buffers.pop().expect("one");
        buffer.copy_from_slice(&content(page, LEN));
        PutGroup::new(vec![Put { key: key(page), source: Source::owned(buffer) }])
    };
    session.submit_put(pages(batch).map(put).collect(), Options::default())
}

/// Check that all of a batch was stored; returns its memory.
fn stored(done: Option<CompletedBatch>) -> Vec<AlignedBuf> {
    let Some(CompletedBatch::Put(done)) = done else { panic!("a put") };
    let buffer = |done: pagelith::CompletedPut| {
        assert_eq!(done.outcome, Ok(PutOutcome::Stored));
        done.source.into_buffer().expect("its buffer")
    };
    done.into_iter().map(buffer).collect()
}

/// Run rounds of batches, all of a round in flight together.
fn rounds(client: &Client, buffers: &mut Vec<AlignedBuf>, rounds: std::ops::Range<u64>) {
    let mut session = client.session();
    for round in rounds {
        let tickets: Vec<Ticket> =
            (0..DEPTH).map(|n| submit(&mut session, round * DEPTH + n, buffers)).collect();
        // In another order than that of submission.
        for ticket in tickets.into_iter().rev() {
            buffers.extend(stored(session.wait(ticket, TIMEOUT)));
        }
    }
}

/// The last put of each page is present, with its own bytes.
fn are_here(client: &Client, batches: std::ops::Range<u64>) {
    for page in batches.flat_map(pages) {
        assert_eq!(
            get(client, page, LEN),
            (hit(Tier::Memory, LEN), content(page, LEN)),
            "page={page}"
        );
    }
}

#[test]
fn session_with_several_batches_in_flight_puts_all_of_them_over_one_link() {
    for shows in [true, false] {
        let process = Process::new(Rights::all(), false);
        let (client, seen, mut buffers) = client(&process, DEPTH, shows);
        rounds(&client, &mut buffers, 0..8);
        rounds(&client, &mut buffers, 8..10);
        assert_eq!(seen.begun.load(Ordering::Relaxed), 1, "shows={shows}");
        are_here(&client, 38..40);
    }
}

#[test]
fn put_that_names_a_page_twice_stores_the_first() {
    let process = Process::new(Rights::all(), false);
    let (client, _, mut buffers) = client(&process, 2, true);
    for (n, buffer) in buffers.iter_mut().enumerate() {
        buffer.copy_from_slice(&content(n as u64, LEN));
    }
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
    // The same pages again, in reverse order, with other bytes.
    let first: Vec<u64> = pages(100).collect();
    let named: Vec<u64> = first.iter().copied().chain(first.iter().rev().copied()).collect();
    let outcomes = put(&client, &named, &slices);
    let expected = |n: usize| {
        Ok(if n < OBJECTS as usize { PutOutcome::Stored } else { PutOutcome::AlreadyPresent })
    };
    assert_eq!(outcomes, (0..named.len()).map(expected).collect::<Vec<_>>());
    for (n, page) in first.iter().enumerate() {
        assert!(get(&client, *page, LEN).1 == content(n as u64, LEN), "page={page}");
    }
}

#[test]
fn batches_in_flight_survive_the_end_of_a_connection() {
    let process = Process::new(Rights::all(), false);
    let (client, seen, mut buffers) = client(&process, DEPTH, true);
    let mut session = client.session();
    let mut batch = 0;
    for round in 0..20 {
        let mut tickets = Vec::new();
        for n in 0..DEPTH {
            seen.cut.store(n == 2, Ordering::Relaxed);
            tickets.push((batch, submit(&mut session, batch, &mut buffers)));
            batch += 1;
        }
        for (batch, ticket) in tickets {
            let Some(CompletedBatch::Put(done)) = session.wait(ticket, TIMEOUT) else {
                panic!("a put")
            };
            for (page, done) in pages(batch).zip(done) {
                // Stored before the connection ended, or after that.
                assert!(done.outcome.is_ok(), "round={round} page={page} {:?}", done.outcome);
                buffers.push(done.source.into_buffer().expect("its buffer"));
            }
        }
        assert_eq!(buffers.len() as u64, DEPTH * OBJECTS, "round={round}: all memory comes back");
    }
    drop(session);
    assert!(seen.begun.load(Ordering::Relaxed) > 2, "it was made anew");
    are_here(&client, batch - DEPTH..batch);
}
