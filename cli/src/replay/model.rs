//! The flags that select the pages of a model.

use anyhow::Context;
use clap::Args;
use pagelith::layouts::geometry::{Layout, Placement, presets};

use super::pages::{ModelChoice, Pages};

/// The model of a replay.
#[derive(Args, Debug)]
pub(crate) struct ModelFlags {
    /// Model whose pages are stored, with all of its pools and, after a +, those of its draft
    /// model, such as deepseek-v3.2+deepseek-v3.2-mtp; an unknown name prints the list. Each
    /// complete block of the trace is one page of the model; an incomplete block is never stored
    #[arg(long, value_name = "PRESET[+DRAFT]", conflicts_with = "object_bytes")]
    model: Option<String>,
    /// Tensor-parallel ranks of the model; the store is that of rank 0
    #[arg(long, value_name = "N", default_value_t = 1, requires = "model", value_parser = clap::value_parser!(u16).range(1..))]
    tp: u16,
    /// Divide the bytes of every object, rounding up
    #[arg(long, value_name = "N", default_value_t = 1, requires = "model", value_parser = clap::value_parser!(u64).range(1..))]
    scale: u64,
    /// Host layout of the model's pages, which decides what one object is
    #[arg(long, value_name = "NAME", default_value = Layout::PageFirst.name(), requires = "model")]
    layout: String,
    /// Use only these pools of the model, such as kv,mamba [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "model")]
    pools: Option<Vec<String>>,
}

impl ModelFlags {
    /// The pages of the model, if one was given.
    pub(crate) fn pages(&self, source: &str, seed: u64) -> anyhow::Result<Option<Pages>> {
        let Some(name) = &self.model else { return Ok(None) };
        let model = presets::model(name).context("--model")?;
        let layout: Layout = self.layout.parse().context("--layout")?;
        let placement = Placement::tensor_parallel(layout, 0, self.tp);
        let pools = self.pools.as_deref();
        let chosen = ModelChoice { model: &model, placement: &placement, pools, scale: self.scale };
        Pages::of_model(source, seed, &chosen).map(Some)
    }
}
