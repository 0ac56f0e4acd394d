//! The store sleeps while a client copies what it is shown, and is woken for the next question before that is asked.

use pagelith::{Destination, Done, Get, Ticket};

use super::*;

const LEN: usize = 64 << 10;
const OBJECTS: u64 = 32;
/// Objects that are left when the store is woken: half a MiB.
const LEFT: u64 = 8;

/// A client of a store that has so many batches.
fn client(batches: u64) -> (Process, Attached, Arc<Seen>) {
    let process = Process::tuned(Rights::all(), false, |config| config.dram.bytes = Size::mib(64));
    let (client, seen) = process.client(Vec::new());
    for page in 0..batches * OBJECTS {
        let bytes = content(page, LEN);
        assert_eq!(put(&client, &[page], &[&bytes]), [Ok(PutOutcome::Stored)]);
    }
    seen.nudged.lock().expect("no panic").clear();
    (process, client, seen)
}

fn gets(batch: u64) -> Vec<Get> {
    let get = |page| Get {
        key: key(page),
        range: None,
        destination: Destination::owned(AlignedBuf::new(LEN).expect("memory")),
    };
    (batch * OBJECTS..(batch + 1) * OBJECTS).map(get).collect()
}

fn check(batch: u64, done: Vec<pagelith::GetDone>) {
    for (page, done) in (batch * OBJECTS..).zip(done) {
        assert_eq!(done.outcome, hit(Tier::Memory, LEN));
        assert_eq!(*done.destination.into_buffer().expect("its buffer"), *content(page, LEN));
    }
}

/// How much had been copied of what was asked last when the store was woken, of each question.
fn nudged(seen: &Seen) -> Vec<u64> {
    std::mem::take(&mut *seen.nudged.lock().expect("no panic"))
}

/// A store that sleeps again before it is asked is woken early ever more seldom.
#[test]
fn the_store_is_woken_for_the_next_get_while_the_rest_of_this_one_is_copied() {
    let (_process, client, seen) = client(1);
    let mut early = Vec::new();
    for get in 0..12 {
        check(0, client.get(gets(0), Options::default()));
        let when = nudged(&seen);
        assert_eq!(when[0], get * OBJECTS, "it is woken when it is asked, too");
        early.push(when.len() - 1);
        assert!(when[1..].iter().all(|when| *when == (get + 1) * OBJECTS - LEFT), "{when:?}");
    }
    assert_eq!(early, [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0]);
}

/// Who has another get in flight has the store awake.
#[test]
fn with_several_gets_in_flight_the_store_is_woken_by_the_last_alone() {
    let (_process, client, seen) = client(2);
    let mut session = client.session();
    let tickets: Vec<Ticket> =
        (0..2).map(|batch| session.submit_get(gets(batch), Options::default())).collect();
    for (batch, ticket) in (0..2).zip(tickets) {
        let Some(Done::Get(done)) = session.wait(ticket, TIMEOUT) else { panic!("a get") };
        check(batch, done);
    }
    assert_eq!(nudged(&seen), [0, 0, 2 * OBJECTS - LEFT]);
}
