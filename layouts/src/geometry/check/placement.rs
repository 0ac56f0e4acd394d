//! Checks that a model can be divided and laid out according to a placement.

use super::super::error::Problems;
use super::super::layout::{Class, Layout};
use super::super::model::{Attention, HeadAttention, Indexer, Model, Placement};
use super::attentions::{attentions, pools};
use crate::key::Role;

/// Check that every slice is valid; false if one is not.
pub(super) fn slices(placement: &Placement, problems: &mut Problems) -> bool {
    let before = problems.0.len();
    let Placement { tp, pp, cp, dcp, .. } = placement;
    for (name, slice) in [("tp", tp), ("pp", pp), ("cp", cp), ("dcp", dcp)] {
        let (field, value) = (format!("placement.{name}"), format!("{}of{}", slice.rank, slice.of));
        problems.demand(slice.rank < slice.of, &field, value, "rank must be below size");
    }
    problems.0.len() == before
}

/// Check that tokens, layers and heads can be divided. Every size is at least 1.
pub(super) fn division(model: &Model, placement: &Placement, problems: &mut Problems) {
    context(model, placement, problems);
    stages(model, placement, problems);
    for named in attentions(model) {
        if let Attention::Heads(heads) = named.attention {
            let packed = if named.pool == "kv" { model.packed_mtp_layers } else { 0 };
            tensor(heads, packed, &format!("{}.kv_heads", named.field), placement, problems);
        }
    }
    state(model, placement, problems);
    if let Some(lcm) = placement.tp_lcm_size {
        let field = "placement.tp_lcm_size";
        let multiple = lcm > 0 && lcm.is_multiple_of(placement.tp.of);
        problems.demand(
            multiple,
            field,
            lcm,
            &format!("must be a multiple of the tp size {}", placement.tp.of),
        );
        // The shard of a head group has no context-parallel rank: all ranks would have the same
        // key.
        let cp = placement.cp.of;
        problems.demand(cp == 1, "placement.cp", cp, "must be 1 with tp_lcm_size");
    }
}

fn context(model: &Model, placement: &Placement, problems: &mut Problems) {
    let (tp, dcp) = (placement.tp, placement.dcp);
    if dcp.of == 1 {
        return;
    }
    let (field, value) = ("placement.dcp", format!("{}of{}", dcp.rank, dcp.of));
    let latent = matches!(model.attention, Attention::Latent(_));
    problems.demand(latent, field, &value, "above 1 needs MLA attention");
    problems.demand(tp.of.is_multiple_of(dcp.of), field, &value, "size must divide the tp size");
    problems.demand(
        tp.rank % dcp.of == dcp.rank,
        field,
        &value,
        "rank must be the tp rank modulo its size",
    );
    let divides = model.page_tokens.is_multiple_of(dcp.of.into());
    problems.demand(
        divides,
        "page_tokens",
        model.page_tokens,
        "must be a multiple of the dcp size",
    );
}

fn stages(model: &Model, placement: &Placement, problems: &mut Problems) {
    let pp = placement.pp.of;
    let rule = format!("must be a multiple of the pp size {pp}");
    let mut even = |field: &str, layers: u32| {
        problems.demand(layers.is_multiple_of(pp.into()), field, layers, &rule);
    };
    for named in attentions(model).iter().filter(|a| a.staged) {
        match named.attention {
            Attention::Heads(heads) => even(&format!("{}.layers", named.field), heads.layers),
            Attention::Latent(latent) => even(&format!("{}.layers", named.field), latent.layers),
            Attention::Anchor => {}
        }
    }
    if let Some(Indexer { layers: Some(layers), .. }) = model.indexer {
        even("indexer.layers", layers);
    }
    if let Some(linear) = &model.linear {
        even("linear.layers", linear.layers);
    }
    for (i, rows) in model.rows.iter().enumerate().filter(|(_, r)| r.role == Role::Target) {
        even(&format!("rows[{i}].layers"), rows.layers);
    }
}

fn tensor(
    heads: &HeadAttention,
    packed: u32,
    field: &str,
    placement: &Placement,
    problems: &mut Problems,
) {
    let (all, tp) = (heads.kv_heads, u32::from(placement.tp.of));
    if all == 0 {
        return;
    }
    let divides = all.is_multiple_of(tp) || tp.is_multiple_of(all);
    let rule = format!("must be a multiple of the tp size {tp}, or divide it (replicated heads)");
    problems.demand(divides, field, all, &rule);
    let Some(lcm) = placement.tp_lcm_size.filter(|lcm| *lcm > 0) else { return };
    let rule =
        format!("must be a multiple of tp_lcm_size {lcm}: no head group is finer than a head");
    problems.demand(all.is_multiple_of(lcm.into()), field, all, &rule);
    // A shard has 16 bits for a layer number; packed layers follow the target's.
    let layers = u64::from(heads.layers) + u64::from(packed);
    let field = field.replace("kv_heads", "layers");
    problems.demand(
        layers < 1 << 16,
        &field,
        layers,
        "must be below 2^16 with tp_lcm_size, packed ones included",
    );
}

fn state(model: &Model, placement: &Placement, problems: &mut Problems) {
    let Some(linear) = &model.linear else { return };
    let tp = placement.tp.of;
    let rule = format!("must be a multiple of the tp size {tp}");
    let shapes =
        linear.conv.iter().enumerate().map(|(i, shape)| (format!("linear.conv[{i}]"), shape));
    for (name, shape) in shapes.chain([("linear.temporal".to_owned(), &linear.temporal)]) {
        let first = shape.dims.first().copied().unwrap_or_default();
        problems.demand(first.is_multiple_of(tp.into()), &format!("{name}.dims[0]"), first, &rule);
    }
}

/// Check that the layout can hold every pool.
pub(super) fn layout(model: &Model, placement: &Placement, problems: &mut Problems) {
    let layout = placement.layout;
    for (pool, class) in pools(model) {
        let Some(class) = class else { continue };
        // In this layout an indexer has no pool of its own: it is stored with the latent rows,
        // under their key.
        let split = layout == Layout::PageFirstKvSplit && class == Class::Indexer;
        let attention = if pool == "indexer" {
            Some(&model.attention)
        } else {
            model.draft.as_ref().map(|d| &d.attention)
        };
        let reason = match attention {
            Some(Attention::Latent(_)) if split => None,
            _ if split => Some("page_first_kv_split holds an indexer only together with MLA rows"),
            _ => layout.refuses(class),
        };
        if let Some(reason) = reason {
            let rule = format!("cannot hold pool={pool} class={}: {reason}", class.name());
            problems.demand(false, "placement.layout", layout, &rule);
        }
    }
    if let Some(lcm) = placement.tp_lcm_size {
        let by_heads = matches!(layout, Layout::PageHead | Layout::PageUnified);
        let rule = format!("must be page_head or page_unified with tp_lcm_size {lcm}");
        problems.demand(by_heads, "placement.layout", layout, &rule);
    }
}
