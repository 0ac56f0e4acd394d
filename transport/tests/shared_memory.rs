//! Shared memory from a client: invalid descriptors, and hostile writes to the memory afterwards.

mod common;
#[path = "common/rings.rs"]
mod rings;

use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use pagelith_io::clock::Clock;
use pagelith_io::shm::{PAIR_MEMORY_BYTES, SharedMemory, SharedRegion};
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::wire::LinkRole;
use pagelith_transport::address::Address;
use pagelith_transport::handshake::{ClientAuth, Handshake};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::pending::{HandshakeProgress, PendingHandshake};
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener, SocketLink};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Maximum single wait. In a passing test each wait ends with an event.
const WAIT: Duration = Duration::from_secs(10);

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

/// A client's greeting, as bytes.
fn greeting() -> Vec<u8> {
    let (ours, theirs) = pipe(usize::MAX);
    let handshake = Handshake::client(sharing(), None, &*entropy());
    let outside = (clock(), LinkLimits::default());
    let pending = PendingHandshake::new(
        ours,
        "unnamed".into(),
        LinkRole::Client,
        sharing(),
        handshake,
        outside,
    )
    .poll();
    assert!(matches!(pending, HandshakeProgress::Waiting(_)), "it waits for a reply");
    lock(&theirs.reads).bytes.iter().copied().collect()
}

/// A client that sends a raw greeting, then runs `after`; the server's link, or why it was refused.
fn connect_raw_client(
    after: impl FnOnce(&UnixStream),
) -> (Result<Box<SocketLink>, LinkError>, UnixStream) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let address = Address::Unix(path.clone());
    let listen = ListenConfig {
        address,
        admission: ClientAuth::Connection(Rights::all()),
        allow_remote: false,
    };
    let mut listener =
        Listener::new(&listen, sharing(), Arc::new(SystemEntropy), clock(), LinkLimits::default())
            .expect("listens");
    let client = UnixStream::connect(&path).expect("connected");
    (&client).write_all(&greeting()).expect("greeted");
    after(&client);
    let mut arrivals = Vec::new();
    while arrivals.is_empty() {
        listener.wait(&mut arrivals, WAIT);
    }
    let met = match arrivals.pop() {
        Some(AdmissionResult::Link(link)) => Ok(link),
        Some(AdmissionResult::Refused { why, .. }) => Err(why),
        None => panic!("no peer arrived"),
    };
    (met, client)
}

fn send_fds(client: &UnixStream, files: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
    }
    sendmsg(client, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::empty()).expect("sent");
}

#[test]
fn invalid_shared_memory_ends_the_link() {
    let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
    let small = SharedMemory::new(4096).expect("memory");
    let file = tempfile::tempfile().expect("a file");
    file.set_len(PAIR_MEMORY_BYTES as u64).expect("grown");
    assert!(
        connect_raw_client(|client| send_fds(client, &[memory.as_fd()])).0.is_ok(),
        "valid memory"
    );
    let region = SharedRegion::new(4096).expect("memory");
    let shown: &[BorrowedFd<'_>] = &[memory.as_fd(), region.as_fd()];
    assert!(connect_raw_client(|client| send_fds(client, shown)).0.is_ok(), "with a shared region");
    let (pipe, _other) = std::io::pipe().expect("a pipe");
    let wrong: [&[BorrowedFd<'_>]; 4] =
        [&[], &[memory.as_fd(), pipe.as_fd()], &[small.as_fd()], &[file.as_fd()]];
    for files in wrong {
        let (met, _client) = connect_raw_client(|client| send_fds(client, files));
        assert!(matches!(met, Err(LinkError::ProtocolViolation(_))), "files={}", files.len());
    }
    let (met, _client) =
        connect_raw_client(|client| client.shutdown(std::net::Shutdown::Both).expect("shut"));
    assert!(matches!(met, Err(LinkError::Disconnected)));
}

/// A client writes any bytes into the memory at any time: the link ends or waits, and nothing else.
#[test]
fn random_bytes_in_the_rings_at_most_end_the_link() {
    let mut rng = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng
    };
    let mut closed = 0;
    for round in 0..300u64 {
        let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
        let fd = rustix::io::dup(&memory).expect("another descriptor");
        let (met, client) = connect_raw_client(|client| send_fds(client, &[memory.as_fd()]));
        let mut server = met.expect("a link");
        let file = std::fs::File::from(fd);
        let mut events = Vec::new();
        for step in 0..6 {
            let mut bytes = vec![0; (next() % 9000) as usize + 1];
            bytes.iter_mut().for_each(|byte| *byte = next() as u8);
            // Alternately ring bytes and counters; mostly small counters, so that the bytes are
            // read.
            let at = if step % 2 == 0 { 4096 } else { [0, 128, 256, 384][(next() % 4) as usize] };
            if at < 4096 {
                bytes =
                    (next() % if round % 3 == 0 { u64::MAX } else { 9000 }).to_le_bytes().to_vec();
            }
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, at).expect("written");
            server.poll(&mut events);
            if round % 5 == 0 {
                server.wait(&mut events, Duration::ZERO);
            }
        }
        drop(client);
        while !matches!(events.last(), Some(LinkEvent::Ended(_))) {
            server.wait(&mut events, WAIT);
        }
        closed +=
            usize::from(!matches!(events.last(), Some(LinkEvent::Ended(LinkError::Disconnected))));
    }
    assert!(closed > 100, "most of the bytes are no frame: {closed}");
}

/// The body of the fuzz target `rings`, with random inputs.
#[test]
fn hostile_ring_contents_write_only_exposed_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut host = rings::Host::new(&dir.path().join("socket"));
    let mut rng = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng
    };
    let (mut shown, mut landed, mut broken) = (0, 0, 0);
    for round in 0..600 {
        let mut input: Vec<u8> = (0..1 + next() % 120).map(|_| (next() >> 11) as u8).collect();
        if round % 2 == 0 {
            // Two valid references before the random steps.
            input.splice(0..0, [11, 1, 0, 0, 0xB1, 7, 11, 1, 1, 0, 0xB1, 9]);
        }
        let met = host.run(&input);
        shown += met.shown;
        landed += met.landed;
        broken += u32::from(!matches!(met.closed, Some(LinkError::Disconnected)));
    }
    assert!(
        shown > 300 && landed > 20 && broken > 50,
        "shown={shown} landed={landed} broken={broken}"
    );
}
