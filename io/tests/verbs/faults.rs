//! Faults of devices: completions late, lost, doubled and in another order.

use std::time::Duration;

use pagelith_io::verbs::{CompletionKind, Operation, Status};

use crate::support::{End, fake_ends, pattern};

const SHORT: Duration = Duration::from_millis(50);

fn write(a: &End, b: &End, id: u64) {
    a.post(id, Operation::Write { from: &[a.piece(0, 1_000)], to: b.remote(0) });
}

fn notice(a: &End, b: &End, id: u64) {
    a.post(id, Operation::WriteWithNotice { from: &[], to: b.remote(0), immediate: 1 });
}

#[test]
fn completion_of_sender_says_nothing_of_the_peers_memory_but_notice_does() {
    let Some((a, b, ..)) = fake_ends(["late-bytes=8", ""]) else { return };
    a.fill(1);
    b.pair.post_receive(1, &[]).expect("a receive");
    write(&a, &b, 2);
    assert_eq!(a.completed(2), CompletionKind::Write);
    assert_eq!(b.bytes(0, 1_000), vec![0; 1_000]);
    notice(&a, &b, 3);
    assert_eq!(b.completed(1), CompletionKind::Notice(1));
    assert_eq!(b.bytes(0, 1_000), pattern(1, 1_000));
}

/// The rule that the notice tests check is not kept by every device: the fake one can break it.
#[test]
fn device_that_delivers_notice_before_data_is_detected_by_its_bytes() {
    let Some((a, b, ..)) = fake_ends(["late-bytes=8 notice-first=1", ""]) else { return };
    a.fill(1);
    b.pair.post_receive(1, &[]).expect("a receive");
    write(&a, &b, 2);
    notice(&a, &b, 3);
    assert_eq!(b.completed(1), CompletionKind::Notice(1));
    assert_ne!(b.bytes(0, 1_000), pattern(1, 1_000));
}

#[test]
fn delayed_and_late_completions_are_awaited() {
    for script in ["delay=5", "late-completions=5", "delay=3 late-bytes=3 late-completions=3"] {
        let Some((a, b, ..)) = fake_ends([script, script]) else { return };
        a.fill(2);
        b.pair.post_receive(1, &[]).expect("a receive");
        write(&a, &b, 2);
        notice(&a, &b, 3);
        assert_eq!(b.completed(1), CompletionKind::Notice(1), "{script}");
        assert_eq!(b.bytes(0, 1_000), pattern(2, 1_000), "{script}");
        assert_eq!(
            (a.completed(2), a.completed(3)),
            (CompletionKind::Write, CompletionKind::Write)
        );
    }
}

#[test]
fn lost_completion_leaves_the_next_one() {
    let Some((a, b, ..)) = fake_ends(["lose-completion=1", ""]) else { return };
    write(&a, &b, 1);
    assert_eq!(a.next_within(SHORT), None);
    write(&a, &b, 2);
    assert_eq!(a.completed(2), CompletionKind::Write);
}

#[test]
fn doubled_completion_is_delivered_as_the_device_reports_it() {
    let Some((a, b, ..)) = fake_ends(["double-completion=1", ""]) else { return };
    write(&a, &b, 1);
    assert_eq!((a.completed(1), a.completed(1)), (CompletionKind::Write, CompletionKind::Write));
    assert_eq!(a.next_within(SHORT), None);
}

#[test]
fn swapped_completions_are_delivered_as_the_device_reports_them() {
    let Some((a, b, ..)) = fake_ends(["swap-completion=1", ""]) else { return };
    write(&a, &b, 1);
    write(&a, &b, 2);
    assert_eq!((a.completed(2), a.completed(1)), (CompletionKind::Write, CompletionKind::Write));
}

#[test]
fn stuck_requests_are_flushed_when_the_queue_pair_fails() {
    let Some((a, b, ..)) = fake_ends(["stuck=1", ""]) else { return };
    write(&a, &b, 1);
    assert_eq!(a.next_within(SHORT), None);
    a.pair.fail().expect("ERR");
    assert_eq!(a.failed(1), Status::FLUSHED);
}

#[test]
fn bytes_under_way_do_not_land_after_the_receiver_failed() {
    let Some((a, b, ..)) = fake_ends(["late-bytes=100", ""]) else { return };
    a.fill(3);
    write(&a, &b, 1);
    assert_eq!(a.completed(1), CompletionKind::Write);
    b.pair.fail().expect("ERR");
    assert_eq!(b.next_within(SHORT), None);
    assert_eq!(b.bytes(0, 1_000), vec![0; 1_000]);
}
