//! Checks that a model and a placement are valid and match. All problems are collected, so that a
//! caller can fix them at once.

mod model;
mod placement;

use super::error::Problems;
use super::layout::Class;
use super::model::{Attention, Model, Placement};
use crate::key::Role;

/// Add every problem to `problems`.
pub(super) fn check(model: &Model, placement: &Placement, problems: &mut Problems) {
    let slices_ok = placement::slices(placement, problems);
    model::check(model, problems);
    // Divisibility can be checked only if every slice is valid.
    if slices_ok {
        placement::division(model, placement, problems);
    }
    placement::layout(model, placement, problems);
}

/// An attention and the name of its field.
struct NamedAttention<'a> {
    field: &'static str,
    pool: &'static str,
    attention: &'a Attention,
    /// Whether its layers are divided among the pipeline stages.
    staged: bool,
}

/// All attentions of the model.
fn attentions(model: &Model) -> Vec<NamedAttention<'_>> {
    let named = |field, pool, attention, staged| NamedAttention { field, pool, attention, staged };
    let mut all = vec![named("attention", "kv", &model.attention, true)];
    if let Some(window) = &model.window {
        all.push(named("window.attention", "swa", &window.attention, true));
    }
    if let Some(draft) = &model.draft {
        all.push(named("draft.attention", "draft", &draft.attention, false));
        if let Some(window) = &draft.window {
            all.push(named("draft.window.attention", "draft_swa", &window.attention, false));
        }
    }
    all
}

/// All pools of the model: client name and class (`None` for a logical anchor).
fn pools(model: &Model) -> Vec<(String, Option<Class>)> {
    let mut all: Vec<(String, Option<Class>)> = attentions(model)
        .iter()
        .filter(|a| a.pool == "kv" || *a.attention != Attention::Anchor)
        .map(|a| (a.pool.to_owned(), class(a.attention)))
        .collect();
    let draft_indexer = model.draft.as_ref().and_then(|d| d.indexer.as_ref());
    for (name, indexer) in [("indexer", model.indexer.as_ref()), ("draft_indexer", draft_indexer)] {
        all.extend(indexer.map(|_| (name.to_owned(), Some(Class::Indexer))));
    }
    all.extend(model.linear.as_ref().map(|_| ("mamba".to_owned(), Some(Class::State))));
    for rows in &model.rows {
        let mark = if rows.role == Role::Draft { "draft_" } else { "" };
        all.push((format!("{mark}{}", rows.name), Some(Class::Rows)));
    }
    all
}

fn class(attention: &Attention) -> Option<Class> {
    match attention {
        Attention::Heads(heads) if heads.k_dim == heads.v_dim => Some(Class::Heads),
        Attention::Heads(_) => Some(Class::AsymmetricHeads),
        Attention::Latent(_) => Some(Class::Latent),
        Attention::Anchor => None,
    }
}
