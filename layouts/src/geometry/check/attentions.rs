//! The attentions and pools of a model, by name.

use super::super::layout::Class;
use super::super::model::{Attention, Model};
use crate::key::Role;

/// An attention and the name of its field.
pub(super) struct NamedAttention<'a> {
    pub(super) field: &'static str,
    pub(super) pool: &'static str,
    pub(super) attention: &'a Attention,
    /// Whether its layers are divided among the pipeline stages.
    pub(super) staged: bool,
}

/// All attentions of the model.
pub(super) fn attentions(model: &Model) -> Vec<NamedAttention<'_>> {
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
pub(super) fn pools(model: &Model) -> Vec<(String, Option<Class>)> {
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
