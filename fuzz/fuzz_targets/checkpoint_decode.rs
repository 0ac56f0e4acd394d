//! A checkpoint head or chunk that decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::{BLOCK, STORE, seal};
use pagelith_layouts::checkpoint::*;

fuzz_target!(|data: &[u8]| {
    // A head block, then the front of a chunk; the rest of the chunk is zero.
    let (head, chunk) = data.split_at(data.len().min(BLOCK));
    let mut whole = chunk.to_vec();
    whole.resize(CHUNK_BYTES, 0);
    check(head, chunk);
    check(head, &whole);
    let mut head = head.to_vec();
    if seal(&mut head, 8) && seal(&mut whole, 8) {
        check(&head, &whole);
    }
});

fn check(head: &[u8], chunk: &[u8]) {
    let Ok(facts) = decode_head(head, STORE) else { return };
    assert_eq!(encode_head(&facts)[..], head[..BLOCK]);
    assert!(chunks_for(facts.segment_count.into(), facts.entry_count) <= facts.chunk_count);
    chunk_offset(facts.chunk_count);
    for index in [0, 1] {
        let Ok((kind, items)) = decode_chunk(chunk, &facts, index) else { continue };
        let mut again = vec![0; CHUNK_BYTES];
        assert!(encode_chunk(&mut again, kind, STORE, facts.serial, index, items));
        assert_eq!(again, chunk[..CHUNK_BYTES]);
    }
}
