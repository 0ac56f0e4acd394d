//! For any bytes that a client writes into the memory of its link, the server continues or ends the
//! link, and then holds no resources for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::client::run;

fuzz_target!(|data: &[u8]| {
    let _ = run(data);
});
