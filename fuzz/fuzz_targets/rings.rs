//! For any bytes and references that a peer writes into the memory of its link, the link continues
//! or ends, and writes only to memory that it was lent.
#![no_main]

use std::sync::{Mutex, PoisonError};

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::rings::Host;

static HOST: Mutex<Option<Host>> = Mutex::new(None);

fuzz_target!(|data: &[u8]| {
    let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let host = host.get_or_insert_with(|| {
        Host::new(&std::env::temp_dir().join(format!("pagelith-rings-{}", std::process::id())))
    });
    let _ = host.run(data);
});
