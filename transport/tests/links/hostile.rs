//! Invalid and hostile bytes from a peer.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::UNAUTHENTICATED_PEER_BYTES_MAX;
use pagelith_transport::link::Link;
use pagelith_transport::pending::HandshakeProgress;
use pagelith_transport::rights::Rights;
use proptest::prelude::*;

use crate::common::*;

/// Feed bytes to a server's handshake; whether it ended, and the maximum memory held.
fn accept(bytes: &[u8], step: usize, admission: ClientAuth) -> (bool, usize) {
    let (client, server, _) = pendings(step, None, admission);
    lock(&client.stream().writes).bytes.extend(bytes);
    let mut progress = server.poll();
    let mut held = 0;
    for _ in 0..bytes.len() / step.min(bytes.len().max(1)) + 2 {
        let HandshakeProgress::Waiting(pending) = progress else { return (true, held) };
        held = held.max(pending.held_bytes());
        progress = pending.poll();
    }
    (false, held)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_in_the_handshake_hold_bounded_memory(bytes in prop::collection::vec(any::<u8>(), 0..3000), step in 1..200usize) {
        let (over, held) = accept(&bytes, step, keys(1));
        prop_assert!(over || bytes.len() < 64);
        prop_assert!(held <= UNAUTHENTICATED_PEER_BYTES_MAX);
    }

    /// Heads with valid checksums, of any kind and length.
    #[test]
    fn random_frames_in_the_handshake_hold_bounded_memory(
        frames in prop::collection::vec((0..FrameKind::ALL.len(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 1..5),
    ) {
        let bytes = forged(&frames, 1);
        let (_, held) = accept(&bytes, usize::MAX, keys(1));
        prop_assert!(held <= UNAUTHENTICATED_PEER_BYTES_MAX);
    }

    /// After the handshake, from a peer without a key that sends valid checksums.
    #[test]
    fn random_frames_into_a_link_leave_exposed_memory_recoverable(
        frames in prop::collection::vec((0..FrameKind::ALL.len(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)), 1..9),
        raw in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut pair = pair(usize::MAX, false);
        for op in 0..4 {
            pair.server.expose(OpId(op), 0, 0, scatter(&[0x55; 100], &[9])).expect("room");
        }
        lock(&pair.ways.0).bytes.extend(forged(&frames, 1).into_iter().chain(raw));
        let mut events = Vec::new();
        pair.server.poll(&mut events);
        pair.server.poll(&mut events);
        for op in 0..4 {
            pair.server.retract(OpId(op));
        }
        pair.server.poll(&mut events);
        let back = event_lines(&events).iter().filter(|line| line.starts_with("landed") || line.starts_with("retracted")).count();
        prop_assert_eq!(back, 4, "{:?}", event_lines(&events));
    }
}

/// Frames with valid heads: any kind, an operation from 0 to 4, and sometimes a false body length.
fn forged(frames: &[(usize, u32, Vec<u8>)], version: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, lie, body) in frames {
        let kind = FrameKind::ALL[*kind];
        let op = OpId(u64::from(lie % 5));
        let mut facts = if kind == FrameKind::Data {
            HeadFacts::data(version, op, 0, u64::from(lie % 3) * 50, body.len() as u32)
        } else {
            HeadFacts::control(version, kind, if kind.is_greeting() { OpId(0) } else { op }, body)
        };
        if lie % 7 == 0 {
            facts.body_bytes = *lie;
        }
        bytes.extend_from_slice(&head::encode(&facts, [0; 16]));
        bytes.extend_from_slice(body);
    }
    bytes
}

/// An attacker on the path changes one byte, also in heads of data frames, and corrects every
/// checksum.
#[test]
fn tampered_frame_ends_a_keyed_link() {
    for at in 0..64 + 18 + 64 {
        let mut pair = pair(usize::MAX, true);
        let Pair { client, server, ways, .. } = &mut pair;
        server.expose(OpId(2), 0, 0, scatter(&[0; 10], &[])).expect("room");
        client.send(request(1, b"what a client asks")).expect("room");
        client.push(push(2, 0, 0, &[9; 10])).expect("room");
        let mut events = Vec::new();
        client.poll(&mut events);
        let mut sent: Vec<u8> = lock(&ways.0).bytes.drain(..).collect();
        let honest = sent.clone();
        sent[at] ^= 1;
        let (first, second) = sent.split_at_mut(82);
        reseal(first);
        reseal(second);
        if sent == honest {
            continue; // It was a checksum.
        }
        lock(&ways.0).bytes.extend(&sent);
        events.clear();
        server.poll(&mut events);
        // With a larger body length the server waits for the rest, until the end of the stream.
        let longer = (20..24).contains(&(at % 82)) || at == 82 + 20;
        if longer && events.len() < 2 {
            client.close();
            server.poll(&mut events);
            server.poll(&mut events);
        }
        let event_lines = event_lines(&events);
        let last = event_lines.last().expect("an end");
        let named = last.starts_with("closed: the peer ")
            || (longer && last == "closed: the connection ended");
        assert!(named, "at={at}: {event_lines:?}");
        let untouched = if at < 82 { 0 } else { 1 };
        assert_eq!(
            event_lines.iter().filter(|line| line.starts_with("Request")).count(),
            untouched,
            "at={at}"
        );
        assert!(
            !event_lines.iter().any(|line| line.starts_with("landed")),
            "at={at}: {event_lines:?}"
        );
    }
}

/// Correct the checksums of a frame, if its head can still be read.
fn reseal(frame: &mut [u8]) {
    use pagelith_layouts::checksum::checksum64;
    if frame[6] != FrameKind::Data as u8 {
        let sum = checksum64(&frame[64..]);
        frame[32..40].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = checksum64(&frame[..56]);
    frame[56..64].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn replayed_or_dropped_frame_ends_a_keyed_link() {
    for twice in [true, false] {
        let mut pair = pair(usize::MAX, true);
        let Pair { client, server, ways, .. } = &mut pair;
        for op in 1..=2 {
            client.send(request(op, b"what a client asks")).expect("room");
        }
        let mut events = Vec::new();
        client.poll(&mut events);
        let sent: Vec<u8> = lock(&ways.0).bytes.drain(..).collect();
        let (first, second) = sent.split_at(82);
        let altered = if twice { [first, first].concat() } else { second.to_vec() };
        lock(&ways.0).bytes.extend(altered);
        server.poll(&mut events);
        let last = event_lines(&events).pop();
        let expected = "closed: the peer failed authentication: the mac of a frame does not match";
        assert_eq!(last.as_deref(), Some(expected), "twice={twice}");
    }
}

#[test]
fn data_outside_the_exposed_range_ends_the_link() {
    for (offset, len, field) in [(1, 9, "offset"), (0, 11, "body_bytes"), (9, 1, "offset")] {
        let mut pair = pair(usize::MAX, false);
        pair.server.expose(OpId(1), 0, 0, scatter(&[0x55; 10], &[])).expect("room");
        let head = head::encode(&HeadFacts::data(1, OpId(1), 0, offset, len), [0; 16]);
        lock(&pair.ways.0).bytes.extend(head.iter().chain(&[0xff; 11][..len as usize]));
        let mut events = Vec::new();
        pair.server.poll(&mut events);
        let event_lines = event_lines(&events);
        assert!(event_lines[1].contains(&format!("invalid field {field}=")), "{event_lines:?}");
        assert_eq!(returned(&events, (1, 0)), Some(vec![0x55; 10]), "nothing landed");
    }
}

#[test]
fn ping_flood_ends_the_link() {
    let mut pair = pair(usize::MAX, false);
    lock(&pair.ways.1).most = 1;
    let ping = Frame::bare(FrameKind::Ping, OpId(1));
    let head = head::encode(&HeadFacts::control(1, ping.kind, ping.op, &[]), [0; 16]);
    for _ in 0..1000 {
        lock(&pair.ways.0).bytes.extend(head);
    }
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    assert_eq!(
        event_lines(&events),
        ["closed: the peer broke the protocol: more pings than answers fit in the send buffer"]
    );
}

#[test]
fn mac_on_a_link_without_a_key_ends_the_link() {
    let mut pair = pair(usize::MAX, false);
    assert_eq!(pair.server.params().key_name, None);
    assert_eq!(pair.server.params().rights, Rights::all());
    let facts = HeadFacts::control(1, FrameKind::Cancel, OpId(1), &[]);
    lock(&pair.ways.0).bytes.extend(head::encode(&facts, [1; 16]));
    let mut events = Vec::new();
    pair.server.poll(&mut events);
    assert!(event_lines(&events)[0].contains("a frame has a MAC"), "{:?}", event_lines(&events));
}
