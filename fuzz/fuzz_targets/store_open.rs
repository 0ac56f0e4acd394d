//! A store whose manifest, checkpoints and segments are overwritten opens or refuses, and returns
//! no wrong byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::damaged::DamagedStore;

thread_local! {
    static STORE: DamagedStore = DamagedStore::default();
}

fuzz_target!(|data: &[u8]| {
    STORE.with(|store| store.run(data));
});
