//! Client memory that is truncated while the store process has it mapped: the process survives, and
//! no missing bytes are put.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::shm::SharedRegion;
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::{GetOutcome, GetSlice, Options, PutOutcome, PutSlice};

use common::store_process::StoreProcess;

const LEN: usize = 1 << 20;

fn key(page: u8) -> ObjectKey {
    let hash = PrefixHash([page; 32]);
    ObjectKey::new(NamespaceId([5; 16]), hash, Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

#[test]
fn store_process_survives_truncated_client_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = StoreProcess::at(&format!("unix:{}", dir.path().join("socket").display()));
    let client =
        Client::to(&server.address.parse().expect("an address"), None, Duration::from_secs(30));
    let client = client.expect("attached");
    // A tmpfs file, since that cannot be sealed.
    let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    let own: Vec<u8> = (0..LEN).map(|at| (at * 31 + at / 253) as u8).collect();
    file.write_all_at(&own, 0).expect("written");
    // The client's memory at these addresses stays unchanged; the process maps the file.
    let fd = file.try_clone().expect("a descriptor").into();
    let region = SharedRegion::mapped(fd, own.as_ptr().addr(), LEN).expect("a region");
    client.share(Arc::new(region)).expect("shared");
    let short = Options::default().timeout(Duration::from_secs(2));
    let put = |page, options| {
        client.put_batch(&[PutSlice { key: key(page), pieces: &[&own] }], options).remove(0)
    };
    let truncate = |file: &File, len: usize| file.set_len(len as u64).expect("another length");
    assert_eq!(put(1, Options::default()), Ok(PutOutcome::Stored));
    truncate(&file, 300_000);
    assert!(put(2, short).is_err(), "missing bytes were put");
    truncate(&file, 0);
    assert!(put(3, short).is_err(), "missing bytes were put");
    truncate(&file, LEN);
    file.write_all_at(&own, 0).expect("written");
    let stored = Ok(PutOutcome::Stored);
    assert_eq!(put(4, Options::default()), stored, "the file has its length again");
    for (page, is_present) in [(1, true), (2, false), (3, false), (4, true)] {
        let mut bytes = vec![0xee; LEN];
        let get = GetSlice { key: key(page), range: None, pieces: &mut [&mut bytes] };
        let got = client.get_batch(&mut [get], Options::default()).remove(0).expect("an answer");
        assert_eq!(
            (matches!(got, GetOutcome::Hit { .. }), bytes == own),
            (is_present, is_present),
            "page={page}"
        );
    }
    assert!(server.child.try_wait().expect("a state").is_none(), "the process has ended");
}
