//! Whatever a client writes into the memory of its link, the server goes on or ends the link, and holds nothing for it then.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::client::run;

fuzz_target!(|data: &[u8]| {
    let _ = run(data);
});
