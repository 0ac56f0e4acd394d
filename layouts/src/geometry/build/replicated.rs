//! Builds pools whose bytes are equal on all tensor-parallel ranks: compressed rows, indexers,
//! opaque rows.

use super::super::buffer::{AxisKind, Part, StateKind};
use super::super::error::GeometryError;
use super::super::layout::Layout;
use super::super::model::{Indexer, LatentAttention, LatentRow, RowPool};
use super::super::names;
use super::super::pool::Pool;
use super::{AttentionSpec, Builder, Layers, axes, too_large};
use crate::key::Role;
use crate::shard::Slice;

/// A buffer with one row per token and layer, or per page and layer if `tokens` is 1.
struct Rows {
    state: StateKind,
    name: &'static str,
    first_layer: u64,
    layers: u64,
    tokens: u64,
    /// First element of the row in the model.
    first: u64,
    /// Elements of the row.
    width: u64,
    element_bytes: u64,
}

impl Builder<'_> {
    /// Whether the layout splits latent rows into parts; an indexer is then stored under the key of
    /// these rows.
    pub(super) fn splits_latent(&self) -> bool {
        self.placement.layout == Layout::PageFirstKvSplit
    }

    pub(super) fn latent(
        &self,
        spec: &AttentionSpec<'_>,
        latent: &LatentAttention,
    ) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(spec.role, spec.name, spec.hit);
        pool.writes = self.writes_replicated();
        let (first_layer, layers) = self.stage(latent.layers, spec.layers);
        let row = |name, first: u32, width: u32, element: u32| Rows {
            state: StateKind::Latent { dcp: spec.dcp },
            name,
            first_layer,
            layers,
            tokens: spec.tokens,
            first: first.into(),
            width: width.into(),
            element_bytes: element.into(),
        };
        let mut parts = Vec::new();
        match latent.row {
            LatentRow::Parts { lora_rank, rope_dim, dtype } if self.splits_latent() => {
                for (name, first, width) in
                    [(names::K, 0, lora_rank), (names::V, lora_rank, rope_dim)]
                {
                    if width > 0 {
                        parts.push(
                            self.add_rows(&mut pool, &row(name, first, width, dtype.bytes())),
                        );
                    }
                }
            }
            LatentRow::Parts { lora_rank, rope_dim, dtype } => {
                let whole = Rows {
                    width: u64::from(lora_rank) + u64::from(rope_dim),
                    ..row(names::K, 0, 0, dtype.bytes())
                };
                parts.push(self.add_rows(&mut pool, &whole));
            }
            LatentRow::Packed { bytes } => {
                parts.push(self.add_rows(&mut pool, &row(names::K, 0, bytes, 1)))
            }
        }
        if let Some(indexer) = spec.indexer.filter(|_| self.splits_latent()) {
            let (first_layer, layers) =
                self.stage(indexer.layers.unwrap_or(latent.layers), spec.layers);
            let keys_and_scales = [
                (StateKind::IndexKey { dcp: spec.dcp }, "index_k", indexer.key_bytes),
                (StateKind::IndexScale { dcp: spec.dcp }, "index_scale", indexer.scale_bytes),
            ];
            for (state, name, width) in keys_and_scales {
                if width > 0 {
                    let rows = Rows { state, first_layer, layers, ..row(name, 0, width, 1) };
                    parts.push(self.add_rows(&mut pool, &rows));
                }
            }
        }
        // The client key of the main pool has a component name, that of a window has none.
        let name = if spec.name == "kv" { names::K } else { names::DATA };
        pool.add_component(name, self.replicated(), parts)?;
        Ok(pool)
    }

    /// The pool of an indexer. A page's keys and scales are packed in an order that the client
    /// chooses.
    pub(super) fn indexer(
        &self,
        spec: &AttentionSpec<'_>,
        indexer: &Indexer,
        attention_layers: u32,
    ) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(spec.role, "indexer", spec.hit);
        pool.writes = self.writes_replicated();
        let (first_layer, layers) =
            self.stage(indexer.layers.unwrap_or(attention_layers), spec.layers);
        let row = u64::from(indexer.key_bytes) + u64::from(indexer.scale_bytes);
        let width = row.checked_mul(spec.tokens).ok_or_else(|| too_large("indexer"))?;
        let state = StateKind::Indexer { dcp: spec.dcp };
        let part = self.add_rows(&mut pool, &packed(state, first_layer, layers, width));
        pool.add_component(names::DATA, self.replicated(), vec![part])?;
        Ok(pool)
    }

    pub(super) fn rows(&self, of: &RowPool) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(of.role, &of.name, of.hit);
        pool.writes = of.per_rank || self.writes_replicated();
        let how = match of.role {
            Role::Target => Layers::Staged { packed: 0 },
            Role::Draft => Layers::Last,
        };
        let (first_layer, layers) = self.stage(of.layers, how);
        let page = u64::from(of.rows) * u64::from(of.row_bytes);
        let width = page
            .checked_next_multiple_of(of.page_multiple.into())
            .ok_or_else(|| too_large(&of.name))?;
        let tp = if of.per_rank { self.placement.tp } else { Slice::ALL };
        let part =
            self.add_rows(&mut pool, &packed(StateKind::Rows { tp }, first_layer, layers, width));
        let shard = if of.per_rank { self.ranked() } else { self.replicated() };
        pool.add_component(names::DATA, shard, vec![part])?;
        Ok(pool)
    }

    fn add_rows(&self, pool: &mut Pool, rows: &Rows) -> Part {
        let counted = axes(order(self.placement.layout), |kind| match kind {
            AxisKind::Layer => rows.layers,
            AxisKind::Token => rows.tokens,
            AxisKind::Element => rows.width,
            _ => 1,
        });
        let buffer = pool.add_buffer(rows.name, counted, rows.element_bytes);
        pool.all_of(rows.state, buffer, |kind| match kind {
            AxisKind::Layer => rows.first_layer,
            AxisKind::Element => rows.first,
            _ => 0,
        })
    }
}

/// Rows per page and layer, `width` bytes together.
fn packed(state: StateKind, first_layer: u64, layers: u64, width: u64) -> Rows {
    Rows {
        state,
        name: names::DATA,
        first_layer,
        layers,
        tokens: 1,
        first: 0,
        width,
        element_bytes: 1,
    }
}

/// Axes of the MLA buffers of CONTRACTS 3.2, where S stands for pages and tokens.
fn order(layout: Layout) -> &'static [AxisKind] {
    use AxisKind::*;
    match layout {
        Layout::LayerFirst => &[Layer, Page, Token, Element],
        Layout::PageFirst => &[Page, Token, Layer, Element],
        Layout::PageFirstDirect
        | Layout::PageFirstKvSplit
        | Layout::PageHead
        | Layout::PageUnified => &[Page, Layer, Token, Element],
    }
}
