//! The hostile tenant with a valid key: it sends requests and never reads, and passes invalid
//! descriptors as memory.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagelith::io::entropy::Entropy;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::ids::{OpId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::layouts::wire::request::{self, Ask, GetItem, Terms};
use pagelith::layouts::wire::{Frame, Kind, List, Side};
use pagelith::transport::address::Address;
use pagelith::transport::capability::Offer;
use pagelith::transport::closed::Closed;
use pagelith::transport::conn::Conn;
use pagelith::transport::handshake::Handshake;
use pagelith::transport::limits::Limits;
use pagelith::transport::link::Link;
use pagelith::transport::pending::{Pending, Progress};
use pagelith::transport::stream::{Moved, Stream};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Stop, Tenant, count};

/// Concurrent links that send requests and do not read.
const UNREAD_LINKS: usize = 3;
/// Objects per request; all with a wrong length.
const ITEMS: u64 = 4000;
/// Lifetime of an unread link.
const UNREAD: Duration = Duration::from_secs(2);
/// Pause between two links that pass descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum single wait for bytes.
const STEP: Duration = Duration::from_millis(1);
/// Tag of a client's memory.
const TAG_RINGS: u8 = 1;
/// Bytes of address space, without memory.
const SPARSE_BYTES: u64 = 1 << 44;

/// Counters of hostile actions.
#[derive(Default)]
pub struct Counters {
    pub unread: AtomicU64,
    pub handed: AtomicU64,
    pub silent: AtomicU64,
}

/// A socket that stops reading on request, and passes descriptors after the handshake.
struct HostileStream {
    socket: UnixStream,
    stop_reading: Arc<AtomicBool>,
    fds_to_pass: Vec<OwnedFd>,
}

fn moved(result: std::io::Result<usize>, operation: &'static str) -> Moved {
    match result {
        Ok(0) => Moved::Ended,
        Ok(n) => Moved::Bytes(n),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Moved::Blocked,
        Err(e) => Moved::Failed { operation, errno: e.raw_os_error().unwrap_or(0) },
    }
}

impl Stream for HostileStream {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> Moved {
        match self.stop_reading.load(Ordering::Relaxed) {
            true => Moved::Blocked,
            false => moved(self.socket.read_vectored(parts), "read"),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> Moved {
        moved(self.socket.write_vectored(parts), "write")
    }

    fn goes_over(&self, features: u64) -> bool {
        features & Feature::SharedMemory.bit() != 0
    }

    fn go_over(&mut self, _: Side, _: u64) -> Result<bool, Closed> {
        let fds: Vec<BorrowedFd<'_>> = self.fds_to_pass.iter().map(AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "too many descriptors");
        let _ = sendmsg(&self.socket, &[IoSlice::new(&[TAG_RINGS])], &mut ancillary, SendFlags::NOSIGNAL);
        Ok(true)
    }

    fn ready(&mut self, _: bool, _: Duration) -> bool {
        std::thread::sleep(STEP);
        true
    }
}

/// A link of this tenant; `None` if it was refused. With descriptors it negotiates shared memory.
fn link(
    tenant: &Tenant,
    fds_to_pass: Vec<OwnedFd>,
    stop_reading: &Arc<AtomicBool>,
) -> Option<Box<Conn<HostileStream>>> {
    let Address::Unix(path) = &tenant.address else { panic!("a Unix socket") };
    let socket = UnixStream::connect(path).ok()?;
    socket.set_nonblocking(true).expect("a mode");
    let offer = Offer::of_this_build(SystemEntropy.bytes16());
    let no_extras = [Feature::Shown, Feature::Files, Feature::Steady, Feature::Catalog];
    let offer = no_extras.into_iter().fold(offer, Offer::without);
    let offer = if fds_to_pass.is_empty() { offer.without(Feature::SharedMemory) } else { offer };
    let handshake = Handshake::client(offer, Some(tenant.key.clone()), &SystemEntropy);
    let limits = Limits { dead_after: Duration::from_secs(60), ..Limits::default() };
    let stream = HostileStream { socket, stop_reading: stop_reading.clone(), fds_to_pass };
    let outside = (Arc::new(SystemClock::new()) as Arc<_>, limits);
    let pending = Pending::new(stream, "store".to_owned(), Side::Client, offer, handshake, outside);
    let mut progress = pending.poll();
    loop {
        progress = match progress {
            Progress::Waiting(pending) => pending.wait(STEP),
            Progress::Ready(link) => return Some(link),
            Progress::Over(_) => return None,
        };
    }
}

/// A request for objects with a wrong length.
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

/// Pass descriptors of each kind in place of memory.
pub fn pass_descriptors(tenant: &Tenant, counters: &Counters, stop: &Stop) {
    let memfd = |bytes| {
        let fd = memfd_create("soak", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
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
