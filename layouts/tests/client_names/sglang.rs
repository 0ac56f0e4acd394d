//! SGLang's Mooncake backend, row by row.

use pagelith_layouts::client_names::ClientNames;
use pagelith_layouts::client_names::sglang::{
    HeadLayers, SglangBackend, SglangConfig, SglangNames,
};
use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::Role;

use super::{H, K, NS, pairs, sglang};

fn rows(config: SglangConfig, rows: &[(&str, &str)]) {
    pairs(&sglang(config), H, rows);
}

fn sharded(tp_size: u16, pp_size: u16) -> SglangConfig {
    SglangConfig { tp_size, pp_size, ..Default::default() }
}

fn replicated(tp_size: u16, pp_size: u16) -> SglangConfig {
    SglangConfig {
        tp_size,
        pp_size,
        rank_replicated: true,
        draft_rank_replicated: true,
        ..Default::default()
    }
}

#[test]
fn sharded_model_pools_have_client_names() {
    rows(
        sharded(8, 1),
        &[
            ("_0_k", "kv/k/rank.tp0of8"),
            ("_0_v", "kv/v/rank.tp0of8"),
            ("_7_k", "kv/k/rank.tp7of8"),
            ("_3_temporal", "mamba/temporal/rank.tp3of8"),
            ("_3_conv_0", "mamba/conv_0/rank.tp3of8"),
            ("_3_conv_12", "mamba/conv_12/rank.tp3of8"),
            ("__indexer", "indexer/data/whole"),
            ("__draft_indexer", "d:indexer/data/whole"),
            ("_5_draft_k", "d:kv/k/rank.tp5of8"),
            ("_5_draft_v", "d:kv/v/rank.tp5of8"),
            ("_5_swa_k", "swa/k/rank.tp5of8"),
            ("_5_swa_v", "swa/v/rank.tp5of8"),
            ("_5_draft_swa_k", "d:swa/k/rank.tp5of8"),
            ("_5_draft_swa_v", "d:swa/v/rank.tp5of8"),
        ],
    );
    // One rank of one: the text keeps the number, and `rank` differs from `whole`.
    rows(sharded(1, 1), &[("_0_k", "kv/k/rank"), ("_0_v", "kv/v/rank")]);
}

#[test]
fn sharded_model_pools_in_stages_have_client_names() {
    rows(
        sharded(4, 2),
        &[
            ("_3_0_k", "kv/k/rank.tp3of4.pp0of2"),
            ("_3_1_v", "kv/v/rank.tp3of4.pp1of2"),
            ("_0_1_temporal", "mamba/temporal/rank.tp0of4.pp1of2"),
            ("_2_1_conv_1", "mamba/conv_1/rank.tp2of4.pp1of2"),
            ("_1_indexer", "indexer/data/rank.pp1of2"),
            ("_2_1_draft_k", "d:kv/k/rank.tp2of4.pp1of2"),
            ("_2_1_swa_v", "swa/v/rank.tp2of4.pp1of2"),
            ("_2_1_draft_swa_k", "d:swa/k/rank.tp2of4.pp1of2"),
        ],
    );
}

#[test]
fn rank_replicated_model_pools_have_client_names() {
    rows(
        replicated(8, 1),
        &[
            ("__k", "kv/k/whole"),
            ("__indexer", "indexer/data/whole"),
            ("__draft_k", "d:kv/k/whole"),
            ("__draft_indexer", "d:indexer/data/whole"),
            ("__swa", "swa/data/whole"),
            ("__draft_swa", "d:swa/data/whole"),
            ("_6_temporal", "mamba/temporal/rank.tp6of8"),
            ("_6_conv_0", "mamba/conv_0/rank.tp6of8"),
        ],
    );
    rows(
        replicated(8, 4),
        &[
            ("_3_k", "kv/k/rank.pp3of4"),
            ("_0_indexer", "indexer/data/rank.pp0of4"),
            ("_3_draft_k", "d:kv/k/rank.pp3of4"),
            ("_3_draft_indexer", "d:indexer/data/rank.pp3of4"),
            ("_3_swa", "swa/data/rank.pp3of4"),
            ("_3_draft_swa", "d:swa/data/rank.pp3of4"),
            ("_7_3_temporal", "mamba/temporal/rank.tp7of8.pp3of4"),
        ],
    );
}

/// The draft pool's own class decides its names, not the target's.
#[test]
fn draft_class_decides_draft_names() {
    let eagle = SglangConfig { draft_rank_replicated: false, ..replicated(4, 1) };
    rows(
        eagle,
        &[
            ("__k", "kv/k/whole"),
            ("_2_draft_k", "d:kv/k/rank.tp2of4"),
            ("_2_draft_v", "d:kv/v/rank.tp2of4"),
            ("_2_draft_swa_v", "d:swa/v/rank.tp2of4"),
        ],
    );
    let mla_draft = SglangConfig { draft_rank_replicated: true, ..sharded(4, 1) };
    rows(mla_draft, &[("_2_k", "kv/k/rank.tp2of4"), ("__draft_k", "d:kv/k/whole")]);
}

#[test]
fn deepseek_v4_pools_have_client_names() {
    let pools = [
        "deepseek_v4_c1",
        "deepseek_v4_c1_indexer",
        "deepseek_v4_c1_indexer_scale",
        "deepseek_v4_c2",
        "deepseek_v4_c2_indexer",
        "deepseek_v4_c2_indexer_scale",
        "deepseek_v4_c4",
        "deepseek_v4_c4_rope",
        "deepseek_v4_c4_indexer",
        "deepseek_v4_c4_indexer_scale",
        "deepseek_v4_c128",
        "deepseek_v4_c128_rope",
        "deepseek_v4_c4_state",
        "deepseek_v4_c4_indexer_state",
        "deepseek_v4_c128_state",
    ];
    for pool in pools {
        rows(replicated(8, 1), &[(&format!("__{pool}"), &format!("{pool}/data/whole"))]);
        rows(replicated(8, 2), &[(&format!("_1_{pool}"), &format!("{pool}/data/rank.pp1of2"))]);
    }
}

fn layers(role: Role, pool: &str, pp_rank: u16, from: u16, to: u16) -> HeadLayers {
    HeadLayers { role, pool: pool.into(), pp_rank, from, to }
}

/// A server that shares head groups, with one range of layers per stage.
fn split(tp_size: u16, lcm: u16, head_layers: Vec<HeadLayers>) -> SglangConfig {
    let pp_size = head_layers.iter().map(|l| l.pp_rank + 1).max().expect("a stage");
    SglangConfig { tp_lcm_size: Some(lcm), head_layers, ..sharded(tp_size, pp_size) }
}

fn one_stage() -> Vec<HeadLayers> {
    vec![
        layers(Role::Target, "kv", 0, 0, 32),
        layers(Role::Target, "swa", 0, 0, 12),
        layers(Role::Draft, "kv", 0, 0, 1),
        layers(Role::Draft, "swa", 0, 0, 2),
    ]
}

/// A rank of 2 with `tp_lcm_size` 8 writes four head groups under the names that 8 ranks use. They
/// are the same objects on the server of 8 ranks, which splits no heads.
#[test]
fn head_group_has_same_name_and_key_on_every_server() {
    let heads = [
        ("_0_k", "kv/k/heads0of8.layers0to32"),
        ("_7_v", "kv/v/heads7of8.layers0to32"),
        ("_4_draft_k", "d:kv/k/heads4of8.layers0to1"),
        ("_4_swa_v", "swa/v/heads4of8.layers0to12"),
        ("_4_draft_swa_k", "d:swa/k/heads4of8.layers0to2"),
    ];
    for tp_size in [1, 2, 4, 8] {
        rows(split(tp_size, 8, one_stage()), &heads);
    }
    // A state checkpoint belongs to a rank, not to a head group.
    let server = split(2, 8, one_stage());
    rows(
        server.clone(),
        &[("_1_temporal", "mamba/temporal/rank.tp1of2"), ("_0_conv_2", "mamba/conv_2/rank.tp0of2")],
    );
    rows(server.clone(), &[("__indexer", "indexer/data/whole")]);
    let names = sglang(server);
    for tail in ["_8_k", "_2_temporal", "_08_k", "_0_0_k"] {
        assert_eq!(names.parse(NS, &format!("{H}{tail}")), None, "{tail}");
    }
    // Objects of ranks, other layers or other groups have no name.
    for key in [
        "kv/k/rank.tp0of8",
        "kv/k/heads0of8.layers0to31",
        "kv/k/heads0of4.layers0to32",
        "kv/k/whole",
    ] {
        let key = format!("{K}{key}").parse().expect("a key's text");
        assert!(names.print(&key).is_err(), "{key}");
    }
    // Without `tp_lcm_size`, the object belongs to a rank.
    rows(sharded(8, 1), &[("_4_k", "kv/k/rank.tp4of8")]);
    // A pool without `head_layers`.
    let names = sglang(split(2, 8, vec![layers(Role::Target, "kv", 0, 0, 32)]));
    assert_eq!(names.parse(NS, &format!("{H}_4_draft_k")), None);
}

/// The name has the stage, the key has its layers. A draft is on the last stage, and is the same
/// object for any number of stages.
#[test]
fn head_group_key_has_layers_of_its_stage() {
    let stages = vec![
        layers(Role::Target, "kv", 0, 0, 16),
        layers(Role::Target, "kv", 1, 16, 33),
        layers(Role::Draft, "kv", 1, 0, 1),
    ];
    let server = split(2, 4, stages);
    rows(
        server.clone(),
        &[
            ("_3_0_k", "kv/k/heads3of4.layers0to16"),
            ("_3_1_k", "kv/k/heads3of4.layers16to33"),
            ("_2_1_draft_v", "d:kv/v/heads2of4.layers0to1"),
            ("_1_1_temporal", "mamba/temporal/rank.tp1of2.pp1of2"),
        ],
    );
    let names = sglang(server);
    for tail in ["_3_2_k", "_3_k", "_2_0_draft_v"] {
        assert_eq!(names.parse(NS, &format!("{H}{tail}")), None, "{tail}");
    }
    rows(split(1, 4, one_stage()), &[("_2_draft_v", "d:kv/v/heads2of4.layers0to1")]);
}

#[test]
fn decode_context_ranks_have_client_names() {
    let config = SglangConfig {
        model_name: "deepseek-ai/DeepSeek-V3".into(),
        dcp_size: 4,
        cp_size: 2,
        logical_page_tokens: Some(256),
        ..replicated(8, 1)
    };
    let head = format!("deepseek-ai-DeepSeek-V3_tp8_dcp4_page256_pp1_cp2_{H}");
    pairs(
        &sglang(config.clone()),
        &head,
        &[
            ("_dcp3_cp1_k", "kv/k/rank.cp1of2.dcp3of4"),
            ("_dcp0_cp0_indexer", "indexer/data/rank.cp0of2.dcp0of4"),
            ("_dcp3_cp1_draft_k", "d:kv/k/rank.cp1of2.dcp3of4"),
            ("_6_temporal", "mamba/temporal/rank.tp6of8.cp0of2.dcp2of4"),
        ],
    );
    let staged = SglangConfig { pp_size: 2, cp_size: 1, backend_tag: Some("w7".into()), ..config };
    let head = format!("w7_deepseek-ai-DeepSeek-V3_tp8_dcp4_page256_pp2_cp1_{H}");
    pairs(&sglang(staged), &head, &[("_dcp3_cp0_1_k", "kv/k/rank.pp1of2.dcp3of4")]);
}

/// A name without a context-parallel rank belongs to the rank that parses it.
#[test]
fn name_without_context_rank_is_readers_own() {
    let second = |config| SglangConfig { cp_size: 2, cp_rank: 1, ..config };
    rows(
        second(sharded(4, 1)),
        &[("_3_k", "kv/k/rank.tp3of4.cp1of2"), ("__indexer", "indexer/data/rank.cp1of2")],
    );
    rows(
        second(replicated(4, 1)),
        &[("__k", "kv/k/rank.cp1of2"), ("__swa", "swa/data/rank.cp1of2")],
    );
    rows(second(replicated(4, 2)), &[("_0_k", "kv/k/rank.pp0of2.cp1of2")]);
}

#[test]
fn prefix_before_hash_is_parsed_and_printed() {
    let named = |tag: Option<&str>, model: &str| SglangConfig {
        backend_tag: tag.map(Into::into),
        model_name: model.into(),
        ..Default::default()
    };
    for (tag, model, head) in [
        (None, "", ""),
        (None, "qwen3-8b", "qwen3-8b_"),
        (None, "/data/org/m", "-data-org-m_"),
        (Some("tag"), "", "tag_"),
        (Some("tag"), "a/b_c", "tag_a-b_c_"),
        // An empty tag differs from none: the client still joins it with an underscore.
        (Some(""), "m", "_m_"),
        (Some(""), "", "_"),
    ] {
        let names = sglang(named(tag, model));
        pairs(&names, &format!("{head}{H}"), &[("_0_k", "kv/k/rank")]);
        let ClientNames::Sglang(names) = names else { unreachable!() };
        let page = PrefixHash::from_hex(H).expect("a page hash");
        assert_eq!(names.group_id(page), format!("sglang-hicache:{head}{H}"));
    }
}

#[test]
fn direct_linker_names_any_pool() {
    let linker = |config| SglangConfig { backend: SglangBackend::DirectLinker, ..config };
    rows(
        linker(sharded(4, 2)),
        &[
            ("_tp3_cp0_pp1_k", "kv/packed/rank.tp3of4.pp1of2"),
            ("_tp0_cp0_pp0_mamba", "mamba/packed/rank.tp0of4.pp0of2"),
            ("_tp3_cp0_pp1_draft", "d:kv/packed/rank.tp3of4.pp1of2"),
            ("_tp3_cp0_pp1_draft_indexer", "d:indexer/packed/rank.tp3of4.pp1of2"),
            ("_tp3_cp0_pp1_draft_swa", "d:swa/packed/rank.tp3of4.pp1of2"),
            ("_tp3_cp0_pp1_auxiliary_swa", "auxiliary_swa/packed/rank.tp3of4.pp1of2"),
            ("_tp3_cp0_pp1_some_new_pool", "some_new_pool/packed/rank.tp3of4.pp1of2"),
            ("_tp3_cp0_pp1_draft_new", "draft_new/packed/rank.tp3of4.pp1of2"),
        ],
    );
    rows(
        linker(SglangConfig { cp_size: 2, ..replicated(8, 1) }),
        &[
            ("_cp1_pp0_k", "kv/packed/rank.cp1of2"),
            ("_cp0_pp0_indexer", "indexer/packed/rank.cp0of2"),
        ],
    );
    // A second spelling of `k`, the pool of opaque keys, and an invalid pool name.
    let names = sglang(linker(sharded(1, 1)));
    let long = "p".repeat(31);
    for name in ["kv", "opaque", "", "d:kv", "a b", "a/b", "\u{e9}", &long] {
        assert_eq!(names.parse(NS, &format!("{H}_tp0_cp0_pp0_{name}")), None, "{name:?}");
    }
    assert!(names.parse(NS, &format!("{H}_tp0_cp0_pp0_{}", &long[1..])).is_some());
}

#[test]
fn inconsistent_sglang_config_is_refused_by_field() {
    let linker = SglangBackend::DirectLinker;
    let kv = |pp_rank, from, to| layers(Role::Target, "kv", pp_rank, from, to);
    let page = Some(64);
    let cases = [
        (SglangConfig { tp_size: 0, ..sharded(1, 1) }, "tp_size"),
        (SglangConfig { pp_size: 0, ..sharded(1, 1) }, "pp_size"),
        (SglangConfig { cp_size: 0, ..sharded(1, 1) }, "cp_size"),
        (SglangConfig { cp_size: 2, cp_rank: 2, ..sharded(1, 1) }, "cp_rank"),
        (SglangConfig { dcp_size: 0, ..sharded(1, 1) }, "dcp_size"),
        (split(1, 0, one_stage()), "tp_lcm_size"),
        (split(2, 3, one_stage()), "tp_lcm_size"),
        (split(4, 2, one_stage()), "tp_lcm_size"),
        (SglangConfig { rank_replicated: true, ..split(2, 4, one_stage()) }, "tp_lcm_size"),
        (SglangConfig { backend: linker, ..split(2, 4, one_stage()) }, "tp_lcm_size"),
        (SglangConfig { cp_size: 2, ..split(2, 4, one_stage()) }, "tp_lcm_size"),
        (SglangConfig { head_layers: one_stage(), ..sharded(2, 1) }, "head_layers"),
        (SglangConfig { tp_lcm_size: Some(4), ..sharded(2, 1) }, "head_layers"),
        (SglangConfig { pp_size: 2, ..split(2, 4, one_stage()) }, "head_layers"),
        (
            SglangConfig { pp_size: 1, ..split(2, 4, vec![kv(0, 0, 16), kv(1, 16, 32)]) },
            "head_layers",
        ),
        (split(2, 4, vec![kv(0, 5, 5)]), "head_layers"),
        (split(2, 4, vec![kv(0, 0, 16), kv(0, 16, 32)]), "head_layers"),
        (split(2, 4, vec![kv(0, 0, 16), kv(1, 0, 16)]), "head_layers"),
        (
            SglangConfig { dcp_size: 3, logical_page_tokens: Some(48), ..replicated(8, 1) },
            "dcp_size",
        ),
        (SglangConfig { dcp_size: 2, logical_page_tokens: page, ..sharded(8, 1) }, "dcp_size"),
        (
            SglangConfig {
                dcp_size: 2,
                logical_page_tokens: page,
                backend: linker,
                ..replicated(8, 1)
            },
            "dcp_size",
        ),
        (SglangConfig { dcp_size: 2, ..replicated(8, 1) }, "logical_page_tokens"),
        (
            SglangConfig { dcp_size: 2, logical_page_tokens: Some(0), ..replicated(8, 1) },
            "logical_page_tokens",
        ),
        (
            SglangConfig { dcp_size: 2, logical_page_tokens: Some(63), ..replicated(8, 1) },
            "logical_page_tokens",
        ),
        (SglangConfig { logical_page_tokens: page, ..replicated(8, 1) }, "logical_page_tokens"),
    ];
    for (config, field) in cases {
        let error = SglangNames::new(config.clone()).expect_err("a bad configuration");
        assert_eq!(error.field, field, "{config:?}");
        assert!(error.to_string().contains(&format!("field={field} value=")), "{error}");
    }
}
