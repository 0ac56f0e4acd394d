//! The manifest: the facts that a segment cannot decide for itself. These are the incarnation of
//! each segment, the generation of each raised namespace, and the parameters of the store.
//!
//! The manifest is a table of checksummed 4096-byte blocks, stored in two copies. A block is
//! updated in place: written to one copy and synced, then written to the other and synced. A change
//! costs two block writes for any size of the store, and there is no log to compact.
//!
//! Invariants:
//! - At any time, each block is intact in at least one copy. A reader takes, for each block, the
//!   valid version with the higher sequence.
//! - Blocks are independent. Several changed blocks may be written to a copy in any order before
//!   one sync; after a crash each block has its old or its new content.

mod decode;
mod salvage;

use crate::align::ALIGN;
use crate::checksum::{Checksum, FINGERPRINT_KEY_BYTES, checksum_around};
use crate::format::{VERSION, structure};
use crate::ids::{Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder, StoreId};

pub use decode::{BlockDamage, decode};
pub use salvage::{Salvage, salvage};

structure! {
    /// Start of each manifest block.
    pub struct BlockHead = 64 {
        /// `PLMANIFB`.
        magic: [u8; 8],
        /// XXH3-128 of the block.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// 1 superblock, 2 segment facts, 3 namespace facts.
        kind: u8,
        /// Zero.
        reserved: u8,
        /// Number of this block in its copy.
        index: u32,
        /// Store.
        store: StoreId,
        /// Number of writes of this block.
        sequence: u64,
        /// Number of facts in use.
        count: u32,
        /// Zero.
        reserved2: u32,
    }
}

structure! {
    /// Block 0 after its header: the permanent parameters of the store.
    pub struct Superblock = 320 {
        /// Length of a segment, a multiple of 4096 from 16384 to 268435456.
        pub segment_bytes: u64,
        /// Largest total length of all files of the store.
        pub capacity_bytes: u64,
        /// Length of each checkpoint file.
        pub checkpoint_bytes: u64,
        /// Most objects of a checkpoint.
        pub objects_max: u64,
        /// Number of segments, at least 1.
        pub segment_count: u32,
        /// Number of directories, at least 1.
        pub dir_count: u32,
        /// Block size of payload checksums in bytes, a multiple of 4096, at most 1048576.
        pub block_bytes: u32,
        /// Most namespaces of the manifest.
        pub namespaces_max: u32,
        /// Key of the index fingerprints.
        pub fingerprint_key: [u8; FINGERPRINT_KEY_BYTES],
        /// Zero.
        pub reserved: [u8; 80],
    }
}

structure! {
    /// State of one segment; fact `i` of block `b` is segment `(b - 1) * 126 + i`.
    pub struct SegmentFact = 32 {
        /// Incarnation; 0 if it was never used.
        pub incarnation: u64,
        /// Order in which that incarnation was opened.
        pub order: u64,
        /// Zero.
        pub reserved: [u8; 16],
    }
}

structure! {
    /// A namespace whose generation was raised; all others have generation 1.
    pub struct NamespaceFact = 32 {
        /// Namespace.
        pub namespace: NamespaceId,
        /// Generation.
        pub generation: u64,
        /// Zero.
        pub reserved: u64,
    }
}

const WHAT: &str = "manifest block";
const MAGIC: [u8; 8] = *b"PLMANIFB";
/// Most facts of a block.
pub const FACTS: usize = (ALIGN as usize - BlockHead::BYTES) / SegmentFact::BYTES;
const KIND_SUPER: u8 = 1;
const KIND_SEGMENTS: u8 = 2;
const KIND_NAMESPACES: u8 = 3;

/// Bytes of one manifest block.
pub type Block = [u8; ALIGN as usize];

/// The manifest of a store, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    store: StoreId,
    superblock: Superblock,
    segments: Vec<SegmentFact>,
    /// The facts of each namespace block. Blocks are independent: after a power failure, any subset
    /// of the blocks that changed together may have been written.
    namespaces: Vec<Vec<NamespaceFact>>,
    sequences: Vec<u64>,
}

impl Manifest {
    /// The manifest of a new store.
    pub fn new(store: StoreId, superblock: Superblock) -> Manifest {
        let none = SegmentFact { incarnation: 0, order: 0, reserved: [0; 16] };
        let mut m = Manifest {
            store,
            superblock,
            segments: vec![none; superblock.segment_count as usize],
            namespaces: vec![Vec::new(); superblock.namespaces_max.div_ceil(FACTS as u32) as usize],
            sequences: Vec::new(),
        };
        m.sequences = vec![1; m.block_total() as usize];
        m
    }

    /// Number of blocks in a copy.
    fn block_total(&self) -> u32 {
        Self::blocks_for(self.superblock.segment_count, self.superblock.namespaces_max)
    }

    fn blocks_for(segments: u32, namespaces: u32) -> u32 {
        1 + segments.div_ceil(FACTS as u32) + namespaces.div_ceil(FACTS as u32)
    }

    /// Length of a copy in bytes.
    pub fn copy_bytes(segments: u32, namespaces: u32) -> u64 {
        u64::from(Self::blocks_for(segments, namespaces)) * ALIGN
    }

    /// The store's identifier.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// The parameters of the store.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Incarnation and order of a segment.
    pub fn segment(&self, id: SegmentId) -> Option<(Incarnation, SegmentOrder)> {
        self.segments
            .get(id.0 as usize)
            .map(|f| (Incarnation(f.incarnation), SegmentOrder(f.order)))
    }

    /// Set a segment's incarnation; returns the block to write, `None` if there is no such segment.
    pub fn set_segment(
        &mut self,
        id: SegmentId,
        incarnation: Incarnation,
        order: SegmentOrder,
    ) -> Option<u32> {
        let fact = self.segments.get_mut(id.0 as usize)?;
        (fact.incarnation, fact.order) = (incarnation.0, order.0);
        Some(self.mark_changed(1 + id.0 / FACTS as u32))
    }

    /// Generation of a namespace.
    pub fn generation(&self, namespace: NamespaceId) -> Generation {
        let fact = self.namespaces.iter().flatten().find(|f| f.namespace == namespace);
        fact.map_or(Generation::FIRST, |f| Generation(f.generation))
    }

    /// Namespaces whose generation was raised.
    pub fn generations(&self) -> impl Iterator<Item = (NamespaceId, Generation)> + '_ {
        self.namespaces.iter().flatten().map(|f| (f.namespace, Generation(f.generation)))
    }

    /// Raise a namespace's generation; returns the block to write, `None` if the table of
    /// namespaces is full. A generation below the current one is ignored: cleared objects stay
    /// invisible.
    pub fn set_generation(
        &mut self,
        namespace: NamespaceId,
        generation: Generation,
    ) -> Option<u32> {
        let place =
            |facts: &Vec<NamespaceFact>| facts.iter().position(|f| f.namespace == namespace);
        let found =
            self.namespaces.iter().enumerate().find_map(|(b, facts)| Some((b, place(facts)?)));
        let (block, at) = match found {
            Some(found) => found,
            None if self.generations().count() >= self.superblock.namespaces_max as usize => {
                return None;
            }
            None => {
                let block = self.namespaces.iter().position(|facts| facts.len() < FACTS)?;
                self.namespaces[block].push(NamespaceFact {
                    namespace,
                    generation: 0,
                    reserved: 0,
                });
                (block, self.namespaces[block].len() - 1)
            }
        };
        let known = &mut self.namespaces[block][at].generation;
        *known = generation.0.max(*known);
        let first = 1 + self.superblock.segment_count.div_ceil(FACTS as u32);
        Some(self.mark_changed(first + block as u32))
    }

    fn mark_changed(&mut self, block: u32) -> u32 {
        if let Some(s) = self.sequences.get_mut(block as usize) {
            *s += 1;
        }
        block
    }

    /// The bytes of a block, to be written to both copies; all zero beyond the last block.
    pub fn block(&self, index: u32) -> Block {
        let mut bytes = [0; ALIGN as usize];
        let segment_blocks = self.superblock.segment_count.div_ceil(FACTS as u32);
        let body = &mut bytes[BlockHead::BYTES..];
        let mut put = |raw: &[u8]| body[..raw.len()].copy_from_slice(raw);
        let (kind, count) = if index == 0 {
            put(bytemuck::bytes_of(&self.superblock));
            (KIND_SUPER, 1)
        } else if index <= segment_blocks {
            let facts: Vec<_> = self
                .segments
                .iter()
                .skip((index as usize - 1) * FACTS)
                .take(FACTS)
                .copied()
                .collect();
            put(bytemuck::cast_slice(&facts));
            (KIND_SEGMENTS, facts.len())
        } else if index < self.block_total() {
            let facts = &self.namespaces[(index - 1 - segment_blocks) as usize];
            put(bytemuck::cast_slice(facts));
            (KIND_NAMESPACES, facts.len())
        } else {
            return bytes;
        };
        let head = BlockHead {
            magic: MAGIC,
            checksum: [0; 16],
            version: VERSION,
            kind,
            reserved: 0,
            index,
            store: self.store,
            sequence: self.sequences[index as usize],
            count: count as u32,
            reserved2: 0,
        };
        bytes[..BlockHead::BYTES].copy_from_slice(bytemuck::bytes_of(&head));
        if let Some(sum) = checksum_around(&bytes, 8) {
            bytes[8..24].copy_from_slice(&sum);
        }
        bytes
    }

    /// The bytes of a whole copy.
    pub fn copy(&self) -> Vec<u8> {
        (0..self.block_total()).flat_map(|i| self.block(i)).collect()
    }
}
