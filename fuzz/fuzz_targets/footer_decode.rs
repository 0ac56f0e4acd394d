//! A footer that decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::{BLOCK, IDENTITY, seal};
use pagelith_layouts::footer::{FooterTail, claimed_bytes, decode, encode};

fuzz_target!(|data: &[u8]| {
    let Some((size, footer)) = data.split_first() else { return };
    let segment_bytes = u64::from(*size) * BLOCK as u64;
    check(footer, segment_bytes);
    let mut sealed = footer.to_vec();
    if let Some(tail) = sealed.len().checked_sub(FooterTail::BYTES) {
        if seal(&mut sealed, tail + 8) {
            check(&sealed, segment_bytes);
        }
    }
});

fn check(bytes: &[u8], segment_bytes: u64) {
    if let Some(claimed) = claimed_bytes(bytes, segment_bytes) {
        assert!(claimed < segment_bytes);
    }
    let Ok((facts, entries)) = decode(bytes, IDENTITY, segment_bytes) else { return };
    assert_eq!(encode(&facts, &entries), bytes);
    assert!(facts.data_end + bytes.len() as u64 <= segment_bytes);
    for e in &entries {
        assert!(
            (u64::from(e.record_sector) + u64::from(e.record_sectors)) * BLOCK as u64
                <= facts.data_end
        );
    }
}
