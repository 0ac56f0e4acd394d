//! Measurements for `benches/results/rdma.md`, which has their commands. Each prints medians.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelith_io::verbs::{
    Attachment, Capacity, CompletionQueue, Device, GidWish, LocalPiece, Operation, Port,
    ProtectionDomain, QueuePair, RemoteAccess, RemotePiece, SendRequest, Status,
};
use pagelith_transport::rdma::host::RdmaHost;

use crate::client::Client;
use crate::memory::{Memory, pattern, total};
use crate::server::ServerThread;
use crate::setting::{client_host, has_devices, server_host};

const BYTES: usize = 4 << 20;
const ROUNDS: usize = 15;
const PIECES_MAX: u32 = 30;
const SENDS: u32 = 128;

/// A queue pair with memory of its host.
struct End {
    memory: Memory,
    queue: Arc<CompletionQueue>,
    pair: QueuePair,
}

impl End {
    fn new(host: &Arc<RdmaHost>, packet: u32) -> End {
        let rail = &host.rails()[0];
        let domain: &Arc<ProtectionDomain> = rail.domain();
        let device: &Arc<Device> = domain.device();
        let port = Port::of(device, 1).expect("a port");
        let gid = port.choose_gid(GidWish::Best).expect("a GID");
        let queue = CompletionQueue::new(device, 4 * SENDS).expect("a queue");
        let capacity = Capacity { sends: SENDS, receives: SENDS, pieces: PIECES_MAX };
        let (attachment, access) = (Attachment { port, gid }, RemoteAccess::READ_WRITE);
        let queues = (&queue, &queue);
        let pair = QueuePair::new(domain, queues, attachment, capacity, packet, access);
        End { memory: Memory::new(BYTES, host), queue, pair: pair.expect("a pair") }
    }

    fn local(&self, offset: usize, length: usize) -> LocalPiece {
        let mut pieces = Vec::new();
        self.memory.region.local(0, offset, length, &mut pieces).expect("inside");
        assert_eq!(pieces.len(), 1, "one chunk");
        pieces[0]
    }

    fn remote(&self) -> RemotePiece {
        let key = self.memory.region.remote_keys(0).expect("keys")[0];
        RemotePiece { address: self.memory.address() as u64, key }
    }

    fn post(&self, id: u64, operation: Operation<'_>) {
        self.pair.post_send(&[SendRequest { id, signaled: true, operation }]).expect("posted");
    }

    /// Poll until this number of completions succeeded.
    fn until(&self, count: usize) {
        let mut found = Vec::new();
        while found.len() < count {
            self.queue.poll(&mut found).expect("polled");
            std::thread::yield_now();
        }
        assert!(found.iter().all(|completion| completion.status == Status::SUCCESS), "{found:?}");
    }
}

fn ends() -> (End, End) {
    let (client, server) = (End::new(&client_host(), 100), End::new(&server_host(), 200));
    for (own, peer) in [(&client, &server), (&server, &client)] {
        let peer = peer.pair.endpoint();
        own.pair.ready_to_receive(&peer).expect("RTR");
        own.pair.ready_to_send(&peer).expect("RTS");
    }
    (client, server)
}

/// The medians of several ways, whose rounds alternate so that all have the same conditions.
fn medians<const N: usize>(mut ways: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut all = [(); N].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        for (way, times) in ways.iter_mut().zip(&mut all) {
            let begin = Instant::now();
            way();
            times.push(begin.elapsed());
        }
    }
    all.map(|mut times| {
        times.sort();
        times[ROUNDS / 2]
    })
}

fn micros(times: &[Duration]) -> String {
    times.iter().map(|time| time.as_micros().to_string()).collect::<Vec<_>>().join(" ")
}

/// A message of 64 bytes, received.
fn message(from: &End, to: &End) {
    to.pair.post_receive(1, &[to.local(0, 64)]).expect("a receive");
    from.post(2, Operation::Send { from: &[from.local(64, 64)] });
    from.until(1);
    to.until(1);
}

/// A get that the server drives: request, WRITE, notice. One that the client drives: request, the
/// place of the bytes, READ, and the release of the server's memory.
#[test]
#[ignore = "a measurement"]
fn gets_by_write_and_by_read() {
    if !has_devices() {
        return;
    }
    let (client, server) = ends();
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let piece = server.local(0, bytes);
        let mut write = || {
            message(&client, &server);
            client.pair.post_receive(1, &[]).expect("a receive");
            server.post(2, Operation::Write { from: &[piece], to: client.remote() });
            let to = client.remote();
            server.post(3, Operation::WriteWithNotice { from: &[], to, immediate: 1 });
            client.until(1);
            server.until(2);
        };
        let into = client.local(0, bytes);
        let mut read = || {
            message(&client, &server);
            message(&server, &client);
            client.post(2, Operation::Read { to: &[into], from: server.remote() });
            client.until(1);
            message(&client, &server);
        };
        println!("get bytes={bytes} us write,read: {}", micros(&medians([&mut write, &mut read])));
    }
}

#[test]
#[ignore = "a measurement"]
fn notice_after_a_write() {
    if !has_devices() {
        return;
    }
    let (client, server) = ends();
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let piece = server.local(0, bytes);
        let write = || server.post(2, Operation::Write { from: &[piece], to: client.remote() });
        let mut alone = || {
            write();
            server.until(1);
        };
        let mut noticed = || {
            client.pair.post_receive(1, &[]).expect("a receive");
            write();
            let to = client.remote();
            server.post(3, Operation::WriteWithNotice { from: &[], to, immediate: 1 });
            client.until(1);
            server.until(2);
        };
        let times = medians([&mut alone, &mut noticed]);
        println!("write bytes={bytes} us alone,noticed: {}", micros(&times));
    }
}

/// 64 pieces of the server in one range of the client, by requests with so many pieces each.
#[test]
#[ignore = "a measurement"]
fn pieces_of_a_request() {
    if !has_devices() {
        return;
    }
    let (client, server) = ends();
    for length in [1 << 10, 16 << 10] {
        let pieces: Vec<_> = (0..64).map(|at| server.local(at * (32 << 10), length)).collect();
        let send = |each: usize| {
            let groups: Vec<_> = pieces.chunks(each).collect();
            let mut to = client.remote();
            let mut requests = Vec::new();
            for (at, from) in groups.iter().enumerate() {
                let operation = Operation::Write { from, to };
                let signaled = at + 1 == groups.len();
                requests.push(SendRequest { id: 1, signaled, operation });
                to.address += (from.len() * length) as u64;
            }
            server.pair.post_send(&requests).expect("posted");
            server.until(1);
        };
        let times = medians([&mut || send(1), &mut || send(4), &mut || send(16), &mut || send(30)]);
        println!("64 pieces of {length} us by 1,4,16,30 a request: {}", micros(&times));
    }
}

/// Gets of 64 scattered pieces by a link with RDMA and by one without.
#[test]
#[ignore = "a measurement"]
fn scattered_gets_by_rdma_and_by_stream() {
    if !has_devices() {
        return;
    }
    let server = ServerThread::start(server_host(), &pattern(9, BYTES));
    let host = client_host();
    let memory = Memory::new(BYTES, &host);
    let mut rdma = Client::connect(&server.address, &host);
    let mut stream = Client::connect_without_rdma(&server.address);
    for length in [512, 1 << 10, 4 << 10, 16 << 10, 60 << 10] {
        let ranges: Vec<_> = (0..64).map(|at| at * (64 << 10)..at * (64 << 10) + length).collect();
        let placed = host.counters().counts().bytes_placed;
        let times = medians([&mut || rdma.get(&memory, &ranges, 1), &mut || {
            stream.get(&memory, &ranges, 1)
        }]);
        let placed = host.counters().counts().bytes_placed - placed;
        assert_eq!(placed, (ROUNDS * total(&ranges)) as u64, "bytes placed by the device");
        println!("get of 64 pieces of {length} us rdma,stream: {}", micros(&times));
    }
}
