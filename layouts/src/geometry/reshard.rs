//! Resharding: the ranged reads with which a rank reads its heads and layers from objects that
//! servers of another parallel layout stored.
//!
//! Invariant: each byte of an object is part of an element at model coordinates (K or V, layer,
//! token, head, element), for any parallel layout and host layout of the writer. A plan is the
//! intersection of the reader's box with the box of every writer. It is the same for every page of
//! the model, so it is computed once.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Geometry;
use super::buffer::{AxisKind, Buffer, Part, StateKind};
use super::error::GeometryError;
use super::extents::{Chunk, Extents};
use super::model::{Model, Placement};
use super::pool::{Component, Pool};
use crate::key::Role;
use crate::shard::{Shard, Slice};

/// Most ranges of one object and component in a plan; a real model has about 40,000.
const RANGES_MAX: u64 = 1 << 24;

/// Most ranks of a writer in a plan.
const RANKS_MAX: u64 = 1 << 14;

/// A range of a stored object and its place in the reader's component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeCopy {
    /// First byte in the stored object.
    pub from: u64,
    /// First byte in the reader's component, in the byte order of the reader's own object.
    pub to: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
}

/// One stored object and the ranges to read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceObject {
    /// The object's component name.
    pub component: String,
    /// The object's shard.
    pub shard: Shard,
    /// The object's length.
    pub bytes: u64,
    /// Ranges, ordered by their place in the reader's component; no two are adjacent in both object
    /// and component.
    pub moves: Vec<RangeCopy>,
}

impl SourceObject {
    /// Bytes read from the object. If these are all of its bytes, one read of the whole object with
    /// a scatter list of the ranges, ordered by `from`, is cheaper than one read per range.
    pub fn taken(&self) -> u64 {
        self.moves.iter().map(|m| m.len).sum()
    }

    /// The smallest range that covers all ranges read from the object.
    pub fn span(&self) -> Range<u64> {
        let from = self.moves.iter().map(|m| m.from).min().unwrap_or(0);
        let to = self.moves.iter().map(|m| m.from + m.len).max().unwrap_or(0);
        from..to
    }
}

/// A ranged get: a range of a stored object, and its destination in the reader's buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRead {
    /// Bytes of the stored object.
    pub range: Range<u64>,
    /// Destination chunks, in order; their lengths add up to that of `range`.
    pub chunks: Vec<Chunk>,
}

impl SourceObject {
    /// The gets that read the object's share of a page into the reader's buffers; ranges that are
    /// adjacent in the object are merged. `component` is that of the [`ReshardPlan`], `extents` are
    /// those of the reader's pool.
    ///
    /// # Errors
    /// As [`Extents::chunks`], and `WrongLength` if the plan belongs to another pool.
    pub fn reads(
        &self,
        extents: &Extents,
        page: u64,
        component: usize,
    ) -> Result<Vec<RangeRead>, GeometryError> {
        // Each chunk with its offset in the component.
        let mut end = 0;
        let chunks: Vec<(u64, Chunk)> = extents
            .chunks(page, component)?
            .map(|chunk| {
                end += chunk.len;
                (end - chunk.len, chunk)
            })
            .collect();
        let need = self.moves.iter().map(|m| m.to + m.len).max().unwrap_or(0);
        if need > end {
            let (pool, component) = (extents.pool().into(), self.component.clone());
            return Err(GeometryError::WrongLength { pool, component, expected: need, given: end });
        }
        let mut moves = self.moves.clone();
        moves.sort_unstable_by_key(|m| m.from);
        let read = |run: &[RangeCopy]| {
            let bytes: u64 = run.iter().map(|m| m.len).sum();
            let first = run.first().map_or(0, |m| m.from);
            let chunks = run.iter().flat_map(|m| destination(&chunks, m)).collect();
            RangeRead { range: first..first + bytes, chunks }
        };
        Ok(moves.chunk_by(|a, b| a.from + a.len == b.from).map(read).collect())
    }
}

/// The parts of the chunks that receive the bytes of a move.
fn destination<'a>(
    chunks: &'a [(u64, Chunk)],
    m: &RangeCopy,
) -> impl Iterator<Item = Chunk> + use<'a> {
    let (from, to) = (m.to, m.to + m.len);
    let first = chunks.partition_point(|(at, chunk)| at + chunk.len <= from);
    chunks[first..].iter().take_while(move |(at, _)| *at < to).map(move |(at, chunk)| {
        let (lo, hi) = (from.max(*at), to.min(at + chunk.len));
        Chunk { offset: chunk.offset + (lo - at), len: hi - lo, ..*chunk }
    })
}

/// The reads that fill one of the reader's components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReshardPlan {
    /// Number of the component in the reader's pool.
    pub component: usize,
    /// The objects to read; their moves fill the component without gaps or overlaps.
    pub sources: Vec<SourceObject>,
}

/// The plans that fill a reader's pool from objects that writers stored. Of `writer`, only layout,
/// sizes and `tp_lcm_size` are used, not its ranks. Context-parallel sizes must be equal.
/// Decode-context sizes must be equal if they divide a page's tokens; each reader then reads the
/// objects of its own decode-context rank.
pub fn plan(
    model: &Model,
    writer: &Placement,
    reader: &Placement,
    role: Role,
    pool: &str,
) -> Result<Vec<ReshardPlan>, GeometryError> {
    let mine = Geometry::new(model, reader)?.pool(role, pool)?.clone();
    let stored = stored(model, writer, reader, role, pool)?;
    (0..).zip(&mine.components).map(|(i, component)| fill(&mine, i, component, &stored)).collect()
}

/// The pools that the writer's ranks store: every rank stores its own bytes, one rank stores shared
/// bytes.
fn stored(
    model: &Model,
    writer: &Placement,
    reader: &Placement,
    role: Role,
    pool: &str,
) -> Result<Vec<Pool>, GeometryError> {
    let ranks = u64::from(writer.tp.of) * u64::from(writer.pp.of);
    if ranks > RANKS_MAX {
        return Err(GeometryError::TooMany {
            pool: pool.into(),
            what: "ranks of the writer",
            max: RANKS_MAX,
        });
    }
    let mut pools = Vec::new();
    if writer.cp.of != reader.cp.of {
        return Ok(pools);
    }
    for pp in 0..writer.pp.of.max(1) {
        for tp in 0..writer.tp.of.max(1) {
            let dcp = Slice { rank: tp % writer.dcp.of.max(1), of: writer.dcp.of };
            let (tp, pp) =
                (Slice { rank: tp, of: writer.tp.of }, Slice { rank: pp, of: writer.pp.of });
            let rank = Placement { tp, pp, cp: reader.cp, dcp, ..writer.clone() };
            let geometry = Geometry::new(model, &rank)?;
            pools.extend(
                geometry.pools.into_iter().filter(|p| p.role == role && p.name == pool && p.writes),
            );
        }
    }
    Ok(pools)
}

/// Plan the reads of a component. Each piece is read from the first writer that has it, so
/// replicated heads are read once.
fn fill(
    mine: &Pool,
    index: usize,
    component: &Component,
    stored: &[Pool],
) -> Result<ReshardPlan, GeometryError> {
    let wanted = pieces(component, &mine.buffers);
    let (mut sources, mut taken, mut found) = (Vec::new(), BTreeSet::new(), 0u64);
    for pool in stored {
        for object in &pool.components {
            let mut moves = Vec::new();
            for held in
                pieces(object, &pool.buffers).iter().filter(|held| taken.insert(held.model_box()))
            {
                for want in &wanted {
                    held.intersect(want, &mut moves).ok_or_else(|| GeometryError::TooMany {
                        pool: mine.client_name(),
                        what: "ranges",
                        max: RANGES_MAX,
                    })?;
                }
            }
            let moves = merged(moves);
            if !moves.is_empty() {
                let Component { name, shard, bytes, .. } = object;
                let source =
                    SourceObject { component: name.clone(), shard: *shard, bytes: *bytes, moves };
                found += source.taken();
                sources.push(source);
            }
        }
    }
    if found == component.bytes {
        return Ok(ReshardPlan { component: index, sources });
    }
    Err(GeometryError::NotHeld {
        pool: mine.client_name(),
        component: component.name.clone(),
        rule: "reader and writer may differ only in the division of heads and layers",
        need: component.bytes,
        found,
    })
}

/// Sort moves by their place in the reader's component and merge those that are adjacent in both
/// object and component.
fn merged(mut moves: Vec<RangeCopy>) -> Vec<RangeCopy> {
    moves.sort_unstable_by_key(|m| m.to);
    moves.dedup_by(|next, last| {
        let are_adjacent = last.from + last.len == next.from && last.to + last.len == next.to;
        if are_adjacent {
            last.len += next.len;
        }
        are_adjacent
    });
    moves
}

/// One part of an object: its box in the model, and the order of its bytes in the object.
struct Piece {
    state: StateKind,
    element_bytes: u64,
    /// Offset of its first byte in the object.
    base: u64,
    /// Outermost first. The page axis is omitted, and so is the head-group axis: its heads have the
    /// model's numbers.
    axes: Vec<PieceAxis>,
}

#[derive(Clone, Copy)]
struct PieceAxis {
    kind: AxisKind,
    /// First index in the model.
    first: u64,
    /// Length.
    len: u64,
    /// Distance in the object from one index to the next, in bytes.
    stride: u64,
}

/// An object's parts. Sizes cannot overflow 64 bits, since the object's length does not.
fn pieces(component: &Component, buffers: &[Buffer]) -> Vec<Piece> {
    let mut base = 0;
    let piece = |part: &Part| {
        let buffer = buffers.get(part.buffer)?;
        let mut stride = buffer.element_bytes;
        let mut axes = Vec::with_capacity(buffer.axes.len());
        for (axis, span) in buffer.axes.iter().zip(&part.spans).rev() {
            let (kind, first, len) = (axis.kind, span.origin + span.start, span.len);
            if !matches!(kind, AxisKind::Page | AxisKind::HeadGroup) {
                axes.push(PieceAxis { kind, first, len, stride });
            }
            stride *= len;
        }
        axes.reverse();
        let piece = Piece { state: part.state, element_bytes: buffer.element_bytes, base, axes };
        base += stride;
        Some(piece)
    };
    component.parts.iter().filter_map(piece).collect()
}

impl Piece {
    /// The box in the model. Two pieces hold the same state, in any byte order, exactly if these
    /// are equal.
    fn model_box(&self) -> (StateKind, Vec<(AxisKind, u64, u64)>) {
        let mut axes: Vec<_> = self.axes.iter().map(|a| (a.kind, a.first, a.len)).collect();
        axes.sort_unstable();
        (self.state, axes)
    }

    /// Add the ranges of elements that both pieces have; `None` if they exceed [`RANGES_MAX`].
    fn intersect(&self, want: &Piece, moves: &mut Vec<RangeCopy>) -> Option<()> {
        if self.state != want.state || self.element_bytes != want.element_bytes {
            return Some(());
        }
        let (mut from, mut to) = (self.base, want.base);
        // (count, stride in the stored object, stride in the reader's object), innermost first.
        let mut loops: Vec<(u64, u64, u64)> = Vec::new();
        let mut run = self.element_bytes;
        for w in want.axes.iter().rev() {
            let Some(h) = self.axes.iter().find(|h| h.kind == w.kind) else { return Some(()) };
            let first = h.first.max(w.first);
            let end = (h.first + h.len).min(w.first + w.len);
            let Some(count) = end.checked_sub(first).filter(|n| *n > 0) else { return Some(()) };
            from += (first - h.first) * h.stride;
            to += (first - w.first) * w.stride;
            if count == 1 {
            } else if h.stride == run && w.stride == run {
                run *= count;
            } else {
                loops.push((count, h.stride, w.stride));
            }
        }
        let total = loops.iter().try_fold(1u64, |n, (count, ..)| n.checked_mul(*count));
        let total = total.filter(|n| *n <= RANGES_MAX - (moves.len() as u64).min(RANGES_MAX))?;
        moves.extend((0..total).map(|mut index| {
            let mut m = RangeCopy { from, to, len: run };
            for (count, held, wanted) in &loops {
                m.from += index % count * held;
                m.to += index % count * wanted;
                index /= count;
            }
            m
        }));
        Some(())
    }
}
