//! Decoding of a manifest: chooses the valid version of each block from two copies and checks all
//! facts.

use pagelith_mutants::{self as mutant, Mutant};

use super::{
    BlockHead, FACTS, KIND_NAMESPACES, KIND_SEGMENTS, KIND_SUPER, MAGIC, Manifest, NamespaceFact,
    SegmentFact, Superblock, WHAT,
};
use crate::align::{ALIGN, is_aligned};
use crate::checksum::{checksum_around, is_valid_block_bytes};
use crate::error::FormatError;
use crate::format::{VERSION, is_valid_counter, read};
use crate::ids::{NamespaceId, StoreId};
use crate::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// A block that is damaged or outdated in one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDamage {
    /// Number of the copy, 0 or 1.
    pub copy: usize,
    /// Number of the block.
    pub index: u32,
    /// Why it was refused.
    pub error: FormatError,
}

/// The version of a block that was chosen from the two copies.
struct ChosenBlock<'a> {
    head: BlockHead,
    bytes: &'a [u8],
    copy: usize,
}

impl ChosenBlock<'_> {
    /// The error for a block that is intact but has invalid content.
    fn wrong(&self, error: FormatError) -> BlockDamage {
        BlockDamage { copy: self.copy, index: self.head.index, error }
    }

    fn facts<T: bytemuck::AnyBitPattern>(&self) -> impl Iterator<Item = T> {
        let facts = self.bytes[BlockHead::BYTES..].chunks_exact(SegmentFact::BYTES);
        facts.take(self.head.count as usize).map(bytemuck::pod_read_unaligned)
    }
}

/// Read a manifest from its two copies, either of which may be missing, short or damaged. Returns
/// the manifest and the blocks to repair.
///
/// # Errors
/// If a block is valid in neither copy, if a block has a newer format, or if the copies contradict
/// each other: they belong to two stores, or differ at equal sequence, so that a lost write cannot
/// be identified.
pub fn decode(copies: [&[u8]; 2]) -> Result<(Manifest, Vec<BlockDamage>), BlockDamage> {
    let mut damage = Vec::new();
    let first = newest(copies, 0, None, &mut damage)?;
    let body = superblock(first.head.kind, first.bytes, longest(copies))
        .map_err(|error| first.wrong(error))?;
    let store = first.head.store;
    let mut m = Manifest::new(store, body);
    m.segments.clear();
    accept(&mut m, &first)?;
    let segment_blocks = body.segment_count.div_ceil(FACTS as u32);
    for index in 1..m.block_total() {
        let block = newest(copies, index, Some(store), &mut damage)?;
        let (kind, room) = if index <= segment_blocks {
            m.segments
                .extend(block.facts().map(|f: SegmentFact| SegmentFact { reserved: [0; 16], ..f }));
            (KIND_SEGMENTS, m.segments.len() <= body.segment_count as usize)
        } else {
            let facts = block.facts().map(|f: NamespaceFact| NamespaceFact { reserved: 0, ..f });
            m.namespaces[(index - 1 - segment_blocks) as usize].extend(facts);
            (KIND_NAMESPACES, m.generations().count() <= body.namespaces_max as usize)
        };
        if block.head.kind != kind || !room {
            return Err(block.wrong(FormatError::field(WHAT, "kind", block.head.kind)));
        }
        accept(&mut m, &block)?;
        // A block with too few facts would leave segments without an incarnation.
        let segments = (index as usize * FACTS).min(body.segment_count as usize);
        if index <= segment_blocks && m.segments.len() < segments {
            return Err(block.wrong(FormatError::field(WHAT, "count", block.head.count)));
        }
    }
    check_facts(&m).map_err(|error| BlockDamage { copy: first.copy, index: 0, error })?;
    Ok((m, damage))
}

/// Take a block's sequence and check that encoding the manifest gives exactly this block. Reserved
/// bytes were read as zero, so equality implies that counts are right and reserved bytes are zero.
fn accept(m: &mut Manifest, block: &ChosenBlock<'_>) -> Result<(), BlockDamage> {
    let index = block.head.index;
    m.sequences[index as usize] = block.head.sequence;
    if m.block(index) != block.bytes {
        return Err(block.wrong(FormatError::field(WHAT, "facts", "not as they are written")));
    }
    Ok(())
}

/// Length in bytes of the longer copy.
pub(super) fn longest(copies: [&[u8]; 2]) -> u64 {
    copies.iter().map(|c| c.len() as u64).max().unwrap_or(0)
}

/// Read and check the superblock in the bytes of block 0. The number of blocks that it implies must
/// fit `longest` bytes.
pub(super) fn superblock(kind: u8, bytes: &[u8], longest: u64) -> Result<Superblock, FormatError> {
    const WHAT: &str = "superblock";
    let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
    if kind != KIND_SUPER {
        return wrong("kind", kind.into());
    }
    let short = FormatError::Short { structure: WHAT, need: ALIGN, have: bytes.len() as u64 };
    let s: Superblock = bytes.get(BlockHead::BYTES..).and_then(read).ok_or(short)?;
    let sizes = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
    if !sizes.contains(&s.segment_bytes) || !is_aligned(s.segment_bytes) {
        return wrong("segment_bytes", s.segment_bytes);
    }
    if !is_aligned(s.checkpoint_bytes) {
        return wrong("checkpoint_bytes", s.checkpoint_bytes);
    }
    for (field, count) in [("segment_count", s.segment_count), ("dir_count", s.dir_count)] {
        if count == 0 {
            return wrong(field, 0);
        }
    }
    if !is_valid_block_bytes(s.block_bytes) {
        return wrong("block_bytes", s.block_bytes.into());
    }
    // A count is accepted only if the copy is long enough for it, so that it cannot size an
    // allocation.
    if Manifest::copy_bytes(s.segment_count, s.namespaces_max) > longest {
        return wrong("segment_count", s.segment_count.into());
    }
    Ok(Superblock { reserved: [0; 80], ..s })
}

/// Check facts across blocks. A duplicate namespace would hide a raised generation, since lookups
/// return the first fact. Counters must not overflow when they are incremented.
fn check_facts(m: &Manifest) -> Result<(), FormatError> {
    let mut order: Vec<NamespaceId> = m.generations().map(|(namespace, _)| namespace).collect();
    order.sort_unstable();
    let twice = order.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    let unset =
        m.generations().find(|(_, g)| !is_valid_counter(g.0)).map(|(namespace, _)| namespace);
    if let Some(namespace) = twice.or(unset) {
        return Err(FormatError::field(WHAT, "namespace", namespace));
    }
    match m.segments.iter().find(|f| f.incarnation == u64::MAX || f.order == u64::MAX) {
        Some(fact) => Err(FormatError::field(WHAT, "incarnation", fact.incarnation)),
        None => Ok(()),
    }
}

pub(super) fn block_head(bytes: &[u8], index: u32) -> Result<BlockHead, FormatError> {
    let short = FormatError::Short { structure: WHAT, need: ALIGN, have: bytes.len() as u64 };
    let bytes = bytes.get(..ALIGN as usize).ok_or_else(|| short.clone())?;
    let head: BlockHead = read(bytes).ok_or(short)?;
    if head.magic == [0; 8] {
        return Err(FormatError::Empty { structure: WHAT });
    }
    if head.magic != MAGIC {
        return Err(FormatError::Magic { structure: WHAT });
    }
    if checksum_around(bytes, 8) != Some(head.checksum) && !mutant::on(Mutant::ManifestTorn) {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    if head.version != VERSION {
        return Err(FormatError::Version { structure: WHAT, found: head.version, known: VERSION });
    }
    FormatError::same(WHAT, "index", head.index, index)?;
    if head.count as usize > FACTS {
        return Err(FormatError::field(WHAT, "count", head.count));
    }
    if !is_valid_counter(head.sequence) {
        return Err(FormatError::field(WHAT, "sequence", head.sequence));
    }
    Ok(head)
}

/// The newest valid version of a block. An invalid or older version in the other copy is added to
/// `damage`, so that the caller repairs it.
fn newest<'a>(
    copies: [&'a [u8]; 2],
    index: u32,
    store: Option<StoreId>,
    damage: &mut Vec<BlockDamage>,
) -> Result<ChosenBlock<'a>, BlockDamage> {
    let at = index as usize * ALIGN as usize;
    let mut best: Option<ChosenBlock<'a>> = None;
    let mut invalid = None;
    for (copy, bytes) in copies.into_iter().enumerate() {
        let bytes = bytes.get(at..at + ALIGN as usize).unwrap_or_default();
        let checked = block_head(bytes, index).and_then(|head| {
            FormatError::same(WHAT, "store", head.store, store.unwrap_or(head.store))?;
            Ok(ChosenBlock { head, bytes, copy })
        });
        match checked {
            // A newer format is an error even if the other copy is readable.
            Err(error @ FormatError::Version { .. }) => {
                return Err(BlockDamage { copy, index, error });
            }
            Err(error) => {
                let d = BlockDamage { copy, index, error };
                damage.push(d.clone());
                invalid.get_or_insert(d);
            }
            Ok(block) => {
                let (newer, older) = match best.take() {
                    None => (block, None),
                    Some(other) => rank(other, block)?,
                };
                damage.extend(older);
                best = Some(newer);
            }
        }
    }
    let none = BlockDamage { copy: 0, index, error: FormatError::Empty { structure: WHAT } };
    best.ok_or_else(|| invalid.unwrap_or(none))
}

/// The newer of two valid versions of a block, and the older one as damage.
fn rank<'a>(
    a: ChosenBlock<'a>,
    b: ChosenBlock<'a>,
) -> Result<(ChosenBlock<'a>, Option<BlockDamage>), BlockDamage> {
    FormatError::same(WHAT, "store", b.head.store, a.head.store).map_err(|error| b.wrong(error))?;
    let (newer, older) = match a.head.sequence.cmp(&b.head.sequence) {
        std::cmp::Ordering::Less => (b, a),
        std::cmp::Ordering::Greater => (a, b),
        std::cmp::Ordering::Equal if a.bytes == b.bytes => return Ok((a, None)),
        std::cmp::Ordering::Equal => {
            return Err(b.wrong(FormatError::field(
                WHAT,
                "sequence",
                "equal in copies with different content",
            )));
        }
    };
    let stale = older.wrong(FormatError::field(WHAT, "sequence", "older than the other copy's"));
    Ok((newer, Some(stale)))
}
