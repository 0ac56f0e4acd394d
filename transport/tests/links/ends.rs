//! Ends of links: peers that die, fall silent, or say goodbye.

use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_layouts::ids::OpId;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;

use crate::common::*;

#[test]
fn exposed_memory_comes_back_when_the_peer_dies_mid_frame() {
    let mut pair = pair(usize::MAX, true);
    lock(&pair.ways.1).most = 200;
    pair.client.expose(OpId(1), 0, 0, scatter(&[0; 1000], &[])).expect("room");
    pair.server.push(push(1, 0, 0, &[7; 1000])).expect("room");
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    pair.client.poll(&mut events);
    drop(pair.server);
    pair.client.poll(&mut events);
    assert_eq!(event_lines(&events), ["retracted 1 0", "closed: the connection ended"]);
    assert_eq!(pair.client.counts().bytes_in, 136);
}

#[test]
fn frames_before_the_end_are_delivered() {
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
    assert_eq!(event_lines(&events), ["landed 1 0", "Outcome 1 4", "closed: the connection ended"]);
}

/// The first sign of a dead peer may be a failed write.
#[test]
fn frames_are_delivered_when_writes_fail_first() {
    let mut pair = pair(usize::MAX, true);
    pair.server.send(outcome(1, b"over")).expect("room");
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    drop(pair.server);
    pair.client.send(request(2, b"not received")).expect("room");
    pair.client.poll(&mut events);
    assert_eq!(event_lines(&events), ["Outcome 1 4", "closed: the connection ended"]);
}

#[test]
fn goodbye_is_reported_as_closed_by_the_peer() {
    let mut pair = pair(usize::MAX, true);
    pair.server.close();
    let mut events = Vec::new();
    pair.client.poll(&mut events);
    assert_eq!(event_lines(&events), ["closed: closed by the peer"]);
}

/// A half-open connection: the other end has vanished without an end of the stream.
#[test]
fn silent_peer_gets_a_ping_and_then_times_out() {
    let limits = LinkLimits::default();
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, clock, .. } = &mut pair;
    client.expose(OpId(1), 0, 0, scatter(&[0; 10], &[])).expect("room");
    let mut events = Vec::new();
    // The link stays open as long as the peer replies to pings.
    for _ in 0..20 {
        clock.pass(limits.ping_after);
        client.poll(&mut events);
        server.poll(&mut events);
        client.poll(&mut events);
    }
    assert_eq!(event_lines(&events), Vec::<String>::new());
    clock.pass(limits.ping_after);
    client.poll(&mut events);
    clock.pass(limits.dead_after - limits.ping_after - Duration::from_nanos(1));
    client.poll(&mut events);
    assert_eq!(event_lines(&events), Vec::<String>::new(), "not yet");
    clock.pass(Duration::from_nanos(1));
    client.poll(&mut events);
    assert_eq!(
        event_lines(&events),
        ["retracted 1 0", "closed: nothing was heard of the peer silent_ms=6000"]
    );
}

/// An end that was not polled for a long time has read nothing; its peer is not dead for that
/// reason.
#[test]
fn peer_without_an_unanswered_ping_is_alive() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, clock, .. } = &mut pair;
    clock.pass(Duration::from_secs(3600));
    let (a, b) = settle(client, server);
    assert_eq!((event_lines(&a), event_lines(&b)), (vec![], vec![]));
    clock.pass(Duration::from_secs(3600));
    let (a, b) = settle(client, server);
    assert_eq!((event_lines(&a), event_lines(&b)), (vec![], vec![]));
}

#[test]
fn wait_returns_under_a_stopped_clock() {
    let mut pair = pair(usize::MAX, true);
    let mut events = Vec::new();
    pair.client.wait(&mut events, Duration::from_secs(3600));
    assert_eq!(event_lines(&events), Vec::<String>::new());
    pair.server.send(outcome(1, b"over")).expect("room");
    pair.server.poll(&mut events);
    pair.client.wait(&mut events, Duration::from_secs(3600));
    assert_eq!(event_lines(&events), ["Outcome 1 4"]);
}

/// A wake-up can reach the peer before the bytes.
#[test]
fn wait_continues_after_a_wakeup_without_bytes() {
    let mut pair = pair(usize::MAX, true);
    let mut events = Vec::new();
    pair.server.send(outcome(1, b"over")).expect("room");
    pair.server.poll(&mut events);
    let mut way = lock(&pair.ways.1);
    (way.later, way.early, way.clock) =
        (std::mem::take(&mut way.bytes), 2, Some(pair.clock.clone()));
    drop(way);
    pair.client.wait(&mut events, Duration::from_millis(100));
    assert_eq!(event_lines(&events), ["Outcome 1 4"]);
    // But not beyond its timeout.
    lock(&pair.ways.1).early = 1000;
    let until = pair.clock.now().after(Duration::from_millis(100));
    pair.client.wait(&mut events, Duration::from_millis(100));
    assert_eq!((events.len(), pair.clock.now()), (1, until));
}

#[test]
fn wrong_key_is_refused() {
    let (client, server, _) = pendings(usize::MAX, Some(key(2)), keys(1));
    let (client, server) = meet(client, server);
    let text = "refused: unknown key name or wrong key reason=Denied";
    assert_eq!(client.map(|_| ()).expect_err("refused").to_string(), text);
    assert_eq!(
        server.map(|_| ()),
        Err(LinkError::AuthenticationFailed { what: "the client's proof" })
    );
}

#[test]
fn handshake_beyond_its_time_limit_fails() {
    let (client, server, clock) = pendings(usize::MAX, Some(key(1)), keys(1));
    clock.pass(LinkLimits::default().handshake);
    let (client, server) = meet(client, server);
    let late = "the handshake took too long limit_ms=5000";
    assert_eq!(client.map(|_| ()).expect_err("late").to_string(), late);
    let server = server.map(|_| ()).expect_err("late or ended");
    assert!(server == LinkError::Disconnected || server.to_string() == late, "{server}");
}

#[test]
fn memory_in_events_has_a_single_owner() {
    let mut pair = pair(usize::MAX, true);
    pair.client.expose(OpId(1), 0, 0, scatter(&[0; 10], &[])).expect("room");
    pair.server.push(push(1, 0, 0, &[7; 10])).expect("room");
    let (mut got, _) = settle(&mut pair.client, &mut pair.server);
    let Some(LinkEvent::Received { parts, .. }) = got.pop() else {
        panic!("{:?}", event_lines(&got))
    };
    let parts = parts.into_iter().reduce(|a, b| a.join(b).expect("neighbours")).expect("a part");
    assert!(parts.into_buf().is_some(), "the link keeps a part of it");
}
