//! When memory comes back: no byte changes after that, whatever the devices and the peer do.

use std::time::Duration;

use pagelith_layouts::ids::OpId;
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::link_error::LinkError;

use crate::common::*;
use crate::ends::*;
use crate::gets::fill;

const LENGTH: usize = 3 * MIB;
/// A byte that memory gets once it is handed back.
const BACK: u8 = 0xee;

/// A get of which the server has begun to write, and its memory at the client.
fn begun(scripts: [&str; 2]) -> (Ends, Memory) {
    let mut ends = Ends::new(scripts);
    let (from, to) = (ends.server_memory(LENGTH), ends.client_memory(LENGTH));
    fill((&from, &[(0, LENGTH)]));
    ends.request(1, vec![to.parts(&[(0, LENGTH)])]);
    ends.push(1, 0, from.parts(&[(0, LENGTH)]));
    let mut at_server = Vec::new();
    ends.server.poll(&mut at_server);
    (ends, to)
}

/// Wait for the end of the client's link.
fn ended(ends: &mut Ends) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    for _ in 0..1000 {
        ends.client.wait(&mut events, Duration::from_secs(10));
        if matches!(events.last(), Some(LinkEvent::Ended(_))) {
            return events;
        }
    }
    panic!("no end: {:?}", event_lines(&events));
}

/// Reuse memory that was handed back, and let the devices complete the rest.
fn reuse(to: &Memory, mut step: impl FnMut()) {
    to.fill(0, &[BACK; LENGTH]);
    (0..1000).for_each(|_| step());
    let late = to.bytes(&[(0, LENGTH)]).iter().filter(|byte| **byte != BACK).count();
    assert_eq!(late, 0, "bytes landed after memory was handed back");
}

#[test]
fn retracted_memory_comes_back_with_the_outcome_after_all_bytes() {
    for script in ["late-bytes=60", "delay=30", "late-bytes=20 delay=20"] {
        let (mut ends, to) = begun(["", script]);
        ends.client.retract(OpId(1));
        let mut at_client = Vec::new();
        ends.client.poll(&mut at_client);
        assert!(at_client.is_empty(), "the server writes: {:?}", event_lines(&at_client));
        ends.server.retract(OpId(1));
        ends.server.send(outcome(1, b"late")).expect("room");
        let (at_client, _) = ends.until_client_has(2);
        assert_eq!(event_lines(&at_client), ["retracted 1 0", "Outcome 1 4"], "{script}");
        drop(at_client);
        reuse(&to, || drop(ends.poll(1)));
        assert_eq!(ends.client.counts().pairs_down, 0, "the link lives on");
        // And is used again.
        let from = ends.server_memory(1000);
        ends.request(2, vec![to.parts(&[(0, 1000)])]);
        ends.push(2, 0, from.parts(&[(0, 1000)]));
        let (at_client, _) = ends.until_client_has(1);
        assert_eq!(event_lines(&at_client), ["landed 2 0"]);
    }
}

#[test]
fn outcome_that_arrived_before_a_late_poll_keeps_the_link() {
    let (mut ends, _to) = begun(["", "late-bytes=20"]);
    ends.client.retract(OpId(1));
    ends.server.retract(OpId(1));
    ends.server.send(outcome(1, b"late")).expect("room");
    (0..200).for_each(|_| ends.server.poll(&mut Vec::new()));
    // The client's thread was not scheduled for a while.
    ends.clock.pass(Duration::from_millis(150));
    let (at_client, _) = ends.poll(50);
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "Outcome 1 4"]);
    assert_eq!(ends.client.counts().pairs_down, 0, "the link lives on");
}

#[test]
fn exposures_without_bytes_come_back_with_the_outcome_too() {
    let mut ends = Ends::new(["", ""]);
    let to = ends.client_memory(MIB);
    ends.request(1, vec![to.parts(&[(0, 1000)]), Memory::new(1000).parts(&[(0, 1000)])]);
    ends.client.retract(OpId(1));
    let mut at_client = Vec::new();
    ends.client.poll(&mut at_client);
    assert_eq!(event_lines(&at_client), ["retracted 1 1"], "no device writes to plain memory");
    ends.server.send(outcome(1, b"none")).expect("room");
    let (at_client, _) = ends.until_client_has(2);
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "Outcome 1 4"]);
    // Retracted after its outcome, as callers do.
    ends.request(2, vec![to.parts(&[(0, 1000)])]);
    ends.server.send(outcome(2, b"none")).expect("room");
    let (at_client, _) = ends.until_client_has(1);
    assert_eq!(event_lines(&at_client), ["Outcome 2 4"]);
    ends.client.retract(OpId(2));
    let mut at_client = Vec::new();
    ends.client.poll(&mut at_client);
    assert_eq!(event_lines(&at_client), ["retracted 2 0"]);
}

#[test]
fn memory_of_a_request_that_was_not_sent_comes_back_at_once() {
    let mut ends = Ends::new(["", ""]);
    let to = ends.client_memory(MIB);
    ends.client.expose(OpId(1), 0, 0, to.parts(&[(0, 1000)])).expect("room");
    ends.client.retract(OpId(1));
    let mut at_client = Vec::new();
    ends.client.poll(&mut at_client);
    assert_eq!(event_lines(&at_client), ["retracted 1 0"]);
}

#[test]
fn operation_that_does_not_end_in_time_closes_the_link() {
    for script in ["stuck=1", "late-bytes=100000", "delay=100000"] {
        let (mut ends, to) = begun(["", script]);
        ends.client.retract(OpId(1));
        ends.clock.pass(Duration::from_millis(99));
        assert!(ends.poll(20).0.is_empty(), "{script}");
        ends.clock.pass(Duration::from_millis(1));
        let at_client = ended(&mut ends);
        let expected = "closed: a cancelled operation did not end in time limit_ms=100";
        assert_eq!(event_lines(&at_client), ["retracted 1 0", expected], "{script}");
        drop(at_client);
        reuse(&to, || ends.server.poll(&mut Vec::new()));
        assert_eq!(ends.client.counts().pairs_down, 1);
        let (counts, pairs) = (ends.counts()[0], ends.control.count(1, "pairs"));
        assert_eq!((counts.taken_down, counts.leaked, pairs), (1, 0, 0), "{script}");
    }
}

#[test]
fn closed_link_hands_memory_back_after_its_queue_pairs_are_down() {
    let (mut ends, to) = begun(["", "late-bytes=100000"]);
    ends.client.close();
    let at_client = ended(&mut ends);
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "closed: closed by this side"]);
    drop(at_client);
    reuse(&to, || ends.server.poll(&mut Vec::new()));
}

#[test]
fn end_of_the_stream_hands_memory_back_after_the_queue_pairs_are_down() {
    for begins in [false, true] {
        let (mut ends, to) = match begins {
            true => begun(["", "late-bytes=100000"]),
            false => {
                let mut ends = Ends::new(["", ""]);
                let to = ends.client_memory(LENGTH);
                ends.request(1, vec![to.parts(&[(0, LENGTH)])]);
                (ends, to)
            }
        };
        ends.cut_stream();
        let mut at_client = Vec::new();
        if begins {
            // The last bytes of the stream may still be read.
            (0..5).for_each(|_| ends.client.poll(&mut at_client));
            ends.clock.pass(Duration::from_millis(99));
            ends.client.poll(&mut at_client);
            assert!(at_client.is_empty(), "{:?}", event_lines(&at_client));
            ends.clock.pass(Duration::from_millis(1));
        }
        let at_client = ended(&mut ends);
        assert_eq!(event_lines(&at_client), ["retracted 1 0", "closed: the connection ended"]);
        drop(at_client);
        reuse(&to, || ends.control.step());
    }
}

#[test]
fn last_bytes_of_a_server_that_ended_are_received() {
    let (mut ends, _to) = begun(["", "late-bytes=30"]);
    ends.server.send(outcome(1, b"last")).expect("room");
    ends.server.poll(&mut Vec::new());
    ends.cut_stream();
    let at_client = ended(&mut ends);
    let expected = ["landed 1 0", "Outcome 1 4", "closed: the connection ended"];
    assert_eq!(event_lines(&at_client), expected);
}

#[test]
fn dropped_link_waits_for_its_queue_pairs() {
    let (ends, to) = begun(["", "late-bytes=30"]);
    let Ends { client, mut server, .. } = ends;
    drop(client);
    reuse(&to, || server.poll(&mut Vec::new()));
}

#[test]
fn device_that_drains_nothing_is_stopped_by_destruction() {
    let (mut ends, to) = begun(["never-drain=1", "late-bytes=100000"]);
    ends.client.close();
    let at_client = ended(&mut ends);
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "closed: closed by this side"]);
    assert!(returned(&at_client, (1, 0)).is_some_and(|bytes| bytes.len() == LENGTH));
    drop(at_client);
    reuse(&to, || ends.server.poll(&mut Vec::new()));
}

#[test]
fn memory_that_a_device_does_not_release_is_leaked_and_counted() {
    let (mut ends, _to) = begun(["fail-destroy=1", "late-bytes=100000"]);
    ends.client.close();
    let at_client = ended(&mut ends);
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "closed: closed by this side"]);
    assert_eq!(returned(&at_client, (1, 0)), Some(Vec::new()), "no memory is handed back");
    let counts = ends.counts()[0];
    assert_eq!((counts.taken_down, counts.leaked), (1, 1));
}

#[test]
fn memory_of_a_queue_pair_that_is_not_destroyed_in_time_is_leaked_and_counted() {
    let (mut ends, _to) = begun(["stuck-destroy=1 late-bytes=100000", "stuck-destroy=1"]);
    // Nothing waits for the server's queue pair.
    ends.server.close();
    ends.client.close();
    let at_client = ended(&mut ends);
    assert_eq!(returned(&at_client, (1, 0)), Some(Vec::new()), "no memory is handed back");
    assert_eq!(ends.counts().map(|counts| counts.leaked), [1, 1]);
    // It stays leaked although the devices release the queue pairs now.
    for device in 1..=2 {
        ends.control.change(device, "stuck-destroy=0");
        while ends.control.count(device, "pairs") > 0 {
            ends.control.step();
        }
    }
    assert_eq!(ends.counts().map(|counts| counts.leaked), [1, 1]);
}

#[test]
fn memory_of_a_dropped_link_whose_device_is_stuck_is_leaked_and_counted() {
    let (ends, _to) = begun(["stuck-destroy=1 late-bytes=100000", ""]);
    let Ends { client, hosts, control, .. } = ends;
    drop(client);
    assert_eq!(hosts[0].counts().leaked, 1);
    control.change(1, "stuck-destroy=0");
}

#[test]
fn memory_of_a_push_whose_requests_were_posted_in_part_waits_for_the_queue_pair() {
    for (fault, memory_back) in [("fail-destroy=0", true), ("fail-destroy=1", false)] {
        let mut ends = Ends::new(["", &format!("refuse-posts=1 delay=100000 {fault}")]);
        let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
        // Two requests, of which the device takes the first.
        ends.request(1, vec![to.parts(&scattered(0, &[1000, 1000]))]);
        ends.push(1, 0, from.parts(&[(0, 2000)]));
        let mut at_server = Vec::new();
        while at_server.is_empty() {
            ends.server.poll(&mut at_server);
            if ends.server.stream().is_none() {
                // Nothing comes back before the queue pair is down.
                ends.server.retract(OpId(1));
                break;
            }
        }
        ends.until_ended(&mut at_server);
        let pushed = |event: &LinkEvent| match event {
            LinkEvent::Pushed { sent, parts, .. } => Some((*sent, !parts.is_empty())),
            _ => None,
        };
        let back: Vec<_> = at_server.iter().filter_map(pushed).collect();
        assert_eq!(back, [(false, memory_back)], "{fault}: {:?}", event_lines(&at_server));
        assert_eq!(ends.server.counts().pairs_down, 1, "{fault}");
    }
}

#[test]
fn notices_lost_doubled_or_swapped_end_the_link_before_memory_is_handed_back() {
    for fault in ["lose-completion=1", "double-completion=1", "swap-completion=1"] {
        let mut ends = Ends::new([fault, "late-bytes=5"]);
        let (from, to) = (ends.server_memory(LENGTH), ends.client_memory(LENGTH));
        fill((&from, &[(0, LENGTH)]));
        // Two operations, each with a notice.
        for op in 1..=2u64 {
            let range = [(op as usize * 1000, 1000)];
            ends.request(op, vec![to.parts(&range)]);
            ends.push(op, 0, from.parts(&range));
            let mut at_server = Vec::new();
            ends.server.poll(&mut at_server);
        }
        let mut at_client = Vec::new();
        for _ in 0..1000 {
            ends.client.wait(&mut at_client, Duration::from_millis(1));
            ends.server.poll(&mut Vec::new());
        }
        assert!(
            matches!(at_client.last(), Some(LinkEvent::Ended(LinkError::Rdma { .. }))),
            "{fault}: {:?}",
            event_lines(&at_client)
        );
        drop(at_client);
        reuse(&to, || ends.server.poll(&mut Vec::new()));
    }
}

#[test]
fn completion_that_the_server_never_gets_returns_its_memory_with_the_link() {
    let (mut ends, _to) = begun(["", "lose-completion=1"]);
    let mut at_server = ends.poll(50).1;
    assert!(at_server.is_empty(), "{:?}", event_lines(&at_server));
    ends.server.retract(OpId(1));
    ends.clock.pass(Duration::from_millis(100));
    ends.until_ended(&mut at_server);
    let expected = "closed: a cancelled operation did not end in time limit_ms=100";
    assert_eq!(event_lines(&at_server), ["pushed 100 false", expected]);
}

#[test]
fn failed_request_ends_the_link_and_the_next_one_is_used() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.server_memory(LENGTH), ends.client_memory(LENGTH));
    ends.request(1, vec![to.parts(&[(0, LENGTH)])]);
    // The client takes its memory away while the server may write: the client's own mistake.
    let region = to.region.clone().expect("registered");
    ends.hosts[0].unregister(&region).expect("unregistered");
    ends.push(1, 0, from.parts(&[(0, LENGTH)]));
    let mut at_server = Vec::new();
    ends.until_ended(&mut at_server);
    let lines = event_lines(&at_server);
    assert_eq!(lines[0], "pushed 100 false");
    assert!(lines[1].contains("access denied by the peer"), "{lines:?}");
    let at_client = ended(&mut ends);
    assert_eq!(event_lines(&at_client)[0], "retracted 1 0");
    // Neither rail is suspended: the request was at fault.
    for _ in 0..4 {
        ends.reconnect();
    }
    let (from, to) = (ends.server_memory(1000), ends.client_memory(1000));
    ends.request(1, vec![to.parts(&[(0, 1000)])]);
    ends.push(1, 0, from.parts(&[(0, 1000)]));
    ends.until_client_has(1);
    assert_eq!(ends.stream_bytes(), [0, 0]);
}

#[test]
fn operation_cancelled_while_its_link_ends_returns_memory_after_the_queue_pairs_are_down() {
    let (mut ends, to) = begun(["never-drain=1", "late-bytes=100000"]);
    ends.client.close();
    ends.client.retract(OpId(1));
    let mut at_client = Vec::new();
    while at_client.is_empty() {
        ends.client.wait(&mut at_client, Duration::from_millis(10));
    }
    assert_eq!(ends.client.counts().pairs_down, 1, "{:?}", event_lines(&at_client));
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "closed: closed by this side"]);
    drop(at_client);
    reuse(&to, || ends.server.poll(&mut Vec::new()));
    // The same for READs of the server.
    let mut ends = Ends::new(["", "never-drain=1 delay=100000"]);
    let (from, to) = (ends.client_memory(LENGTH), ends.server_memory(LENGTH));
    let range = [(0, LENGTH)];
    ends.server.expose(OpId(1), 0, 0, to.parts(&range)).expect("room");
    let (op, parts) = (OpId(1), from.parts(&range));
    let push = Push { op, item: 0, offset: 0, parts, token: 0, allow_ref: true };
    ends.client.push(push).expect("room");
    ends.poll(20);
    ends.server.close();
    ends.server.retract(OpId(1));
    let mut at_server = Vec::new();
    while at_server.is_empty() {
        ends.server.wait(&mut at_server, Duration::from_millis(10));
    }
    assert_eq!(ends.server.counts().pairs_down, 1, "{:?}", event_lines(&at_server));
}

#[test]
fn cancelled_operation_whose_outcome_has_arrived_ends_no_link_however_late_the_poll() {
    let (mut ends, _to) = begun(["", ""]);
    ends.server.send(outcome(1, b"done")).expect("room");
    ends.server.poll(&mut Vec::new());
    ends.client.retract(OpId(1));
    (0..100).for_each(|_| ends.control.step());
    ends.clock.pass(Duration::from_millis(200));
    let mut at_client = Vec::new();
    ends.client.poll(&mut at_client);
    assert_eq!(event_lines(&at_client), ["retracted 1 0", "Outcome 1 4"]);
}

#[test]
fn completion_out_of_order_returns_memory_of_the_server_after_its_queue_pairs_are_down() {
    let mut ends = Ends::new(["", "double-completion=1"]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    for op in 1..=2u64 {
        ends.request(op, vec![to.parts(&[(op as usize * 1000, 1000)])]);
    }
    ends.push(1, 0, from.parts(&[(0, 1000)]));
    ends.server.flush_queue();
    // The second request is in flight when the completion of the first one comes twice.
    ends.control.change(2, "delay=100000");
    ends.push(2, 0, from.parts(&[(1000, 1000)]));
    ends.server.flush_queue();
    let mut at_server = Vec::new();
    ends.until_ended(&mut at_server);
    assert_eq!(ends.server.counts().pairs_down, 1, "{:?}", event_lines(&at_server));
}

#[test]
fn region_that_is_removed_while_the_server_may_write_ends_the_link() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    ends.request(1, vec![to.parts(&[(0, 1000)])]);
    let region = to.region.clone().expect("registered");
    ends.hosts[0].unregister(&region).expect("unregistered");
    // The next request tells the server.
    let other = ends.client_memory(MIB);
    ends.request(2, vec![other.parts(&[(0, 1000)])]);
    ends.push(1, 0, from.parts(&[(0, 1000)]));
    let mut at_server = Vec::new();
    ends.until_ended(&mut at_server);
    let lines = event_lines(&at_server);
    assert!(lines[1].contains("the region of a get was removed before its outcome"), "{lines:?}");
}
