//! Servers of any tensor-parallel size read heads stored by servers of any other size: by ranged
//! gets, each verified, or not at all.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]

#[path = "suite/device.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod device;
#[path = "suite/env.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod env;
#[allow(dead_code)]
#[path = "../../io/tests/verbs/fake.rs"]
mod fake;
#[allow(dead_code)]
#[path = "../../io/tests/devices/fake.rs"]
mod fake_device;
#[path = "suite/harness.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod harness;
#[path = "suite/helpers.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod helpers;
#[allow(dead_code)]
#[path = "suite/rdma.rs"]
mod rdma;
#[path = "reshard/servers.rs"]
mod servers;
#[path = "reshard/table.rs"]
mod table;
#[path = "reshard/tensor.rs"]
mod tensor;

use env::{IoKind, TestEnv};
use harness::Store;
use pagelith::layouts::checksum::BLOCK_BYTES;
use pagelith::layouts::geometry::Layout;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::{ErrorKind, GetOutcome, MissCause, Options, PutOutcome, PutSlice, Tier};
use servers::{Case, Read, Side, get, get_all, mha, namespace_of, restored};

/// Directories with the backend that the machine allows.
fn cold() -> TestEnv {
    let kind =
        if env::unavailable(IoKind::Uring).is_none() { IoKind::Uring } else { IoKind::Blocking };
    TestEnv::new(kind, false, 1)
}

fn in_memory() -> TestEnv {
    TestEnv::new(IoKind::Blocking, false, 1)
}

/// A case where a head is one checksum block.
fn by_heads() -> Case {
    mha(Role::Target, 8, Side::of(Layout::PageHead), Side::of(Layout::PageHead))
}

fn written(store: &Store, case: &Case, tp: u16) {
    let outcomes = case.write(store, namespace_of(tp), tp);
    assert!(outcomes.iter().all(|o| *o == Ok(PutOutcome::Stored)), "{outcomes:?}");
    helpers::flush(store);
}

fn keys(reads: &[Read]) -> Vec<ObjectKey> {
    reads.iter().map(|read| read.key).collect()
}

/// All eight readers in one batch: only readers of the head in the damaged block get a miss.
#[test]
fn flipped_bit_misses_exactly_the_ranges_that_contain_it() {
    // A head of the target is one checksum block, one of the draft half of one.
    for (role, rotten) in [(Role::Target, vec![3]), (Role::Draft, vec![2, 3])] {
        let (world, case) =
            (cold(), mha(role, 8, Side::of(Layout::PageHead), Side::of(Layout::PageHead)));
        let config = world.cold_config();
        let store = world.open(&config);
        written(&store, &case, 1);
        store.close().expect("closed");
        let readers: Vec<Vec<Read>> =
            (0..8).map(|rank| case.reads(namespace_of(1), 1, rank, 8)).collect();
        let k = &readers[3][0];
        assert_eq!(k.range.end - k.range.start, u64::from(BLOCK_BYTES) / rotten.len() as u64);
        world.flip(0, "segments", helpers::find(&world, k.key).payload + k.range.start + 100);

        let store = world.open(&config);
        let mut buffers: Vec<Vec<u8>> = (0..8).map(|rank| case.empty(rank, 8)).collect();
        let mut all: Vec<(&[Read], &mut [u8])> = readers
            .iter()
            .zip(&mut buffers)
            .map(|(reads, buffer)| (&reads[..], &mut buffer[..]))
            .collect();
        let outcomes = get_all(&store, &mut all);
        for (rank, (outcomes, buffer)) in outcomes.chunks(2).zip(&buffers).enumerate() {
            let is_rotten = rotten.contains(&rank);
            let damaged = Ok(GetOutcome::Miss(MissCause::Damaged));
            assert_eq!(outcomes[0] == damaged, is_rotten, "K of rank {rank}: {outcomes:?}");
            assert!(
                outcomes[1].as_ref().is_ok_and(GetOutcome::is_hit),
                "V of rank {rank}: {outcomes:?}"
            );
            assert_eq!(
                restored(&readers[rank], outcomes, Tier::Ssd),
                !is_rotten,
                "{rank}: {outcomes:?}"
            );
            assert!(
                is_rotten || *buffer == case.expected(rank as u16, 8),
                "wrong bytes at rank {rank}"
            );
        }
        assert_eq!(store.stats().damaged, rotten.len() as u64);
        let here = store.exists_prefix(&keys(&readers[0]), Options::default());
        assert_eq!(here, 0, "the next exists says no");
    }
}

/// A rank that never stored its part, or whose part is gone, is a miss for every reader that needs
/// it.
#[test]
fn missing_rank_is_a_miss_of_the_whole_page() {
    let (world, case) = (cold(), by_heads());
    let store = world.open(&world.cold_config());
    written(&store, &case, 8);
    let gone = case.reads(namespace_of(8), 8, 5, 8);
    assert_eq!(store.remove(&keys(&gone)[..1], Options::default()), Ok(1), "K, and with it V");
    for tp in [1, 2, 4, 8, 16] {
        for rank in 0..tp {
            let reads = case.reads(namespace_of(8), 8, rank, tp);
            let needs_it = reads.iter().any(|read| read.key == gone[0].key);
            let heads_of_16 = tp == 16 && rank / 2 == 5;
            let heads = tp < 16 && (rank * 8 / tp..(rank + 1) * 8 / tp).contains(&5);
            assert_eq!(needs_it, heads || heads_of_16, "{rank} of {tp}");
            // Known before anything is read.
            let here = store.exists_prefix(&keys(&reads), Options::default());
            assert_eq!(here == reads.len(), !needs_it, "{rank} of {tp}");
            let mut buffer = case.empty(rank, tp);
            let outcomes = get(&store, &reads, &mut buffer);
            assert_eq!(
                restored(&reads, &outcomes, Tier::Ssd),
                !needs_it,
                "{rank} of {tp}: {outcomes:?}"
            );
            for (read, outcome) in reads.iter().zip(&outcomes) {
                let absent = read.key == gone[0].key || read.key == gone[1].key;
                assert_eq!(
                    *outcome == Ok(GetOutcome::Miss(MissCause::Absent)),
                    absent,
                    "{outcome:?}"
                );
            }
            assert!(needs_it || buffer == case.expected(rank, tp), "wrong bytes at {rank} of {tp}");
        }
    }
}

/// With a head split, servers whose sizes divide the same number store the same objects.
#[test]
fn servers_with_equal_head_splits_share_objects() {
    for role in [Role::Target, Role::Draft] {
        let side = Side::split(Layout::PageHead, 8);
        let (world, case) = (cold(), mha(role, 8, side, side));
        let store = world.open(&world.cold_config());
        let namespace = namespace_of(1);
        let first = case.write(&store, namespace, 2);
        assert_eq!(first, vec![Ok(PutOutcome::Stored); 16], "eight groups of two pages");
        for tp in [1, 4, 8] {
            assert_eq!(
                case.write(&store, namespace, tp),
                vec![Ok(PutOutcome::AlreadyPresent); 16],
                "{tp}"
            );
        }
        // A group of all objects of a rank would differ for each size.
        let wide = case.reads(namespace, 1, 0, 1);
        let bytes = vec![0; wide[0].object_bytes as usize];
        let pieces = [&bytes[..]];
        let of_rank: Vec<_> =
            wide.iter().map(|r| PutSlice { key: r.key, pieces: &pieces }).collect();
        let refused = store.put_groups(&[&of_rank], Options::default()).remove(0);
        assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::Invalid));
        helpers::flush(&store);
        for tp in [1, 2, 4, 8] {
            for rank in 0..tp {
                // It reads the objects that it would have stored itself, without knowing other
                // servers.
                let reads = case.reads(namespace, tp, rank, tp);
                let mut keys = keys(&reads);
                keys.dedup();
                assert_eq!(keys.len(), usize::from(16 / tp), "K and V of each group, whole");
                assert!(
                    reads.iter().all(|read| read.range == (0..read.object_bytes)),
                    "{rank} of {tp}"
                );
                let mut buffer = case.empty(rank, tp);
                let outcomes = get(&store, &reads, &mut buffer);
                assert!(restored(&reads, &outcomes, Tier::Ssd), "{rank} of {tp}: {outcomes:?}");
                assert!(buffer == case.expected(rank, tp), "wrong bytes at {rank} of {tp}");
            }
        }
    }
}
