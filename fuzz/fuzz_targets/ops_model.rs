//! Any operations in any order, with or without faults: the store answers as the model allows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::operations::run;

fuzz_target!(|data: &[u8]| {
    let (_, findings) = run(data);
    assert!(findings.is_empty(), "{findings:?}");
});
