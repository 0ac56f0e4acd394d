//! Geometry and client names agree: every object of a server's geometry has a name in SGLang's
//! Mooncake backend, and that name parses to the object's key.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::client_names::sglang::{SglangConfig, SglangNames};
use pagelith_layouts::geometry::presets::{DRAFTS, DeepSeekV4Layers, NAMES};
use pagelith_layouts::geometry::{Attention, Geometry, Layout, Model, Placement, presets};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::shard::{Shard, Slice};

const NS: NamespaceId = NamespaceId([0xab; 16]);
const PAGE: PrefixHash = PrefixHash([0xcd; 32]);

/// Every preset, alone and with every draft, and DeepSeek-V4.
fn models() -> Vec<Model> {
    let with = |name: &&str| DRAFTS.map(|draft| format!("{name}+{draft}"));
    let names = NAMES.iter().map(|n| (*n).to_owned()).chain(NAMES.iter().flat_map(with));
    let models = names.map(|name| presets::model(&name).expect("a preset"));
    models
        .chain([presets::deepseek_v4(DeepSeekV4Layers { window: 44, c4: 22, c128: 20 }, 128)])
        .collect()
}

/// Every rank of a server.
fn ranks(server: &Placement) -> impl Iterator<Item = Placement> {
    let (tp, pp, dcp) = (server.tp.of, server.pp.of, server.dcp.of);
    (0..pp).flat_map(move |p| (0..tp).map(move |t| (t, p))).map(move |(t, p)| Placement {
        tp: Slice { rank: t, of: tp },
        pp: Slice { rank: p, of: pp },
        dcp: Slice { rank: t % dcp, of: dcp },
        ..server.clone()
    })
}

/// The objects of a server's page by name; objects without a name, by key.
struct Named {
    names: BTreeMap<String, ObjectKey>,
    nameless: BTreeSet<ObjectKey>,
}

/// `None` if model and placement do not match.
fn named(model: &Model, server: &Placement) -> Option<Named> {
    let mut all = Named { names: BTreeMap::new(), nameless: BTreeSet::new() };
    for rank in ranks(server) {
        let geometry = Geometry::new(model, &rank).ok()?;
        let config = SglangConfig::of(model, &rank).expect("geometry accepted the placement");
        let names =
            SglangNames::new(config).unwrap_or_else(|e| panic!("{e}: {} {rank:?}", model.name));
        let mut keys = Vec::new();
        for pool in &geometry.pools {
            pool.keys(NS, PAGE, &mut keys).expect("keys");
        }
        for key in keys {
            let Ok(name) = names.print(&key) else {
                all.nameless.insert(key);
                continue;
            };
            assert_eq!(names.parse(NS, &name), Some(key), "{name}: {} {rank:?}", model.name);
            // A name identifies one object, for all ranks of the server.
            let before = all.names.insert(name.clone(), key);
            assert!(before.is_none_or(|before| before == key), "{name}: {before:?} and {key}");
        }
    }
    let keys: BTreeSet<_> = all.names.values().collect();
    assert_eq!(keys.len(), all.names.len(), "one object, one name: {} {server:?}", model.name);
    Some(all)
}

fn server(layout: Layout, tp: u16, pp: u16, cp: u16, dcp: u16, lcm: Option<u16>) -> Placement {
    Placement {
        tp: Slice { rank: 0, of: tp },
        pp: Slice { rank: 0, of: pp },
        cp: Slice { rank: cp - 1, of: cp },
        dcp: Slice { rank: 0, of: dcp },
        tp_lcm_size: lcm,
        ..Placement::single(layout)
    }
}

/// All parallel layouts that some preset can have.
fn servers() -> impl Iterator<Item = Placement> {
    let sizes = [
        (1, 1, 1, 1),
        (1, 2, 1, 1),
        (1, 1, 2, 1),
        (2, 4, 1, 1),
        (4, 1, 2, 1),
        (4, 1, 1, 2),
        (8, 1, 1, 8),
    ];
    let sizes = sizes.into_iter().chain([(8, 1, 1, 1), (16, 1, 1, 1), (8, 2, 2, 1), (8, 1, 2, 4)]);
    sizes.flat_map(|(tp, pp, cp, dcp)| {
        Layout::ALL.into_iter().flat_map(move |layout| {
            // Head groups have no context-parallel rank.
            let lcms = [None, Some(tp), Some(2 * tp), Some(8)]
                .into_iter()
                .filter(move |l| l.is_none() || cp == 1);
            lcms.map(move |lcm| server(layout, tp, pp, cp, dcp, lcm))
        })
    })
}

#[test]
fn every_preset_object_has_client_name_that_round_trips() {
    let (mut names, mut split, mut unified) = (0, 0, 0);
    let mut tried: BTreeMap<String, usize> = BTreeMap::new();
    for model in models() {
        for server in servers() {
            let Some(all) = named(&model, &server) else { continue };
            *tried.entry(model.name.clone()).or_default() += 1;
            names += all.names.len();
            split +=
                all.names.values().filter(|key| matches!(key.shard(), Shard::Heads { .. })).count();
            // K and V in one object have no name in this backend: that layout has another key
            // scheme.
            let by_design =
                |key: &ObjectKey| server.layout == Layout::PageUnified && key.component() == "kv";
            let others: Vec<_> = all.nameless.iter().filter(|key| !by_design(key)).collect();
            assert!(others.is_empty(), "{} {server:?}: {others:?}", model.name);
            unified += all.nameless.len();
        }
    }
    assert!(tried.len() == models().len() && tried.values().all(|n| *n > 0), "{tried:?}");
    assert!(names > 10_000 && split > 1000 && unified > 100, "{names} {split} {unified}");
}

/// With one `tp_lcm_size`, all sizes that divide it have the same names for the same objects, for
/// each number of stages. This includes the server with `tp_size == tp_lcm_size`, which splits no
/// heads.
#[test]
fn servers_sharing_head_groups_print_equal_names() {
    for (model, lcm) in [("llama-3-8b+llama-3-8b-eagle3", 8), ("gpt-oss-20b", 8), ("qwen3-235b", 4)]
    {
        let model = presets::model(model).expect("a preset");
        for pp in [1, 2] {
            let at = |tp| {
                named(&model, &server(Layout::PageHead, tp, pp, 1, 1, Some(lcm)))
                    .expect("valid geometry")
                    .names
            };
            let one = at(1);
            assert!(one.values().all(|key| matches!(key.shard(), Shard::Heads { .. })));
            for tp in [2, 4, 8].into_iter().filter(|tp| *tp <= lcm) {
                assert_eq!(at(tp), one, "{} at {tp}", model.name);
            }
        }
    }
}

/// A handwritten list: the names that a rank of 2 prints with `tp_lcm_size` 8, in one stage and in
/// two.
#[test]
fn head_group_names_equal_handwritten_list() {
    let model = presets::model("llama-3-8b+llama-3-8b-eagle3").expect("a preset");
    let packed = presets::model("llama-3-8b+packed-mtp").expect("a preset");
    for (model, pp, tail, object) in [
        (&model, 1, "_4_k", "kv/k/heads4of8.layers0to32"),
        (&model, 1, "_4_draft_v", "d:kv/v/heads4of8.layers0to1"),
        (&model, 2, "_4_0_k", "kv/k/heads4of8.layers0to16"),
        (&model, 2, "_4_1_k", "kv/k/heads4of8.layers16to32"),
        (&model, 2, "_4_1_draft_v", "d:kv/v/heads4of8.layers0to1"),
        // A draft layer that is packed after the target's.
        (&packed, 1, "_7_v", "kv/v/heads7of8.layers0to33"),
        (&packed, 2, "_7_1_v", "kv/v/heads7of8.layers16to33"),
    ] {
        assert!(matches!(model.attention, Attention::Heads(_)));
        let all =
            named(model, &server(Layout::PageHead, 2, pp, 1, 1, Some(8))).expect("valid geometry");
        let key = all.names.get(&format!("{PAGE}{tail}")).map(ToString::to_string);
        assert_eq!(key, Some(format!("{NS}/{PAGE}/{object}")), "{tail}");
    }
}
