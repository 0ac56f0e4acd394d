//! Builds the pools of a checked model and placement. Sizes that overflow 64 bits are an error.

mod heads;
mod replicated;
mod state;

use super::buffer::{Axis, AxisKind, Buffer, Part, Span, StateKind};
use super::error::GeometryError;
use super::model::{Attention, HitPolicy, Indexer, Model, Placement, Window};
use super::pool::{Component, Pool};
use crate::key::Role;
use crate::shard::{Shard, Slice};

/// An attention and the facts needed to build its pools.
struct AttentionSpec<'a> {
    role: Role,
    name: &'static str,
    attention: &'a Attention,
    indexer: Option<&'a Indexer>,
    hit: HitPolicy,
    layers: Layers,
    /// Tokens of a page on this rank.
    tokens: u64,
    /// The decode-context rank that owns these tokens.
    dcp: Slice,
}

/// How a pool's layers are distributed over the pipeline stages.
#[derive(Clone, Copy)]
enum Layers {
    /// Divided evenly, with `packed` more on the last stage.
    Staged { packed: u64 },
    /// All on the last stage.
    Last,
}

/// All pools of the placement's rank.
pub(super) fn pools(model: &Model, placement: &Placement) -> Result<Vec<Pool>, GeometryError> {
    let builder = Builder { placement, tokens: model.page_tokens.into() };
    let mut pools = Vec::new();
    let staged = Layers::Staged { packed: model.packed_mtp_layers.into() };
    builder.attention_pools(
        Role::Target,
        &model.attention,
        model.indexer.as_ref(),
        staged,
        &mut pools,
    )?;
    if let Some(linear) = &model.linear {
        pools.push(builder.state(linear)?);
    }
    if let Some(window) = &model.window {
        pools.push(builder.window(Role::Target, window, Layers::Staged { packed: 0 })?);
    }
    for rows in model.rows.iter().filter(|r| r.role == Role::Target) {
        pools.push(builder.rows(rows)?);
    }
    if let Some(draft) = model.draft.as_ref().filter(|_| builder.is_last_stage()) {
        let indexer = draft.indexer.as_ref();
        builder.attention_pools(
            Role::Draft,
            &draft.attention,
            indexer,
            Layers::Last,
            &mut pools,
        )?;
        if let Some(window) = &draft.window {
            pools.push(builder.window(Role::Draft, window, Layers::Last)?);
        }
    }
    for rows in model.rows.iter().filter(|r| r.role == Role::Draft && builder.is_last_stage()) {
        pools.push(builder.rows(rows)?);
    }
    let bytes =
        pools.iter().flat_map(|p| &p.components).try_fold(0u64, |n, c| n.checked_add(c.bytes));
    bytes.ok_or_else(|| too_large(&model.name))?;
    Ok(pools)
}

fn too_large(pool: &str) -> GeometryError {
    GeometryError::TooLarge { pool: pool.into(), what: "page" }
}

struct Builder<'a> {
    placement: &'a Placement,
    /// Tokens of a page over all decode-context ranks.
    tokens: u64,
}

impl Builder<'_> {
    fn is_last_stage(&self) -> bool {
        self.placement.pp.rank + 1 == self.placement.pp.of
    }

    /// (first layer, layers) of this stage.
    fn stage(&self, layers: u32, how: Layers) -> (u64, u64) {
        let (layers, pp) = (u64::from(layers), self.placement.pp);
        match how {
            Layers::Last => (0, layers),
            Layers::Staged { packed } => {
                let each = layers / u64::from(pp.of);
                (each * u64::from(pp.rank), each + if self.is_last_stage() { packed } else { 0 })
            }
        }
    }

    /// Shard of bytes that are equal on all tensor-parallel ranks.
    fn replicated(&self) -> Shard {
        let Placement { pp, cp, dcp, .. } = *self.placement;
        if [pp, cp, dcp].iter().all(|s| s.of == 1) {
            return Shard::Whole;
        }
        Shard::Rank { tp: Slice::ALL, pp, cp, dcp }
    }

    /// Shard of bytes that differ between tensor-parallel ranks.
    fn ranked(&self) -> Shard {
        let Placement { tp, pp, cp, dcp, .. } = *self.placement;
        Shard::Rank { tp, pp, cp, dcp }
    }

    /// Whether this rank, of those with equal bytes, stores them (SGLang's `is_storage_writer`).
    fn writes_replicated(&self) -> bool {
        self.placement.tp.rank == self.placement.dcp.rank
    }

    /// Add the pools `kv` and `indexer` of the target or the draft.
    fn attention_pools(
        &self,
        role: Role,
        attention: &Attention,
        indexer: Option<&Indexer>,
        layers: Layers,
        pools: &mut Vec<Pool>,
    ) -> Result<(), GeometryError> {
        // Decode-context ranks divide the tokens of compressed rows, and of their index keys.
        let divided = matches!(attention, Attention::Latent(_));
        let dcp = if divided { self.placement.dcp } else { Slice::ALL };
        let tokens = self.tokens / u64::from(dcp.of);
        let hit = HitPolicy::AllPages;
        let kv = AttentionSpec { role, name: "kv", attention, indexer, hit, layers, tokens, dcp };
        let own_layers = match attention {
            Attention::Heads(heads) => heads.layers,
            Attention::Latent(latent) => latent.layers,
            Attention::Anchor => 0,
        };
        match attention {
            Attention::Anchor if role == Role::Draft => {}
            _ => pools.push(self.attention(&kv)?),
        }
        match indexer {
            Some(indexer) if !self.splits_latent() => {
                pools.push(self.indexer(&kv, indexer, own_layers)?)
            }
            _ => {}
        }
        Ok(())
    }

    fn window(&self, role: Role, window: &Window, layers: Layers) -> Result<Pool, GeometryError> {
        let pages = u64::from(window.tokens).div_ceil(self.tokens.max(1));
        let hit = HitPolicy::TrailingPages(u32::try_from(pages).unwrap_or(u32::MAX));
        let attention = &window.attention;
        let (tokens, dcp, name) = (self.tokens, Slice::ALL, "swa");
        self.attention(&AttentionSpec {
            role,
            name,
            attention,
            indexer: None,
            hit,
            layers,
            tokens,
            dcp,
        })
    }

    fn attention(&self, spec: &AttentionSpec<'_>) -> Result<Pool, GeometryError> {
        match spec.attention {
            Attention::Heads(heads) => self.heads(spec, heads),
            Attention::Latent(latent) => self.latent(spec, latent),
            Attention::Anchor => Ok(self.pool(spec.role, spec.name, spec.hit)),
        }
    }

    /// A pool without components or buffers.
    fn pool(&self, role: Role, name: &str, hit: HitPolicy) -> Pool {
        Pool {
            role,
            name: name.into(),
            hit,
            writes: true,
            slots_per_page: self.tokens,
            components: Vec::new(),
            buffers: Vec::new(),
        }
    }
}

impl Pool {
    /// Add a buffer; returns its number.
    fn add_buffer(&mut self, name: &str, axes: Vec<Axis>, element_bytes: u64) -> usize {
        self.buffers.push(Buffer { name: name.into(), axes, element_bytes });
        self.buffers.len() - 1
    }

    /// The part that takes all of a buffer, whose axes begin at `origin(kind)` in the model.
    fn all_of(&self, state: StateKind, buffer: usize, origin: impl Fn(AxisKind) -> u64) -> Part {
        let axes = self.buffers.get(buffer).map(|b| b.axes.as_slice()).unwrap_or_default();
        Part {
            state,
            buffer,
            spans: axes.iter().map(|axis| Span::all(*axis, origin(axis.kind))).collect(),
        }
    }

    /// Add a component unless it is empty.
    fn add_component(
        &mut self,
        name: &str,
        shard: Shard,
        parts: Vec<Part>,
    ) -> Result<(), GeometryError> {
        let bytes =
            parts.iter().try_fold(0u64, |n, part| n.checked_add(part.bytes(&self.buffers)?));
        let bytes = bytes.ok_or_else(|| too_large(&self.client_name()))?;
        if bytes > 0 {
            self.components.push(Component { name: name.into(), shard, bytes, parts });
        }
        Ok(())
    }
}

/// Axes in the given order, each with its length.
fn axes(order: &[AxisKind], count: impl Fn(AxisKind) -> u64) -> Vec<Axis> {
    order.iter().map(|kind| Axis { kind: *kind, count: count(*kind) }).collect()
}
