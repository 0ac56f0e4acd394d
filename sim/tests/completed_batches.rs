//! Several batches of gets of one session have completed when it is polled: the first is returned
//! before the others are verified, so that its caller can continue meanwhile.

mod support;

use std::time::Duration;

use pagelith::{
    AlignedBuf, CompletedBatch, Destination, Get, GetOutcome, Options, PutGroup, Session, Source,
    Store, Tier,
};
use pagelith_sim::env::SimWorld;
use support::objects::{config, key, length};
use support::plan::Shape;

const PAGES: [u32; 3] = [1, 2, 3];

fn content(page: u32) -> AlignedBuf {
    let mut buf = AlignedBuf::new(length(&key(page, "k"))).expect("memory");
    buf.iter_mut().zip(page..).for_each(|(byte, i)| *byte = (i * 31) as u8);
    buf
}

/// A store with these pages, all on SSD only.
fn store(world: &SimWorld) -> Store {
    let shape = Shape { cold: true, promote: false, ..Shape::ROOMY };
    let store = Store::open_in(config(shape), world.env()).expect("opened");
    for page in PAGES {
        let put = pagelith::Put { key: key(page, "k"), source: Source::owned(content(page)) };
        let mut session = store.session().expect("a session");
        let ticket = session.submit_put(vec![PutGroup::new(vec![put])], Options::default());
        session.wait(ticket, Duration::from_secs(1)).expect("put");
    }
    store.flush(Options::default()).expect("flushed");
    store.close().expect("closed");
    Store::open_in(config(shape), world.env()).expect("opened again")
}

fn submit(session: &mut Session, page: u32) -> pagelith::Ticket {
    let destination = Destination::owned(AlignedBuf::new(length(&key(page, "k"))).expect("memory"));
    session
        .submit_get(vec![Get { key: key(page, "k"), range: None, destination }], Options::default())
}

fn holds(done: CompletedBatch, page: u32) -> bool {
    let CompletedBatch::Get(mut done) = done else { return false };
    let done = done.remove(0);
    matches!(done.outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, .. }))
        && done.destination.into_buffer().is_some_and(|buf| buf[..] == content(page)[..])
}

#[test]
fn poll_returns_first_batch_before_verifying_others() {
    let world = SimWorld::new(7);
    let store = store(&world);
    let mut session = store.session().expect("a session");
    let tickets = PAGES.map(|page| submit(&mut session, page));
    // All three completed long ago.
    world.clock.advance(Duration::from_secs(1));
    for (at, page) in PAGES.iter().enumerate() {
        let (ticket, done) = session.poll().expect("a batch is done");
        let number = tickets.iter().position(|t| *t == ticket).expect("one of them");
        assert!(holds(done, PAGES[number]), "page={page}");
        assert_eq!(store.stats().hits_ssd, at as u64 + 1, "verified before its wait");
    }
    assert!(session.poll().is_none());
}

#[test]
fn wait_for_completed_batch_returns_at_once() {
    let world = SimWorld::new(7);
    let store = store(&world);
    let mut session = store.session().expect("a session");
    let tickets = PAGES.map(|page| submit(&mut session, page));
    world.clock.advance(Duration::from_secs(1));
    for number in [2, 0, 1] {
        let done = session.wait(tickets[number], Duration::ZERO).expect("it has come");
        assert!(holds(done, PAGES[number]));
    }
}
