//! Ways to end a queue pair, after which nothing changes its memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelith_io::verbs::{
    Completion, DeviceMemory, DrainMarkers, HostMemory, MemoryRegion, Operation, RemoteAccess,
    SendRequest, Status,
};

use crate::support::{BYTES, End, LONG, ends, fake, fake_ends, is_real, new_pair, open_fake};

const MARKERS: DrainMarkers = DrainMarkers { receive: u64::MAX, send: u64::MAX - 1 };

/// Take an end down amid WRITEs of all its memory, on new connections. A real device must be cut
/// amid the bytes at least once; the fake one lands a WRITE as a whole.
fn take_down_amid_write(take_down: impl Fn(&mut End)) {
    let rounds = if is_real() { 20 } else { 1 };
    let mut cut = 0;
    for round in 0..rounds {
        let Some((a, mut b)) = ends(RemoteAccess::READ_WRITE) else { return };
        a.fill(1);
        let parts: Vec<_> = (0..16)
            .map(|part| part * BYTES / 16)
            .map(|at| ([a.piece(at, BYTES / 16)], b.remote(at)))
            .collect();
        let pair = &a.pair;
        std::thread::scope(|scope| {
            // rxe carries out what is inside of one device before it returns to the poster.
            scope.spawn(move || {
                for (from, to) in &parts {
                    let operation = Operation::Write { from, to: *to };
                    let request = SendRequest { id: 1, signaled: true, operation };
                    pair.post_send(&[request]).expect("posted");
                }
            });
            let end = Instant::now() + LONG;
            while b.bytes(BYTES / 16, 1) == [0] {
                assert!(Instant::now() < end, "no byte of the second write landed");
                std::thread::yield_now();
            }
            take_down(&mut b);
            let before = b.bytes(0, BYTES);
            std::thread::sleep(Duration::from_millis(100));
            let after = b.bytes(0, BYTES);
            let late = before.iter().zip(&after).filter(|(old, new)| old != new).count();
            assert_eq!(late, 0, "bytes landed late in round {round}");
            cut += usize::from(before.last() == Some(&0));
        });
    }
    println!("taken down amid the bytes: {cut} of {rounds}");
    assert!(cut > 0 || !is_real(), "every write was complete");
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
    take_down_amid_write(|end| {
        let mut drain = end.pair.begin_drain(MARKERS).expect("begun");
        assert!(!drain.is_done());
        while !drain.is_done() {
            drain.observe(&end.next());
        }
    });
}

#[test]
fn nothing_lands_after_destroy_amid_write() {
    take_down_amid_write(|end| {
        let other = new_pair(&end.domain, &end.queue);
        std::mem::replace(&mut end.pair, other).destroy().expect("destroyed");
    });
}

#[test]
fn nothing_lands_after_region_is_dropped_amid_write() {
    take_down_amid_write(|end| {
        let memory: Arc<dyn DeviceMemory> = Arc::new(HostMemory::new(1).expect("memory"));
        let other = MemoryRegion::new(&end.domain, &memory, 0, 1, RemoteAccess::NONE);
        drop(std::mem::replace(&mut end.region, other.expect("a region")));
    });
}

#[test]
fn drain_waits_for_both_markers_of_its_queue_pair() {
    let Some((a, b)) = ends(RemoteAccess::READ_WRITE) else { return };
    let mut drain = b.pair.begin_drain(MARKERS).expect("begun");
    let (first, second) = (b.next(), b.next());
    let other = Completion { queue_pair: a.pair.number() + 1000, ..second };
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
