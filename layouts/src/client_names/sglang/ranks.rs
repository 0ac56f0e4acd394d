//! The ranks in a name: `mha_suffix`, `mla_suffix` and the direct linker's `_storage_suffix`.

use std::fmt::Write;

use super::config::SglangConfig;
use crate::client_names::take_number;
use crate::shard::{Shard, Slice};

const ALL: Slice = Slice::ALL;

impl SglangConfig {
    /// Parse `mla_suffix` and its underscore: nothing, a pipeline rank, or `dcp{d}_cp{c}` and a
    /// pipeline rank. Returns the shard and the rest of the text.
    pub(super) fn parse_replicated<'a>(&self, mut text: &'a str) -> Option<(Shard, &'a str)> {
        let (mut pp, mut cp, mut dcp) = (ALL, self.own_cp(), ALL);
        if self.dcp_size > 1 {
            (dcp, text) = parse_slice(text.strip_prefix("dcp")?, self.dcp_size)?;
            (cp, text) = parse_slice(text.strip_prefix("_cp")?, self.cp_size)?;
        }
        if self.pp_size > 1 {
            let rest = if self.dcp_size > 1 { text.strip_prefix('_')? } else { text };
            (pp, text) = parse_slice(rest, self.pp_size)?;
        }
        let one_object = [self.pp_size, self.cp_size, self.dcp_size] == [1; 3];
        let shard = if one_object { Shard::Whole } else { Shard::Rank { tp: ALL, pp, cp, dcp } };
        Some((shard, text.strip_prefix('_')?))
    }

    pub(super) fn format_replicated(&self, text: &mut String, shard: Shard) -> Option<()> {
        let Shard::Rank { pp, cp, dcp, .. } = shard else {
            return (shard == Shard::Whole).then_some(());
        };
        // Writing to a String cannot fail.
        let _ = match (self.dcp_size > 1, self.pp_size > 1) {
            (false, false) => Ok(()),
            (false, true) => write!(text, "{}", pp.rank),
            (true, false) => write!(text, "dcp{}_cp{}", dcp.rank, cp.rank),
            (true, true) => write!(text, "dcp{}_cp{}_{}", dcp.rank, cp.rank, pp.rank),
        };
        Some(())
    }

    /// Parse `mha_suffix` and its underscore: a tensor rank (or head group), and a pipeline rank if
    /// `pp_size > 1`.
    pub(super) fn parse_sharded<'a>(&self, text: &'a str) -> Option<(u16, Slice, &'a str)> {
        let (rank, mut text) = take_number(text)?;
        let mut pp = ALL;
        if self.pp_size > 1 {
            (pp, text) = parse_slice(text.strip_prefix('_')?, self.pp_size)?;
        }
        Some((rank, pp, text.strip_prefix('_')?))
    }

    /// The shard of a tensor rank. Its decode-context rank is `tp_rank % dcp_size`.
    pub(super) fn sharded(&self, rank: u16, pp: Slice) -> Option<Shard> {
        let dcp = Slice::new(rank.checked_rem(self.dcp_size)?, self.dcp_size)?;
        Some(Shard::Rank { tp: Slice::new(rank, self.tp_size)?, pp, cp: self.own_cp(), dcp })
    }

    pub(super) fn format_sharded(&self, text: &mut String, shard: Shard) -> Option<()> {
        let Shard::Rank { tp, pp, .. } = shard else { return None };
        let _ = write!(text, "{}", tp.rank);
        if self.pp_size > 1 {
            let _ = write!(text, "_{}", pp.rank);
        }
        Some(())
    }

    /// The reader's own context-parallel rank, used for names that do not contain one.
    fn own_cp(&self) -> Slice {
        Slice::new(self.cp_rank, self.cp_size).unwrap_or(ALL)
    }

    /// Parse the direct linker's `[tp{t}_]cp{c}_pp{p}` and its underscore.
    pub(super) fn parse_linker_ranks<'a>(&self, mut text: &'a str) -> Option<(Shard, &'a str)> {
        let mut tp = ALL;
        if !self.rank_replicated {
            (tp, text) = parse_slice(text.strip_prefix("tp")?, self.tp_size)?;
            text = text.strip_prefix('_')?;
        }
        let (cp, text) = parse_slice(text.strip_prefix("cp")?, self.cp_size)?;
        let (pp, text) = parse_slice(text.strip_prefix("_pp")?, self.pp_size)?;
        Some((Shard::Rank { tp, pp, cp, dcp: ALL }, text.strip_prefix('_')?))
    }

    pub(super) fn format_linker_ranks(&self, text: &mut String, shard: Shard) -> Option<()> {
        let Shard::Rank { tp, pp, cp, .. } = shard else { return None };
        if !self.rank_replicated {
            let _ = write!(text, "tp{}_", tp.rank);
        }
        let _ = write!(text, "cp{}_pp{}", cp.rank, pp.rank);
        Some(())
    }
}

/// Split a rank below `of` off the start of a text; returns it and the rest.
fn parse_slice(text: &str, of: u16) -> Option<(Slice, &str)> {
    let (rank, rest) = take_number(text)?;
    Some((Slice::new(rank, of)?, rest))
}
