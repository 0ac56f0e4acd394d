//! A manifest that decodes consists of blocks of the copies, and reads back from its own copy.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::{BLOCK, seal};
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::manifest::decode;

fuzz_target!(|data: &[u8]| {
    // The first byte is the number of blocks of the first copy.
    let Some((blocks, data)) = data.split_first() else { return };
    let middle = (usize::from(*blocks) * BLOCK).min(data.len());
    check(data, middle);
    let mut sealed = data.to_vec();
    let (first, second) = sealed.split_at_mut(middle);
    for block in first.chunks_exact_mut(BLOCK).chain(second.chunks_exact_mut(BLOCK)) {
        seal(block, 8);
    }
    check(&sealed, middle);
});

fn check(data: &[u8], middle: usize) {
    let (first, second) = data.split_at(middle);
    let Ok((m, damage)) = decode([first, second]) else { return };
    let copy = m.copy();
    for (i, block) in copy.chunks_exact(BLOCK).enumerate() {
        let here = [first, second].map(|c| c.get(i * BLOCK..(i + 1) * BLOCK) == Some(block));
        assert!(here[0] || here[1], "a block that no copy has");
        for (c, same) in here.iter().enumerate() {
            let named = damage.iter().any(|d| (d.copy, d.index as usize) == (c, i));
            assert_eq!(*same, !named, "what differs is named as damage, and nothing else");
        }
    }
    assert_eq!(decode([&copy, &copy]), Ok((m.clone(), vec![])));
    assert!(m.segment(SegmentId(0)).is_some());
    for (namespace, generation) in m.generations() {
        assert_eq!(m.generation(namespace), generation);
    }
}
