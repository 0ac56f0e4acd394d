//! Names of head groups. If servers of different tensor-parallel sizes share objects
//! (`tp_lcm_size`), the number in a name is that of a head group instead of a rank, and the object
//! holds that head group for the layers of one stage.

use std::fmt::Write;

use super::config::{HeadLayers, SglangBackend, SglangConfig};
use crate::client_names::ContextError;
use crate::key::Role;
use crate::shard::{Shard, Slice};

impl SglangConfig {
    pub(super) fn check_heads(&self) -> Result<(), ContextError> {
        let unless = ContextError::unless;
        let Some(lcm) = self.tp_lcm_size else {
            let layers = &self.head_layers;
            return unless(
                layers.is_empty(),
                "head_layers",
                layers,
                "empty unless tp_lcm_size is given",
            );
        };
        let of = |ok, rule| unless(ok, "tp_lcm_size", &lcm, rule);
        of(lcm > 0 && lcm.is_multiple_of(self.tp_size), "a multiple of tp_size")?;
        of(!self.rank_replicated, "none if rank_replicated")?;
        of(self.backend != SglangBackend::DirectLinker, "none with the direct linker")?;
        // Neither the name nor the key of a head group contains the context-parallel rank.
        of(self.cp_size == 1, "none if cp_size is above 1")?;
        for (i, layers) in self.head_layers.iter().enumerate() {
            let HeadLayers { role, pool, pp_rank, from, to } = layers;
            let of = |ok, rule| unless(ok, "head_layers", layers, rule);
            of(from < to, "from below to")?;
            of(*pp_rank < self.pp_size, "pp_rank below pp_size")?;
            let before = self.head_layers.iter().take(i).filter(|other| other.is_of(*role, pool));
            let twice =
                before.into_iter().any(|o| o.pp_rank == *pp_rank || (o.from, o.to) == (*from, *to));
            of(!twice, "one range of layers for each pool and stage, and no two alike")?;
        }
        let kv = self.head_layers.iter().filter(|layers| layers.is_of(Role::Target, "kv")).count();
        unless(kv == usize::from(self.pp_size), "head_layers", &kv, "layers of kv on every stage")
    }

    /// The shard of a head group; `None` if there is no such group, or the pool has no layers on
    /// that stage.
    pub(super) fn heads(
        &self,
        role: Role,
        pool: &str,
        rank: u16,
        pp: Slice,
        of: u16,
    ) -> Option<Shard> {
        let layers =
            self.head_layers.iter().find(|l| l.is_of(role, pool) && l.pp_rank == pp.rank)?;
        Some(Shard::Heads {
            group: Slice::new(rank, of)?,
            layer_from: layers.from,
            layer_to: layers.to,
        })
    }

    pub(super) fn format_heads(
        &self,
        text: &mut String,
        role: Role,
        pool: &str,
        shard: Shard,
    ) -> Option<()> {
        let Shard::Heads { group, layer_from, layer_to } = shard else { return None };
        let alike =
            |l: &&HeadLayers| l.is_of(role, pool) && (l.from, l.to) == (layer_from, layer_to);
        let pp = self.head_layers.iter().find(alike)?.pp_rank;
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", group.rank);
        if self.pp_size > 1 {
            let _ = write!(text, "_{pp}");
        }
        Some(())
    }
}
