//! How links end: peers that die, fall silent, say goodbye.

use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_layouts::ids::OpId;
use pagelith_transport::closed::Closed;
use pagelith_transport::limits::Limits;
use pagelith_transport::link::{Event, Link};

use crate::common::*;

#[test]
fn a_peer_that_dies_in_the_middle_of_data_gives_the_memory_back() {
    let mut pair = pair(usize::MAX, true);
    lock(&pair.ways.1).most = 200;
    pair.client.expose(OpId(1), 0, 0, scatter(&[0; 1000], &[])).expect("room");
    pair.server.push(push(1, 0, 0, &[7; 1000])).expect("room");
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    pair.client.poll(&mut events);
    drop(pair.server);
    pair.client.poll(&mut events);
    assert_eq!(told(&events), ["retracted 1 0", "closed: the connection ended"]);
    assert_eq!(pair.client.counts().bytes_in, 136);
}

#[test]
fn what_was_said_before_the_end_is_heard() {
    let mut pair = pair(usize::MAX, true);
    pair.client.expose(OpId(1), 0, 0, scatter(&[0; 10], &[])).expect("room");
    pair.server.push(push(1, 0, 0, &[7; 10])).expect("room");
    pair.server.send(outcome(1, b"over")).expect("room");
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    drop(pair.server);
    events.clear();
    pair.client.poll(&mut events);
    pair.client.poll(&mut events);
    assert_eq!(told(&events), ["landed 1 0", "Outcome 1 4", "closed: the connection ended"]);
}

/// The first that is noticed of a dead peer may be that it takes no bytes.
#[test]
fn what_was_said_is_heard_though_nothing_can_be_said_any_more() {
    let mut pair = pair(usize::MAX, true);
    pair.server.send(outcome(1, b"over")).expect("room");
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    drop(pair.server);
    pair.client.send(request(2, b"to nobody")).expect("room");
    pair.client.poll(&mut events);
    assert_eq!(told(&events), ["Outcome 1 4", "closed: the connection ended"]);
}

#[test]
fn a_goodbye_is_an_end_with_a_name() {
    let mut pair = pair(usize::MAX, true);
    pair.server.close();
    let mut events = Vec::new();
    pair.client.poll(&mut events);
    assert_eq!(told(&events), ["closed: closed by the peer"]);
}

/// A half-open connection: the other end is gone, and nothing says so.
#[test]
fn a_silent_peer_is_asked_and_then_taken_for_dead() {
    let limits = Limits::default();
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, clock, .. } = &mut pair;
    client.expose(OpId(1), 0, 0, scatter(&[0; 10], &[])).expect("room");
    let mut events = Vec::new();
    // As long as the other end answers, silence is no end.
    for _ in 0..20 {
        clock.pass(limits.ping_after);
        client.poll(&mut events);
        server.poll(&mut events);
        client.poll(&mut events);
    }
    assert_eq!(told(&events), Vec::<String>::new());
    clock.pass(limits.ping_after);
    client.poll(&mut events);
    clock.pass(limits.dead_after - limits.ping_after - Duration::from_nanos(1));
    client.poll(&mut events);
    assert_eq!(told(&events), Vec::<String>::new(), "not yet");
    clock.pass(Duration::from_nanos(1));
    client.poll(&mut events);
    assert_eq!(told(&events), ["retracted 1 0", "closed: nothing was heard of the peer silent_ms=6000"]);
}

/// Who does not poll for a long time has not heard the peer; the peer is not dead for that.
#[test]
fn a_peer_that_was_not_asked_is_not_dead() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, clock, .. } = &mut pair;
    clock.pass(Duration::from_secs(3600));
    let (a, b) = settle(client, server);
    assert_eq!((told(&a), told(&b)), (vec![], vec![]));
    clock.pass(Duration::from_secs(3600));
    let (a, b) = settle(client, server);
    assert_eq!((told(&a), told(&b)), (vec![], vec![]));
}

#[test]
fn a_wait_ends_though_the_clock_stands_still() {
    let mut pair = pair(usize::MAX, true);
    let mut events = Vec::new();
    pair.client.wait(&mut events, Duration::from_secs(3600));
    assert_eq!(told(&events), Vec::<String>::new());
    pair.server.send(outcome(1, b"over")).expect("room");
    pair.server.poll(&mut events);
    pair.client.wait(&mut events, Duration::from_secs(3600));
    assert_eq!(told(&events), ["Outcome 1 4"]);
}

/// Who is woken for what is about to come may find nothing yet.
#[test]
fn a_wait_that_is_woken_for_nothing_goes_on() {
    let mut pair = pair(usize::MAX, true);
    let mut events = Vec::new();
    pair.server.send(outcome(1, b"over")).expect("room");
    pair.server.poll(&mut events);
    let mut way = lock(&pair.ways.1);
    (way.later, way.early, way.clock) = (std::mem::take(&mut way.bytes), 2, Some(pair.clock.clone()));
    drop(way);
    pair.client.wait(&mut events, Duration::from_millis(100));
    assert_eq!(told(&events), ["Outcome 1 4"]);
    // But not beyond its time.
    lock(&pair.ways.1).early = 1000;
    let until = pair.clock.now().after(Duration::from_millis(100));
    pair.client.wait(&mut events, Duration::from_millis(100));
    assert_eq!((events.len(), pair.clock.now()), (1, until));
}

#[test]
fn a_wrong_key_is_refused_and_a_server_with_another_too() {
    let (client, server, _) = pendings(usize::MAX, Some(key(2)), keys(1));
    let (client, server) = meet(client, server);
    let text = "refused: unknown key name or wrong key reason=Denied";
    assert_eq!(client.map(|_| ()).expect_err("refused").to_string(), text);
    assert_eq!(server.map(|_| ()), Err(Closed::NotAuthentic { what: "the client's proof" }));
}

#[test]
fn a_handshake_that_takes_too_long_is_over() {
    let (client, server, clock) = pendings(usize::MAX, Some(key(1)), keys(1));
    clock.pass(Limits::default().handshake);
    let (client, server) = meet(client, server);
    let late = "the handshake took too long limit_ms=5000";
    assert_eq!(client.map(|_| ()).expect_err("late").to_string(), late);
    let server = server.map(|_| ()).expect_err("late or ended");
    assert!(server == Closed::Ended || server.to_string() == late, "{server}");
}

#[test]
fn events_hold_their_memory_alone() {
    let mut pair = pair(usize::MAX, true);
    pair.client.expose(OpId(1), 0, 0, scatter(&[0; 10], &[])).expect("room");
    pair.server.push(push(1, 0, 0, &[7; 10])).expect("room");
    let (mut got, _) = settle(&mut pair.client, &mut pair.server);
    let Some(Event::Landed { parts, .. }) = got.pop() else { panic!("{:?}", told(&got)) };
    let parts = parts.into_iter().reduce(|a, b| a.join(b).expect("neighbours")).expect("a part");
    assert!(parts.into_buf().is_some(), "the link keeps a part of it");
}
