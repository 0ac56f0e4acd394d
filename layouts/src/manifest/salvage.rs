//! Salvage of a manifest that [`decode`](super::decode()) refuses. It takes intact blocks one by
//! one. The result may be incomplete and never opens a store; repair tools use it and report the
//! missing facts.

use super::decode::{block_head, longest, superblock};
use super::{
    BlockHead, FACTS, KIND_NAMESPACES, KIND_SEGMENTS, Manifest, NamespaceFact, SegmentFact,
    Superblock, WHAT,
};
use crate::align::ALIGN;
use crate::error::FormatError;
use crate::format::is_valid_counter;
use crate::ids::{Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder, StoreId};

/// The facts salvaged from a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvage {
    /// The store.
    pub store: StoreId,
    /// Its parameters.
    pub superblock: Superblock,
    /// Incarnation and order of each segment, `None` if its block is lost.
    pub segments: Vec<Option<(Incarnation, SegmentOrder)>>,
    /// Raised generations in the blocks that are intact.
    pub generations: Vec<(NamespaceId, Generation)>,
    /// Number of lost namespace blocks: the generations of their namespaces are unknown.
    pub namespace_blocks_lost: u32,
}

/// Read the intact blocks of both copies. If both copies have a block, the newer version is used.
/// If versions of equal sequence differ, the higher incarnation or generation of each fact is used.
///
/// # Errors
/// If neither copy has the superblock, if a block has a newer format, or if the copies belong to
/// two stores.
pub fn salvage(copies: [&[u8]; 2]) -> Result<Salvage, FormatError> {
    let mut newest = None;
    for (head, bytes) in intact(copies, 0)? {
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
        let mut blocks: Vec<_> = intact(copies, index)?;
        blocks.retain(|(head, _)| head.store == store && head.kind == kind);
        let newest_sequence = blocks.iter().map(|(head, _)| head.sequence).max();
        blocks.retain(|(head, _)| Some(head.sequence) == newest_sequence);
        if kind == KIND_NAMESPACES {
            found.namespace_blocks_lost += u32::from(blocks.is_empty());
            blocks.iter().for_each(|(head, bytes)| found.add_namespaces(head, bytes));
        } else {
            blocks.iter().for_each(|(head, bytes)| found.add_segments(head, bytes));
        }
    }
    Ok(found)
}

impl Salvage {
    fn add_segments(&mut self, head: &BlockHead, bytes: &[u8]) {
        let first = (head.index as usize - 1) * FACTS;
        for (place, f) in
            self.segments.iter_mut().skip(first).zip(facts::<SegmentFact>(head, bytes))
        {
            if f.incarnation < u64::MAX && f.order < u64::MAX {
                *place = (*place).max(Some((Incarnation(f.incarnation), SegmentOrder(f.order))));
            }
        }
    }

    fn add_namespaces(&mut self, head: &BlockHead, bytes: &[u8]) {
        for f in facts::<NamespaceFact>(head, bytes).filter(|f| is_valid_counter(f.generation)) {
            match self.generations.iter_mut().find(|(namespace, _)| *namespace == f.namespace) {
                Some((_, known)) => *known = (*known).max(Generation(f.generation)),
                None => self.generations.push((f.namespace, Generation(f.generation))),
            }
        }
    }
}

impl Manifest {
    /// A manifest to overwrite `copies`, neither of which is complete. Each of its blocks has a
    /// higher sequence than the intact versions in `copies`, so that a reader prefers the new
    /// blocks even if only some were written.
    pub fn overwriting(store: StoreId, superblock: Superblock, copies: [&[u8]; 2]) -> Manifest {
        let mut m = Manifest::new(store, superblock);
        for (index, sequence) in m.sequences.iter_mut().enumerate() {
            let heads =
                copies.iter().filter_map(|c| block_head(block(c, index as u32), index as u32).ok());
            let newest = heads.map(|head| head.sequence).max().unwrap_or(0);
            *sequence = newest.min(u64::MAX / 2) + 1;
        }
        m
    }

    /// Set the facts of several segments, as [`Manifest::set_segment`] does for one.
    pub fn with_segments(mut self, facts: &[Option<(Incarnation, SegmentOrder)>]) -> Manifest {
        for (i, (incarnation, order)) in
            facts.iter().enumerate().filter_map(|(i, f)| Some((i, (*f)?)))
        {
            self.set_segment(SegmentId(i as u32), incarnation, order);
        }
        self
    }
}

fn block(copy: &[u8], index: u32) -> &[u8] {
    let at = index as usize * ALIGN as usize;
    copy.get(at..at + ALIGN as usize).unwrap_or_default()
}

/// The intact versions of a block.
fn intact(copies: [&[u8]; 2], index: u32) -> Result<Vec<(BlockHead, &[u8])>, FormatError> {
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
