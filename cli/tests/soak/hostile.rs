//! The tenant with a key that does harm: it asks and never reads, and hands over what no client would.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagelith::layouts::ids::{OpId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::layouts::wire::request::{self, Ask, GetItem, Terms};
use pagelith::layouts::wire::{Frame, Kind, List};
use pagelith::transport::address::Address;
use pagelith::transport::conn::Conn;
use pagelith::transport::link::Link;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::common::rough::{self, Rough};
use super::{Stop, Tenant, count};

/// Links that ask and do not read, at a time.
const DEAF_LINKS: usize = 3;
/// Objects of a request; all of them of a length that they do not have.
const ITEMS: u64 = 4000;
/// How long an unread link is kept.
const UNREAD: Duration = Duration::from_secs(2);
/// Between two links that hand something over.
const PAUSE: Duration = Duration::from_millis(100);
/// Address space, not memory.
const SPARSE_BYTES: u64 = 1 << 44;

/// What was done.
#[derive(Default)]
pub struct Counters {
    pub unread: AtomicU64,
    pub handed: AtomicU64,
    pub silent: AtomicU64,
}

/// A link of this tenant; `None` if it was refused.
fn link(tenant: &Tenant, hands: Vec<OwnedFd>, deaf: &Arc<AtomicBool>) -> Option<Box<Conn<Rough>>> {
    let Address::Unix(path) = &tenant.address else { panic!("a Unix socket") };
    rough::link(path, Some(tenant.key.clone()), hands, deaf)
}

/// A request for objects of which none has this length.
fn request(tenant: &Tenant) -> Vec<u8> {
    let item = |n: u64| {
        let mut hash = [0xa5; 32];
        hash[..8].copy_from_slice(&n.to_le_bytes());
        let hash = PrefixHash(hash);
        let key =
            ObjectKey::new(tenant.namespace, hash, Role::Target, "kv", "k", Shard::Whole).expect("a key");
        GetItem::new(key, None, 12_345)
    };
    let items: Vec<GetItem> = (0..ITEMS).map(item).collect();
    request::encode(Terms::default(), &Ask::Get(List::of(&items)))
}

/// Ask as much as the store takes and read none of its answers, over several links; again and again.
pub fn never_read(tenant: &Tenant, counters: &Counters, stop: &Stop) {
    let body = request(tenant);
    loop {
        let deaf = Arc::new(AtomicBool::new(false));
        let mut links: Vec<_> = (0..DEAF_LINKS).filter_map(|_| link(tenant, Vec::new(), &deaf)).collect();
        deaf.store(true, Ordering::Relaxed);
        let mut op = 0;
        for _ in 0..UNREAD.as_millis() / 50 {
            for link in &mut links {
                op += 1;
                if link.send(Frame::new(Kind::Request, OpId(op), body.clone())).is_ok() {
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

/// Hand over descriptors in place of memory, each kind in turn.
pub fn hand_over(tenant: &Tenant, counters: &Counters, stop: &Stop) {
    let memfd = |bytes| {
        let fd = memfd_create("soak", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, bytes).expect("a length");
        fd
    };
    for turn in 0_u64.. {
        let file = |path| OwnedFd::from(std::fs::File::open(path).expect("a file"));
        let fds = match turn % 6 {
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
