//! Gets and puts between a client and a server, over streams cut into pieces of any length.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::link::{Link, LinkEvent};

use crate::common::*;

const LENGTHS: [usize; 7] = [1, 0, 511, 4096, 3, 70_000, 17];

/// A get of two items and a put of one; returns the received bytes of all three.
fn exchange(pair: &mut Pair, step: usize) -> [Vec<u8>; 3] {
    // The longest run of bytes without a counted event: a head and a control body.
    let settle = |a: &mut PipeLink, b: &mut PipeLink| settle_slowly(a, b, 4 + (500 / step) as u32);
    let (a, b, c) = (bytes(1, 100_000), bytes(2, 5), bytes(3, 200_001));
    let Pair { client, server, .. } = pair;
    client.expose(OpId(1), 0, 0, scatter(&vec![0; a.len()], &LENGTHS)).expect("room");
    client.expose(OpId(1), 1, 0, scatter(&[0; 5], &[2, 2])).expect("room");
    client.send(request(1, b"a get of two items")).expect("room");
    let (_, asked) = settle(client, server);
    assert_eq!(event_lines(&asked), ["Request 1 18"]);

    server.push(push(1, 1, 0, &b)).expect("room");
    server.push(push(1, 0, 0, &a[..99_999])).expect("room");
    server.push(push(1, 0, 99_999, &a[99_999..])).expect("room");
    server.send(outcome(1, &[7; 300])).expect("room");
    let (got, sent) = settle(client, server);
    assert_eq!(event_lines(&got), ["landed 1 1", "landed 1 0", "Outcome 1 300"]);
    assert_eq!(event_lines(&sent), ["pushed 101 true", "pushed 100 true", "pushed 100 true"]);
    let landed =
        [returned(&got, (1, 0)).expect("an item"), returned(&got, (1, 1)).expect("an item")];

    client.send(request(2, b"a put")).expect("room");
    server.expose(OpId(2), 0, 0, scatter(&vec![0; c.len()], &LENGTHS)).expect("room");
    server.send(Frame::new(FrameKind::Pull, OpId(2), vec![1; 24])).expect("room");
    let (pulled, _) = settle(client, server);
    assert_eq!(event_lines(&pulled), ["Pull 2 24"]);
    client.push(push(2, 0, 0, &c)).expect("room");
    let (sent, put) = settle(client, server);
    assert_eq!(
        (event_lines(&sent), event_lines(&put)),
        (vec!["pushed 200 true".into()], vec!["landed 2 0".to_owned()])
    );
    let [first, second] = landed;
    [first, second, returned(&put, (2, 0)).expect("an item")]
}

#[test]
fn bytes_arrive_unchanged_for_pieces_of_any_length() {
    let expected = [bytes(1, 100_000), bytes(2, 5), bytes(3, 200_001)];
    for keyed in [true, false] {
        for step in
            [1, 2, 3, 63, 64, 65, 127, 128, 4095, 65_535, 65_536, 65_600, 100_000, usize::MAX]
        {
            let mut pair = pair(step, keyed);
            assert!(exchange(&mut pair, step) == expected, "step={step} keyed={keyed}");
            assert_eq!(pair.client.counts().bytes_late, 0);
        }
    }
}

/// A put above the server's budget: pulled in ranges that arrive in any order.
#[test]
fn item_is_received_in_several_ranges() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, .. } = &mut pair;
    let content = bytes(6, 300_000);
    for from in [0, 100_000, 200_000] {
        server.expose(OpId(1), 0, from, scatter(&vec![0; 100_000], &LENGTHS)).expect("room");
    }
    for from in [200_000, 0, 100_000] {
        client.push(push(1, 0, from, &content[from as usize..][..100_000])).expect("room");
    }
    let (_, got) = settle(client, server);
    let landed = |event: &LinkEvent| match event {
        LinkEvent::Received { offset, parts, .. } => (*offset, gathered(parts)),
        other => panic!("{other:?}"),
    };
    let landed: Vec<_> = got.iter().map(landed).collect();
    assert_eq!(landed.iter().map(|(from, _)| *from).collect::<Vec<_>>(), [200_000, 0, 100_000]);
    for (from, memory) in landed {
        assert!(memory == content[from as usize..][..100_000], "from={from}");
    }
}

/// A short conversation, cut in two at each of its bytes.
#[test]
fn stream_may_pause_at_any_byte() {
    let mut places = 0;
    for cut in 0.. {
        let mut pair = pair(usize::MAX, true);
        let Pair { client, server, ways, .. } = &mut pair;
        client.expose(OpId(1), 0, 0, scatter(&[0; 50], &[7])).expect("room");
        server.push(push(1, 0, 0, &bytes(4, 20))).expect("room");
        server.push(push(1, 0, 20, &bytes(5, 30))).expect("room");
        server.send(outcome(1, b"over")).expect("room");
        let mut events = Vec::new();
        server.poll(&mut events);
        let all: Vec<u8> = lock(&ways.1).bytes.drain(..).collect();
        if cut > all.len() {
            break;
        }
        events.clear();
        for piece in [&all[..cut], &all[cut..]] {
            lock(&ways.1).bytes.extend(piece);
            client.poll(&mut events);
        }
        assert_eq!(event_lines(&events), ["landed 1 0", "Outcome 1 4"], "cut={cut}");
        let expected = [bytes(4, 20), bytes(5, 30)].concat();
        assert_eq!(returned(&events, (1, 0)), Some(expected), "cut={cut}");
        places = cut;
    }
    assert_eq!(places, 3 * 64 + 50 + 4);
}

/// While a range is exposed, no read goes beyond the next head, so bulk bytes are not copied.
#[test]
fn bulk_bytes_need_one_call_per_frame() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, .. } = &mut pair;
    let content = bytes(9, 1 << 20);
    client.expose(OpId(1), 0, 0, scatter(&vec![0; content.len()], &[])).expect("room");
    server.push(push(1, 0, 0, &content)).expect("room");
    let (before_in, before_out) = (client.counts().calls, server.counts().calls);
    let (got, _) = settle(client, server);
    assert!(returned(&got, (1, 0)).expect("an item") == content);
    // 16 data frames of 64 KiB: a call for each, one for the first head, and the empty reads.
    let quiet = 12;
    assert!(
        client.counts().calls - before_in <= 17 + quiet,
        "{}",
        client.counts().calls - before_in
    );
    assert!(
        server.counts().calls - before_out <= 16 + quiet,
        "{}",
        server.counts().calls - before_out
    );
}

#[test]
fn flush_queue_transmits_without_a_poll() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, .. } = &mut pair;
    client.send(request(1, b"x")).expect("room");
    settle(client, server);
    client.expose(OpId(1), 0, 0, scatter(&[0; 900], &[900])).expect("room");
    server.push(push(1, 0, 0, &bytes(1, 900))).expect("room");
    server.flush_queue();
    let mut events = Vec::new();
    client.poll(&mut events);
    assert_eq!(returned(&events, (1, 0)), Some(bytes(1, 900)));
    // The memory comes back with the next poll, once.
    let mut back = Vec::new();
    server.poll(&mut back);
    server.poll(&mut back);
    assert_eq!(
        back.iter().filter(|event| matches!(event, LinkEvent::Pushed { sent: true, .. })).count(),
        1
    );
    // A closed link has nothing to send.
    server.close();
    server.flush_queue();
    server.wake_peer();
}
