//! Memory of a client that becomes shorter while the store process has it mapped: nobody ends by it, and nothing of it is put.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use pagelith::attach::Attached;
use pagelith::io::shm::Region;
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::{GetOutcome, GetSlice, Options, PutOutcome, PutSlice};

use common::serving::Serving;

const LEN: usize = 1 << 20;

fn key(page: u8) -> ObjectKey {
    let hash = PrefixHash([page; 32]);
    ObjectKey::new(NamespaceId([5; 16]), hash, Role::Target, "kv", "k", Shard::Whole).expect("a key")
}

#[test]
fn a_store_process_survives_memory_that_becomes_shorter() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Serving::at(&format!("unix:{}", dir.path().join("socket").display()));
    let client = Attached::to(&server.address.parse().expect("an address"), None, Duration::from_secs(30));
    let client = client.expect("attached");
    // In a file system of memory: it allows no seals.
    let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    let own: Vec<u8> = (0..LEN).map(|at| (at * 31 + at / 253) as u8).collect();
    file.write_all_at(&own, 0).expect("written");
    // What the client has at these addresses stays as it is; what the process maps is the file.
    let fd = file.try_clone().expect("a descriptor").into();
    let region = Region::mapped(fd, own.as_ptr().addr(), LEN).expect("a region");
    client.share(Arc::new(region)).expect("shared");
    let options = Options { timeout: Some(Duration::from_secs(2)), ..Options::default() };
    let put = |page| client.put_batch(&[PutSlice { key: key(page), pieces: &[&own] }], options).remove(0);
    let becomes = |file: &File, len: usize| file.set_len(len as u64).expect("another length");
    assert_eq!(put(1), Ok(PutOutcome::Stored));
    becomes(&file, 300_000);
    assert!(put(2).is_err(), "bytes that are not there were put");
    becomes(&file, 0);
    assert!(put(3).is_err(), "bytes that are not there were put");
    becomes(&file, LEN);
    file.write_all_at(&own, 0).expect("written");
    assert_eq!(put(4), Ok(PutOutcome::Stored), "it is there again");
    for (page, is_here) in [(1, true), (2, false), (3, false), (4, true)] {
        let mut bytes = vec![0xee; LEN];
        let get = GetSlice { key: key(page), range: None, pieces: &mut [&mut bytes] };
        let got = client.get_batch(&mut [get], Options::default()).remove(0).expect("an answer");
        assert_eq!((matches!(got, GetOutcome::Hit { .. }), bytes == own), (is_here, is_here), "page={page}");
    }
    assert!(server.child.try_wait().expect("a state").is_none(), "the process has ended");
}
