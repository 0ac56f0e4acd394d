//! Gets return what was put: any size, from either tier, into any memory.

use super::harness::Store;
use pagelith::io::buffer::AlignedBuf;
use pagelith::{ErrorKind, GetOutcome, GetSlice, Options, PutOutcome, PutSlice, Size, Tier};

use super::env::TestEnv;
use super::helpers::*;

const SIZES: [usize; 8] = [1, 4095, 4096, 4097, 32 << 10, 100_000, 515_328, 2_561_024];

fn large(world: &TestEnv) -> pagelith::Config {
    let mut config = world.config();
    config.dram.bytes = Size::mib(8);
    config.ssd.bytes = Size::mib(32);
    config.ssd.segment_bytes = Some(Size::mib(4));
    config
}

fn put_sizes(store: &Store) {
    for (n, &len) in (0u64..).zip(&SIZES) {
        store_page(store, n, len);
    }
}

pub fn objects_of_every_size_are_got_from_memory_and_ssd(world: &TestEnv) {
    let config = large(world);
    let store = world.open(&config);
    put_sizes(&store);
    let check = |store: &Store, tier| {
        for (n, &len) in (0u64..).zip(&SIZES) {
            assert_eq!(hit_page(store, n, len), tier, "len={len}");
            assert_eq!(hit_unaligned(store, key(n), &bytes(n, len)), tier, "len={len}");
        }
    };
    check(&store, Tier::Memory);
    let store = world.reopen(store, &config);
    assert!(!store.opened().made);
    assert_eq!(store.opened().objects, SIZES.len() as u64);
    check(&store, Tier::Ssd);
    let store = world.crash(store, &config);
    check(&store, Tier::Ssd);
    store.close().expect("closed");
    let mut cold = config;
    cold.dram.bytes = Size::ZERO;
    check(&world.open(&cold), Tier::Ssd);
}

pub fn aligned_destinations_are_read_without_staging(world: &TestEnv) {
    let config = large(world);
    let store = world.open(&config);
    put_sizes(&store);
    let store = world.reopen(store, &config);
    for (n, &len) in (0u64..).zip(&SIZES) {
        assert_eq!(hit_page(&store, n, len), Tier::Ssd, "len={len}");
    }
    staged(world, &store, 0);
    hit_unaligned(&store, key(2), &bytes(2, SIZES[2]));
    staged(world, &store, 4096);
}

/// Lengths that add up to `total`.
fn cut(total: usize, pieces: usize, grain: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> =
        (0..pieces).map(|i| (total / pieces - i * 37 % 90) / grain * grain).collect();
    let before: usize = lengths[..pieces - 1].iter().sum();
    lengths[pieces - 1] = total - before;
    lengths
}

fn get_scattered(store: &Store, n: u64, lengths: &[usize]) -> Tier {
    let total = lengths.iter().sum();
    let mut memory = AlignedBuf::new(total).expect("memory");
    let (mut pieces, mut rest) = (Vec::new(), &mut memory[..]);
    for &len in lengths {
        let (piece, after) = rest.split_at_mut(len);
        pieces.push(piece);
        rest = after;
    }
    let mut get = [GetSlice { key: key(n), range: None, pieces: &mut pieces }];
    let outcome = store.get_batch(&mut get, Options::default()).remove(0);
    let Ok(GetOutcome::Hit { tier, .. }) = outcome else {
        panic!("{outcome:?} pieces={lengths:?}")
    };
    assert!(memory[..] == bytes(n, total)[..], "wrong bytes pieces={lengths:?}");
    tier
}

pub fn scatter_lists(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    let whole = bytes(1, 500_000);
    let lengths = cut(whole.len(), 200, 1);
    let mut at = 0;
    let pieces: Vec<&[u8]> = lengths
        .iter()
        .map(|len| {
            at += len;
            &whole[at - len..at]
        })
        .collect();
    let put = store.put_batch(&[PutSlice { key: key(1), pieces: &pieces }], Options::default());
    assert_eq!(put, vec![Ok(PutOutcome::Stored)]);
    store_page(&store, 2, 122_880);
    let check = |store: &Store, tier| {
        for pieces in [1, 2, 3, 17, 200] {
            assert_eq!(get_scattered(store, 1, &cut(500_000, pieces, 1)), tier, "pieces={pieces}");
        }
        assert_eq!(get_scattered(store, 1, &[0, 250_000, 0, 250_000, 0]), tier);
        let staged = store.stats().staged_bytes;
        for pieces in [2, 5, 15, 30] {
            assert_eq!(
                get_scattered(store, 2, &cut(122_880, pieces, 4096)),
                tier,
                "pieces={pieces}"
            );
        }
        assert_eq!(store.stats().staged_bytes, staged, "aligned pieces are read straight into");
    };
    check(&store, Tier::Memory);
    let store = world.reopen(store, &config);
    check(&store, Tier::Ssd);
    assert_eq!(store.stats().staged_bytes > 0, world.is_embedded(), "ragged pieces are staged");
}

pub fn ranges(world: &TestEnv) {
    const LEN: usize = 100_000;
    const RANGES: [(u64, u64); 12] = [
        (0, 1),
        (10, 20),
        (32_767, 32_769),
        (32_768, 65_536),
        (0, 65_536),
        (5, 100_000),
        (0, 100_000),
        (99_999, 100_000),
        (98_304, 100_000),
        (65_536, 100_000),
        (4096, 8192),
        (40_000, 90_000),
    ];
    let config = world.config();
    let store = world.open(&config);
    let whole = bytes(0, LEN);
    store_page(&store, 0, LEN);
    let check = |store: &Store, tier| {
        for (start, end) in RANGES {
            let expected = &whole[start as usize..end as usize];
            let outcome = Ok(GetOutcome::Hit { tier, bytes: end - start });
            let mut to = AlignedBuf::new(expected.len()).expect("memory");
            assert_eq!(
                get_range(store, key(0), Some(start..end), &mut to),
                outcome,
                "{start}..{end}"
            );
            assert!(&to[..] == expected, "{start}..{end}");
            let mut to = Unaligned::new(expected.len());
            assert_eq!(
                get_range(store, key(0), Some(start..end), to.slice()),
                outcome,
                "{start}..{end}"
            );
            assert!(to.slice() == expected, "{start}..{end}");
        }
    };
    check(&store, Tier::Memory);
    let store = world.reopen(store, &config);
    check(&store, Tier::Ssd);
}

pub fn invalid_ranges_are_refused(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    store_page(&store, 0, 5000);
    let check = |store: &Store| {
        for (start, end) in
            [(0, 0), (5, 5), (9, 3), (0, 5001), (5000, 5001), (u64::MAX - 1, u64::MAX)]
        {
            let mut to = vec![7; 1];
            let message = format!(
                "range is empty or beyond the object key={} range={start}..{end} length=5000",
                key(0)
            );
            let outcome = get_range(store, key(0), Some(start..end), &mut to);
            match world.is_embedded() {
                true => refused(outcome, ErrorKind::Invalid, &message),
                // A client does not know the object's length.
                false => assert_eq!(outcome.map_err(|e| e.kind), Err(ErrorKind::Invalid)),
            }
            assert_eq!(to, vec![7], "nothing was written");
        }
    };
    check(&store);
    let store = world.reopen(store, &config);
    if world.tells_keys_apart() {
        check(&store);
    }
}

pub fn batches_of_any_size_with_repeated_keys_are_answered(world: &TestEnv) {
    const LEN: usize = 5000;
    let config = world.config();
    let store = world.open(&config);
    let most = world.many(300);
    let data: Vec<_> = (0..most as u64).map(|n| bytes(n, LEN)).collect();
    let pieces: Vec<[&[u8]; 1]> = data.iter().map(|d| [&d[..]]).collect();
    let puts: Vec<_> =
        (0u64..).zip(&pieces).map(|(n, pieces)| PutSlice { key: key(n), pieces }).collect();
    assert_eq!(store.put_batch(&puts, Options::default()), vec![Ok(PutOutcome::Stored); most]);
    let check = |store: &Store, tier| {
        for size in [1, 2, 3, 64, 65, 299, 300].map(|n| world.many(n)) {
            // The first key is repeated at the end, and the second in the middle.
            let mut order: Vec<usize> = (0..size).collect();
            order.push(0);
            order.insert(size / 2, 1);
            let mut memory: Vec<_> =
                order.iter().map(|_| AlignedBuf::new(LEN).expect("memory")).collect();
            let mut lent: Vec<[&mut [u8]; 1]> = memory.iter_mut().map(|m| [&mut m[..]]).collect();
            let mut gets: Vec<_> = order
                .iter()
                .zip(&mut lent)
                .map(|(n, pieces)| GetSlice { key: key(*n as u64), range: None, pieces })
                .collect();
            let outcomes = store.get_batch(&mut gets, Options::default());
            assert_eq!(
                outcomes,
                vec![Ok(GetOutcome::Hit { tier, bytes: LEN as u64 }); order.len()]
            );
            for (n, memory) in order.iter().zip(&memory) {
                assert!(memory[..] == data[*n][..], "n={n} size={size}");
            }
        }
        assert_eq!(store.get_batch(&mut [], Options::default()), vec![]);
    };
    check(&store, Tier::Memory);
    let store = world.reopen(store, &config);
    check(&store, Tier::Ssd);
}

pub fn object_of_75_mb_round_trips(world: &TestEnv) {
    const LEN: usize = 75_000_001;
    if world.constant {
        return; // Independent of fingerprints.
    }
    let mut config = world.config();
    config.dram.bytes = Size::mib(128);
    config.ssd.bytes = Size::mib(520);
    config.ssd.segment_bytes = Some(Size::mib(128));
    let store = world.open(&config);
    let whole = bytes(3, LEN);
    assert_eq!(put(&store, key(3), &whole), Ok(PutOutcome::Stored));
    assert_eq!(hit(&store, key(3), &whole), Tier::Memory);
    let store = world.reopen(store, &config);
    assert_eq!(hit(&store, key(3), &whole), Tier::Ssd);
    staged(world, &store, 0);
    assert_eq!(hit_unaligned(&store, key(3), &whole), Tier::Ssd);
    staged(world, &store, LEN.next_multiple_of(4096));
    let mut part = vec![0; 100_000];
    let range = 60_000_000..60_100_000;
    let outcome = get_range(&store, key(3), Some(range), &mut part);
    assert_eq!(outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: 100_000 }));
    assert!(part[..] == whole[60_000_000..60_100_000]);
}
