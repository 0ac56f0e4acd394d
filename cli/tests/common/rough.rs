//! A client that does what Pagelith's own never does: it stops reading, and hands over any
//! descriptor.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagelith::io::entropy::Entropy;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::wire::Side;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Offer;
use pagelith::transport::closed::Closed;
use pagelith::transport::conn::Conn;
use pagelith::transport::handshake::Handshake;
use pagelith::transport::limits::Limits;
use pagelith::transport::pending::{Pending, Progress};
use pagelith::transport::stream::{IoResult, Stream};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Longest wait for bytes, at a time.
const STEP: Duration = Duration::from_millis(1);
/// The byte that a client's memory is handed over with.
const HANDED: u8 = 1;

/// A socket that reads nothing while `deaf` is set, and hands over these descriptors as its memory.
pub struct Rough {
    socket: UnixStream,
    deaf: Arc<AtomicBool>,
    hands: Vec<OwnedFd>,
}

fn moved(result: std::io::Result<usize>, operation: &'static str) -> IoResult {
    match result {
        Ok(0) => IoResult::Ended,
        Ok(n) => IoResult::Bytes(n),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            IoResult::Blocked
        }
        Err(e) => IoResult::Failed { operation, errno: e.raw_os_error().unwrap_or(0) },
    }
}

impl Stream for Rough {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> IoResult {
        match self.deaf.load(Ordering::Relaxed) {
            true => IoResult::Blocked,
            false => moved(self.socket.read_vectored(parts), "read"),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> IoResult {
        moved(self.socket.write_vectored(parts), "write")
    }

    fn goes_over(&self, features: u64) -> bool {
        features & Feature::SharedMemory.bit() != 0
    }

    fn go_over(&mut self, _: Side, _: u64) -> Result<bool, Closed> {
        hand_over(&self.socket, &self.hands);
        Ok(true)
    }

    fn ready(&mut self, _: bool, _: Duration) -> bool {
        std::thread::sleep(STEP);
        true
    }
}

/// Send descriptors with one byte. The server may have closed the connection already.
pub fn hand_over(socket: &UnixStream, hands: &[OwnedFd]) {
    let fds: Vec<BorrowedFd<'_>> = hands.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "too many descriptors");
    let _ = sendmsg(socket, &[IoSlice::new(&[HANDED])], &mut ancillary, SendFlags::NOSIGNAL);
}

/// A link to the server at `path`; `None` if it was refused. It has shared memory if descriptors
/// are given.
pub fn link(
    path: &Path,
    key: Option<Key>,
    hands: Vec<OwnedFd>,
    deaf: &Arc<AtomicBool>,
) -> Option<Box<Conn<Rough>>> {
    link_over(UnixStream::connect(path).ok()?, key, hands, deaf)
}

/// As [`link`], over this connection.
pub fn link_over(
    socket: UnixStream,
    key: Option<Key>,
    hands: Vec<OwnedFd>,
    deaf: &Arc<AtomicBool>,
) -> Option<Box<Conn<Rough>>> {
    socket.set_nonblocking(true).expect("a mode");
    let offer = Offer::of_this_build(SystemEntropy.bytes16());
    let offer = offer.without(Feature::Shown).without(Feature::Files);
    let offer = if hands.is_empty() { offer.without(Feature::SharedMemory) } else { offer };
    let handshake = Handshake::client(offer, key, &SystemEntropy);
    let limits = Limits { dead_after: Duration::from_secs(60), ..Limits::default() };
    let stream = Rough { socket, deaf: deaf.clone(), hands };
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
