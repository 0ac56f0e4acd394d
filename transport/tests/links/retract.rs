//! Retracted memory: nothing touches it any more, and the stream keeps its framing.

use pagelith_layouts::ids::OpId;
use pagelith_transport::link::Link;

use crate::common::*;

/// The critical case: the same item number and length, another operation, maybe the same memory.
#[test]
fn late_data_is_not_written_to_another_operations_memory() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, .. } = &mut pair;
    client.expose(OpId(1), 0, 0, scatter(&[0x11; 1000], &[10])).expect("room");
    client.retract(OpId(1));
    let mut events = Vec::new();
    client.poll(&mut events);
    assert_eq!(event_lines(&events), ["retracted 1 0"]);
    client.expose(OpId(2), 0, 0, scatter(&[0x22; 1000], &[10])).expect("room");
    server.push(push(1, 0, 0, &[0xff; 1000])).expect("room");
    server.send(outcome(1, b"late")).expect("room");
    let (got, _) = settle(client, server);
    assert_eq!(event_lines(&got), ["Outcome 1 4"]);
    assert_eq!((client.counts().bytes_late, client.counts().bytes_in), (1000, 0));
    client.retract(OpId(2));
    let mut events = Vec::new();
    client.poll(&mut events);
    assert_eq!(
        returned(&events, (2, 0)),
        Some(vec![0x22; 1000]),
        "late bytes were written to another operation's memory"
    );
}

/// Retracted within a data frame, at several of its bytes: the rest of the frame is discarded.
#[test]
fn exposure_retracted_mid_frame_is_written_no_further() {
    for arrived in [0, 1, 63, 64, 65, 100, 163] {
        let mut pair = pair(usize::MAX, true);
        let Pair { client, server, ways, .. } = &mut pair;
        client.expose(OpId(1), 0, 0, scatter(&[0x11; 100], &[10])).expect("room");
        server.push(push(1, 0, 0, &[0xff; 100])).expect("room");
        server.send(outcome(1, b"over")).expect("room");
        let mut events = Vec::new();
        server.poll(&mut events);
        let all: Vec<u8> = lock(&ways.1).bytes.drain(..).collect();
        lock(&ways.1).bytes.extend(&all[..arrived]);
        events.clear();
        client.poll(&mut events);
        client.retract(OpId(1));
        client.poll(&mut events);
        let memory = returned(&events, (1, 0)).expect("handed back at once");
        let landed = arrived.saturating_sub(64);
        assert!(
            memory[..landed].iter().all(|b| *b == 0xff)
                && memory[landed..].iter().all(|b| *b == 0x11)
        );
        client.expose(OpId(1), 0, 0, scatter(&memory, &[])).expect("the range is free again");
        lock(&ways.1).bytes.extend(&all[arrived..]);
        events.clear();
        client.poll(&mut events);
        if arrived < 64 {
            // The head was not read yet: the frame matches the range that is exposed now.
            assert_eq!(event_lines(&events), ["landed 1 0", "Outcome 1 4"], "arrived={arrived}");
        } else {
            assert_eq!(event_lines(&events), ["Outcome 1 4"], "arrived={arrived}");
            assert_eq!(client.counts().bytes_late as usize, 100 - landed, "arrived={arrived}");
        }
    }
}

/// Retracted by the sender, at several bytes of the frame: the memory comes back at once, although
/// the peer reads nothing. The peer then reads one whole frame, and the frames after it.
#[test]
fn push_retracted_mid_frame_keeps_the_framing() {
    for room in [1, 63, 64, 65, 100, 163, 164] {
        let mut pair = pair(usize::MAX, true);
        let Pair { client, server, ways, .. } = &mut pair;
        lock(&ways.0).most = room;
        client.push(push(1, 0, 0, &[0xaa; 100])).expect("room");
        client.push(push(1, 1, 0, &[0xbb; 100])).expect("room");
        client.push(push(2, 0, 0, &[0xcc; 100])).expect("room");
        let mut events = Vec::new();
        client.poll(&mut events);
        client.retract(OpId(1));
        client.poll(&mut events);
        let gone = events
            .iter()
            .filter(|event| event_lines(std::slice::from_ref(event))[0].starts_with("pushed 10"))
            .count();
        assert_eq!(gone, 2, "room={room}: {:?}", event_lines(&events));
        lock(&ways.0).most = 0;
        for (op, item) in [(1, 0), (1, 1), (2, 0)] {
            server.expose(OpId(op), item, 0, scatter(&[0; 100], &[])).expect("room");
        }
        let (_, got) = settle(client, server);
        assert_eq!(returned(&got, (1, 0)), Some(vec![0xaa; 100]), "room={room}");
        assert_eq!(returned(&got, (2, 0)), Some(vec![0xcc; 100]), "room={room}");
        // A frame that was begun is finished: here the first was sent whole, and the second was
        // begun.
        let second = (room == 164).then(|| vec![0xbb; 100]);
        assert_eq!(returned(&got, (1, 1)), second, "room={room}");
    }
}

#[test]
fn close_hands_back_all_memory_first() {
    let mut pair = pair(usize::MAX, true);
    let Pair { client, server, ways, .. } = &mut pair;
    lock(&ways.0).most = 10;
    client.expose(OpId(1), 0, 0, scatter(&[0; 9], &[])).expect("room");
    client.push(push(2, 0, 0, &[1; 100])).expect("room");
    let mut events = Vec::new();
    client.poll(&mut events);
    client.close();
    client.poll(&mut events);
    assert_eq!(
        event_lines(&events),
        ["retracted 1 0", "pushed 200 false", "closed: closed by this side"]
    );
    events.clear();
    client.poll(&mut events);
    assert!(events.is_empty(), "closed is the last event: {:?}", event_lines(&events));
    assert!(client.expose(OpId(1), 0, 0, scatter(&[0; 9], &[])).is_err());
    assert!(
        client.push(push(2, 0, 0, &[1; 100])).is_err() && client.send(request(3, b"x")).is_err()
    );
    assert_eq!(
        (client.capacity().frames, client.capacity().pushes, client.capacity().exposures),
        (0, 0, 0)
    );
    server.expose(OpId(7), 0, 0, scatter(&[0; 9], &[])).expect("room");
    server.poll(&mut events);
    server.poll(&mut events);
    assert_eq!(event_lines(&events), ["retracted 7 0", "closed: the connection ended"]);
}
