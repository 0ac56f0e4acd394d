//! Gets: the server writes into memory that the client has exposed.

use pagelith_layouts::ids::OpId;
use pagelith_transport::link::{Link, Push};

use crate::common::*;
use crate::ends::*;

type Ranges<'a> = (&'a Memory, &'a [(usize, usize)]);

/// Run a get of one item, and compare its bytes. Returns the number of bytes on the stream.
fn get(ends: &mut Ends, from: Ranges<'_>, to: Ranges<'_>) -> u64 {
    let content = fill(from);
    let before = ends.stream_bytes()[1];
    ends.request(1, vec![to.0.parts(to.1)]);
    ends.push(1, 0, from.0.parts(from.1));
    ends.server.send(outcome(1, b"done")).expect("room");
    let mut pushed = Vec::new();
    let (at_client, _) = ends.until(|at_client, at_server| {
        pushed = event_lines(at_server);
        at_client.len() >= 2 && !at_server.is_empty()
    });
    assert_eq!(event_lines(&at_client), ["landed 1 0", "Outcome 1 4"]);
    assert_eq!(pushed, ["pushed 100 true"]);
    assert!(returned(&at_client, (1, 0)) == Some(content), "bytes differ");
    ends.stream_bytes()[1] - before
}

/// Fill memory with bytes that are never 0.
pub fn fill((memory, ranges): Ranges<'_>) -> Vec<u8> {
    let content: Vec<u8> = bytes(7, total(ranges)).into_iter().map(|byte| byte | 1).collect();
    let mut at = 0;
    for (offset, length) in ranges {
        memory.fill(*offset, &content[at..at + length]);
        at += length;
    }
    content
}

#[test]
fn registered_memory_is_written_without_bytes_on_the_stream() {
    for length in [1usize, 511, 512, 4096, 70_001, 5 * MIB + 3] {
        let mut ends = Ends::new(["", ""]);
        // Regions that are not the right ones, of both ends.
        let _others = (ends.server_memory(6 * MIB), ends.client_memory(6 * MIB));
        let (from, to) = (ends.server_memory(6 * MIB), ends.client_memory(6 * MIB));
        let on_stream = get(&mut ends, (&from, &[(7, length)]), (&to, &[(13, length)]));
        // Pieces that are too short to pay travel on the stream.
        assert_eq!(on_stream, if length < 512 { length as u64 } else { 0 }, "length={length}");
        assert_eq!(to.bytes(&[(0, 13)]), [0; 13], "bytes before the piece are untouched");
        assert_eq!(to.bytes(&[(13 + length, 100)]), [0; 100], "and those after it");
        let [client, server] = ends.counts();
        assert_eq!(client.bytes_placed + on_stream, length as u64);
        assert_eq!(server.bytes_written, client.bytes_placed);
        assert_eq!(client.notices > 0, on_stream == 0);
    }
}

#[test]
fn scattered_pieces_of_both_ends_land_in_order() {
    let lengths: Vec<usize> = (0..64).map(|at| 600 + at * 977 % 70_000).collect();
    let mut reversed = lengths.clone();
    reversed.reverse();
    // Devices whose regions have at most 64 KiB: ranges cross the edges of chunks.
    for script in ["", "max-mr-size=65536"] {
        let mut ends = Ends::new([script, script]);
        let (from, to) = (ends.server_memory(4 * MIB), ends.client_memory(4 * MIB));
        let (from_places, to_places) = (scattered(1, &lengths), scattered(50, &reversed));
        let on_stream = get(&mut ends, (&from, &from_places), (&to, &to_places));
        assert_eq!(on_stream, 0, "{script}");
        for (offset, length) in to_places {
            assert_eq!(to.bytes(&[(offset + length, 100)]), [0; 100], "gap at {offset} {script}");
        }
    }
}

#[test]
fn memory_that_is_not_registered_travels_on_the_stream() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    let plain = (Memory::new(MIB), Memory::new(MIB));
    let ranges = [(0, 100_000)];
    assert_eq!(get(&mut ends, (&plain.0, &ranges), (&to, &ranges)), 100_000);
    assert_eq!(ends.counts()[1].stream_unregistered, 100_000);
    let mut ends = Ends::new(["", ""]);
    assert_eq!(get(&mut ends, (&from, &ranges), (&plain.1, &ranges)), 100_000);
    assert_eq!(ends.counts()[0].stream_unregistered, 100_000);
}

#[test]
fn item_that_is_registered_in_part_is_received_by_both_ways() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    let (plain_from, plain_to) = (Memory::new(MIB), Memory::new(MIB));
    // Registered and plain parts alternate at both ends, with different lengths.
    let part = |registered: &Memory, plain: &Memory, length: usize| {
        let ranges = scattered(0, &vec![length; 600_000 / length]);
        let all = ranges.iter().enumerate().map(|(at, range)| {
            let memory = if at % 2 == 0 { registered } else { plain };
            memory.parts(&[*range])
        });
        all.flatten().collect::<Vec<_>>()
    };
    let source = part(&from, &plain_from, 20_000);
    let content = bytes(3, 600_000);
    let mut at = 0;
    for (number, range) in scattered(0, &[20_000; 30]).into_iter().enumerate() {
        let memory = if number % 2 == 0 { &from } else { &plain_from };
        memory.fill(range.0, &content[at..at + range.1]);
        at += range.1;
    }
    ends.request(1, vec![part(&to, &plain_to, 50_000)]);
    ends.push(1, 0, source);
    ends.server.send(outcome(1, b"done")).expect("room");
    let (at_client, _) = ends.until_client_has(2);
    assert_eq!(event_lines(&at_client), ["landed 1 0", "Outcome 1 4"]);
    assert!(returned(&at_client, (1, 0)) == Some(content), "bytes differ");
    let counts = ends.client.counts();
    assert!(counts.bytes_by_rdma > 100_000 && counts.bytes_by_rdma < 300_000, "{counts:?}");
    assert_eq!(counts.bytes_in, 600_000);
}

#[test]
fn memory_registered_after_the_link_began_is_used() {
    let mut ends = Ends::new(["", ""]);
    let ranges = [(0, 50_000)];
    for _ in 0..3 {
        let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
        assert_eq!(get(&mut ends, (&from, &ranges), (&to, &ranges)), 0);
        // A removed region is no longer used.
        let region = to.region.clone().expect("registered");
        ends.hosts[0].unregister(&region).expect("unregistered");
        assert_eq!(get(&mut ends, (&from, &ranges), (&to, &ranges)), 50_000);
    }
}

#[test]
fn events_keep_the_order_of_the_frames_when_bytes_land_late() {
    for script in ["late-bytes=50", "delay=7", "late-completions=30", "late-bytes=9 delay=3"] {
        let mut ends = Ends::new(["", script]);
        let (from, to) = (ends.server_memory(4 * MIB), ends.client_memory(4 * MIB));
        let plain = Memory::new(MIB);
        let content = fill((&from, &[(0, 3_000_000)]));
        let mut at_client = Vec::new();
        for op in 1..=3u64 {
            let at = op as usize * 1_000_000 - 1_000_000;
            let parts = vec![to.parts(&[(at, 1_000_000)]), plain.parts(&[(at / 10, 100_000)])];
            at_client.extend(ends.request(op, parts));
            ends.push(op, 0, from.parts(&[(at, 1_000_000)]));
            ends.push(op, 1, from.parts(&[(3_000_000 + at / 10, 100_000)]));
            ends.server.send(outcome(op, b"done")).expect("room");
        }
        let left = 9 - at_client.len();
        at_client.extend(ends.until_client_has(left).0);
        let line =
            |op| [format!("landed {op} 0"), format!("landed {op} 1"), format!("Outcome {op} 4")];
        let expected: Vec<String> = (1..=3).flat_map(line).collect();
        assert_eq!(event_lines(&at_client), expected, "{script}");
        for op in 1..=3usize {
            let expected = content[(op - 1) * 1_000_000..][..1_000_000].to_vec();
            assert!(returned(&at_client, (op as u64, 0)) == Some(expected), "{script} op={op}");
        }
    }
}

#[test]
fn exposures_after_the_request_are_received_on_the_stream() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    let content = fill((&from, &[(0, 20_000)]));
    ends.request(1, vec![to.parts(&[(0, 10_000)])]);
    ends.client.expose(OpId(1), 1, 0, to.parts(&[(10_000, 10_000)])).expect("room");
    ends.push(1, 0, from.parts(&[(0, 10_000)]));
    ends.push(1, 1, from.parts(&[(10_000, 10_000)]));
    let (at_client, _) = ends.until_client_has(2);
    assert_eq!(event_lines(&at_client), ["landed 1 0", "landed 1 1"]);
    assert!(to.bytes(&[(0, 20_000)]) == content, "bytes differ");
    assert_eq!(ends.client.counts().bytes_by_rdma, 10_000);
}

#[test]
fn many_gets_use_no_more_notices_than_the_client_can_receive() {
    let mut ends = Ends::new(["", "delay=1"]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    let content = fill((&from, &[(0, 1000)]));
    let mut at_client = Vec::new();
    for op in 1..=2000u64 {
        ends.request(op, vec![to.parts(&[(0, 1000)])]);
        ends.push(op, 0, from.parts(&[(0, 1000)]));
        ends.server.send(outcome(op, b"done")).expect("room");
        at_client = ends.until_client_has(2).0;
    }
    assert!(returned(&at_client, (2000, 0)) == Some(content), "bytes differ");
    assert_eq!(ends.stream_bytes(), [0, 0]);
    assert!(ends.counts()[0].notices >= 2000, "{:?}", ends.counts());
}

#[test]
fn client_that_does_not_poll_stops_the_server_at_its_last_receive() {
    let mut ends = Ends::new(["", ""]);
    let (from, to) = (ends.server_memory(MIB), ends.client_memory(MIB));
    ends.request(1, vec![to.parts(&[(0, 600_000)])]);
    // Each push is placed in a poll of its own, with a notice.
    let mut events = Vec::new();
    for number in 0..600usize {
        let part = from.parts(&[(number * 1000, 1000)]);
        let offset = number as u64 * 1000;
        let push =
            Push { op: OpId(1), item: 0, offset, parts: part, token: offset, allow_ref: true };
        ends.server.push(push).expect("room");
        ends.server.poll(&mut events);
    }
    assert_eq!(ends.server.counts().bytes_by_rdma, 256 * 1000);
    ends.server.send(outcome(1, b"done")).expect("room");
    let (at_client, _) = ends.until_client_has(2);
    assert_eq!(event_lines(&at_client), ["landed 1 0", "Outcome 1 4"]);
    assert_eq!(ends.client.counts().bytes_by_rdma, 600_000);
}
