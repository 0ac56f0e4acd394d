//! A learned state that decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::{STORE, seal};
use pagelith_layouts::learned::*;

fuzz_target!(|data: &[u8]| {
    // The front of it; the rest is zero.
    let mut whole = data.to_vec();
    whole.resize(LEARNED_BYTES, 0);
    check(data);
    check(&whole);
    if seal(&mut whole, 8) {
        check(&whole);
    }
});

fn check(bytes: &[u8]) {
    let Ok(learned) = decode(bytes, STORE, 6) else { return };
    assert_eq!(encode(&learned, STORE, 6), bytes[..LEARNED_BYTES]);
    assert!(learned.lap_units > 0.0 && learned.sample_rate > 0);
    assert!(learned.counts.iter().flatten().flatten().all(|count| *count >= 0.0));
}
