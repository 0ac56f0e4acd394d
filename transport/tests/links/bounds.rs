//! Queues are bounded, and frames and pushes that do not fit are handed back.

use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::limits::{LinkLimits, UNAUTHENTICATED_PEER_BYTES_MAX};
use pagelith_transport::link::{Link, Push};

use crate::common::*;

#[test]
fn full_queue_hands_frames_back_until_it_drains() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, ways, .. } = &mut pair;
    lock(&ways.0).most = 1;
    let limits = LinkLimits::default();
    let mut taken = 0;
    while client.send(request(taken + 1, &[0; 64 << 10])).is_ok() {
        taken += 1;
    }
    assert_eq!(taken as usize, limits.frame_bytes_max / (64 << 10));
    assert_eq!(client.capacity().frame_bytes, 0);
    while client.send(Frame::bare(FrameKind::Cancel, OpId(1))).is_ok() {
        taken += 1;
    }
    assert_eq!((taken as usize, client.capacity().frames), (limits.frames_max, 0));
    let mut pushes = 0;
    while client.push(push(1, 0, 0, &[1])).is_ok() {
        pushes += 1;
    }
    assert_eq!(pushes, limits.pushes_max);
    lock(&ways.0).most = 0;
    let (_, got) = settle(client, server);
    assert_eq!(got.len() as u64, taken);
    assert_eq!(
        (client.capacity().frames, client.capacity().pushes),
        (limits.frames_max, limits.pushes_max)
    );
    assert_eq!(client.capacity().frame_bytes, limits.frame_bytes_max);
}

#[test]
fn operation_beyond_the_limit_is_handed_back_and_ends_a_servers_link() {
    let mut pair = pair(usize::MAX, false);
    let Pair { client, server, ways, .. } = &mut pair;
    let most = client.params().operations_max;
    for op in 1..=u64::from(most) {
        client.send(request(op, b"x")).expect("room");
    }
    assert_eq!((client.capacity().operations, server.capacity().operations), (0, 0));
    assert!(client.send(request(1000, b"x")).is_err(), "one too many");
    settle(client, server);
    server.send(outcome(7, b"over")).expect("room");
    settle(client, server);
    assert_eq!(client.capacity().operations, 1);
    client.send(request(1000, b"x")).expect("room again");
    settle(client, server);
    // A client that ignores the limit.
    let facts = HeadFacts::control(1, FrameKind::Request, OpId(1001), b"x");
    lock(&ways.0).bytes.extend(head::encode(&facts, [0; 16]).iter().chain(b"x"));
    let mut events = Vec::new();
    server.poll(&mut events);
    let last = event_lines(&events).pop().expect("an end");
    assert!(last.contains("more operations are in flight than agreed max="), "{last}");
}

#[test]
fn frame_not_sent_by_this_role_is_handed_back() {
    let mut pair = pair(usize::MAX, true);
    for kind in FrameKind::ALL {
        let body = if kind.is_bare() { Vec::new() } else { vec![1; 64] };
        let sent = [&mut pair.client, &mut pair.server]
            .map(|link| link.send(Frame::new(kind, OpId(1), body.clone())).is_ok());
        let expected = match kind {
            FrameKind::Request | FrameKind::Cancel => [true, false],
            FrameKind::Pull | FrameKind::Outcome => [false, true],
            _ => [false, false],
        };
        assert_eq!(sent, expected, "{kind:?}");
    }
    assert!(pair.client.send(request(1, &[0; (64 << 10) + 1])).is_err(), "longer than agreed");
    assert!(pair.client.send(request(0, &[0])).is_err(), "no operation");
    assert!(pair.client.send(request(1, &[])).is_err(), "no body");
    let nothing = Push { parts: Vec::new(), ..push(1, 0, 0, &[]) };
    assert!(pair.client.push(nothing).is_err());
    assert!(pair.client.push(push(1, 0, u64::MAX, &[1, 2])).is_err());
    let shared = vec![Part::from_shared(std::sync::Arc::from([0u8; 4].as_slice()))];
    assert!(pair.client.expose(OpId(1), 0, 0, shared).is_err());
}

/// At every step of the handshake.
#[test]
fn memory_held_for_an_unauthenticated_peer_is_bounded() {
    for (key, steps) in [(None, 40), (Some(key(1)), 40)] {
        let (mut client, mut server, _) = pendings(7, key, keys(1));
        for _ in 0..steps {
            assert!(
                server.held_bytes() <= UNAUTHENTICATED_PEER_BYTES_MAX / 4,
                "bytes={}",
                server.held_bytes()
            );
            let pagelith_transport::pending::HandshakeProgress::Waiting(next) = client.poll()
            else {
                break;
            };
            client = next;
            let pagelith_transport::pending::HandshakeProgress::Waiting(next) = server.poll()
            else {
                break;
            };
            server = next;
        }
    }
}

/// A client sends requests and never reads. The server stops reading, and takes the client for dead
/// after a while. A client that reads a few bytes now and then is alive.
#[test]
fn client_that_reads_nothing_is_no_longer_read_and_times_out() {
    for reads_some in [false, true] {
        let mut pair = pair(usize::MAX, true);
        let Pair { client, server, ways, clock } = &mut pair;
        lock(&ways.1).most = 1;
        let (mut requested, mut received, mut events) = (0, 0, Vec::new());
        let mut unsent = std::collections::VecDeque::new();
        let mut step = |client: &mut PipeLink, server: &mut PipeLink| {
            requested += u64::from(client.send(request(requested + 1, &[7; 100])).is_ok());
            client.flush_queue();
            server.poll(&mut events);
            let event_lines = event_lines(&std::mem::take(&mut events));
            for _ in event_lines.iter().filter(|line| line.starts_with("Request")) {
                received += 1;
                unsent.push_back(outcome(received, &[1; 60 << 10]));
            }
            while let Some(frame) = unsent.pop_front() {
                if let Err(frame) = server.send(frame) {
                    unsent.push_front(frame);
                    break;
                }
            }
            (event_lines.last().filter(|line| line.starts_with("closed")).cloned(), received)
        };
        for _ in 0..1000 {
            assert_eq!(step(client, server).0, None);
        }
        let limits = LinkLimits::default();
        let (_, received) = step(client, server);
        let half = (limits.frame_bytes_max / 2).div_ceil(60 << 10);
        assert_eq!(received as usize, half + 1, "half of the queue, and the frame being written");
        let mut closed = None;
        for _ in 0..2 * limits.dead_after.as_secs() {
            clock.pass(Duration::from_secs(1));
            let (now_closed, now) = step(client, server);
            closed = closed.or(now_closed);
            assert_eq!(now, received, "the server still reads");
            lock(&ways.1).most += usize::from(reads_some);
        }
        assert_eq!(closed.is_none(), reads_some, "{closed:?}");
        if reads_some {
            lock(&ways.1).most = 0;
            let mut outcomes = Vec::new();
            while outcomes.len() < 100 {
                client.poll(&mut outcomes);
                step(client, server);
            }
        }
    }
}
