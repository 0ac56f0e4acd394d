//! Properties for every configuration: `print(parse(text)) == text`, `parse(print(key)) == key`,
//! and every text that does not parse has an opaque key.

use std::collections::HashMap;

use pagelith_layouts::client_names::sglang::{
    HeadLayers, SglangBackend, SglangConfig, SglangNames,
};
use pagelith_layouts::client_names::vllm::{StoreFormat, VllmConfig};
use pagelith_layouts::client_names::{ClientNames, OPAQUE_POOL, key_of, opaque_key};
use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::{Shard, Slice};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{H, NS, config, vllm};

fn size() -> impl Strategy<Value = u16> {
    prop_oneof![Just(1u16), 1..5u16, Just(11)]
}

fn prefix() -> impl Strategy<Value = String> {
    select(vec!["", "m", "org/m", "a_b", "@", "tp_rank:0", "0", H, "d:"]).prop_map(Into::into)
}

/// Layers of `kv` and `swa` on each of `pp_size` stages, and those of the draft on the last.
fn head_layers(pp_size: u16) -> Vec<HeadLayers> {
    let of = |role, pool: &str, pp_rank, from, to| HeadLayers {
        role,
        pool: pool.into(),
        pp_rank,
        from,
        to,
    };
    let target = (0..pp_size)
        .flat_map(|pp| ["kv", "swa"].map(|p| of(Role::Target, p, pp, 4 * pp, 4 * pp + 4)));
    target.chain(["kv", "swa"].map(|pool| of(Role::Draft, pool, pp_size - 1, 0, 1))).collect()
}

prop_compose! {
    fn any_sglang()(
        tag in prop::option::of(prefix()),
        model_name in prefix(),
        (tp, pp_size, cp_size, dcp, split) in (size(), size(), size(), size(), size()),
        cp_rank in any::<Index>(),
        (rank_replicated, draft_rank_replicated, linker) in (any::<bool>(), any::<bool>(), prop::bool::weighted(0.3)),
    ) -> SglangConfig {
        let dcp_size = if rank_replicated && !linker { dcp } else { 1 };
        let shares = !rank_replicated && !linker && cp_size == 1 && split > 1;
        SglangConfig {
            backend_tag: tag,
            model_name,
            tp_size: tp * dcp_size,
            pp_size,
            cp_size,
            cp_rank: cp_rank.index(cp_size.into()) as u16,
            dcp_size,
            logical_page_tokens: (dcp_size > 1).then_some(64 * u32::from(dcp_size)),
            tp_lcm_size: shares.then_some(tp * (split - 1)),
            head_layers: if shares { head_layers(pp_size) } else { Vec::new() },
            rank_replicated,
            draft_rank_replicated,
            backend: if linker { SglangBackend::DirectLinker } else { SglangBackend::HostPools },
        }
    }
}

prop_compose! {
    fn any_vllm()(
        (cache_prefix, model) in (prefix(), prefix()),
        format in 0..5u8,
        (tp, factor, pp_size, pcp, dcp, groups) in (size(), size(), size(), size(), size(), 1..4usize),
    ) -> VllmConfig {
        let tp_size = tp * factor;
        let store_format = match format {
            0 => StoreFormat::RankLocal,
            1 => StoreFormat::SharedLbhnc { store_tp_size: 2 * tp_size },
            2 => StoreFormat::SharedLbnhc { store_tp_size: tp_size },
            3 => StoreFormat::SharedMqa,
            _ => StoreFormat::Fallback { layout: "LBHNC".into() },
        };
        let local = matches!(format, 0 | 4);
        let (pcp_size, dcp_size, groups) = if local { (pcp, dcp, groups) } else { (1, 1, 1) };
        let group_replication = vec![if format == 3 { tp_size } else { factor }; groups];
        VllmConfig {
            cache_prefix, model, store_format, tp_size, pp_size, pcp_size, dcp_size, group_replication,
        }
    }
}

/// Pools and components that some configuration of a client has, and a few that no configuration
/// has.
const SGLANG: [(&str, &str); 15] = [
    ("kv", "k"),
    ("kv", "v"),
    ("kv", "packed"),
    ("mamba", "temporal"),
    ("mamba", "conv_0"),
    ("mamba", "conv_011"),
    ("mamba", "packed"),
    ("indexer", "data"),
    ("swa", "k"),
    ("swa", "v"),
    ("swa", "data"),
    ("deepseek_v4_c4", "data"),
    ("draft", "packed"),
    ("opaque", "packed"),
    ("new", "packed"),
];
const VLLM: [(&str, &str); 5] = [
    ("group_0", "data"),
    ("group_1", "data"),
    ("group_01", "data"),
    ("group_0", "data-mapped"),
    ("group_", "data"),
];

/// A shard with the sizes of a configuration (tensor, pipeline, context, decode context; head
/// groups); `kind` selects the kind of slice. Head groups have layers of [`head_layers`].
fn slices(sizes: [u16; 5], ranks: &[Index; 4], role: Role, kind: u8) -> Shard {
    let slice = |i: usize, on: bool| {
        let of = if on { sizes[i] } else { 1 };
        Slice { rank: ranks[i].index(of.into()) as u16, of }
    };
    match kind {
        0 => Shard::Whole,
        1 => {
            let (rank, of) = (ranks[0].index(sizes[4].into()) as u16, sizes[4]);
            let from = if role == Role::Draft { 0 } else { 4 * slice(1, true).rank };
            let layer_to = if role == Role::Draft { 1 } else { from + 4 };
            Shard::Heads { group: Slice { rank, of }, layer_from: from, layer_to }
        }
        _ => Shard::Rank {
            tp: slice(0, kind & 1 != 0),
            pp: slice(1, true),
            cp: slice(2, true),
            dcp: slice(3, kind & 2 != 0),
        },
    }
}

/// A key without the sizes, which the configuration determines.
#[derive(Clone, Debug)]
struct Part {
    hash: PrefixHash,
    role: Role,
    pool: &'static str,
    component: &'static str,
    ranks: [Index; 4],
    kind: u8,
}

impl Part {
    fn key(&self, sizes: [u16; 5]) -> ObjectKey {
        let shard = slices(sizes, &self.ranks, self.role, self.kind);
        ObjectKey::new(NS, self.hash, self.role, self.pool, self.component, shard)
            .expect("good names")
    }
}

prop_compose! {
    fn part(pools: &'static [(&'static str, &'static str)])(
        hash in prop_oneof![Just([0u8; 32]), any::<[u8; 32]>()].prop_map(PrefixHash),
        role in select(vec![Role::Target, Role::Draft]),
        (pool, component) in select(pools),
        ranks in any::<[Index; 4]>(),
        kind in prop_oneof![1 => Just(0u8), 4 => 1..6u8],
    ) -> Part {
        Part { hash, role, pool, component, ranks, kind }
    }
}

/// A configuration and a key that has a name under it. Too many draws without a name fail the test,
/// so that it cannot pass without testing names.
fn printable() -> impl Strategy<Value = (ClientNames, ObjectKey, String)> {
    let drawn = |(names, key): (ClientNames, ObjectKey)| {
        names.print(&key).ok().map(|text| (names, key, text))
    };
    let sglang = (any_sglang(), part(&SGLANG)).prop_map(|(config, part)| {
        let groups = config.tp_lcm_size.unwrap_or(1);
        let key =
            part.key([config.tp_size, config.pp_size, config.cp_size, config.dcp_size, groups]);
        (super::sglang(config), key)
    });
    let vllm = (any_vllm(), part(&VLLM)).prop_map(|(config, part)| {
        let tp = match config.store_format {
            StoreFormat::SharedLbhnc { store_tp_size }
            | StoreFormat::SharedLbnhc { store_tp_size } => store_tp_size,
            _ => config.tp_size / config.group_replication[0],
        };
        let key = part.key([tp, config.pp_size, config.pcp_size, config.dcp_size, 1]);
        (vllm(config), key)
    });
    prop_oneof![
        3 => sglang.prop_filter_map("no name in SGLang", drawn),
        2 => vllm.prop_filter_map("no name in vLLM", drawn),
    ]
}

fn names() -> impl Strategy<Value = ClientNames> {
    prop_oneof![any_sglang().prop_map(super::sglang), any_vllm().prop_map(vllm)]
}

/// Texts after the hash that some configuration of this file prints, and similar texts that none
/// prints.
fn tail() -> impl Strategy<Value = String> {
    let rank = || select(vec!["", "0", "1", "3", "10", "00", "01", "x", "65536"]);
    let part = select(vec![
        "k",
        "v",
        "swa",
        "swa_k",
        "temporal",
        "conv_0",
        "conv_00",
        "indexer",
        "draft_k",
        "draft_v",
        "draft",
        "draft_indexer",
        "draft_swa",
        "draft_swa_v",
        "deepseek_v4_c1",
        "kv",
        "opaque",
        "d:kv",
        "K",
        "",
    ]);
    let ranks = prop_oneof![
        rank().prop_map(|r| r.to_owned()),
        (rank(), rank()).prop_map(|(a, b)| format!("{a}_{b}")),
        (rank(), rank()).prop_map(|(a, b)| format!("cp{a}_pp{b}")),
        (rank(), rank()).prop_map(|(a, b)| format!("dcp{a}_cp{b}")),
        (rank(), rank(), rank()).prop_map(|(a, b, c)| format!("tp{a}_cp{b}_pp{c}")),
        (rank(), rank(), rank()).prop_map(|(a, b, c)| format!("dcp{a}_cp{b}_{c}")),
    ];
    (ranks, part).prop_map(|(ranks, part)| format!("_{ranks}_{part}"))
}

/// Distinct texts have distinct keys, and distinct keys have distinct texts.
fn both_ways(names: &ClientNames, text: &str) -> Result<Option<ObjectKey>, TestCaseError> {
    let Some(key) = names.parse(NS, text) else { return Ok(None) };
    prop_assert_ne!(key.pool(), OPAQUE_POOL);
    if key.component() != "data-mapped" {
        prop_assert_eq!(names.print(&key), Ok(text.to_owned()));
    }
    Ok(Some(key))
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn printed_key_parses_to_itself((names, key, text) in printable()) {
        prop_assert_eq!(names.parse(NS, &text), Some(key));
        prop_assert_eq!(key_of(NS, text.as_bytes(), &names), key);
    }

    #[test]
    fn edited_text_is_other_key(
        (names, key, text) in printable(),
        at in any::<Index>(),
        to in prop_oneof![select(vec!['0', '1', '2', '_', 'k', 'v', 'a', '@', 'A']), any::<char>()],
    ) {
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        chars[at] = to;
        let edited: String = chars.into_iter().collect();
        let read = both_ways(&names, &edited)?;
        prop_assert_eq!(read == Some(key), edited == text);
        prop_assert_eq!(key_of(NS, edited.as_bytes(), &names) == key, edited == text);
    }

    #[test]
    fn parsed_text_prints_as_itself(sglang in any_sglang(), tail in tail()) {
        let names = SglangNames::new(sglang).expect("a good configuration");
        let group = names.group_id(PrefixHash::from_hex(H).expect("a hash"));
        let text = format!("{}{tail}", group.trim_start_matches("sglang-hicache:"));
        both_ways(&ClientNames::Sglang(names), &text)?;
    }

    #[test]
    fn unparsed_text_is_opaque_key(names in names(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let key = key_of(NS, &bytes, &names);
        prop_assert_eq!(key, opaque_key(NS, &bytes));
        prop_assert_eq!((key.pool(), key.role(), key.shard()), (OPAQUE_POOL, Role::Target, Shard::Whole));
        prop_assert!(names.print(&key).is_err(), "no client has a name for it");
    }
}

/// All texts of a grid under one configuration: each has a key of its own, parsed or opaque.
fn no_two_alike(names: &ClientNames, texts: impl Iterator<Item = String>) -> usize {
    let mut keys = HashMap::new();
    let mut read = 0;
    for text in texts {
        read += usize::from(names.parse(NS, &text).is_some());
        if let Some(other) = keys.insert(key_of(NS, text.as_bytes(), names), text.clone()) {
            assert_eq!(other, text, "two texts for one key");
        }
    }
    read
}

#[test]
fn distinct_texts_have_distinct_keys() {
    let ranks: Vec<String> =
        ["", "0", "1", "2", "0_0", "0_1", "1_0", "2_1", "00", "0_00", "+0"].map(Into::into).into();
    let more =
        ["cp0_pp0", "cp0_pp1", "tp0_cp0_pp0", "tp1_cp0_pp1", "dcp0_cp0", "dcp1_cp0", "dcp1_cp0_1"];
    let parts = "k v kv swa swa_k swa_v temporal conv_0 conv_1 conv_00 indexer draft draft_k draft_v draft_swa \
                 draft_swa_k draft_indexer deepseek_v4_c4 deepseek_v4_c4_state opaque d:kv 0_k _k";
    let texts: Vec<String> = ranks
        .into_iter()
        .chain(more.map(Into::into))
        .flat_map(|ranks| parts.split(' ').map(move |part| format!("{H}_{ranks}_{part}")))
        .collect();
    let mut read = Vec::new();
    for pp_size in [1, 2] {
        for (rank_replicated, draft_rank_replicated) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            for backend in [SglangBackend::HostPools, SglangBackend::DirectLinker] {
                let base = SglangConfig {
                    rank_replicated,
                    draft_rank_replicated,
                    backend,
                    ..Default::default()
                };
                if !rank_replicated && backend == SglangBackend::HostPools {
                    let (tp_lcm_size, head_layers) = (Some(3), head_layers(pp_size));
                    let split = SglangConfig { tp_lcm_size, head_layers, pp_size, ..base.clone() };
                    read.push(no_two_alike(&super::sglang(split), texts.iter().cloned()));
                }
                for tp_size in [1, 3] {
                    let names = super::sglang(SglangConfig { tp_size, pp_size, ..base.clone() });
                    read.push(no_two_alike(&names, texts.iter().cloned()));
                }
            }
        }
    }
    assert!(
        read.iter().all(|read| *read >= 8),
        "the grid has texts for every configuration: {read:?}"
    );

    let texts = ["0", "1", "01", "4"].into_iter().flat_map(|t| {
        let hashes = [H, &H[..62], &H[..32], "", "0"];
        let texts = hashes.map(|h| format!("m@tp_rank:{t}@pcp0@dcp0@pp_rank:0@group:{t}@{h}"));
        texts.into_iter().chain([format!("m@tp_rank:{t}@pcp0@dcp0@pp_rank:0@group:0@{H}@{H}")])
    });
    let config = VllmConfig {
        model: "m".into(),
        tp_size: 4,
        group_replication: vec![1; 2],
        ..Default::default()
    };
    assert_eq!(no_two_alike(&vllm(config), texts), 6);
}
