use pagelith_layouts::checksum::checksum;
use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 32 * 1024;

/// Size and resident bytes of the mapping that contains `address`, from `/proc/self/smaps`.
#[allow(
    clippy::disallowed_methods,
    reason = "reads the system's view of this process's memory, not a store"
)]
fn resident(address: usize) -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut own = false;
    let mut sizes = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-') {
            let bound = |text| usize::from_str_radix(text, 16).expect("an address");
            own = (bound(from)..bound(to)).contains(&address);
        } else if own && (first == "Size:" || first == "Rss:") {
            sizes.push(words.next().and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10);
        }
    }
    (sizes[0], sizes[1])
}

#[test]
fn prefault_makes_arena_resident() {
    const BYTES: u64 = 24 << 20;
    for arena in [Arena::new(BYTES), Arena::shared(BYTES)] {
        let memory = arena.expect("memory").memory;
        let address = memory.base() as usize;
        let (size, before) = resident(address);
        assert!(size >= BYTES && before + BYTES <= size, "size={size} resident={before}");
        memory.prefault().expect("Linux 5.14");
        let (_, after) = resident(address);
        assert!(after >= BYTES, "before={before} after={after}");
    }
}

fn arena(bytes: u64) -> Arena {
    Arena::new(bytes).expect("memory")
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

/// Fill an extent that has no other user; returns the checksums of its blocks.
fn fill(memory: &Arc<ArenaMemory>, extent: Extent, parts: &[&[u8]], block: u32) -> Checksums {
    // SAFETY: tests make no other access to the extent while they fill it.
    let mut writer = unsafe { memory.writer(extent) };
    writer.fill(parts, block).expect("filled")
}

fn padded(memory: &Arc<ArenaMemory>, extent: Extent) -> Part {
    // SAFETY: no test keeps a part while it fills the extent.
    unsafe { memory.part(extent, true) }
}

fn read(memory: &ArenaMemory, extent: Extent) -> &[u8] {
    // SAFETY: no test keeps these bytes while it fills the extent.
    unsafe { memory.bytes(extent) }
}

#[test]
fn one_byte_and_75_mb_round_trip() {
    let Arena { memory, mut space } = arena(80 << 20);
    for len in [1, 75_000_000] {
        let bytes = pattern(len, 7);
        let extent = space.alloc(len as u64).expect("room");
        let blocks = fill(&memory, extent, &[&bytes], BLOCK);
        assert_eq!(blocks.len(), len.div_ceil(BLOCK as usize));
        assert!(read(&memory, extent) == bytes, "len={len}");
        space.free(extent);
    }
}

#[test]
fn padding_of_reused_extent_is_zero() {
    let Arena { memory, mut space } = arena(16 * 4096);
    for len in [1u64, 4095, 4096, 4097, 8191] {
        let old = space.alloc(8192).expect("room");
        fill(&memory, old, &[&[0xff; 8192]], BLOCK);
        space.free(old);
        let extent = space.alloc(len).expect("room");
        assert_eq!(extent.first_unit, old.first_unit, "the allocator reuses the same page");
        fill(&memory, extent, &[&pattern(len as usize, 1)], BLOCK);
        let part = padded(&memory, extent);
        assert_eq!((part.len() as u64, part.addr() % 4096), (extent.padded_bytes(), 0));
        assert_eq!(part.bytes()[..len as usize], pattern(len as usize, 1));
        assert_eq!(
            part.bytes().iter().skip(len as usize).find(|byte| **byte != 0),
            None,
            "len={len}"
        );
        space.free(extent);
    }
}

#[test]
fn fill_does_not_touch_neighbouring_extents() {
    let Arena { memory, mut space } = arena(3 * 4096);
    let [left, middle, right] = [0, 1, 2].map(|_| space.alloc(4096).expect("room"));
    fill(&memory, left, &[&[1; 4096]], BLOCK);
    fill(&memory, right, &[&[3; 4096]], BLOCK);
    fill(&memory, middle, &[&[2; 4096]], BLOCK);
    let readers = [left, middle, right].map(|extent| read(&memory, extent));
    assert_eq!(readers.each_ref().map(|reader| *reader == [reader[0]; 4096]), [true; 3]);
    assert_eq!(readers.each_ref().map(|reader| reader[0]), [1, 2, 3]);
}

#[test]
fn gather_list_of_wrong_length_is_refused_without_copy() {
    let Arena { memory, mut space } = arena(4096);
    let extent = space.alloc(10).expect("room");
    fill(&memory, extent, &[&[9; 10]], BLOCK);
    // SAFETY: the only access to the extent until it was used for the last time.
    let mut writer = unsafe { memory.writer(extent) };
    for (parts, parts_bytes) in [(&[&[0u8; 5][..], &[0; 4]][..], 9), (&[&[0; 11]], 11), (&[], 0)] {
        let result = writer.fill(parts, BLOCK);
        assert_eq!(result, Err(FillError::Length { parts_bytes, extent_bytes: 10 }));
    }
    assert_eq!(writer.fill(&[&[0; 10]], 0), Err(FillError::Block));
    assert_eq!(read(&memory, extent), [9; 10]);
}

#[test]
fn part_keeps_arena_mapped() {
    let Arena { memory, mut space } = arena(4096);
    let extent = space.alloc(100).expect("room");
    fill(&memory, extent, &[&pattern(100, 3)], BLOCK);
    // SAFETY: nothing writes the extent any more.
    let part = unsafe { memory.part(extent, false) };
    let alive = Arc::downgrade(&memory);
    drop((memory, space));
    assert_eq!(part.bytes(), pattern(100, 3));
    assert!(!part.is_exclusive());
    drop(part);
    assert_eq!(alive.strong_count(), 0, "dropping the last part releases the memory");
}

#[test]
fn arena_capacity_of_partial_page_is_refused() {
    for bytes in [0, 1, 4095, 4097, (1 << 44) + 4096, u64::MAX] {
        let error = Arena::new(bytes).expect_err("refused");
        assert!(error.to_string().ends_with(&format!("bytes={bytes}")), "{error}");
    }
    let Arena { memory, space } = arena(3 << 20);
    assert_eq!((memory.capacity_bytes(), space.capacity_bytes()), (3 << 20, 3 << 20));
}

#[test]
#[should_panic(expected = "extent outside the arena")]
fn extent_beyond_arena_end_panics() {
    let Arena { memory, .. } = arena(2 * 4096);
    padded(&memory, Extent { first_unit: 1, bytes: 4097 });
}

#[test]
#[allow(clippy::disallowed_methods, reason = "tests that threads may share the memory")]
fn threads_fill_and_read_own_extents_concurrently() {
    let Arena { memory, mut space } = arena(64 * 4096);
    let extents: Vec<Extent> = (0..8).map(|_| space.alloc(5000).expect("room")).collect();
    std::thread::scope(|scope| {
        for (seed, extent) in extents.iter().enumerate() {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..50 {
                    let bytes = pattern(5000, seed as u8 ^ round);
                    fill(memory, *extent, &[&bytes[..777], &bytes[777..]], 512);
                    assert_eq!(read(memory, *extent), bytes);
                }
            });
        }
    });
}

proptest! {
    #[test]
    fn any_gather_list_gives_same_content_and_checksums(
        len in 1usize..20_000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        block in prop::sample::select(vec![1u32, 3, 512, 4096, 5000, BLOCK]),
    ) {
        let bytes = pattern(len, 5);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
        ends.sort_unstable();
        ends.push(len);
        // Equal ends give empty parts, which callers may pass.
        let mut from = 0;
        let part = |end: &usize| &bytes[std::mem::replace(&mut from, *end)..*end];
        let parts: Vec<&[u8]> = ends.iter().map(part).collect();

        let Arena { memory, mut space } = arena(8 * 4096);
        let extent = space.alloc(len as u64).expect("room");
        let sums: Checksums = bytes.chunks(block as usize).map(checksum).collect();
        prop_assert_eq!(fill(&memory, extent, &parts, block), sums);
        prop_assert!(read(&memory, extent) == bytes);
    }
}
