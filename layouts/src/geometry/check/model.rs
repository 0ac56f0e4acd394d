//! Checks of a model by itself.

use super::super::error::Problems;
use super::super::model::{
    Attention, Draft, HeadAttention, HitPolicy, Indexer, LatentAttention, LatentRow, LinearState,
    Model, RowPool, StateShape, Window,
};
use super::attentions::pools;
use crate::ids::{NamespaceId, PrefixHash};
use crate::key::ObjectKey;
use crate::shard::Shard;

pub(super) fn check(model: &Model, problems: &mut Problems) {
    at_least_one(problems, "page_tokens", model.page_tokens);
    attention(problems, "attention", &model.attention);
    packed(problems, model);
    indexer(problems, "indexer", model.indexer.as_ref(), &model.attention);
    if let Some(of) = &model.linear {
        linear(problems, of);
    }
    window(problems, "window", model.window.as_ref());
    if let Some(of) = &model.draft {
        draft(problems, of);
    }
    for (i, of) in model.rows.iter().enumerate() {
        rows(problems, &format!("rows[{i}]"), of);
    }
    names(problems, model);
    if model.attention == Attention::Anchor {
        let decides =
            model.indexer.is_some() || model.rows.iter().any(|r| r.hit == HitPolicy::AllPages);
        let rule = "has no bytes and needs another pool with hit policy AllPages";
        problems.demand(decides, "attention", "Anchor", rule);
    }
}

fn at_least_one(problems: &mut Problems, field: &str, value: u32) {
    problems.demand(value > 0, field, value, "must be at least 1");
}

fn attention(problems: &mut Problems, field: &str, of: &Attention) {
    match of {
        Attention::Heads(HeadAttention { layers, kv_heads, k_dim, v_dim, .. }) => {
            for (name, value) in
                [("layers", layers), ("kv_heads", kv_heads), ("k_dim", k_dim), ("v_dim", v_dim)]
            {
                at_least_one(problems, &format!("{field}.{name}"), *value);
            }
        }
        Attention::Latent(LatentAttention { layers, row }) => {
            at_least_one(problems, &format!("{field}.layers"), *layers);
            let (name, value) = match row {
                LatentRow::Parts { lora_rank, .. } => ("lora_rank", lora_rank),
                LatentRow::Packed { bytes } => ("bytes", bytes),
            };
            at_least_one(problems, &format!("{field}.row.{name}"), *value);
        }
        Attention::Anchor => {}
    }
}

fn packed(problems: &mut Problems, model: &Model) {
    let (field, layers) = ("packed_mtp_layers", model.packed_mtp_layers);
    if layers > 0 {
        let rule =
            "must be 0 if draft is set: draft layers are either packed or in pools of their own";
        problems.demand(model.draft.is_none(), field, layers, rule);
        let rule = "must be 0 if attention has no bytes";
        problems.demand(model.attention != Attention::Anchor, field, layers, rule);
    }
}

fn indexer(problems: &mut Problems, field: &str, of: Option<&Indexer>, attention: &Attention) {
    let Some(of) = of else { return };
    at_least_one(problems, &format!("{field}.key_bytes"), of.key_bytes);
    let below = match attention {
        Attention::Heads(heads) => Some(heads.layers),
        Attention::Latent(latent) => Some(latent.layers),
        Attention::Anchor => None,
    };
    let layers = format!("{field}.layers");
    match (of.layers, below) {
        (Some(own), below) => {
            at_least_one(problems, &layers, own);
            let rule = "must not be above the layers of its attention";
            problems.demand(below.is_none_or(|below| own <= below), &layers, own, rule);
        }
        (None, None) => {
            problems.demand(false, &layers, "none", "must be set if attention has no layers")
        }
        (None, Some(_)) => {}
    }
}

fn linear(problems: &mut Problems, of: &LinearState) {
    at_least_one(problems, "linear.layers", of.layers);
    state(problems, "linear.temporal", &of.temporal, false);
    for (i, shape) in of.conv.iter().enumerate() {
        state(problems, &format!("linear.conv[{i}]"), shape, true);
    }
    let some = !of.conv.is_empty() || of.temporal.dims.iter().all(|dim| *dim > 0);
    problems.demand(some, "linear.conv", "none", "must not be empty if temporal has no elements");
}

fn state(problems: &mut Problems, field: &str, of: &StateShape, filled: bool) {
    let (dims, field) = (&of.dims, format!("{field}.dims"));
    problems.demand(!dims.is_empty(), &field, "[]", "must not be empty");
    if filled {
        let rule = "must each be at least 1";
        problems.demand(dims.iter().all(|dim| *dim > 0), &field, format!("{dims:?}"), rule);
    }
}

fn window(problems: &mut Problems, field: &str, of: Option<&Window>) {
    let Some(of) = of else { return };
    at_least_one(problems, &format!("{field}.tokens"), of.tokens);
    let name = format!("{field}.attention");
    attention(problems, &name, &of.attention);
    problems.demand(
        of.attention != Attention::Anchor,
        &name,
        "Anchor",
        "of a window must have bytes",
    );
}

fn draft(problems: &mut Problems, of: &Draft) {
    attention(problems, "draft.attention", &of.attention);
    indexer(problems, "draft.indexer", of.indexer.as_ref(), &of.attention);
    window(problems, "draft.window", of.window.as_ref());
    let some = of.attention != Attention::Anchor || of.indexer.is_some() || of.window.is_some();
    problems.demand(some, "draft", "no pool", "must have attention, indexer or window");
}

fn rows(problems: &mut Problems, field: &str, of: &RowPool) {
    for (name, value) in [
        ("layers", of.layers),
        ("rows", of.rows),
        ("row_bytes", of.row_bytes),
        ("page_multiple", of.page_multiple),
    ] {
        at_least_one(problems, &format!("{field}.{name}"), value);
    }
    if let HitPolicy::TrailingPages(pages) = of.hit {
        at_least_one(problems, &format!("{field}.hit"), pages);
    }
    let (namespace, hash) = (NamespaceId([0; 16]), PrefixHash([0; 32]));
    let key =
        ObjectKey::new(namespace, hash, of.role, &of.name, super::super::names::DATA, Shard::Whole);
    let rule = "must be 1 to 30 of A-Z a-z 0-9 _ - .";
    problems.demand(key.is_ok(), &format!("{field}.name"), format!("{:?}", of.name), rule);
}

/// Clients identify a pool by its name, so names must be unique.
fn names(problems: &mut Problems, model: &Model) {
    let mut names: Vec<String> = pools(model).into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone());
    problems.demand(
        twice.is_none(),
        "rows",
        twice.unwrap_or_default(),
        "must not name a pool twice",
    );
}
