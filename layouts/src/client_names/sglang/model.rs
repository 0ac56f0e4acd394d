//! Derives the configuration from a model and a placement, so that names and geometry cannot
//! disagree.

use super::config::{HeadLayers, SglangConfig};
use crate::geometry::{Attention, Geometry, GeometryError, Model, Placement};
use crate::shard::{Shard, Slice};

impl SglangConfig {
    /// The configuration of a server that stores `model` at `placement`. The caller must set the
    /// prefix (`backend_tag`, `model_name`) and `backend`, which geometry does not know.
    ///
    /// # Errors
    /// [`GeometryError`] if model and placement do not match.
    pub fn of(model: &Model, placement: &Placement) -> Result<SglangConfig, GeometryError> {
        Geometry::new(model, placement)?;
        let sharded = |attention: &Attention| matches!(attention, Attention::Heads(_));
        let rank_replicated = !sharded(&model.attention);
        let draft = model.draft.as_ref().map(|draft| !sharded(&draft.attention));
        let tp_lcm_size = placement.tp_lcm_size.filter(|_| !rank_replicated);
        let head_layers =
            if tp_lcm_size.is_some() { head_layers(model, placement)? } else { Vec::new() };
        Ok(SglangConfig {
            tp_size: placement.tp.of,
            pp_size: placement.pp.of,
            cp_size: placement.cp.of,
            cp_rank: placement.cp.rank,
            dcp_size: placement.dcp.of,
            logical_page_tokens: (placement.dcp.of > 1).then_some(model.page_tokens),
            tp_lcm_size,
            head_layers,
            rank_replicated,
            draft_rank_replicated: draft.unwrap_or(rank_replicated),
            ..SglangConfig::default()
        })
    }
}

/// The layers of each pool that is divided by heads, for every stage.
fn head_layers(model: &Model, placement: &Placement) -> Result<Vec<HeadLayers>, GeometryError> {
    let mut all = Vec::new();
    for pp_rank in 0..placement.pp.of {
        let pp = Slice { rank: pp_rank, of: placement.pp.of };
        for pool in Geometry::new(model, &Placement { pp, ..placement.clone() })?.pools {
            let shard = pool.components.first().map(|component| component.shard);
            if let Some(Shard::Heads { layer_from: from, layer_to: to, .. }) = shard {
                all.push(HeadLayers { role: pool.role, pool: pool.name, pp_rank, from, to });
            }
        }
    }
    Ok(all)
}
