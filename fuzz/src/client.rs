//! A client of a store process that writes arbitrary data through shared memory, after its
//! handshake.
//!
//! The input is a list of steps: one byte for the kind of step, then the bytes that it uses.

use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith::io::clock::Clock;
use pagelith::io::shm::{PAIR_MEMORY_BYTES, RING_BYTES, SharedMemory};
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::ids::{NamespaceId, OpId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::layouts::wire::head::{self, HeadFacts};
use pagelith::layouts::wire::put::PutBuilder;
use pagelith::layouts::wire::request::{self, GetItem, RequestBody, RequestOptions};
use pagelith::layouts::wire::{FrameKind, LinkRole, List, VERSION_MAX};
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::handshake::{ClientAuth, Handshake};
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link_error::LinkError;
use pagelith::transport::pending::PendingHandshake;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::transport::stream::{Stream, StreamResult};
use pagelith::{Config, MachineLimits, Options, PutSlice, Size, Store};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Offset of a ring's data, and of its count of bytes written.
const BYTES_AT: u64 = 4096;
const WRITTEN_AT: u64 = 0;
/// Polls of the server after each step, and at the end until the link is closed.
const TURNS: usize = 4;
const CLOSE_TURNS_MAX: usize = 100_000;

struct FuzzServer {
    store: Store,
    staging: StagingPool,
    listener: Listener,
    path: PathBuf,
    greeting: Vec<u8>,
}

static SERVER: Mutex<Option<FuzzServer>> = Mutex::new(None);

/// Records everything written to it.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<u8>>>);

impl Stream for Recorder {
    fn read(&mut self, _: &mut [IoSliceMut<'_>]) -> StreamResult {
        StreamResult::Blocked
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.len();
        parts.iter().for_each(|part| kept.extend_from_slice(part));
        StreamResult::Bytes(kept.len() - before)
    }

    fn ready(&mut self, _: bool, _: Duration) -> bool {
        true
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn key(page: u8) -> ObjectKey {
    ObjectKey::new(
        NamespaceId([5; 16]),
        PrefixHash([page % 8; 32]),
        Role::Target,
        "kv",
        "k",
        Shard::Whole,
    )
    .expect("a key")
}

impl FuzzServer {
    fn new() -> FuzzServer {
        let mut config = Config::default();
        config.dram.bytes = Size::mib(8);
        config.index.max_objects = Some(1000);
        config.deadline_ms = 50;
        let valid =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
        let store = Store::open(valid).expect("a store");
        for page in 0..4 {
            let bytes = vec![page; 70_000];
            store.put_batch(&[PutSlice { key: key(page), pieces: &[&bytes] }], Options::default());
        }
        let path = std::env::temp_dir().join(format!("pagelith-fuzz-{}", std::process::id()));
        let address = Address::Unix(path.clone());
        let admission = ClientAuth::Connection(Rights::all());
        let listen = ListenConfig { address, admission, allow_remote: false };
        let offer = Capabilities::of_this_build([1; 16]);
        let listener =
            Listener::new(&listen, offer, Arc::new(SystemEntropy), clock(), LinkLimits::default());
        let sent = Recorder::default();
        let offer = Capabilities::of_this_build([2; 16]);
        let handshake = Handshake::client(offer, None, &SystemEntropy);
        let outside = (clock(), LinkLimits::default());
        drop(
            PendingHandshake::new(
                sent.clone(),
                "server".into(),
                LinkRole::Client,
                offer,
                handshake,
                outside,
            )
            .poll(),
        );
        let greeting = sent.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let staging = StagingPool::new(9 << 20).expect("memory");
        FuzzServer { store, staging, listener: listener.expect("listens"), path, greeting }
    }

    /// A client that has sent its greeting and shared its memory, and the server's end.
    fn connect(&mut self) -> (UnixStream, OwnedFd, Server) {
        let client = UnixStream::connect(&self.path).expect("connected");
        (&client).write_all(&self.greeting).expect("greeted");
        let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [memory.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&client, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::empty())
            .expect("handed over");
        let mut arrivals = Vec::new();
        while arrivals.is_empty() {
            self.listener.wait(&mut arrivals, Duration::from_secs(5));
        }
        let Some(AdmissionResult::Link(link)) = arrivals.pop() else {
            panic!("client with a valid greeting was refused")
        };
        let server = Server::new(&self.store, link, self.staging.clone()).expect("serves");
        (client, rustix::io::dup(&memory).expect("another descriptor"), server)
    }
}

/// Runs an input; returns why the link ended.
pub fn run(data: &[u8]) -> Option<LinkError> {
    let mut world = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let world = world.get_or_insert_with(FuzzServer::new);
    let (client, memory, mut server) = world.connect();
    let (mut rest, mut written, mut op) = (data, 0u64, 0u64);
    while let Some((what, tail)) = rest.split_first() {
        rest = tail;
        let mut take = |most: usize| {
            let (taken, left) = rest.split_at(most.min(rest.len()));
            rest = left;
            taken.to_vec()
        };
        match what % 8 {
            // Raw bytes, after those before.
            0 | 1 => send(&memory, &mut written, &take(usize::from(*what) + 1)),
            // A frame with correct checksums: of any kind, or a request.
            2 | 3 => {
                op += u64::from(what % 3);
                let kind = FrameKind::ALL[usize::from(*what) % FrameKind::ALL.len()];
                send(
                    &memory,
                    &mut written,
                    &frame(kind, OpId(op), take(usize::from(what / 8) * 8)),
                );
            }
            4 | 5 => {
                op += 1;
                let numbers = take(4);
                let of = |i: usize| numbers.get(i).copied().unwrap_or(0);
                send(
                    &memory,
                    &mut written,
                    &frame(FrameKind::Request, OpId(op), ask(of(0), of(1), of(2), of(3))),
                );
            }
            // A ring counter, and arbitrary bytes at an arbitrary offset.
            6 => {
                let at = [WRITTEN_AT, 128, 256, 384][usize::from(what / 8 % 4)];
                let near = if what / 32 == 0 { u64::MAX } else { 2 * RING_BYTES as u64 };
                let number = take(8).iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
                write_at(&memory, at, &(number % near).to_le_bytes());
            }
            _ => {
                let at = take(3).iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
                write_at(&memory, at % (PAIR_MEMORY_BYTES as u64 - 64), &take(32));
            }
        }
        for _ in 0..TURNS {
            server.poll();
        }
    }
    drop(client);
    let mut turns = 0;
    while server.closed().is_none() {
        turns += 1;
        assert!(turns < CLOSE_TURNS_MAX, "the link outlives its client");
        server.poll();
    }
    let why = server.closed().cloned();
    drop(server);
    assert_eq!(
        (world.staging.in_use(), world.store.stats().readers),
        (0, 0),
        "server keeps resources after the link closed"
    );
    why
}

fn write_at(memory: &OwnedFd, at: u64, bytes: &[u8]) {
    rustix::io::pwrite(memory, bytes, at).expect("written");
}

/// Writes bytes into the client's ring, and publishes them to the server.
fn send(memory: &OwnedFd, written: &mut u64, bytes: &[u8]) {
    for byte in bytes.chunks(4096) {
        let at = *written % RING_BYTES as u64;
        let most = byte.len().min(RING_BYTES - at as usize);
        write_at(memory, BYTES_AT + at, &byte[..most]);
        write_at(memory, BYTES_AT, &byte[most..]);
        *written += byte.len() as u64;
    }
    write_at(memory, WRITTEN_AT, &written.to_ne_bytes());
}

fn frame(kind: FrameKind, op: OpId, body: Vec<u8>) -> Vec<u8> {
    let facts = match kind {
        FrameKind::Data => HeadFacts::data(VERSION_MAX, op, 0, 0, body.len() as u32),
        _ => HeadFacts::control(VERSION_MAX, kind, op, &body),
    };
    [&head::encode(&facts, [0; 16])[..], &body].concat()
}

/// A well-formed request.
fn ask(verb: u8, page: u8, other: u8, number: u8) -> Vec<u8> {
    let (deadline_ms, request) = (u32::from(number % 8), u64::from(other % 3));
    let terms = RequestOptions {
        deadline_ms,
        depth: number.into(),
        request,
        from_store: page % 32 == 31,
        prefill_tokens_per_s: u64::from(page % 8),
    };
    let keys = [key(page), key(other)];
    let length = [70_000, 1, 100, 70_001][usize::from(number % 4)];
    let items = [
        GetItem::new(key(page), None, length),
        GetItem::new(key(other), Some(10..u64::from(number) + 11), 0),
    ];
    let mut draft = PutBuilder::new(32 << 10);
    draft.group((verb % 16 > 12).then(|| key(page)));
    draft.object(key(other), u64::from(number) * 1000 + 1, &[]);
    let put = draft.puts().ok().map(RequestBody::Put);
    let ask = match verb % 16 {
        0 => RequestBody::Exists(List::of(&keys)),
        1 => RequestBody::ExistsPrefix(List::of(&keys)),
        2..=4 => RequestBody::Get(List::of(&items)),
        5..=7 => put.unwrap_or(RequestBody::Ping),
        8 => RequestBody::Remove(List::of(&keys[1..])),
        9 => RequestBody::Flush,
        10 => RequestBody::Stats,
        11 => RequestBody::Hold(u64::from(number) + 1),
        12 => RequestBody::Release(u64::from(number) + 1),
        13 => RequestBody::Used(u64::from(number) + 1, List::of(&keys)),
        14 => RequestBody::Hint(u64::from(number) << (other % 8), List::of(&keys)),
        _ => RequestBody::Ping,
    };
    request::encode(terms, &ask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_client_is_served_and_invalid_one_is_disconnected() {
        // A get, an exists, then the client disconnects.
        assert_eq!(run(&[4, 2, 1, 1, 0, 4, 0, 1, 2, 0]), Some(LinkError::Disconnected));
        assert!(
            matches!(run(&[0; 300]), Some(LinkError::ProtocolViolation(_))),
            "zeros are no head"
        );
        assert!(
            matches!(run(&[6, 9, 9, 9, 9, 9, 9, 9, 9]), Some(LinkError::SystemCall { .. })),
            "a count that cannot be"
        );
    }
}
