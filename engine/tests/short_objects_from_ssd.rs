//! An object shorter than an alignment unit, got from SSD straight into memory that happens to be aligned,
//! was called damaged and dropped: the caller's only part was lost on the way back from the read.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]

use pagelith::layouts::{ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard};
use pagelith::{AlignedBuf, Config, Facts, GetOutcome, GetSlice, Options, PutSlice, Size, Store, Tier};

#[test]
fn a_short_object_comes_whole_into_aligned_memory() {
    let home = tempfile::tempdir().unwrap();
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.ssd.bytes = Size::mib(32);
    config.ssd.dirs = vec![home.path().join("store")];
    let open = || Store::open(config.validate(&Facts::of_this_machine().unwrap()).unwrap()).unwrap();
    let key = |n: u8| {
        ObjectKey::new(Namespace::default().id(), PrefixHash([n; 32]), Role::Target, "kv", "k", Shard::Whole)
            .unwrap()
    };
    let lengths = [1usize, 9, 511, 512, 4095, 4096, 4097];
    let store = open();
    for (n, length) in (0u8..).zip(lengths) {
        let bytes = vec![n + 1; length];
        let outcomes = store.put_batch(&[PutSlice { key: key(n), pieces: &[&bytes] }], Options::default());
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
    }
    store.close().unwrap();

    // Opened again, nothing is in memory.
    let store = open();
    for (n, length) in (0u8..).zip(lengths) {
        let mut buffer = AlignedBuf::new(8192).unwrap();
        let mut pieces = [&mut buffer[..length]];
        let mut get = [GetSlice { key: key(n), range: None, pieces: &mut pieces }];
        let outcomes = store.get_batch(&mut get, Options::default());
        assert_eq!(outcomes, [Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: length as u64 })]);
        assert!(buffer[..length].iter().all(|b| *b == n + 1), "length={length}");
        assert!(buffer[length..].iter().all(|b| *b == 0), "bytes behind the destination were touched");
    }
    assert_eq!(store.stats().damaged, 0);
}
