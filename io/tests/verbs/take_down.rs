//! Ways to end a queue pair, after which nothing changes its memory.

use std::time::{Duration, Instant};

use pagelith_io::verbs::{DrainMarkers, Operation, RemoteAccess, SendRequest, Status};

use crate::support::{BYTES, End, LONG, ends, fake, fake_ends, open_fake};

const MARKERS: DrainMarkers = DrainMarkers { receive: u64::MAX, send: u64::MAX - 1 };

/// Post WRITEs of all memory, and wait until the first bytes of one are there.
fn write_amid(a: &End, b: &End) {
    a.fill(1);
    for part in 0..4 {
        let from = [a.piece(part * BYTES / 4, BYTES / 4)];
        let operation = Operation::Write { from: &from, to: b.remote(part * BYTES / 4) };
        a.pair.post_send(&[SendRequest { id: 1, signaled: true, operation }]).expect("posted");
    }
    let end = Instant::now() + LONG;
    while b.bytes(BYTES / 8, 1) == [0] {
        assert!(Instant::now() < end, "no byte of the write landed");
        std::thread::yield_now();
    }
}

/// Memory does not change from this moment on.
fn check_quiet(b: &End) {
    let before = b.bytes(0, BYTES);
    std::thread::sleep(Duration::from_millis(200));
    let late = before.iter().zip(b.bytes(0, BYTES)).filter(|(old, new)| **old != *new).count();
    assert_eq!(late, 0, "bytes landed late");
}

#[test]
fn failed_queue_pair_flushes_posted_receives() {
    let Some((a, b)) = ends(RemoteAccess::READ_WRITE) else { return };
    for id in 10..15 {
        b.pair.post_receive(id, &[]).expect("a receive");
    }
    b.pair.fail().expect("ERR");
    for id in 10..15 {
        assert_eq!(b.failed(id), Status::FLUSHED);
    }
    drop(a);
}

#[test]
fn nothing_lands_after_drain_amid_write() {
    let Some((a, b)) = ends(RemoteAccess::READ_WRITE) else { return };
    write_amid(&a, &b);
    let mut drain = b.pair.begin_drain(MARKERS).expect("begun");
    assert!(!drain.is_done());
    while !drain.is_done() {
        drain.observe(&b.next());
    }
    check_quiet(&b);
    b.pair.destroy().expect("destroyed");
}

#[test]
fn nothing_lands_after_destroy_amid_write() {
    let Some((a, mut b)) = ends(RemoteAccess::READ_WRITE) else { return };
    write_amid(&a, &b);
    let other = crate::support::new_pair(&b.domain, &b.queue);
    std::mem::replace(&mut b.pair, other).destroy().expect("destroyed");
    check_quiet(&b);
}

#[test]
fn nothing_lands_after_region_is_dropped_amid_write() {
    let Some((a, b)) = ends(RemoteAccess::READ_WRITE) else { return };
    write_amid(&a, &b);
    let End { region, memory, pair, queue, domain, .. } = b;
    drop(region);
    let look = || {
        let mut bytes = vec![0; BYTES];
        memory.copy_out(0, &mut bytes);
        bytes
    };
    let before = look();
    std::thread::sleep(Duration::from_millis(200));
    assert!(before == look(), "bytes landed late");
    drop((pair, queue, domain));
}

#[test]
fn drain_waits_for_both_markers_of_its_queue_pair() {
    let Some((a, b)) = ends(RemoteAccess::READ_WRITE) else { return };
    let mut drain = b.pair.begin_drain(MARKERS).expect("begun");
    let (first, second) = (b.next(), b.next());
    let other = pagelith_io::verbs::Completion { queue_pair: a.pair.number() + 1000, ..second };
    assert!(!drain.observe(&first));
    assert!(!drain.observe(&first), "the same marker twice");
    assert!(!drain.observe(&other), "the marker of another queue pair");
    assert!(drain.observe(&second));
}

#[test]
fn drain_that_never_ends_leaves_destroy_as_the_way_out() {
    let Some((a, b, numbers, fake)) = fake_ends(["", "never-drain=1"]) else { return };
    let drain = b.pair.begin_drain(MARKERS).expect("begun");
    assert_eq!(b.next_within(Duration::from_millis(50)), None);
    assert!(!drain.is_done());
    b.pair.destroy().expect("destroyed");
    drop(a);
    assert_eq!(fake.count(numbers[1], "pairs"), 0);
}

#[test]
fn queue_pair_that_is_not_destroyed_is_leaked_with_all_it_uses() {
    let Some((a, b, numbers, fake)) = fake_ends(["", "fail-destroy=1"]) else { return };
    let error = b.pair.destroy().expect_err("busy");
    assert!(error.to_string().starts_with("ibv_destroy_qp failed: "), "{error}");
    drop((a, b.queue, b.region, b.domain, b.memory));
    assert_eq!(fake.objects(numbers[0]), 0);
    let left = ["contexts", "domains", "channels", "queues", "pairs", "regions"];
    assert_eq!(left.map(|kind| fake.count(numbers[1], kind)), [1, 1, 1, 1, 1, 0]);
}

#[test]
fn objects_are_released_whatever_is_dropped_first() {
    let Some(fake) = fake() else { return };
    for order in 0..6 {
        let number = fake.device("");
        let device = open_fake(number);
        let End { domain, queue, memory, region, pair, .. } = End::new(&device, RemoteAccess::READ);
        let mut all: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(device),
            Box::new(domain),
            Box::new(queue),
            Box::new(memory),
            Box::new(region),
            Box::new(pair),
        ];
        assert_eq!(fake.objects(number), 6);
        all.rotate_left(order);
        all.into_iter().for_each(drop);
        assert_eq!(fake.objects(number), 0, "order {order}");
    }
}
