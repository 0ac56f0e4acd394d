//! Pools whose bytes are the same on every tensor-parallel rank: compressed rows, indexers, rows.

use super::super::buffer::{AxisKind, Part, What};
use super::super::error::GeometryError;
use super::super::layout::Layout;
use super::super::model::{Indexer, LatentAttention, LatentRow, RowPool};
use super::super::names;
use super::super::pool::Pool;
use super::{Attended, Builder, Layers, axes, too_large};
use crate::key::Role;
use crate::shard::Slice;

/// A buffer of rows a token and layer, or with `tokens` 1 of rows a page and layer.
struct Rows {
    what: What,
    name: &'static str,
    first_layer: u64,
    layers: u64,
    tokens: u64,
    /// First element of the row in the model, and how many.
    first: u64,
    width: u64,
    element_bytes: u64,
}

impl Builder<'_> {
    /// Whether an indexer lies beside the latent rows, under their key.
    pub(super) fn splits(&self) -> bool {
        self.placement.layout == Layout::PageFirstKvSplit
    }

    pub(super) fn latent(&self, of: &Attended<'_>, latent: &LatentAttention) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(of.role, of.name, of.hit);
        pool.writes = self.writes_replicated();
        let (first_layer, layers) = self.stage(latent.layers, of.layers);
        let row = |name, first: u32, width: u32, element: u32| Rows {
            what: What::Latent { dcp: of.dcp },
            name,
            first_layer,
            layers,
            tokens: of.tokens,
            first: first.into(),
            width: width.into(),
            element_bytes: element.into(),
        };
        let mut parts = Vec::new();
        match latent.row {
            LatentRow::Parts { lora_rank, rope_dim, dtype } if self.splits() => {
                for (name, first, width) in [(names::K, 0, lora_rank), (names::V, lora_rank, rope_dim)] {
                    if width > 0 {
                        parts.push(self.add_rows(&mut pool, &row(name, first, width, dtype.bytes())));
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
            LatentRow::Packed { bytes } => parts.push(self.add_rows(&mut pool, &row(names::K, 0, bytes, 1))),
        }
        if let Some(indexer) = of.indexer.filter(|_| self.splits()) {
            let (first_layer, layers) = self.stage(indexer.layers.unwrap_or(latent.layers), of.layers);
            let sides = [
                (What::IndexKey { dcp: of.dcp }, "index_k", indexer.key_bytes),
                (What::IndexScale { dcp: of.dcp }, "index_scale", indexer.scale_bytes),
            ];
            for (what, name, width) in sides {
                if width > 0 {
                    let rows = Rows { what, first_layer, layers, ..row(name, 0, width, 1) };
                    parts.push(self.add_rows(&mut pool, &rows));
                }
            }
        }
        // A window's client key has no component name, the main pool's has.
        let name = if of.name == "kv" { names::K } else { names::DATA };
        pool.add_component(name, self.replicated(), parts)?;
        Ok(pool)
    }

    /// An indexer's own pool. A page's keys and scales are packed in an order of the client's.
    pub(super) fn indexer(
        &self,
        of: &Attended<'_>,
        indexer: &Indexer,
        attention_layers: u32,
    ) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(of.role, "indexer", of.hit);
        pool.writes = self.writes_replicated();
        let (first_layer, layers) = self.stage(indexer.layers.unwrap_or(attention_layers), of.layers);
        let row = u64::from(indexer.key_bytes) + u64::from(indexer.scale_bytes);
        let width = row.checked_mul(of.tokens).ok_or_else(|| too_large("indexer"))?;
        let part =
            self.add_rows(&mut pool, &packed(What::Indexer { dcp: of.dcp }, first_layer, layers, width));
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
        let width =
            page.checked_next_multiple_of(of.page_multiple.into()).ok_or_else(|| too_large(&of.name))?;
        let tp = if of.per_rank { self.placement.tp } else { Slice::ALL };
        let part = self.add_rows(&mut pool, &packed(What::Rows { tp }, first_layer, layers, width));
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
        pool.all_of(rows.what, buffer, |kind| match kind {
            AxisKind::Layer => rows.first_layer,
            AxisKind::Element => rows.first,
            _ => 0,
        })
    }
}

/// Rows a page and layer, of so many bytes together.
fn packed(what: What, first_layer: u64, layers: u64, width: u64) -> Rows {
    Rows { what, name: names::DATA, first_layer, layers, tokens: 1, first: 0, width, element_bytes: 1 }
}

/// Axes of CONTRACTS 3.2's MLA buffers, S being pages and tokens.
fn order(layout: Layout) -> &'static [AxisKind] {
    use AxisKind::*;
    match layout {
        Layout::LayerFirst => &[Layer, Page, Token, Element],
        Layout::PageFirst => &[Page, Token, Layer, Element],
        Layout::PageFirstDirect | Layout::PageFirstKvSplit | Layout::PageHead | Layout::PageUnified => {
            &[Page, Layer, Token, Element]
        }
    }
}
