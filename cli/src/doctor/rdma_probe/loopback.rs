//! Two connected queue pairs on one port, each with memory of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pagelith::io::verbs::{
    Attachment, Capacity, Completion, CompletionKind, CompletionQueue, Device, DeviceMemory,
    GidWish, HostMemory, LocalPiece, MemoryRegion, Operation, Port, ProtectionDomain, QueuePair,
    RemoteAccess, RemotePiece, SendRequest, Status,
};

/// Memory of each end.
pub(super) const BYTES: usize = 16 << 20;
/// Requests for all of it.
pub(super) const PIECES: usize = 64;
const PIECE_BYTES: usize = BYTES / PIECES;

/// The longest wait for a completion, or for the first bytes of a transfer.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// One end of the connection. Its queue pair and its region exist until a case ends them.
pub(super) struct End {
    queue: Arc<CompletionQueue>,
    pair: Option<QueuePair>,
    region: Option<MemoryRegion>,
    memory: Arc<HostMemory>,
    /// Completions that were polled and not returned yet.
    polled: VecDeque<Completion>,
}

impl End {
    /// An end that is not connected, with `bytes` bytes of zeros.
    fn new(device: &Arc<Device>, port: &Port, packet: u32) -> anyhow::Result<End> {
        let gid = port.choose_gid(GidWish::Best)?;
        let domain = ProtectionDomain::new(device)?;
        let queue = CompletionQueue::new(device, 4 * PIECES as u32)?;
        let memory = Arc::new(HostMemory::new(BYTES).context("cannot map memory")?);
        let shared: Arc<dyn DeviceMemory> = memory.clone();
        let access = RemoteAccess::READ_WRITE;
        let region = MemoryRegion::new(&domain, &shared, 0, BYTES, access)?;
        let attachment = Attachment { port: port.clone(), gid };
        let capacity = Capacity { sends: 2 * PIECES as u32, receives: 4, pieces: 1 };
        let pair = QueuePair::new(&domain, (&queue, &queue), attachment, capacity, packet, access)?;
        let (pair, region, polled) = (Some(pair), Some(region), VecDeque::new());
        Ok(End { queue, pair, region, memory, polled })
    }

    pub(super) fn pair(&self) -> anyhow::Result<&QueuePair> {
        self.pair.as_ref().context("the queue pair was destroyed")
    }

    /// Destroy the queue pair.
    pub(super) fn destroy(&mut self) -> anyhow::Result<()> {
        Ok(self.pair.take().map_or(Ok(()), QueuePair::destroy)?)
    }

    fn region(&self) -> anyhow::Result<&MemoryRegion> {
        self.region.as_ref().context("the region was deregistered")
    }

    /// Deregister the region.
    pub(super) fn deregister(&mut self) -> anyhow::Result<()> {
        Ok(self.region.take().map_or(Ok(()), MemoryRegion::deregister)?)
    }

    /// The memory of a piece, for a scatter list of this end.
    fn local(&self, piece: usize) -> anyhow::Result<LocalPiece> {
        Ok(self.region()?.local(piece * PIECE_BYTES, PIECE_BYTES)?)
    }

    /// The memory of a piece, for the other end.
    fn remote(&self, piece: usize) -> anyhow::Result<RemotePiece> {
        self.region()?.remote(piece * PIECE_BYTES).context("the region has no remote key")
    }

    /// A copy of all memory. The last bytes, which land last, are copied first.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        for (piece, to) in bytes.chunks_mut(PIECE_BYTES).enumerate().rev() {
            self.memory.copy_out(piece * PIECE_BYTES, to);
        }
        bytes
    }

    pub(super) fn fill(&self, bytes: &[u8]) {
        self.memory.copy_in(0, bytes);
    }

    /// The next completion; `None` if there is none in time. The thread polls, as the link does
    /// while bytes are under way.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<Completion>> {
        let end = Instant::now() + WAIT_MAX;
        loop {
            self.poll()?;
            match self.polled.pop_front() {
                None if Instant::now() < end => std::thread::yield_now(),
                found => return Ok(found),
            }
        }
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        let mut found = Vec::new();
        self.queue.poll(&mut found)?;
        self.polled.extend(found);
        Ok(())
    }

    /// Poll, and drop the completions.
    pub(super) fn discard(&mut self) -> anyhow::Result<()> {
        self.poll()?;
        self.polled.clear();
        Ok(())
    }

    /// The next completion, which must be this one.
    pub(super) fn expect(&mut self, id: u64, kind: CompletionKind) -> anyhow::Result<()> {
        let found = self.next()?.with_context(|| {
            format!("no completion in {} s expected={kind:?}", WAIT_MAX.as_secs())
        })?;
        ensure!(found.status == Status::SUCCESS, "a request failed: {}", found.status);
        let right = found.id == id && found.kind == Some(kind);
        ensure!(right, "a wrong completion found={found:?} expected={kind:?} id={id}");
        Ok(())
    }

    /// Wait until bytes of the second piece arrived, so that the transfer is under way.
    pub(super) fn wait_for_bytes(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + WAIT_MAX;
        let mut byte = [0];
        while byte == [0] {
            ensure!(Instant::now() < end, "no byte arrived in {} s", WAIT_MAX.as_secs());
            self.poll()?;
            std::thread::yield_now();
            self.memory.copy_out(PIECE_BYTES, &mut byte);
        }
        Ok(())
    }
}

/// The connection. Requests go from `sender` to `receiver`.
pub(super) struct Loopback {
    pub(super) sender: End,
    pub(super) receiver: End,
}

impl Loopback {
    /// Connect the port with itself. The sender's memory has these bytes, the receiver's is zero.
    pub(super) fn new(
        device: &Arc<Device>,
        port: &Port,
        number: u32,
        bytes: &[u8],
    ) -> anyhow::Result<Loopback> {
        // Each connection of the same port begins with other packet numbers.
        let packet = number.wrapping_mul(0x0002_4601);
        let sender = End::new(device, port, packet)?;
        let receiver = End::new(device, port, packet.wrapping_add(0x0080_0000))?;
        for (own, peer) in [(&sender, &receiver), (&receiver, &sender)] {
            let peer = peer.pair()?.endpoint();
            own.pair()?.ready_to_receive(&peer)?;
            own.pair()?.ready_to_send(&peer)?;
        }
        sender.fill(bytes);
        Ok(Loopback { sender, receiver })
    }

    /// All memory of both ends, in pieces.
    pub(super) fn pieces(&self) -> anyhow::Result<Vec<Piece>> {
        let piece = |number| {
            Ok(Piece { local: [self.sender.local(number)?], remote: self.receiver.remote(number)? })
        };
        (0..PIECES).map(piece).collect()
    }

    /// Post a notice after everything that was posted.
    pub(super) fn post_notice(&self, id: u64, immediate: u32) -> anyhow::Result<()> {
        let operation =
            Operation::WriteWithNotice { from: &[], to: self.receiver.remote(0)?, immediate };
        Ok(self.sender.pair()?.post_send(&[SendRequest { id, signaled: true, operation }])?)
    }

    /// Post a request for each piece, of which the last is signaled with this number.
    pub(super) fn post<'p>(
        &self,
        pieces: &'p [Piece],
        id: u64,
        operation: impl Fn(&'p Piece) -> Operation<'p>,
    ) -> anyhow::Result<()> {
        let request = |(at, piece)| SendRequest {
            id,
            signaled: at + 1 == pieces.len(),
            operation: operation(piece),
        };
        let requests: Vec<_> = pieces.iter().enumerate().map(request).collect();
        Ok(self.sender.pair()?.post_send(&requests)?)
    }
}

/// A piece of both memories.
pub(super) struct Piece {
    local: [LocalPiece; 1],
    remote: RemotePiece,
}

impl Piece {
    /// From the sender's memory to the receiver's.
    pub(super) fn write(&self) -> Operation<'_> {
        Operation::Write { from: &self.local, to: self.remote }
    }

    /// From the receiver's memory to the sender's.
    pub(super) fn read(&self) -> Operation<'_> {
        Operation::Read { to: &self.local, from: self.remote }
    }
}

/// Bytes that are never 0, unlike untouched memory, and that differ between numbers.
pub(super) fn pattern(number: u32) -> Vec<u8> {
    let byte = |at: usize| (at as u32 ^ number << 17).wrapping_mul(0x9e37_79b1) >> 24;
    (0..BYTES).map(|at| byte(at) as u8 | 1).collect()
}

/// The number of bytes that differ.
pub(super) fn differing(a: &[u8], b: &[u8]) -> usize {
    let pieces = a.chunks(PIECE_BYTES).zip(b.chunks(PIECE_BYTES));
    // Most pieces are equal, and are compared at the speed of memory.
    let unequal = pieces.filter(|(a, b)| a != b);
    unequal.map(|(a, b)| a.iter().zip(b).filter(|(a, b)| a != b).count()).sum()
}
