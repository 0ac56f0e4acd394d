//! A hostile client: it stops reading, and passes any descriptors.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagelith::io::entropy::Entropy;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::wire::LinkRole;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::conn::Conn;
use pagelith::transport::handshake::Handshake;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link_error::LinkError;
use pagelith::transport::pending::{HandshakeProgress, PendingHandshake};
use pagelith::transport::stream::{Stream, StreamResult};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Longest wait for bytes, at a time.
const STEP: Duration = Duration::from_millis(1);
/// The byte that a client's memory is handed over with.
const TAG_RINGS: u8 = 1;

/// A socket that reads nothing while `stop_reading` is set, and passes `fds` as its memory.
pub struct HostileSocket {
    socket: UnixStream,
    stop_reading: Arc<AtomicBool>,
    fds: Vec<OwnedFd>,
}

fn moved(result: std::io::Result<usize>, operation: &'static str) -> StreamResult {
    match result {
        Ok(0) => StreamResult::Ended,
        Ok(n) => StreamResult::Bytes(n),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            StreamResult::Blocked
        }
        Err(e) => StreamResult::Failed { operation, errno: e.raw_os_error().unwrap_or(0) },
    }
}

impl Stream for HostileSocket {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> StreamResult {
        match self.stop_reading.load(Ordering::Relaxed) {
            true => StreamResult::Blocked,
            false => moved(self.socket.read_vectored(parts), "read"),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        moved(self.socket.write_vectored(parts), "write")
    }

    fn will_upgrade(&self, features: u64) -> bool {
        features & Feature::SharedMemory.bit() != 0
    }

    fn upgrade_carrier(&mut self, _: LinkRole, _: u64) -> Result<bool, LinkError> {
        hand_over(&self.socket, &self.fds);
        Ok(true)
    }

    fn ready(&mut self, _: bool, _: Duration) -> bool {
        std::thread::sleep(STEP);
        true
    }
}

/// Send descriptors with one byte. The server may have closed the connection already.
pub fn hand_over(socket: &UnixStream, fds: &[OwnedFd]) {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "too many descriptors");
    let _ = sendmsg(socket, &[IoSlice::new(&[TAG_RINGS])], &mut ancillary, SendFlags::NOSIGNAL);
}

/// A link to the server at `path`; `None` if it was refused. It has shared memory if descriptors
/// are given.
pub fn link(
    path: &Path,
    key: Option<Key>,
    fds: Vec<OwnedFd>,
    stop_reading: &Arc<AtomicBool>,
) -> Option<Box<Conn<HostileSocket>>> {
    link_over(UnixStream::connect(path).ok()?, key, fds, stop_reading)
}

/// As [`link`], over this connection.
pub fn link_over(
    socket: UnixStream,
    key: Option<Key>,
    fds: Vec<OwnedFd>,
    stop_reading: &Arc<AtomicBool>,
) -> Option<Box<Conn<HostileSocket>>> {
    socket.set_nonblocking(true).expect("a mode");
    let offer = Capabilities::of_this_build(SystemEntropy.bytes16());
    let offer = offer.without(Feature::Shown);
    let offer = if fds.is_empty() { offer.without(Feature::SharedMemory) } else { offer };
    let handshake = Handshake::client(offer, key, &SystemEntropy);
    let limits = LinkLimits { dead_after: Duration::from_secs(60), ..LinkLimits::default() };
    let stream = HostileSocket { socket, stop_reading: stop_reading.clone(), fds };
    let outside = (Arc::new(SystemClock::new()) as Arc<_>, limits);
    let pending = PendingHandshake::new(
        stream,
        "store".to_owned(),
        LinkRole::Client,
        offer,
        handshake,
        outside,
    );
    let mut progress = pending.poll();
    loop {
        progress = match progress {
            HandshakeProgress::Waiting(pending) => pending.wait(STEP),
            HandshakeProgress::Ready(link) => return Some(link),
            HandshakeProgress::Failed(_) => return None,
        };
    }
}
