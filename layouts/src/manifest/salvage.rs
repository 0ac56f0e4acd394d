//! What can still be believed of a manifest that [`decode`](super::decode()) refuses: block by block, and never
//! enough to open a store. For repair tools, which say loudly what they could not know.

use super::decode::{block_head, longest, superblock};
use super::{
    BlockHead, FACTS, KIND_NAMESPACES, KIND_SEGMENTS, Manifest, NamespaceFact, SegmentFact, Superblock, WHAT,
};
use crate::align::ALIGN;
use crate::error::FormatError;
use crate::format::counter_ok;
use crate::ids::{Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder, StoreId};

/// What was saved of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvage {
    /// The store.
    pub store: StoreId,
    /// What it is.
    pub superblock: Superblock,
    /// Of each segment its incarnation and order, `None` if its block is lost.
    pub segments: Vec<Option<(Incarnation, SegmentOrder)>>,
    /// Generations that were raised, as far as their blocks are there.
    pub generations: Vec<(NamespaceId, Generation)>,
    /// Blocks of namespace facts that are lost: of whatever stood there, the generation is unknown.
    pub namespace_blocks_lost: u32,
}

/// Read what is whole in either copy. Where both have a block, the newer one counts; of two that contradict each
/// other the higher incarnations and generations. An error if the superblock is in neither copy, if one is of a newer
/// format, or if the copies are of two stores: then nothing can be said.
pub fn salvage(copies: [&[u8]; 2]) -> Result<Salvage, FormatError> {
    let mut newest = None;
    for (head, bytes) in whole(copies, 0)? {
        let body = superblock(head.kind, bytes, longest(copies))?;
        if newest.is_some_and(|known| known != (head.store, body)) {
            return Err(FormatError::field(WHAT, "store", "the copies are of two stores"));
        }
        newest = Some((head.store, body));
    }
    let (store, superblock) = newest.ok_or(FormatError::Empty { structure: "superblock" })?;
    let mut found = Salvage {
        store,
        superblock,
        segments: vec![None; superblock.segment_count as usize],
        generations: Vec::new(),
        namespace_blocks_lost: 0,
    };
    let segment_blocks = superblock.segment_count.div_ceil(FACTS as u32);
    for index in 1..Manifest::blocks_for(superblock.segment_count, superblock.namespaces_max) {
        let kind = if index <= segment_blocks { KIND_SEGMENTS } else { KIND_NAMESPACES };
        let mut blocks: Vec<_> = whole(copies, index)?;
        blocks.retain(|(head, _)| head.store == store && head.kind == kind);
        let youngest = blocks.iter().map(|(head, _)| head.sequence).max();
        blocks.retain(|(head, _)| Some(head.sequence) == youngest);
        if kind == KIND_NAMESPACES {
            found.namespace_blocks_lost += u32::from(blocks.is_empty());
            blocks.iter().for_each(|(head, bytes)| found.namespaces(head, bytes));
        } else {
            blocks.iter().for_each(|(head, bytes)| found.segments(head, bytes));
        }
    }
    Ok(found)
}

impl Salvage {
    fn segments(&mut self, head: &BlockHead, bytes: &[u8]) {
        let first = (head.index as usize - 1) * FACTS;
        for (place, f) in self.segments.iter_mut().skip(first).zip(facts::<SegmentFact>(head, bytes)) {
            if f.incarnation < u64::MAX && f.order < u64::MAX {
                *place = (*place).max(Some((Incarnation(f.incarnation), SegmentOrder(f.order))));
            }
        }
    }

    fn namespaces(&mut self, head: &BlockHead, bytes: &[u8]) {
        for f in facts::<NamespaceFact>(head, bytes).filter(|f| counter_ok(f.generation)) {
            match self.generations.iter_mut().find(|(namespace, _)| *namespace == f.namespace) {
                Some((_, known)) => *known = (*known).max(Generation(f.generation)),
                None => self.generations.push((f.namespace, Generation(f.generation))),
            }
        }
    }
}

impl Manifest {
    /// A manifest to be written over `copies`, of which no whole one is left: each of its blocks is newer than any that
    /// is whole there, so that a reader takes these and not those, however far the writing got.
    pub fn superseding(store: StoreId, superblock: Superblock, copies: [&[u8]; 2]) -> Manifest {
        let mut m = Manifest::new(store, superblock);
        for (index, sequence) in m.sequences.iter_mut().enumerate() {
            let here = copies.iter().filter_map(|c| block_head(block(c, index as u32), index as u32).ok());
            let youngest = here.map(|head| head.sequence).max().unwrap_or(0);
            *sequence = youngest.min(u64::MAX / 2) + 1;
        }
        m
    }

    /// Facts of segments that are set together, as of [`Manifest::set_segment`].
    pub fn with_segments(mut self, facts: &[Option<(Incarnation, SegmentOrder)>]) -> Manifest {
        for (i, (incarnation, order)) in facts.iter().enumerate().filter_map(|(i, f)| Some((i, (*f)?))) {
            self.set_segment(SegmentId(i as u32), incarnation, order);
        }
        self
    }
}

fn block(copy: &[u8], index: u32) -> &[u8] {
    let at = index as usize * ALIGN as usize;
    copy.get(at..at + ALIGN as usize).unwrap_or_default()
}

/// The versions of a block that are whole by themselves.
fn whole(copies: [&[u8]; 2], index: u32) -> Result<Vec<(BlockHead, &[u8])>, FormatError> {
    let mut found = Vec::new();
    for copy in copies {
        let bytes = block(copy, index);
        match block_head(bytes, index) {
            Ok(head) => found.push((head, bytes)),
            Err(newer @ FormatError::Version { .. }) => return Err(newer),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn facts<T: bytemuck::AnyBitPattern>(head: &BlockHead, bytes: &[u8]) -> impl Iterator<Item = T> {
    let facts = bytes[BlockHead::BYTES..].chunks_exact(SegmentFact::BYTES);
    facts.take(head.count as usize).map(bytemuck::pod_read_unaligned)
}
