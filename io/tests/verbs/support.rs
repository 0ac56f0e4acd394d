//! Devices and connected ends of the tests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pagelith_io::verbs::{
    Attachment, Capacity, Completion, CompletionKind, CompletionQueue, Device, DeviceMemory,
    GidWish, HostMemory, LocalPiece, MemoryRegion, Operation, Port, ProtectionDomain, QueuePair,
    RemoteAccess, RemotePiece, SendRequest, Status,
};

pub use crate::fake::{Fake, copied, fake, fake_path, is_real, library, load};

/// No test takes that long, also in an emulated machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Memory of each end.
pub const BYTES: usize = 2 << 20;

pub const CAPACITY: Capacity = Capacity { sends: 64, receives: 64, pieces: 4 };

pub fn open_fake(number: u32) -> Arc<Device> {
    Device::open(library(), &format!("fake{number}")).expect("a fake device")
}

/// Two devices: new fake ones, or the first and the last real one.
pub fn devices() -> Option<[Arc<Device>; 2]> {
    if !is_real() {
        let fake = Fake::at(&fake_path());
        return Some([(); 2].map(|()| open_fake(fake.device(""))));
    }
    match Device::names(library()) {
        Ok(mut names) => {
            names.sort();
            let at = [0, names.len() - 1];
            Some(at.map(|at| Device::open(library(), &names[at]).expect("a real device")))
        }
        Err(error) if std::env::var("TEST_PAGELITH_VM").as_deref() == Ok("1") => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// One end of a connection, with its memory registered.
pub struct End {
    pub domain: Arc<ProtectionDomain>,
    pub queue: Arc<CompletionQueue>,
    pub memory: Arc<HostMemory>,
    pub region: MemoryRegion,
    pub pair: QueuePair,
    /// Completions that were polled and not returned yet.
    polled: RefCell<VecDeque<Completion>>,
}

impl End {
    pub fn new(device: &Arc<Device>, access: RemoteAccess) -> End {
        let domain = ProtectionDomain::new(device).expect("a domain");
        let queue = CompletionQueue::new(device, 256).expect("a queue");
        let memory = Arc::new(HostMemory::new(BYTES).expect("memory"));
        let shared: Arc<dyn DeviceMemory> = memory.clone();
        let region = MemoryRegion::new(&domain, &shared, 0, BYTES, access).expect("a region");
        let pair = new_pair(&domain, &queue);
        End { domain, queue, memory, region, pair, polled: RefCell::default() }
    }

    pub fn fill(&self, seed: u8) {
        self.memory.copy_in(0, &pattern(seed, BYTES));
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.copy_out(offset, &mut bytes);
        bytes
    }

    pub fn piece(&self, offset: usize, length: usize) -> LocalPiece {
        self.region.local(offset, length).expect("inside of the region")
    }

    pub fn remote(&self, offset: usize) -> RemotePiece {
        self.region.remote(offset).expect("a region with remote access")
    }

    pub fn post(&self, id: u64, operation: Operation<'_>) {
        self.pair.post_send(&[SendRequest { id, signaled: true, operation }]).expect("a request");
    }

    /// The next completion.
    pub fn next(&self) -> Completion {
        self.next_within(LONG).expect("a completion in time")
    }

    /// The next completion; the thread sleeps until there is one, or the time is over.
    pub fn next_within(&self, timeout: Duration) -> Option<Completion> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(found) = self.poll() {
                return Some(found);
            }
            self.queue.arm().expect("armed");
            if let Some(found) = self.poll() {
                return Some(found);
            }
            let left = end.checked_duration_since(Instant::now())?;
            self.queue.sleep(left.min(Duration::from_millis(100))).expect("slept");
        }
    }

    fn poll(&self) -> Option<Completion> {
        let mut found = Vec::new();
        self.queue.poll(&mut found).expect("polled");
        let mut polled = self.polled.borrow_mut();
        polled.extend(found);
        polled.pop_front()
    }

    /// The next completion, which succeeded.
    pub fn completed(&self, id: u64) -> CompletionKind {
        let completion = self.next();
        assert_eq!((completion.id, completion.status), (id, Status::SUCCESS));
        assert_eq!(completion.queue_pair, self.pair.number());
        completion.kind.expect("the kind of a success")
    }

    /// The next completion, which failed.
    pub fn failed(&self, id: u64) -> Status {
        let completion = self.next();
        assert_eq!((completion.id, completion.kind), (id, None), "{:?}", completion.status);
        completion.status
    }
}

pub fn new_pair(domain: &Arc<ProtectionDomain>, queue: &Arc<CompletionQueue>) -> QueuePair {
    static PACKETS: AtomicU32 = AtomicU32::new(0x00ff_fff0);
    let packet = PACKETS.fetch_add(1 << 12, Ordering::Relaxed);
    let port = Port::of(domain.device(), 1).expect("a port");
    port.check_active().expect("an active port");
    let gid = port.choose_gid(GidWish::Best).expect("a GID");
    let attachment = Attachment { port, gid };
    let access = RemoteAccess::READ_WRITE;
    QueuePair::new(domain, (queue, queue), attachment, CAPACITY, packet, access).expect("a pair")
}

pub fn connect(a: &QueuePair, b: &QueuePair) {
    for (own, peer) in [(a, b), (b, a)] {
        own.ready_to_receive(&peer.endpoint()).expect("RTR");
        own.ready_to_send(&peer.endpoint()).expect("RTS");
    }
}

/// Two connected ends on two devices. Peers of the second may do what `access` says.
pub fn ends(access: RemoteAccess) -> Option<(End, End)> {
    let [first, second] = devices()?;
    let ends = (End::new(&first, RemoteAccess::READ_WRITE), End::new(&second, access));
    connect(&ends.0.pair, &ends.1.pair);
    Some(ends)
}

/// Two connected ends on fake devices with these scripts, their numbers and the library's controls.
pub fn fake_ends(scripts: [&str; 2]) -> Option<(End, End, [u32; 2], Fake)> {
    let fake = fake()?;
    let numbers = scripts.map(|script| fake.device(script));
    let end = |number| End::new(&open_fake(number), RemoteAccess::READ_WRITE);
    let ends = (end(numbers[0]), end(numbers[1]));
    connect(&ends.0.pair, &ends.1.pair);
    Some((ends.0, ends.1, numbers, fake))
}

/// Bytes that are never 0, unlike untouched memory.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u32 ^ u32::from(seed) << 9).wrapping_mul(0x9e37_79b1) >> 24;
    (0..length).map(|at| byte(at) as u8 | 1).collect()
}
