//! A caller's buffer as a row-major array with named axes, and a component as boxes in buffers.
//!
//! Invariant: an object's bytes are the elements of its boxes in the order of the buffer's axes.
//! This one rule gives the chunks of a page (strides), the length of an object (product) and the
//! bytes that objects of two servers share (the intersection of their boxes in model coordinates).

use crate::shard::Slice;

/// The unit that an axis counts.
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
    /// The unit that it counts.
    pub kind: AxisKind,
    /// Length. The page axis is as long as the pool has pages, and is stored here as 1.
    pub count: u64,
}

/// One of a pool's buffers: row-major, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Content, for example `kv`, `k`, `temporal`.
    pub name: String,
    /// Axes, outermost first. Exactly one is [`AxisKind::Page`]; a buffer of only K or only V has a
    /// K/V axis of 1.
    pub axes: Vec<Axis>,
    /// Bytes per element.
    pub element_bytes: u64,
}

impl Buffer {
    /// Bytes of the buffer for a pool of `pages` pages; `None` if that does not fit 64 bits.
    pub fn bytes(&self, pages: u64) -> Option<u64> {
        let page =
            self.axes.iter().try_fold(self.element_bytes, |n, axis| n.checked_mul(axis.count))?;
        page.checked_mul(pages)
    }
}

/// The kind of state in a part. Parts of equal kind are interchangeable between servers. `dcp` is
/// the decode-context rank that owns the tokens, [`Slice::ALL`] if a page's tokens are not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StateKind {
    /// K and V rows.
    Heads,
    /// Compressed rows.
    Latent { dcp: Slice },
    /// Index keys of a page with their scales, packed.
    Indexer { dcp: Slice },
    /// Index keys without their scales.
    IndexKey { dcp: Slice },
    /// Scales without their keys.
    IndexScale { dcp: Slice },
    /// State `index` (temporal, then the convolutions) of one rank. A rank's channels are not a
    /// contiguous slice of the model's, so only a rank of the same layout has the same bytes.
    State { index: usize, tp: Slice },
    /// Opaque rows, of one rank or of all.
    Rows { tp: Slice },
}

/// The range of an axis that a part takes: `start..start + len` in the buffer, and
/// `origin + start..origin + start + len` in the model's coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) origin: u64,
}

impl Span {
    /// The whole axis, which begins at `origin` in the model.
    pub(super) fn all(axis: Axis, origin: u64) -> Span {
        Span { start: 0, len: axis.count, origin }
    }
}

/// A box in a buffer: one span per axis, in the buffer's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) state: StateKind,
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
