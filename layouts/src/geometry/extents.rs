//! Extents: the location of a page's bytes in the caller's buffers.

use std::ops::Range;

use super::buffer::{AxisKind, Buffer, Part};
use super::error::GeometryError;
use super::pool::Pool;

/// A range of one of the pool's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Number of the buffer in the pool.
    pub buffer: usize,
    /// Offset of the first byte in the buffer.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
}

/// The extents of a pool with a given number of pages.
///
/// Invariant: every chunk that it returns is inside its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    pool: String,
    pages: u64,
    slots_per_page: u64,
    buffer_bytes: Vec<u64>,
    /// Component `i` consists of `pieces[components[i]]`.
    pieces: Vec<Piece>,
    components: Vec<Range<usize>>,
}

/// A part of a component as strides: `count` runs of `run` bytes in each page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    buffer: usize,
    base: u64,
    page_stride: u64,
    /// (count, stride), outermost first. All resulting offsets are inside the buffer.
    loops: Vec<(u64, u64)>,
    count: u64,
    run: u64,
}

impl Extents {
    /// The extents of a pool of `pages` pages (SGLang's host pools have one more page than they
    /// use).
    pub fn new(pool: &Pool, pages: u64) -> Result<Extents, GeometryError> {
        let too_large = || GeometryError::TooLarge { pool: pool.client_name(), what: "buffer" };
        let buffer_bytes: Option<Vec<u64>> = pool.buffers.iter().map(|b| b.bytes(pages)).collect();
        let buffer_bytes = buffer_bytes.ok_or_else(too_large)?;
        let (mut pieces, mut components) = (Vec::new(), Vec::new());
        for component in &pool.components {
            let from = pieces.len();
            for part in &component.parts {
                let buffer = pool.buffers.get(part.buffer).ok_or_else(too_large)?;
                pieces.push(Piece::new(part, buffer, pages).ok_or_else(too_large)?);
            }
            components.push(from..pieces.len());
        }
        let (pool, slots_per_page) = (pool.client_name(), pool.slots_per_page);
        Ok(Extents { pool, pages, slots_per_page, buffer_bytes, pieces, components })
    }

    /// The pool's client name.
    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    /// Number of pages of the pool.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Length of each of the caller's buffers in bytes.
    pub fn buffer_bytes(&self) -> &[u64] {
        &self.buffer_bytes
    }

    /// The page that begins at a slot (token index) of the pool.
    pub fn page_of_slot(&self, slot: u64) -> Result<u64, GeometryError> {
        let slots = self.slots_per_page.max(1);
        if !slot.is_multiple_of(slots) {
            return Err(GeometryError::SlotInsidePage { pool: self.pool.clone(), slot, slots });
        }
        self.in_range(slot / slots)
    }

    /// The chunks of one component of a page, in the order of the object's bytes. Does not
    /// allocate.
    pub fn chunks(&self, page: u64, component: usize) -> Result<Chunks<'_>, GeometryError> {
        self.in_range(page)?;
        let range =
            self.components.get(component).ok_or_else(|| GeometryError::ComponentOutOfRange {
                pool: self.pool.clone(),
                component,
                components: self.components.len(),
            })?;
        Ok(Chunks { pieces: self.pieces.get(range.clone()).unwrap_or_default(), page, next: 0 })
    }

    /// Number of chunks of a component of a page.
    pub fn chunk_count(&self, component: usize) -> u64 {
        let range = self.components.get(component).cloned().unwrap_or(0..0);
        self.pieces.get(range).unwrap_or_default().iter().map(|p| p.count).sum()
    }

    fn in_range(&self, page: u64) -> Result<u64, GeometryError> {
        if page < self.pages {
            return Ok(page);
        }
        Err(GeometryError::PageOutOfRange { pool: self.pool.clone(), page, pages: self.pages })
    }
}

impl Piece {
    /// Compute strides from the innermost axis outwards; axes contiguous with the run extend it.
    fn new(part: &Part, buffer: &Buffer, pages: u64) -> Option<Piece> {
        let (mut stride, mut run) = (buffer.element_bytes, buffer.element_bytes);
        let (mut base, mut page_stride, mut loops) = (0u64, 0, Vec::new());
        for (axis, span) in buffer.axes.iter().zip(&part.spans).rev() {
            let mut count = axis.count;
            if axis.kind == AxisKind::Page {
                (page_stride, count) = (stride, pages);
            } else {
                base = base.checked_add(span.start.checked_mul(stride)?)?;
                if span.len == 1 {
                } else if run == stride {
                    run = run.checked_mul(span.len)?;
                } else {
                    loops.push((span.len, stride));
                }
            }
            stride = stride.checked_mul(count)?;
        }
        loops.reverse();
        let count = loops.iter().try_fold(1u64, |n, (count, _)| n.checked_mul(*count))?;
        Some(Piece { buffer: part.buffer, base, page_stride, loops, count, run })
    }

    /// Run `index` of a page. Cannot overflow: the run is inside a buffer whose length fits 64
    /// bits.
    fn chunk(&self, page: u64, mut index: u64) -> Chunk {
        let mut offset = self.base + page * self.page_stride;
        for (count, stride) in self.loops.iter().rev() {
            offset += index % count * stride;
            index /= count;
        }
        Chunk { buffer: self.buffer, offset, len: self.run }
    }
}

/// The chunks of one component of a page.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    pieces: &'a [Piece],
    page: u64,
    next: u64,
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        let (first, rest) = self.pieces.split_first()?;
        let chunk = first.chunk(self.page, self.next);
        self.next += 1;
        if self.next == first.count {
            (self.pieces, self.next) = (rest, 0);
        }
        Some(chunk)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left: u64 = self.pieces.iter().map(|p| p.count).sum::<u64>() - self.next;
        usize::try_from(left).map_or((usize::MAX, None), |left| (left, Some(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::{Axis, Span, StateKind};
    use super::*;

    /// Current host layouts need at most one loop; this box needs more.
    #[test]
    fn chunks_of_box_are_in_row_major_order() {
        use AxisKind::*;
        const PAGES: u64 = 3;
        let counts = [(Kv, 2), (Page, 1), (Token, 3), (Layer, 2), (Head, 4), (Element, 5)];
        let axes = counts.map(|(kind, count)| Axis { kind, count }).to_vec();
        let buffer = Buffer { name: "kv".into(), axes, element_bytes: 2 };
        let spans = [(1, 1), (0, 1), (1, 2), (0, 2), (2, 2), (0, 5)];
        let spans = spans.map(|(start, len)| Span { start, len, origin: 0 }).to_vec();
        let part = Part { state: StateKind::Heads, buffer: 0, spans };
        let piece = Piece::new(&part, &buffer, PAGES).expect("small");
        let mut expected = Vec::new();
        for token in 1..3 {
            for layer in 0..2 {
                let head = ((((PAGES + 2) * 3 + token) * 2 + layer) * 4 + 2) * 5 * 2;
                expected.push(Chunk { buffer: 0, offset: head, len: 2 * 5 * 2 });
            }
        }
        let pieces = [piece];
        let chunks = Chunks { pieces: &pieces, page: 2, next: 0 };
        assert_eq!(chunks.collect::<Vec<_>>(), expected);
    }
}
