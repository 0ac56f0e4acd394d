//! Registered memory whose bytes are checked.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelith_io::buffer::{KeepAlive, Part};
use pagelith_io::verbs::{DeviceMemory, HostMemory, RemoteAccess};
use pagelith_transport::rdma::host::RdmaHost;
use pagelith_transport::rdma::region::RdmaRegion;

/// A byte of memory that was handed back. No pattern has it.
pub const BACK: u8 = 0;

/// Memory that is registered with a host.
pub struct Memory {
    memory: Arc<HostMemory>,
    pub region: Arc<RdmaRegion>,
}

impl Memory {
    /// Zeros that peers may read and write.
    pub fn new(bytes: usize, host: &Arc<RdmaHost>) -> Memory {
        let memory = Arc::new(HostMemory::new(bytes).expect("memory"));
        let region = host.register(memory.clone(), RemoteAccess::READ_WRITE).expect("registered");
        Memory { memory, region }
    }

    pub fn len(&self) -> usize {
        self.memory.bytes()
    }

    pub fn address(&self) -> usize {
        self.memory.base().as_ptr().addr()
    }

    /// Parts of these ranges.
    pub fn parts(&self, ranges: &[Range<usize>]) -> Vec<Part> {
        let part = |range: &Range<usize>| {
            assert!(range.end <= self.len(), "inside of the memory");
            let keep: KeepAlive = self.memory.clone();
            // SAFETY: the range is inside of the memory, which the part keeps, and no two parts of
            // the same bytes exist at a time.
            unsafe { Part::exclusive(self.memory.base().add(range.start), range.len(), Some(keep)) }
        };
        ranges.iter().map(part).collect()
    }

    pub fn fill(&self, bytes: &[u8]) {
        self.memory.copy_in(0, bytes);
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.memory.copy_out(0, &mut bytes);
        bytes
    }

    pub fn byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.memory.copy_out(offset, &mut byte);
        byte[0]
    }

    /// Reuse memory that was handed back.
    pub fn take_back(&self) {
        self.fill(&vec![BACK; self.len()]);
    }

    /// The number of bytes that changed since it was taken back.
    pub fn late(&self) -> usize {
        self.bytes().iter().filter(|byte| **byte != BACK).count()
    }

    /// Look for late bytes for this time.
    pub fn watch(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.late(), 0, "bytes landed after the memory was handed back");
    }
}

/// Ranges of odd lengths with gaps, from the beginning of the memory on.
pub fn scattered(bytes: usize, pieces: usize) -> Vec<Range<usize>> {
    let room = bytes / pieces;
    assert!(room > 1_000, "a piece is long enough to be written");
    (0..pieces).map(|piece| piece * room + piece % 7..(piece + 1) * room - 9).collect()
}

/// The bytes of ranges.
pub fn gathered(bytes: &[u8], ranges: &[Range<usize>]) -> Vec<u8> {
    ranges.iter().flat_map(|range| bytes[range.clone()].to_vec()).collect()
}

pub fn total(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(|range| range.len()).sum()
}

/// Bytes that are never [`BACK`], different for each seed.
pub fn pattern(seed: u32, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u32 ^ seed << 13).wrapping_mul(0x9e37_79b1) >> 24;
    (0..length).map(|at| byte(at) as u8 | 1).collect()
}
