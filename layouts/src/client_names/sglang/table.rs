//! Table of the objects that the Mooncake backend names, from `_get_hybrid_page_component_keys` and
//! the three buffer functions of `mooncake_store.py`.

use super::config::SglangConfig;
use crate::client_names::{DATA, take_number};
use crate::key::Role;
use crate::shard::Shard;

/// The fields in a text after its page hash.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) role: Role,
    pub(super) pool: &'a str,
    pub(super) component: &'a str,
    pub(super) shard: Shard,
}

/// Condition under which a server prints a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowCondition {
    Always,
    /// `rank_replicated == replicated`.
    Target {
        replicated: bool,
    },
    /// `draft_rank_replicated == replicated`.
    Draft {
        replicated: bool,
    },
}

/// One kind of object.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The text after the ranks; empty for a convolution state, whose component is the tail itself.
    pub tail: &'static str,
    /// Whether a tensor rank (`mha_suffix`) precedes the tail; else the object is shared by all
    /// tensor ranks (`mla_suffix`).
    pub sharded: bool,
    /// Whether the object is K or V by heads, which servers of different sizes may share by head
    /// group.
    pub heads: bool,
    pub role: Role,
    pub pool: &'static str,
    component: &'static str,
    when: RowCondition,
}

impl Row {
    pub fn part<'a>(&self, tail: &'a str, shard: Shard) -> Part<'a> {
        let component = if self.component.is_empty() { tail } else { self.component };
        Part { role: self.role, pool: self.pool, component, shard }
    }
}

const fn heads(
    tail: &'static str,
    role: Role,
    pool: &'static str,
    component: &'static str,
    when: RowCondition,
) -> Row {
    Row { tail, sharded: true, heads: true, role, pool, component, when }
}

const fn shared(
    tail: &'static str,
    role: Role,
    pool: &'static str,
    component: &'static str,
    when: RowCondition,
) -> Row {
    Row { tail, sharded: false, heads: false, role, pool, component, when }
}

/// A pool whose page is a single object with the name of the pool.
const fn one(pool: &'static str) -> Row {
    shared(pool, Role::Target, pool, DATA, RowCondition::Always)
}

const fn mamba(tail: &'static str) -> Row {
    Row {
        tail,
        sharded: true,
        heads: false,
        role: Role::Target,
        pool: "mamba",
        component: tail,
        when: RowCondition::Always,
    }
}

const SHARDED: RowCondition = RowCondition::Target { replicated: false };
const REPLICATED: RowCondition = RowCondition::Target { replicated: true };
const DRAFT_SHARDED: RowCondition = RowCondition::Draft { replicated: false };
const DRAFT_REPLICATED: RowCondition = RowCondition::Draft { replicated: true };

/// A convolution state; the only object whose tail contains a number.
const CONV: Row = mamba("");

const ROWS: [Row; 31] = [
    heads("k", Role::Target, "kv", "k", SHARDED),
    heads("v", Role::Target, "kv", "v", SHARDED),
    shared("k", Role::Target, "kv", "k", REPLICATED),
    mamba("temporal"),
    one("indexer"),
    heads("draft_k", Role::Draft, "kv", "k", DRAFT_SHARDED),
    heads("draft_v", Role::Draft, "kv", "v", DRAFT_SHARDED),
    shared("draft_k", Role::Draft, "kv", "k", DRAFT_REPLICATED),
    shared("draft_indexer", Role::Draft, "indexer", DATA, RowCondition::Always),
    heads("swa_k", Role::Target, "swa", "k", SHARDED),
    heads("swa_v", Role::Target, "swa", "v", SHARDED),
    shared("swa", Role::Target, "swa", DATA, REPLICATED),
    // The class of the draft's window follows neither flag; its two forms have different component
    // names.
    heads("draft_swa_k", Role::Draft, "swa", "k", RowCondition::Always),
    heads("draft_swa_v", Role::Draft, "swa", "v", RowCondition::Always),
    shared("draft_swa", Role::Draft, "swa", DATA, RowCondition::Always),
    CONV,
    one("deepseek_v4_c1"),
    one("deepseek_v4_c1_indexer"),
    one("deepseek_v4_c1_indexer_scale"),
    one("deepseek_v4_c2"),
    one("deepseek_v4_c2_indexer"),
    one("deepseek_v4_c2_indexer_scale"),
    one("deepseek_v4_c4"),
    one("deepseek_v4_c4_indexer"),
    one("deepseek_v4_c4_indexer_scale"),
    one("deepseek_v4_c4_rope"),
    one("deepseek_v4_c4_state"),
    one("deepseek_v4_c4_indexer_state"),
    one("deepseek_v4_c128"),
    one("deepseek_v4_c128_rope"),
    one("deepseek_v4_c128_state"),
];

/// Whether a text is `conv_{i}`.
fn is_conv(text: &str) -> bool {
    text.strip_prefix("conv_").and_then(take_number).is_some_and(|(_, rest)| rest.is_empty())
}

fn applies(config: &SglangConfig, when: RowCondition) -> bool {
    match when {
        RowCondition::Always => true,
        RowCondition::Target { replicated } => config.rank_replicated == replicated,
        RowCondition::Draft { replicated } => config.draft_rank_replicated == replicated,
    }
}

/// The row for the text after the ranks.
pub(super) fn by_tail(config: &SglangConfig, tail: &str, sharded: bool) -> Option<&'static Row> {
    ROWS.iter().find(|row| {
        let named = if row.tail.is_empty() { is_conv(tail) } else { row.tail == tail };
        named && row.sharded == sharded && applies(config, row.when)
    })
}

/// The row for a key's fields.
pub(super) fn by_part(config: &SglangConfig, part: Part<'_>) -> Option<&'static Row> {
    ROWS.iter().find(|row| {
        let named = if row.component.is_empty() {
            is_conv(part.component)
        } else {
            row.component == part.component
        };
        named && row.role == part.role && row.pool == part.pool && applies(config, row.when)
    })
}
