//! What a client copies out of a store process's memory by itself, and what it believes of it when that process is gone.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::time::Duration;

use pagelith::attach::Attached;
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::{GetOutcome, GetSlice, MissCause, Options, PutOutcome, PutSlice, Tier};

use common::serving::Serving;

const LEN: usize = 100_000;

fn key(page: u8) -> ObjectKey {
    let hash = PrefixHash([page; 32]);
    ObjectKey::new(NamespaceId([5; 16]), hash, Role::Target, "kv", "k", Shard::Whole).expect("a key")
}

fn content(page: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 + at / 253 + usize::from(page)) as u8).collect()
}

fn get(client: &Attached, page: u8) -> GetOutcome {
    let mut bytes = vec![0xee; LEN];
    let get = GetSlice { key: key(page), range: None, pieces: &mut [&mut bytes] };
    let outcome = client.get_batch(&mut [get], Options::default()).remove(0).expect("an answer");
    assert_eq!(matches!(outcome, GetOutcome::Hit { .. }), bytes == content(page), "page={page}");
    outcome
}

/// A process that was killed says nothing, and its memory lies there still: others may have removed the page from the one that was started in its
/// place.
#[test]
fn the_memory_of_a_process_that_was_killed_is_not_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Serving::at(&format!("unix:{}", dir.path().join("socket").display()));
    let attach = || {
        Attached::to(&server.address.parse().expect("an address"), None, Duration::from_secs(30))
            .expect("attached")
    };
    let (client, looker) = (attach(), attach());
    let looked_up = |pages: &[u8]| {
        let keys: Vec<_> = pages.iter().copied().map(key).collect();
        looker.exists_batch(&keys, Options::default()).expect("an answer")
    };
    let put = |page| {
        client
            .put_batch(&[PutSlice { key: key(page), pieces: &[&content(page)] }], Options::default())
            .remove(0)
    };
    let hit = GetOutcome::Hit { tier: Tier::Memory, bytes: LEN as u64 };
    for page in 0..8 {
        assert_eq!(put(page), Ok(PutOutcome::Stored));
        assert_eq!(get(&client, page), hit);
    }
    assert_eq!(looked_up(&[0, 7]), [true; 2]);
    server.kill();
    let _server = Serving::at(&server.address.clone());
    assert_eq!(looked_up(&[0, 7]), [false; 2]);
    for page in 0..8 {
        assert_eq!(get(&client, page), GetOutcome::Miss(MissCause::Absent), "page={page}");
    }
    assert_eq!(put(3), Ok(PutOutcome::Stored));
    assert_eq!([3, 4].map(|page| get(&client, page)), [hit, GetOutcome::Miss(MissCause::Absent)]);
    assert_eq!((looked_up(&[3]), looked_up(&[3, 4])), (vec![true], vec![true, false]));
}
