//! Builds pools of K and V rows by heads.

use super::super::buffer::{AxisKind, Part, StateKind};
use super::super::error::GeometryError;
use super::super::layout::Layout;
use super::super::model::HeadAttention;
use super::super::names;
use super::super::pool::Pool;
use super::{AttentionSpec, Builder, axes};
use crate::shard::{Shard, Slice};

/// The heads of this rank.
#[derive(Clone, Copy)]
struct Heads {
    /// First head in the model.
    first: u64,
    /// Heads of this rank.
    count: u64,
    /// Head groups of this rank; 1 without a head split.
    groups: u64,
}

/// The range of the K/V axis (0 K, 1 V) in a buffer: `first..first + count`.
#[derive(Clone, Copy)]
struct KvRange {
    first: u64,
    count: u64,
}

impl Builder<'_> {
    pub(super) fn heads(
        &self,
        spec: &AttentionSpec<'_>,
        heads: &HeadAttention,
    ) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(spec.role, spec.name, spec.hit);
        let mine = self.heads_of_rank(heads.kv_heads);
        let buffers = if heads.k_dim == heads.v_dim {
            let both =
                self.add_kv_buffer(&mut pool, spec, heads, mine, KvRange { first: 0, count: 2 });
            [both.clone(), both]
        } else {
            [0, 1].map(|first| {
                self.add_kv_buffer(&mut pool, spec, heads, mine, KvRange { first, count: 1 })
            })
        };
        let (first_layer, layers) = self.stage(heads.layers, spec.layers);
        for group in 0..mine.groups {
            let shard = self.group_shard(group, mine.groups, first_layer, layers);
            let [k, v] = &buffers;
            if self.unified() {
                let both = group_part(&pool, k, None, group, mine);
                pool.add_component(names::KV, shard, vec![both])?;
                continue;
            }
            for (kv_index, name, whole) in [(0, names::K, k), (1, names::V, v)] {
                let part = group_part(&pool, whole, Some(kv_index), group, mine);
                pool.add_component(name, shard, vec![part])?;
            }
        }
        Ok(pool)
    }

    /// Whether K and V of a head group are one object.
    fn unified(&self) -> bool {
        self.placement.layout == Layout::PageUnified
    }

    /// Add a buffer of K, V or both; returns the part that takes all of it.
    fn add_kv_buffer(
        &self,
        pool: &mut Pool,
        spec: &AttentionSpec<'_>,
        heads: &HeadAttention,
        mine: Heads,
        kv: KvRange,
    ) -> Part {
        let (first_layer, layers) = self.stage(heads.layers, spec.layers);
        let (name, dim) = match (kv.count, kv.first) {
            (1, 0) => (names::K, heads.k_dim),
            (1, _) => (names::V, heads.v_dim),
            _ => (names::KV, heads.k_dim),
        };
        let counted = axes(order(self.placement.layout), |kind| match kind {
            AxisKind::Kv => kv.count,
            AxisKind::Layer => layers,
            AxisKind::Token => spec.tokens,
            AxisKind::HeadGroup => mine.groups,
            AxisKind::Head if self.unified() => mine.count / mine.groups,
            AxisKind::Head => mine.count,
            AxisKind::Element => dim.into(),
            AxisKind::Page => 1,
        });
        let buffer = pool.add_buffer(name, counted, heads.dtype.bytes().into());
        pool.all_of(StateKind::Heads, buffer, |kind| match kind {
            AxisKind::Kv => kv.first,
            AxisKind::Layer => first_layer,
            AxisKind::Head => mine.first,
            _ => 0,
        })
    }

    /// The heads of the rank. If there are more ranks than heads, several ranks have the same head.
    fn heads_of_rank(&self, all: u32) -> Heads {
        let (all, tp) = (u64::from(all), self.placement.tp);
        let (rank, of) = (u64::from(tp.rank), u64::from(tp.of));
        let groups = self.placement.tp_lcm_size.map_or(1, |lcm| u64::from(lcm) / of);
        if all >= of {
            Heads { first: rank * (all / of), count: all / of, groups }
        } else {
            Heads { first: rank / (of / all), count: 1, groups }
        }
    }

    fn group_shard(&self, group: u64, groups: u64, first_layer: u64, layers: u64) -> Shard {
        let Some(lcm) = self.placement.tp_lcm_size else {
            return self.ranked();
        };
        // `check` has verified that groups and layers are below 2^16.
        let rank = u64::from(self.placement.tp.rank) * groups + group;
        Shard::Heads {
            group: Slice { rank: rank as u16, of: lcm },
            layer_from: first_layer as u16,
            layer_to: (first_layer + layers) as u16,
        }
    }
}

/// The part of a head group: of K (`kv_index` 0), of V (1), or of both (`None`).
fn group_part(pool: &Pool, whole: &Part, kv_index: Option<u64>, group: u64, mine: Heads) -> Part {
    let mut part = whole.clone();
    let axes = pool.buffers.get(part.buffer).map(|b| b.axes.as_slice()).unwrap_or_default();
    let grouped = axes.iter().any(|axis| axis.kind == AxisKind::HeadGroup);
    for (axis, span) in axes.iter().zip(&mut part.spans) {
        match (axis.kind, kv_index) {
            (AxisKind::Kv, Some(kv_index)) if axis.count > 1 => {
                (span.start, span.len) = (kv_index, 1)
            }
            (AxisKind::HeadGroup, _) => (span.start, span.len) = (group, 1),
            // Under a head-group axis, heads are numbered from the first of their group.
            (AxisKind::Head, _) if grouped => span.origin += group * axis.count,
            (AxisKind::Head, _) => {
                span.len = mine.count / mine.groups;
                span.start = group * span.len;
            }
            _ => {}
        }
    }
    part
}

/// Axes of the MHA buffers of CONTRACTS 3.2, where S stands for pages and tokens.
fn order(layout: Layout) -> &'static [AxisKind] {
    use AxisKind::*;
    match layout {
        Layout::LayerFirst => &[Kv, Layer, Page, Token, Head, Element],
        Layout::PageFirst => &[Kv, Page, Token, Layer, Head, Element],
        Layout::PageHead => &[Kv, Page, Head, Token, Layer, Element],
        Layout::PageUnified => &[Page, HeadGroup, Layer, Kv, Token, Head, Element],
        // `check` refuses head pools in `PageFirstKvSplit`.
        Layout::PageFirstDirect | Layout::PageFirstKvSplit => {
            &[Kv, Page, Layer, Token, Head, Element]
        }
    }
}
