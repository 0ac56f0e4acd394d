//! The hostile tenant with a valid key: it sends requests and never reads, and passes invalid
//! descriptors as memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagelith::layouts::ids::{OpId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::layouts::wire::request::{self, GetItem, RequestBody, RequestOptions};
use pagelith::layouts::wire::{Frame, FrameKind, List};
use pagelith::transport::address::Address;
use pagelith::transport::conn::Conn;
use pagelith::transport::link::Link;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::common::hostile_socket::{self, HostileSocket};
use super::{Stop, Tenant, count};

/// Concurrent links that send requests and do not read.
const UNREAD_LINKS: usize = 3;
/// Objects per request; all with a wrong length.
const ITEMS: u64 = 4000;
/// Lifetime of an unread link.
const UNREAD: Duration = Duration::from_secs(2);
/// Pause between two links that pass descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of address space, without memory.
const SPARSE_BYTES: u64 = 1 << 44;

/// Counters of hostile actions.
#[derive(Default)]
pub struct Counters {
    pub unread: AtomicU64,
    pub handed: AtomicU64,
    pub silent: AtomicU64,
}

/// A link of this tenant; `None` if it was refused.
fn link(
    tenant: &Tenant,
    fds_to_pass: Vec<OwnedFd>,
    stop_reading: &Arc<AtomicBool>,
) -> Option<Box<Conn<HostileSocket>>> {
    let Address::Unix(path) = &tenant.address else { panic!("a Unix socket") };
    hostile_socket::link(path, Some(tenant.key.clone()), fds_to_pass, stop_reading)
}

/// A request for objects with a wrong length.
fn request(tenant: &Tenant) -> Vec<u8> {
    let item = |n: u64| {
        let mut hash = [0xa5; 32];
        hash[..8].copy_from_slice(&n.to_le_bytes());
        let hash = PrefixHash(hash);
        let key = ObjectKey::new(tenant.namespace, hash, Role::Target, "kv", "k", Shard::Whole)
            .expect("a key");
        GetItem::new(key, None, 12_345)
    };
    let items: Vec<GetItem> = (0..ITEMS).map(item).collect();
    request::encode(RequestOptions::default(), &RequestBody::Get(List::of(&items)))
}

/// Send as many requests as the store accepts over several links, and read no response; repeatedly.
pub fn never_read(tenant: &Tenant, counters: &Counters, stop: &Stop) {
    let body = request(tenant);
    loop {
        let stop_reading = Arc::new(AtomicBool::new(false));
        let mut links: Vec<_> =
            (0..UNREAD_LINKS).filter_map(|_| link(tenant, Vec::new(), &stop_reading)).collect();
        stop_reading.store(true, Ordering::Relaxed);
        let mut op = 0;
        for _ in 0..UNREAD.as_millis() / 50 {
            for link in &mut links {
                op += 1;
                if link.send(Frame::new(FrameKind::Request, OpId(op), body.clone())).is_ok() {
                    count(&counters.unread);
                }
                link.poll(&mut Vec::new());
            }
            if stop.within(Duration::from_millis(50)) {
                return;
            }
        }
    }
}

/// Pass descriptors of each kind in place of memory.
pub fn pass_descriptors(tenant: &Tenant, counters: &Counters, stop: &Stop) {
    let memfd = |bytes| {
        let fd =
            memfd_create("soak", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, bytes).expect("a length");
        fd
    };
    for round in 0_u64.. {
        let file = |path| OwnedFd::from(std::fs::File::open(path).expect("a file"));
        let fds = match round % 6 {
            0 => vec![memfd(SPARSE_BYTES)],
            1 => vec![memfd(0)],
            2 => vec![std::io::pipe().expect("a pipe").0.into()],
            3 => vec![file("/dev/zero")],
            4 => vec![file("/proc/self/status"), memfd(SPARSE_BYTES)],
            _ => (0..8).map(|_| memfd(SPARSE_BYTES)).collect(),
        };
        counters.handed.fetch_add(fds.len() as u64, Ordering::Relaxed);
        let held = link(tenant, fds, &Arc::default());
        let over = stop.within(PAUSE);
        drop(held);
        if over {
            return;
        }
    }
}
