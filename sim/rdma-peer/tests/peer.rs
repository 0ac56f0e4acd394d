//! Queue pairs of `io/src/verbs` against a peer that shares no code with it: every operation in
//! both directions, with all bytes compared. Needs RDMA devices; `TEST_PAGELITH_VM=1` makes it fail
//! without.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelith_io::verbs::{
    Attachment, Capacity, Completion, CompletionKind, CompletionQueue, Device, DeviceMemory,
    DrainMarkers, Endpoint, Gid, GidWish, HostMemory, Library, LocalPiece, MemoryRegion, Mtu,
    Operation, Port, ProtectionDomain, QueuePair, RemoteAccess, RemotePiece, SendRequest, State,
    Status,
};
use pagelith_rdma_peer::{Peer, PeerCompletion, PeerOperation, device_names};

const BYTES: usize = 1 << 20;
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Numbers of the verbs interface.
const REMOTE_ACCESS: u32 = 10;
const FLUSHED: u32 = 5;

const SEND: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;
const RECEIVED: u32 = 128;
const RECEIVED_IMMEDIATE: u32 = 129;

/// This project's end.
struct Own {
    queue: Arc<CompletionQueue>,
    memory: Arc<HostMemory>,
    region: MemoryRegion,
    pair: QueuePair,
    polled: VecDeque<Completion>,
}

impl Own {
    fn new(name: &str) -> Own {
        let library = Library::load().expect("the library");
        let device = Device::open(&library, name).expect("the device");
        let port = Port::of(&device, 1).expect("the port");
        let gid = port.choose_gid(GidWish::Best).expect("a GID");
        let domain = ProtectionDomain::new(&device).expect("a domain");
        let queue = CompletionQueue::new(&device, 64).expect("a queue");
        let memory = Arc::new(HostMemory::new(BYTES).expect("memory"));
        let shared: Arc<dyn DeviceMemory> = memory.clone();
        let access = RemoteAccess::READ_WRITE;
        let region = MemoryRegion::new(&domain, &shared, 0, BYTES, access).expect("a region");
        let attachment = Attachment { port, gid };
        let capacity = Capacity { sends: 16, receives: 16, pieces: 4 };
        let pair = QueuePair::new(&domain, (&queue, &queue), attachment, capacity, 0x1234, access)
            .expect("a pair");
        Own { queue, memory, region, pair, polled: VecDeque::new() }
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.copy_out(offset, &mut bytes);
        bytes
    }

    fn pieces(&self, pieces: &[(usize, usize)]) -> Vec<LocalPiece> {
        pieces
            .iter()
            .map(|(offset, length)| self.region.local(*offset, *length).expect("inside"))
            .collect()
    }

    fn remote(&self, offset: usize) -> (u64, u32) {
        let RemotePiece { address, key } = self.region.remote(offset).expect("a key");
        (address, key)
    }

    fn post(&self, id: u64, operation: Operation<'_>) {
        self.pair.post_send(&[SendRequest { id, signaled: true, operation }]).expect("posted");
    }

    fn next(&mut self) -> Completion {
        let end = Instant::now() + WAIT_MAX;
        loop {
            let mut found = Vec::new();
            self.queue.poll(&mut found).expect("polled");
            self.polled.extend(found);
            if let Some(first) = self.polled.pop_front() {
                return first;
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::yield_now();
        }
    }

    fn completed(&mut self, id: u64) -> CompletionKind {
        let found = self.next();
        assert_eq!((found.id, found.status), (id, Status::SUCCESS));
        found.kind.expect("a kind")
    }
}

/// Connected ends, on the first and the last device. `None`, and a line that says so, without
/// devices.
fn ends() -> Option<(Own, Peer)> {
    let names = device_names();
    if names.is_empty() {
        assert_ne!(std::env::var("TEST_PAGELITH_VM").as_deref(), Ok("1"), "no RDMA device");
        println!("skipped: no RDMA device");
        return None;
    }
    let (own, peer) = (Own::new(&names[0]), Peer::new(&names[names.len() - 1], BYTES));
    let address = peer.address();
    let endpoint = Endpoint {
        queue_pair: address.queue_pair,
        packet: address.packet,
        gid: Gid(address.gid),
        lid: 0,
        mtu: Mtu::of_code(5).expect("4096 bytes"),
        reads: 8,
    };
    own.pair.ready_to_receive(&endpoint).expect("RTR");
    own.pair.ready_to_send(&endpoint).expect("RTS");
    let own_end = own.pair.endpoint();
    peer.connect(&pagelith_rdma_peer::PeerAddress {
        queue_pair: own_end.queue_pair,
        packet: own_end.packet,
        gid: own_end.gid.0,
    });
    Some((own, peer))
}

/// Bytes that are never 0, unlike untouched memory.
fn pattern(seed: u32) -> Vec<u8> {
    (0..BYTES as u32)
        .map(|at| ((at ^ seed << 12).wrapping_mul(0x9e37_79b1) >> 24) as u8 | 1)
        .collect()
}

/// Pieces of odd lengths at odd offsets, and all their bytes.
const PIECES: [(usize, usize); 3] = [(3, 70_001), (200_007, 1), (400_001, 33_333)];
const LENGTH: usize = 70_001 + 1 + 33_333;

fn gathered(bytes: &[u8]) -> Vec<u8> {
    PIECES.iter().flat_map(|(offset, length)| bytes[*offset..offset + length].to_vec()).collect()
}

fn ok(id: u64, opcode: u32) -> impl Fn(PeerCompletion) {
    move |found| assert_eq!((found.id, found.status, found.opcode), (id, 0, opcode))
}

#[test]
fn own_write_and_notice_arrive_at_peer() {
    let Some((mut own, peer)) = ends() else { return };
    let bytes = pattern(1);
    own.memory.copy_in(0, &bytes);
    peer.post_receive(1, &[]);
    let (address, key) = peer.remote(4_099);
    let from = own.pieces(&PIECES);
    own.post(2, Operation::Write { from: &from, to: RemotePiece { address, key } });
    own.post(
        3,
        Operation::WriteWithNotice {
            from: &[],
            to: RemotePiece { address, key },
            immediate: 0x0102_0304,
        },
    );
    let found = peer.next();
    ok(1, RECEIVED_IMMEDIATE)(found);
    assert_eq!((found.immediate, found.bytes), (Some(0x0102_0304), 0));
    assert_eq!(peer.bytes(4_099, LENGTH), gathered(&bytes));
    assert_eq!(peer.bytes(0, 4_099), vec![0; 4_099]);
    let end = 4_099 + LENGTH;
    assert_eq!(peer.bytes(end, BYTES - end), vec![0; BYTES - end]);
    assert_eq!(
        (own.completed(2), own.completed(3)),
        (CompletionKind::Write, CompletionKind::Write)
    );
}

#[test]
fn own_read_takes_bytes_of_peer() {
    let Some((mut own, mut peer)) = ends() else { return };
    let bytes = pattern(2);
    peer.fill(&bytes);
    let (address, key) = peer.remote(77);
    let to = own.pieces(&PIECES);
    own.post(4, Operation::Read { to: &to, from: RemotePiece { address, key } });
    assert_eq!(own.completed(4), CompletionKind::Read);
    assert_eq!(gathered(&own.bytes(0, BYTES)), bytes[77..77 + LENGTH]);
    assert_eq!(own.bytes(0, 3), [0; 3]);
}

#[test]
fn own_send_fills_receive_of_peer() {
    let Some((mut own, peer)) = ends() else { return };
    let bytes = pattern(3);
    own.memory.copy_in(0, &bytes);
    peer.post_receive(5, &[(9, 10_000), (50_001, 100_000)]);
    let from = own.pieces(&[(1, 12_345)]);
    own.post(6, Operation::Send { from: &from });
    let found = peer.next();
    ok(5, RECEIVED)(found);
    assert_eq!((found.bytes, found.immediate), (12_345, None));
    assert_eq!(peer.bytes(9, 10_000), bytes[1..10_001]);
    assert_eq!(peer.bytes(50_001, 2_345), bytes[10_001..12_346]);
    assert_eq!(own.completed(6), CompletionKind::Send);
}

#[test]
fn write_and_immediate_of_peer_arrive_here() {
    let Some((mut own, mut peer)) = ends() else { return };
    let bytes = pattern(4);
    peer.fill(&bytes);
    own.pair.post_receive(1, &[]).expect("a receive");
    let (address, key) = own.remote(4_099);
    peer.post(2, &PIECES, PeerOperation::Write { address, key });
    peer.post(3, &[], PeerOperation::WriteWithImmediate { address, key, immediate: 0xa1b2_c3d4 });
    assert_eq!(own.completed(1), CompletionKind::Notice(0xa1b2_c3d4));
    assert_eq!(own.bytes(4_099, LENGTH), gathered(&bytes));
    assert_eq!(own.bytes(0, 4_099), vec![0; 4_099]);
    ok(2, WRITE)(peer.next());
    ok(3, WRITE)(peer.next());
}

#[test]
fn read_of_peer_takes_bytes_of_this_side() {
    let Some((own, peer)) = ends() else { return };
    let bytes = pattern(5);
    own.memory.copy_in(0, &bytes);
    let (address, key) = own.remote(77);
    peer.post(4, &PIECES, PeerOperation::Read { address, key });
    ok(4, READ)(peer.next());
    assert_eq!(gathered(&peer.bytes(0, BYTES)), bytes[77..77 + LENGTH]);
}

#[test]
fn send_of_peer_fills_receive_of_this_side() {
    let Some((mut own, mut peer)) = ends() else { return };
    let bytes = pattern(6);
    peer.fill(&bytes);
    own.pair.post_receive(5, &own.pieces(&[(9, 10_000), (50_001, 100_000)])).expect("a receive");
    peer.post(6, &[(1, 12_345)], PeerOperation::Send);
    assert_eq!(own.completed(5), CompletionKind::Received(12_345));
    assert_eq!(own.bytes(9, 10_000), bytes[1..10_001]);
    assert_eq!(own.bytes(50_001, 2_345), bytes[10_001..12_346]);
    ok(6, SEND)(peer.next());
}

#[test]
fn write_of_peer_past_region_end_is_denied() {
    let Some((own, peer)) = ends() else { return };
    let (address, key) = own.remote(BYTES - 100);
    peer.post(1, &[(0, 101)], PeerOperation::Write { address, key });
    let found = peer.next();
    assert_eq!((found.id, found.status), (1, REMOTE_ACCESS));
    assert_eq!(own.bytes(0, BYTES), vec![0; BYTES]);
    assert_eq!(own.pair.state(), Ok(State::Error));
    peer.post(2, &[(0, 1)], PeerOperation::Write { address, key });
    assert_eq!((peer.next().status, own.bytes(0, BYTES)), (FLUSHED, vec![0; BYTES]));
}

#[test]
fn drained_queue_pair_takes_no_bytes_of_peer() {
    let Some((mut own, mut peer)) = ends() else { return };
    peer.fill(&pattern(7));
    let (address, key) = own.remote(0);
    let markers = DrainMarkers { receive: 100, send: 101 };
    let mut drain = own.pair.begin_drain(markers).expect("begun");
    while !drain.is_done() {
        let completion = own.next();
        drain.observe(&completion);
    }
    peer.post(1, &[(0, 1_000)], PeerOperation::Write { address, key });
    assert_ne!(peer.next().status, 0);
    assert_eq!(own.bytes(0, BYTES), vec![0; BYTES]);
}
