//! temporary
use pagelith::layouts::{ids::*, key::*, namespace::Namespace, shard::Shard};
use pagelith::*;
fn key(n: u64, c: &str) -> ObjectKey {
    let mut h = [0; 32];
    h[..8].copy_from_slice(&n.to_le_bytes());
    ObjectKey::new(Namespace::default().id(), PrefixHash(h), Role::Target, "kv", c, Shard::Whole).unwrap()
}
#[test]
fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Config::default();
    c.dram.bytes = Size::mib(8);
    c.ssd.bytes = Size::mib(64);
    c.ssd.dirs = vec![dir.path().join("s").to_str().unwrap().into()];
    let facts = Facts::of_this_machine().unwrap();
    let open = || Store::open(c.validate(&facts).unwrap()).unwrap();
    let store = open();
    eprintln!("{:?}", store.opened());
    let data = |n: u64, c: u8| vec![(n as u8) ^ c; 100_000];
    let n = 500u64;
    for i in 0..n {
        let (k, v) = (data(i, 1), data(i, 2));
        let (kp, vp): ([&[u8]; 1], [&[u8]; 1]) = ([&k], [&v]);
        let g = [PutSlice { key: key(i, "k"), pieces: &kp }, PutSlice { key: key(i, "v"), pieces: &vp }];
        let out = store.put_groups(&[&g], Options::default());
        assert_eq!(out, vec![Ok(PutOutcome::Stored)], "{i}");
    }
    eprintln!("{:?}", store.flush(Options::default()));
    let check = |store: &Store| {
        let mut hits = 0;
        for i in 0..n {
            let (mut k, mut v) = (vec![0; 100_000], vec![0; 100_000]);
            let (mut kp, mut vp) = ([&mut k[..]], [&mut v[..]]);
            let mut g = [
                GetSlice { key: key(i, "k"), range: None, pieces: &mut kp },
                GetSlice { key: key(i, "v"), range: None, pieces: &mut vp },
            ];
            let out = store.get_batch(&mut g, Options::default());
            if out.iter().all(|o| o.as_ref().unwrap().is_hit()) {
                hits += 1;
                assert_eq!((k, v), (data(i, 1), data(i, 2)));
            }
        }
        hits
    };
    eprintln!("hits {} {:#?}", check(&store), store.stats());
    store.abandon();
    let store = open();
    eprintln!("{:?}", store.opened());
    eprintln!("hits {}", check(&store));
    eprintln!("{:?}", store.close());
    let store = open();
    eprintln!("{:?}", store.opened());
    eprintln!("hits {} {:?}", check(&store), store.stats().misses);
    assert_eq!(store.remove(&[key(n - 1, "k")], Options::default()), Ok(2 - 1));
    store.abandon();
    let store = open();
    assert_eq!(
        store.exists_batch(&[key(n - 1, "k"), key(n - 1, "v"), key(n - 2, "v")], Options::default()),
        vec![false, false, true]
    );
}
