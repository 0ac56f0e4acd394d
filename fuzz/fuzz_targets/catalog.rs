//! Whatever a store leaves in the catalog that it shows, who looks at it finds something or nothing, and reads nothing beyond it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = pagelith_fuzz::catalog::run(data);
});
