//! Memory that clients share with a store process: holes cost the process no memory, and the mapped
//! bytes are bounded.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::shm::SharedRegion;
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::{Options, PutOutcome, PutSlice};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};

use common::store_process::StoreProcess;

const LEN: usize = 1 << 20;

fn key(page: u8) -> ObjectKey {
    let hash = PrefixHash([page; 32]);
    ObjectKey::new(NamespaceId([5; 16]), hash, Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

fn serving(dir: &tempfile::TempDir, flags: &[&str]) -> StoreProcess {
    let address = format!("unix:{}", dir.path().join("socket").display());
    StoreProcess::with(&[&["--listen", &address], flags].concat())
}

fn attached(server: &StoreProcess) -> Client {
    let address = server.address.parse().expect("an address");
    Client::to(&address, None, Duration::from_secs(30)).expect("attached")
}

/// A memfd of `bytes` bytes without any allocated page.
fn sparse(bytes: u64) -> OwnedFd {
    let fd = memfd_create("sparse", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&fd, bytes).expect("memory");
    fd
}

/// Share `bytes` bytes of a file as if they were mapped at the addresses of `own`.
fn share(client: &Client, file: &OwnedFd, own: &[u8], bytes: usize) {
    let fd = file.try_clone().expect("a descriptor");
    let region = SharedRegion::mapped(fd, own.as_ptr().addr(), bytes).expect("a region");
    client.share(Arc::new(region)).expect("shared");
}

fn put(client: &Client, page: u8, bytes: &[u8]) {
    let options = Options::default().timeout(Duration::from_secs(60));
    let put = client.put_batch(&[PutSlice { key: key(page), pieces: &[bytes] }], options).remove(0);
    assert_eq!(put, Ok(PutOutcome::Stored), "page={page}");
}

/// A field of the process's status, in bytes.
fn status(server: &StoreProcess, field: &str) -> u64 {
    let path = format!("/proc/{}/status", server.child.id());
    let status = std::fs::read_to_string(path).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a line");
    line.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>().expect("a number") << 10
}

#[test]
fn put_from_a_hole_of_client_memory_allocates_no_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = serving(&dir, &[]);
    let client = attached(&server);
    let (file, own) = (sparse(32 * LEN as u64), vec![0; 32 * LEN]);
    share(&client, &file, &own, own.len());
    for (page, bytes) in (0..).zip(own.chunks(LEN)) {
        put(&client, page, bytes);
    }
    assert_eq!(fstat(&file).expect("known").st_blocks, 0, "the store process allocated pages");
}

#[test]
fn put_from_memory_beyond_the_bound_works_without_a_mapping() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = serving(&dir, &["--client-memory", "2GiB"]);
    server.says("client_memory_bytes_max=2147483648 client_memory_of_one_bytes_max=1073741824");
    let before = status(&server, "VmSize");
    let own = vec![0; LEN];
    let clients: Vec<(Client, OwnedFd)> = (0..4u8)
        .map(|page| {
            let (client, file) = (attached(&server), sparse(64 << 40));
            share(&client, &file, &own, 64 << 40);
            put(&client, page, &own);
            (client, file)
        })
        .collect();
    server.says("shared memory of a client is not mapped");
    // With an allowance for threads and their malloc arenas.
    let more = status(&server, "VmSize") - before;
    assert!(more < 8 << 30, "bytes={more}");
    drop(clients);
}
