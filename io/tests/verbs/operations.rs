//! Effects and failures of each operation.

use std::time::Duration;

use pagelith_io::verbs::{
    CompletionKind, Operation, RemoteAccess, RemotePiece, SendRequest, State, Status, VerbsError,
};

use crate::support::{BYTES, End, LONG, connect, devices, ends, new_pair, pattern};

fn both() -> Option<(End, End)> {
    ends(RemoteAccess::READ_WRITE)
}

#[test]
fn write_of_scattered_pieces_lands_in_order_and_touches_nothing_else() {
    let Some((a, b)) = both() else { return };
    a.fill(1);
    let pieces = [(7, 60_001), (100_003, 1), (300_007, 40_000)];
    let from = pieces.map(|(offset, length)| a.piece(offset, length));
    let expected: Vec<u8> =
        pieces.iter().flat_map(|(offset, length)| a.bytes(*offset, *length)).collect();
    let at = 4_097;
    a.post(5, Operation::Write { from: &from, to: b.remote(at) });
    assert_eq!(a.completed(5), CompletionKind::Write);
    assert_eq!(b.bytes(at, expected.len()), expected);
    assert_eq!(b.bytes(0, at), vec![0; at]);
    let end = at + expected.len();
    assert_eq!(b.bytes(end, BYTES - end), vec![0; BYTES - end]);
}

#[test]
fn read_fills_scattered_pieces_with_remote_bytes() {
    let Some((a, b)) = both() else { return };
    b.fill(2);
    let to = [a.piece(3, 1_000), a.piece(500_000, 65_537)];
    a.post(6, Operation::Read { to: &to, from: b.remote(11) });
    assert_eq!(a.completed(6), CompletionKind::Read);
    let expected = b.bytes(11, 66_537);
    assert_eq!(a.bytes(3, 1_000), expected[..1_000]);
    assert_eq!(a.bytes(500_000, 65_537), expected[1_000..]);
    assert_eq!(a.bytes(1_003, 100), vec![0; 100]);
}

#[test]
fn send_fills_posted_receive_and_reports_its_length() {
    let Some((a, b)) = both() else { return };
    a.fill(3);
    b.pair.post_receive(9, &[b.piece(100, 50), b.piece(1_000, 500)]).expect("a receive");
    a.post(8, Operation::Send { from: &[a.piece(0, 80)] });
    assert_eq!(a.completed(8), CompletionKind::Send);
    assert_eq!(b.completed(9), CompletionKind::Received(80));
    let sent = a.bytes(0, 80);
    assert_eq!((b.bytes(100, 50), b.bytes(1_000, 30)), (sent[..50].to_vec(), sent[50..].to_vec()));
}

#[test]
fn notice_arrives_after_all_earlier_writes() {
    let Some((a, b)) = both() else { return };
    for round in 0..8u8 {
        a.fill(round);
        b.pair.post_receive(1, &[]).expect("a receive");
        let pieces: Vec<_> = (0..20).map(|i| [a.piece(i * 8_000, 7_777)]).collect();
        let mut requests: Vec<_> = pieces
            .iter()
            .enumerate()
            .map(|(i, from)| {
                let operation = Operation::Write { from, to: b.remote(i * 7_777) };
                SendRequest { id: 2, signaled: false, operation }
            })
            .collect();
        let operation = Operation::WriteWithNotice {
            from: &[],
            to: b.remote(0),
            immediate: 77 + u32::from(round),
        };
        requests.push(SendRequest { id: 3, signaled: true, operation });
        a.pair.post_send(&requests).expect("more requests than one call of the library takes");
        assert_eq!(b.completed(1), CompletionKind::Notice(77 + u32::from(round)));
        for i in 0..20 {
            assert_eq!(b.bytes(i * 7_777, 7_777), a.bytes(i * 8_000, 7_777), "write {i}");
        }
        assert_eq!(a.completed(3), CompletionKind::Write);
    }
}

/// An operation that the peer must deny, on a new connection.
fn denied(access: RemoteAccess, operation: impl FnOnce(&End, &End)) {
    let Some((a, b)) = ends(access) else { return };
    a.fill(4);
    operation(&a, &b);
    assert_eq!(a.failed(1), Status::REMOTE_ACCESS);
    assert_eq!(a.pair.state(), Ok(State::Error));
    assert_eq!(b.bytes(0, BYTES), vec![0; BYTES]);
    // The queue pair carries nothing more.
    a.post(2, Operation::Write { from: &[a.piece(0, 1)], to: RemotePiece { address: 0, key: 0 } });
    assert_eq!(a.failed(2), Status::FLUSHED);
}

#[test]
fn write_past_region_end_is_denied() {
    denied(RemoteAccess::READ_WRITE, |a, b| {
        let to = b.remote(BYTES - 100);
        a.post(1, Operation::Write { from: &[a.piece(0, 101)], to });
    });
}

#[test]
fn write_with_wrong_key_is_denied() {
    denied(RemoteAccess::READ_WRITE, |a, b| {
        let to = RemotePiece { key: b.remote(0).key ^ 0x1_0000, ..b.remote(0) };
        a.post(1, Operation::Write { from: &[a.piece(0, 100)], to });
    });
}

#[test]
fn write_to_read_only_region_is_denied_and_completes_without_being_signaled() {
    denied(RemoteAccess::READ, |a, b| {
        let operation = Operation::Write { from: &[a.piece(0, 100)], to: b.remote(0) };
        a.pair.post_send(&[SendRequest { id: 1, signaled: false, operation }]).expect("posted");
    });
}

#[test]
fn read_of_write_only_region_is_denied() {
    denied(RemoteAccess::WRITE, |a, b| {
        a.post(1, Operation::Read { to: &[a.piece(0, 100)], from: b.remote(0) });
    });
}

#[test]
fn notice_without_posted_receive_fails() {
    let Some((a, b)) = both() else { return };
    let to = b.remote(0);
    a.post(1, Operation::WriteWithNotice { from: &[], to, immediate: 0 });
    assert_eq!(a.failed(1), Status::RECEIVER_NOT_READY);
}

#[test]
fn write_to_destroyed_queue_pair_fails_without_acknowledgement() {
    let Some((a, b)) = both() else { return };
    let to = b.remote(0);
    b.pair.destroy().expect("destroyed");
    a.post(1, Operation::Write { from: &[a.piece(0, 100)], to });
    assert_eq!(a.failed(1), Status::RETRIES_EXCEEDED);
    let text = Status::RETRIES_EXCEEDED.to_string();
    assert_eq!(text, "no acknowledgement from the peer status=12");
}

#[test]
fn state_follows_connection() {
    let Some([first, second]) = devices() else { return };
    let a = End::new(&first, RemoteAccess::NONE);
    let b = End::new(&second, RemoteAccess::NONE);
    assert_eq!(a.pair.state(), Ok(State::Init));
    assert_eq!(a.region.remote(0), None, "no access, no key");
    let peer = b.pair.endpoint();
    a.pair.ready_to_receive(&peer).expect("RTR");
    assert_eq!(a.pair.state(), Ok(State::ReadyToReceive));
    a.pair.ready_to_send(&peer).expect("RTS");
    assert_eq!(a.pair.state(), Ok(State::ReadyToSend));
    a.pair.fail().expect("ERR");
    assert_eq!(a.pair.state(), Ok(State::Error));
    let error = a.pair.ready_to_send(&peer).expect_err("not from the error state");
    assert!(error.to_string().starts_with("ibv_modify_qp to RTS failed: "), "{error}");
}

#[test]
fn too_many_pieces_are_refused_with_the_number_of_posted_requests() {
    let Some((a, b)) = both() else { return };
    let from = vec![a.piece(0, 1); 100];
    let good = Operation::Write { from: &from[..1], to: b.remote(0) };
    let bad = Operation::Write { from: &from, to: b.remote(0) };
    let request = |operation| SendRequest { id: 4, signaled: true, operation };
    let requests = [vec![request(good); 20], vec![request(bad)]].concat();
    let error = a.pair.post_send(&requests).expect_err("100 pieces");
    assert!(matches!(error, VerbsError::PostRefused { posted: 20, .. }), "{error}");
    for _ in 0..20 {
        assert_eq!(a.completed(4), CompletionKind::Write);
    }
}

#[test]
fn sleeping_thread_is_woken_by_completion() {
    let Some((a, b)) = both() else { return };
    b.pair.post_receive(1, &[]).expect("a receive");
    let (to, queue) = (b.remote(0), b.queue.clone());
    let (sender, armed) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        queue.arm().expect("armed");
        let mut found = Vec::new();
        queue.poll(&mut found).expect("polled");
        assert_eq!(found, []);
        sender.send(()).expect("the main thread");
        queue.sleep(LONG).expect("slept")
    });
    armed.recv().expect("the sleeper is armed");
    a.post(2, Operation::WriteWithNotice { from: &[], to, immediate: 5 });
    let woken = sleeper.join().expect("the sleeper");
    assert_eq!(b.completed(1), CompletionKind::Notice(5));
    assert!(woken, "the notice did not wake the thread");
    assert!(!b.queue.sleep(Duration::from_millis(1)).expect("slept"), "one event for one arming");
}

#[test]
fn second_connection_of_the_same_memory_carries_data_after_the_first_failed() {
    let Some((mut a, mut b)) = both() else { return };
    a.fill(6);
    a.pair.fail().expect("ERR");
    a.pair = new_pair(&a.domain, &a.queue);
    b.pair = new_pair(&b.domain, &b.queue);
    connect(&a.pair, &b.pair);
    a.post(1, Operation::Write { from: &[a.piece(0, 5_000)], to: b.remote(0) });
    assert_eq!(a.completed(1), CompletionKind::Write);
    assert_eq!(b.bytes(0, 5_000), pattern(6, 5_000));
    assert_eq!(b.next_within(Duration::from_millis(1)), None);
}
