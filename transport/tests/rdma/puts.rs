//! Puts: the server reads from memory that the client shows.

use pagelith_layouts::ids::OpId;
use pagelith_transport::link::{Link, Push};

use crate::common::*;
use crate::ends::*;
use crate::gets::fill;

/// Send memory of the client for an item of a put that the server pulls.
fn push(ends: &mut Ends, op: u64, item: u32, from: (&Memory, &[(usize, usize)])) {
    let (parts, token) = (from.0.parts(from.1), op * 100 + u64::from(item));
    let push = Push { op: OpId(op), item, offset: 0, parts, token, allow_ref: true };
    ends.client.push(push).expect("room");
}

/// Run a put of one item. Returns the number of bytes on the stream.
fn put(
    ends: &mut Ends,
    from: (&Memory, &[(usize, usize)]),
    to: (&Memory, &[(usize, usize)]),
) -> u64 {
    let content = fill(from);
    let before = ends.stream_bytes()[0];
    ends.server.expose(OpId(1), 0, 0, to.0.parts(to.1)).expect("room");
    push(ends, 1, 0, from);
    let mut pushed = Vec::new();
    let (_, at_server) = ends.until(|at_client, at_server| {
        pushed = event_lines(at_client);
        !at_client.is_empty() && !at_server.is_empty()
    });
    assert_eq!(event_lines(&at_server), ["landed 1 0"]);
    assert_eq!(pushed, ["pushed 100 true"]);
    assert!(returned(&at_server, (1, 0)) == Some(content), "bytes differ");
    ends.stream_bytes()[0] - before
}

#[test]
fn registered_memory_is_read_without_bytes_on_the_stream() {
    let lengths: Vec<usize> = (0..64).map(|at| 600 + at * 977 % 70_000).collect();
    let mut reversed = lengths.clone();
    reversed.reverse();
    for script in ["", "max-mr-size=65536", "delay=5 late-completions=5"] {
        let mut ends = Ends::new([script, script]);
        let (from, to) = (ends.client_memory(4 * MIB), ends.server_memory(4 * MIB));
        let (from_places, to_places) = (scattered(1, &lengths), scattered(50, &reversed));
        assert_eq!(put(&mut ends, (&from, &from_places), (&to, &to_places)), 0, "{script}");
        for (offset, length) in to_places {
            assert_eq!(to.bytes(&[(offset + length, 100)]), [0; 100], "gap at {offset} {script}");
        }
        assert_eq!(ends.counts()[1].bytes_read, total(&from_places) as u64);
    }
}

#[test]
fn memory_that_one_end_has_not_registered_travels_on_the_stream() {
    let ranges = [(0, 100_000)];
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.client_memory(MIB), ends.server_memory(MIB));
    let plain = Memory::new(MIB);
    assert_eq!(put(&mut ends, (&plain, &ranges), (&to, &ranges)), 100_000);
    // The client shows its memory, and sends the bytes once the server has requested them.
    assert_eq!(put(&mut ends, (&from, &ranges), (&plain, &ranges)), 100_000);
    assert_eq!(put(&mut ends, (&from, &ranges), (&to, &ranges)), 0);
    let [client, server] = ends.counts();
    assert_eq!((client.stream_unregistered, server.stream_unregistered), (100_000, 100_000));
}

#[test]
fn pieces_too_short_to_pay_are_sent() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.client_memory(MIB), ends.server_memory(MIB));
    let ranges = scattered(0, &[100, 700, 735]);
    assert_eq!(put(&mut ends, (&from, &ranges), (&to, &[(0, 1535)])), 1535);
    assert_eq!(ends.counts()[0].stream_small, 1535, "less than 512 a piece");
}

#[test]
fn puts_that_exceed_what_may_be_posted_are_read_in_turns() {
    let mut ends = Ends::new(["", "delay=2"]);
    let (from, to) = (ends.client_memory(24 * MIB), ends.server_memory(24 * MIB));
    let content = fill((&from, &[(0, 24 * MIB)]));
    for item in 0..2u32 {
        let range = [(item as usize * 12 * MIB, 12 * MIB)];
        ends.server.expose(OpId(1), item, 0, to.parts(&range)).expect("room");
        push(&mut ends, 1, item, (&from, &range));
    }
    let (_, at_server) = ends.until(|_, at_server| at_server.len() >= 2);
    assert_eq!(event_lines(&at_server), ["landed 1 0", "landed 1 1"]);
    assert!(to.bytes(&[(0, 24 * MIB)]) == content, "bytes differ");
    assert_eq!(ends.stream_bytes(), [0, 0]);
}

#[test]
fn shown_range_that_is_not_exposed_is_taken_and_counted() {
    let mut ends = Ends::new(["", ""]);
    let from = ends.client_memory(MIB);
    push(&mut ends, 1, 0, (&from, &[(0, 100_000)]));
    let (at_client, _) = ends.until_client_has(1);
    assert_eq!(event_lines(&at_client), ["pushed 100 true"]);
    assert_eq!(ends.server.counts().bytes_late, 100_000);
}

#[test]
fn retracted_put_returns_memory_after_its_reads() {
    let mut ends = Ends::new(["", "delay=40"]);
    let (from, to) = (ends.client_memory(8 * MIB), ends.server_memory(8 * MIB));
    fill((&from, &[(0, 8 * MIB)]));
    ends.server.expose(OpId(1), 0, 0, to.parts(&[(0, 8 * MIB)])).expect("room");
    push(&mut ends, 1, 0, (&from, &[(0, 8 * MIB)]));
    ends.poll(10);
    ends.server.retract(OpId(1));
    let mut at_server = Vec::new();
    ends.server.poll(&mut at_server);
    assert!(at_server.is_empty(), "READs are in flight: {:?}", event_lines(&at_server));
    let (_, at_server) = ends.until(|_, at_server| !at_server.is_empty());
    assert_eq!(event_lines(&at_server), ["retracted 1 0"]);
    let before = to.bytes(&[(0, 8 * MIB)]);
    ends.poll(500);
    assert!(to.bytes(&[(0, 8 * MIB)]) == before, "bytes landed after memory was handed back");
    assert!(before[4 * MIB..].iter().all(|byte| *byte == 0), "no more than 4 MiB was posted");
}

/// Otherwise the completion of its READ would hand back the memory of the next operation.
#[test]
fn number_of_a_cancelled_put_is_refused_while_its_reads_are_in_flight() {
    for asks in [false, true] {
        let mut ends = Ends::new(["", "delay=100000"]);
        let (from, to) = (ends.client_memory(MIB), ends.server_memory(2 * MIB));
        ends.server.expose(OpId(1), 0, 0, to.parts(&[(0, MIB)])).expect("room");
        push(&mut ends, 1, 0, (&from, &[(0, MIB)]));
        ends.poll(10);
        ends.server.retract(OpId(1));
        let second = to.parts(&[(MIB, MIB)]);
        assert!(ends.server.expose(OpId(1), 0, 0, second).is_err(), "the number is in use");
        if asks {
            ends.client.send(request(1, b"put")).expect("room");
            ends.client.poll(&mut Vec::new());
            let mut at_server = Vec::new();
            ends.until_ended(&mut at_server);
            let lines = event_lines(&at_server);
            assert!(lines[1].contains("number of a cancelled operation"), "{lines:?}");
            continue;
        }
        ends.server.expose(OpId(2), 0, 0, to.parts(&[(MIB, MIB)])).expect("another number");
        ends.control.change(2, "delay=0");
        let (_, at_server) = ends.until(|_, at_server| !at_server.is_empty());
        assert_eq!(event_lines(&at_server), ["retracted 1 0"]);
        ends.server.expose(OpId(1), 0, 0, to.parts(&[(0, MIB)])).expect("free again");
    }
}
