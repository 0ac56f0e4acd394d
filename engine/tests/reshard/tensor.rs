//! The expected contents of a rank's host buffer, element by element, from the shapes of the host
//! layouts alone: independent of `pagelith_layouts::geometry`.

use pagelith::layouts::geometry::Layout;
use pagelith::layouts::key::Role;

/// Bytes of an element.
const ELEMENT: usize = 2;
/// Value of bytes outside of the requested page.
const UNTOUCHED: u8 = 0xee;

/// An axis of a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Axis {
    Kv,
    Layer,
    Page,
    Token,
    /// Head groups of a rank.
    Group,
    /// Heads of a rank, or of one of its groups.
    Head,
    Dim,
}

/// The tensor of one pool over all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub role: Role,
    /// KV heads; none is MLA.
    pub heads: Option<u16>,
    pub layers: usize,
    pub tokens: usize,
    /// Elements of a row.
    pub dim: usize,
}

/// A rank's part and its layout.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    pub layout: Layout,
    pub rank: u16,
    pub tp: u16,
    /// Head groups of the rank; 1 without a head split.
    pub groups: u16,
    /// Pages of the host pool.
    pub pages: usize,
}

impl Tensor {
    /// Axes of the buffer, outermost first, with their lengths.
    fn shape(&self, at: &Rank) -> Vec<(Axis, usize)> {
        use Axis::*;
        let order: &[Axis] = match (self.heads.is_some(), at.layout) {
            (true, Layout::LayerFirst) => &[Kv, Layer, Page, Token, Head, Dim],
            (true, Layout::PageFirst) => &[Kv, Page, Token, Layer, Head, Dim],
            (true, Layout::PageFirstDirect) => &[Kv, Page, Layer, Token, Head, Dim],
            (true, Layout::PageHead) => &[Kv, Page, Head, Token, Layer, Dim],
            (true, Layout::PageUnified) => &[Page, Group, Layer, Kv, Token, Head, Dim],
            (false, Layout::LayerFirst) => &[Layer, Page, Token, Dim],
            (false, Layout::PageFirst) => &[Page, Token, Layer, Dim],
            (_, other) => unreachable!("not tried: {other}"),
        };
        let (_, heads) = self.heads_of(at);
        let count = |axis: &Axis| match axis {
            Kv => 2,
            Layer => self.layers,
            Page => at.pages,
            Token => self.tokens,
            Group => at.groups.into(),
            Head if order.contains(&Group) => heads / usize::from(at.groups),
            Head => heads,
            Dim => self.dim,
        };
        order.iter().map(|axis| (*axis, count(axis))).collect()
    }

    /// First head and heads of a rank. Where ranks outnumber heads, neighbours have the same one.
    fn heads_of(&self, at: &Rank) -> (usize, usize) {
        let Some(heads) = self.heads else { return (0, 1) };
        if heads >= at.tp {
            let each = heads / at.tp;
            ((at.rank * each).into(), each.into())
        } else {
            ((at.rank / (at.tp / heads)).into(), 1)
        }
    }

    /// The rank's buffer, with every page or with one and all other bytes untouched.
    pub fn buffer(&self, at: &Rank, only: Option<usize>) -> Vec<u8> {
        let shape = self.shape(at);
        let (first_head, heads) = self.heads_of(at);
        let elements: usize = shape.iter().map(|(_, count)| count).product();
        let mut out = Vec::with_capacity(elements * ELEMENT);
        for number in 0..elements {
            // Page, K or V, layer, token, head, element of the model.
            let mut place = [0usize; 6];
            place[4] = first_head;
            let mut rest = number;
            for (axis, count) in shape.iter().rev() {
                let index = rest % count;
                rest /= count;
                match axis {
                    Axis::Page => place[0] = index,
                    Axis::Kv => place[1] = index,
                    Axis::Layer => place[2] = index,
                    Axis::Token => place[3] = index,
                    Axis::Group => place[4] += index * (heads / usize::from(at.groups)),
                    Axis::Head => place[4] += index,
                    Axis::Dim => place[5] = index,
                }
            }
            if only.is_none_or(|page| page == place[0]) {
                out.extend(self.element(place));
            } else {
                out.extend([UNTOUCHED; ELEMENT]);
            }
        }
        out
    }

    fn element(&self, place: [usize; 6]) -> [u8; ELEMENT] {
        let seed = if self.role == Role::Draft { 0xdu64 } else { 0x7 };
        let mixed = place.into_iter().fold(seed, |h, n| {
            (h ^ (n as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        [(mixed >> 32) as u8, (mixed >> 48) as u8]
    }
}

/// A buffer before any read.
pub fn untouched(bytes: u64) -> Vec<u8> {
    vec![UNTOUCHED; bytes as usize]
}
