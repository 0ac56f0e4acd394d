//! Puts out of memory that the store is shown go over two links by turns: the store copies two of them at once.

use pagelith::attach::Session;
use pagelith::{Done, ErrorKind, Put, PutGroup, Source, Ticket};

use super::*;

const LEN: usize = 64 << 10;
const OBJECTS: u64 = 16;
/// Batches in flight.
const DEPTH: u64 = 4;

/// A client that shows memory for so many batches, or one that has as much of its own.
fn client(process: &Process, batches: u64, shows: bool) -> (Attached, Arc<Seen>, Vec<AlignedBuf>) {
    let (buffers, region) = AlignedBuf::shown((batches * OBJECTS) as usize, LEN).expect("memory");
    let (client, seen) = process.client(shows.then_some(region).into_iter().collect());
    (client, seen, buffers)
}

fn pages(batch: u64) -> std::ops::Range<u64> {
    batch * OBJECTS..(batch + 1) * OBJECTS
}

fn submit(session: &mut Session<'_>, batch: u64, buffers: &mut Vec<AlignedBuf>) -> Ticket {
    let put = |page| {
        let mut buffer = buffers.pop().expect("one");
        buffer.copy_from_slice(&content(page, LEN));
        PutGroup::new(vec![Put { key: key(page), source: Source::owned(buffer) }])
    };
    session.submit_put(pages(batch).map(put).collect(), Options::default())
}

/// All of a batch was stored; its memory.
fn stored(done: Option<Done>) -> Vec<AlignedBuf> {
    let Some(Done::Put(done)) = done else { panic!("a put") };
    let buffer = |done: pagelith::PutDone| {
        assert_eq!(done.outcome, Ok(PutOutcome::Stored));
        done.source.into_buffer().expect("its buffer")
    };
    done.into_iter().map(buffer).collect()
}

/// So many rounds of batches, all in flight together.
fn rounds(client: &Attached, buffers: &mut Vec<AlignedBuf>, rounds: std::ops::Range<u64>) {
    let mut session = client.session();
    for round in rounds {
        let tickets: Vec<Ticket> =
            (0..DEPTH).map(|n| submit(&mut session, round * DEPTH + n, buffers)).collect();
        // In another order than they were asked in.
        for ticket in tickets.into_iter().rev() {
            buffers.extend(stored(session.wait(ticket, TIMEOUT)));
        }
    }
}

fn asked(seen: &Seen) -> [u64; 2] {
    [0, 1].map(|link| seen.asked[link].load(Ordering::Relaxed))
}

fn begun(seen: &Seen) -> u64 {
    seen.begun.load(Ordering::Relaxed)
}

/// What was put last is here, with its own bytes.
fn are_here(client: &Attached, batches: std::ops::Range<u64>) {
    for page in batches.flat_map(pages) {
        assert_eq!(get(client, page, LEN), (hit(Tier::Memory, LEN), content(page, LEN)), "page={page}");
    }
}

#[test]
fn batches_in_flight_of_what_is_shown_go_over_two_links_and_others_over_one() {
    for shows in [true, false] {
        let process = Process::new(Rights::all(), false);
        let (client, seen, mut buffers) = client(&process, DEPTH, shows);
        rounds(&client, &mut buffers, 0..8);
        let [first, second] = asked(&seen);
        assert_eq!(
            (begun(&seen), second > 0),
            if shows { (2, true) } else { (1, false) },
            "{first} {second}"
        );
        assert!(first > 0);
        // Both are there for the next session, and a call has one of them.
        rounds(&client, &mut buffers, 8..10);
        assert_eq!(begun(&seen), if shows { 2 } else { 1 });
        are_here(&client, 38..40);
    }
}

#[test]
fn a_call_is_put_in_two_halves_with_the_outcomes_in_order() {
    let process = Process::new(Rights::all(), false);
    let (client, seen, mut buffers) = client(&process, 1, true);
    // The first call is made over whatever link there is.
    assert_eq!(client.ping(Options::default()), Ok(()));
    for (page, buffer) in pages(0).zip(&mut buffers) {
        buffer.copy_from_slice(&content(page, LEN));
    }
    let here = [2, 11];
    for page in here {
        assert_eq!(put(&client, &[page], &[&buffers[page as usize]]), [Ok(PutOutcome::Stored)]);
    }
    assert_eq!(begun(&seen), 1, "one object is no two halves");
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
    let before = asked(&seen);
    let outcomes = put(&client, &pages(0).collect::<Vec<_>>(), &slices);
    for (page, outcome) in pages(0).zip(outcomes) {
        let expected = if here.contains(&page) { PutOutcome::AlreadyPresent } else { PutOutcome::Stored };
        assert_eq!(outcome, Ok(expected), "page={page}");
    }
    let after = asked(&seen);
    assert_eq!((begun(&seen), after[0] - before[0]), (2, after[1] - before[1]));
    are_here(&client, 0..1);
}

/// Of a page that is named twice the first is put, as by a store of this process.
#[test]
fn a_call_that_names_a_page_twice_is_put_in_one() {
    let process = Process::new(Rights::all(), false);
    let (client, seen, mut buffers) = client(&process, 2, true);
    for (n, buffer) in buffers.iter_mut().enumerate() {
        buffer.copy_from_slice(&content(n as u64, LEN));
    }
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
    for round in 0..20 {
        // The second half has the pages of the first, in the other order, and other bytes.
        let first: Vec<u64> = pages(100 + round).collect();
        let named: Vec<u64> = first.iter().copied().chain(first.iter().rev().copied()).collect();
        let outcomes = put(&client, &named, &slices);
        let expected =
            |n: usize| Ok(if n < OBJECTS as usize { PutOutcome::Stored } else { PutOutcome::AlreadyPresent });
        assert_eq!(outcomes, (0..named.len()).map(expected).collect::<Vec<_>>(), "round={round}");
        for (n, page) in first.iter().enumerate() {
            assert!(get(&client, *page, LEN).1 == content(n as u64, LEN), "page={page}");
        }
    }
    assert_eq!(begun(&seen), 1);
}

/// A store that takes one link of a process is asked for another once a session, and once in a while by calls, and stays in use.
#[test]
fn a_store_that_takes_no_second_link_is_used_by_one() {
    let process = Process::new(Rights::all(), false);
    let (client, seen, mut buffers) = client(&process, DEPTH, true);
    seen.refuses.store(true, Ordering::Relaxed);
    rounds(&client, &mut buffers, 0..8);
    assert_eq!(begun(&seen), 2, "it is not asked again and again");
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
    let begun_before = begun(&seen);
    for batch in 100..104 {
        let named: Vec<u64> = (batch * 64..batch * 64 + 64).collect();
        assert_eq!(put(&client, &named, &slices), vec![Ok(PutOutcome::Stored); 64]);
    }
    assert!(begun(&seen) <= begun_before + 2, "calls do not ask again and again");
    assert_eq!((asked(&seen)[1], client.ping(Options::default())), (0, Ok(())));
}

/// What was on its way over a second link that ended is asked once more, and is an error at worst if none is made in its place.
#[test]
fn a_second_link_that_ends_takes_nothing_with_it() {
    let process = Process::new(Rights::all(), false);
    let (client, seen, mut buffers) = client(&process, DEPTH, true);
    let mut session = client.session();
    let (mut batch, mut anew) = (0, 0);
    for round in 0..80 {
        let (mut tickets, before) = (Vec::new(), asked(&seen)[1]);
        for n in 0..DEPTH {
            // While it has one of the batches; the one that is made then is another.
            if round % 2 == 1 && n == 2 && asked(&seen)[1] > before {
                seen.cut_one.store(begun(&seen) - 1, Ordering::Relaxed);
                seen.refuses.store(round % 4 == 3, Ordering::Relaxed);
                anew += 1;
            }
            tickets.push((batch, submit(&mut session, batch, &mut buffers)));
            batch += 1;
        }
        let mut stored = Vec::new();
        for (batch, ticket) in tickets {
            let Some(Done::Put(done)) = session.wait(ticket, TIMEOUT) else { panic!("a put") };
            for (page, done) in pages(batch).zip(done) {
                match done.outcome {
                    Ok(_) => stored.push(page),
                    Err(error) => assert!(round % 4 == 3 && error.kind == ErrorKind::Unavailable, "{error}"),
                }
                buffers.push(done.source.into_buffer().expect("its buffer"));
            }
        }
        seen.refuses.store(false, Ordering::Relaxed);
        assert_eq!(buffers.len() as u64, DEPTH * OBJECTS, "round={round}: all memory comes back");
        for page in stored {
            assert!(get(&client, page, LEN).1 == content(page, LEN), "round={round} page={page}");
        }
    }
    assert!(anew > 0 && begun(&seen) > 2, "it was made anew");
}
