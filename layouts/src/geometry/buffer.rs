//! A caller's buffer as a row-major array with named axes, and a component as a box in it.
//!
//! Invariant: an object's bytes are its box's elements in the order of the buffer's axes. So one rule gives the
//! chunks of a page (strides), an object's length (product) and what two servers' objects have in common (the
//! boxes' intersection, in model coordinates).

use crate::shard::Slice;

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AxisKind {
    /// Pages of the pool.
    Page,
    /// K (0) and V (1).
    Kv,
    /// Layers.
    Layer,
    /// Tokens of a page.
    Token,
    /// Groups of heads.
    HeadGroup,
    /// Heads; under a head-group axis, those of a group.
    Head,
    /// Elements of a row.
    Element,
}

/// One axis of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// What it counts.
    pub kind: AxisKind,
    /// How many; the page axis has as many as the pool has pages, and says 1 here.
    pub count: u64,
}

/// One of a pool's buffers: row-major, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds, as `kv`, `k`, `temporal`.
    pub name: String,
    /// Axes, outermost first. Exactly one is [`AxisKind::Page`]; a buffer of only K or only V has a K/V axis of 1.
    pub axes: Vec<Axis>,
    /// Bytes of an element.
    pub element_bytes: u64,
}

impl Buffer {
    /// Bytes of the buffer of a pool of so many pages; `None` if that does not fit 64 bits.
    pub fn bytes(&self, pages: u64) -> Option<u64> {
        let page = self.axes.iter().try_fold(self.element_bytes, |n, axis| n.checked_mul(axis.count))?;
        page.checked_mul(pages)
    }
}

/// What a part's coordinates mean: parts of one kind are interchangeable between servers. `dcp` is the
/// decode-context rank whose tokens they are, [`Slice::ALL`] where a page's tokens are not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// K and V rows.
    Heads,
    /// Compressed rows.
    Latent { dcp: Slice },
    /// Index keys of a page with their scales, packed.
    Indexer { dcp: Slice },
    /// Index keys apart from their scales.
    IndexKey { dcp: Slice },
    /// Scales apart from their keys.
    IndexScale { dcp: Slice },
    /// State `index` (temporal, then the convolutions) of one rank. A rank's channels are no contiguous slice of the
    /// model's, so only a rank of the same layout has the same bytes.
    State { index: usize, tp: Slice },
    /// Rows that nobody looks into, of one rank or of all.
    Rows { tp: Slice },
}

/// What of an axis a part takes: `start..start + len`. In the model's coordinates that is
/// `origin + start..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) origin: u64,
}

impl Span {
    /// All of an axis, which begins at `origin` in the model.
    pub(super) fn all(axis: Axis, origin: u64) -> Span {
        Span { start: 0, len: axis.count, origin }
    }
}

/// A box in a buffer: one span an axis, in the buffer's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) what: What,
    pub(super) buffer: usize,
    pub(super) spans: Vec<Span>,
}

impl Part {
    /// Bytes of the box in one page.
    pub(super) fn bytes(&self, buffers: &[Buffer]) -> Option<u64> {
        let element = buffers.get(self.buffer)?.element_bytes;
        self.spans.iter().try_fold(element, |n, span| n.checked_mul(span.len))
    }
}
