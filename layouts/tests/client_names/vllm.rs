//! Key strings of vLLM's Mooncake connector, for every form.

use pagelith_layouts::client_names::vllm::{MAPPED, StoreFormat, VllmConfig, VllmNames};
use pagelith_layouts::namespace::Namespace;

use super::{H, NS, pairs, vllm};

fn rows(config: VllmConfig, rows: &[(String, &str)]) {
    let rows: Vec<_> = rows.iter().map(|(text, key)| (&**text, *key)).collect();
    pairs(&vllm(config), "", &rows);
}

fn llama(tp_size: u16) -> VllmConfig {
    VllmConfig { model: "meta-llama/Llama-3-8B".into(), tp_size, ..Default::default() }
}

#[test]
fn plain_key_strings_are_parsed_and_printed() {
    rows(
        llama(8),
        &[
            (
                format!("Llama-3-8B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{H}"),
                "group_0/data/rank.tp0of8",
            ),
            (
                format!("Llama-3-8B@tp_rank:7@pcp0@dcp0@pp_rank:0@group:0@{H}"),
                "group_0/data/rank.tp7of8",
            ),
        ],
    );
    let all = VllmConfig {
        pp_size: 2,
        pcp_size: 3,
        dcp_size: 4,
        group_replication: vec![1; 11],
        ..llama(4)
    };
    rows(
        all,
        &[(
            format!("Llama-3-8B@tp_rank:3@pcp2@dcp3@pp_rank:1@group:10@{H}"),
            "group_10/data/rank.tp3of4.pp1of2.cp2of3.dcp3of4",
        )],
    );
}

#[test]
fn cache_prefix_and_model_basename_are_in_key_string() {
    for (prefix, model, head) in [
        ("", "m", "m"),
        ("", "/models/a/m//", "m"),
        ("fleet-7", "org/m", "fleet-7@m"),
        ("a@b", "m", "a@b@m"),
        ("", "", ""),
    ] {
        let config =
            VllmConfig { cache_prefix: prefix.into(), model: model.into(), ..Default::default() };
        let text = format!("{head}@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{H}");
        rows(config, &[(text, "group_0/data/rank")]);
    }
}

/// Ranks with equal bytes write one object, so a group has as many slices as it has distinct ones.
#[test]
fn replicated_group_has_fewer_tensor_slices() {
    let config = VllmConfig { group_replication: vec![8, 2, 1], ..llama(8) };
    let text = |t, g| format!("Llama-3-8B@tp_rank:{t}@pcp0@dcp0@pp_rank:0@group:{g}@{H}");
    rows(
        config.clone(),
        &[
            (text(0, 0), "group_0/data/rank"),
            (text(3, 1), "group_1/data/rank.tp3of4"),
            (text(7, 2), "group_2/data/rank.tp7of8"),
        ],
    );
    for (t, g) in [(1, 0), (4, 1), (8, 2), (0, 3)] {
        assert_eq!(vllm(config.clone()).parse(NS, &text(t, g)), None, "tp_rank={t} group={g}");
    }
}

#[test]
fn store_format_is_in_key_string() {
    let with = |store_format, group_replication| VllmConfig {
        store_format,
        group_replication,
        pp_size: 2,
        ..llama(4)
    };
    let tail = |t| format!("@tp_rank:{t}@pcp0@dcp0@pp_rank:1@group:0@{H}");
    let eighth = "group_0/data/rank.tp7of8.pp1of2";
    for (format, namespace, rank, key) in [
        (
            StoreFormat::SharedLbhnc { store_tp_size: 8 },
            "@store_tp:8@store_pp:2@store_format:tp_shared_lbhnc",
            7,
            eighth,
        ),
        (
            StoreFormat::SharedLbnhc { store_tp_size: 8 },
            "@store_tp:8@store_pp:2@store_format:tp_shared_lbnhc",
            7,
            eighth,
        ),
        (
            StoreFormat::SharedMqa,
            "@store_pp:2@store_format:tp_shared_mqa",
            0,
            "group_0/data/rank.pp1of2",
        ),
        (
            StoreFormat::Fallback { layout: "LBHNC".into() },
            "@store_pp:2@store_format:rank_local_tp4_layout_LBHNC",
            3,
            "group_0/data/rank.tp3of4.pp1of2",
        ),
    ] {
        let replication = if format == StoreFormat::SharedMqa { 4 } else { 1 };
        let config = with(format, vec![replication]);
        rows(config.clone(), &[(format!("Llama-3-8B{namespace}{}", tail(rank)), key)]);
        let plain = format!("Llama-3-8B{}", tail(0));
        assert_eq!(vllm(config).parse(NS, &plain), None, "another store format: {plain}");
    }
}

/// A block hash that is not 32 bytes long is mapped one way: the key has the group and rank, but
/// cannot be printed.
#[test]
fn block_hash_of_other_length_is_mapped_one_way() {
    let names = vllm(llama(2));
    let head = "Llama-3-8B@tp_rank:1@pcp0@dcp0@pp_rank:0@group:0@";
    let key =
        names.parse(NS, &format!("{head}{}", "0f".repeat(16))).expect("16 bytes are a block hash");
    // SHA-256 of "pagelith-vllm-block-hash-v1", 32 as 64 bits, and the hexadecimal text; computed
    // independently.
    let mapped = "ba87132ac561c659e77857a09a9fc4bb732c5729e98fcfb37719b924fe5958f1";
    assert_eq!(key.to_string(), format!("{NS}/{mapped}/group_0/{MAPPED}/rank.tp1of2"));
    assert!(names.print(&key).expect_err("mapped").rule.contains("cannot be restored"));
    let mut seen = vec![key];
    for hex in [
        "00",
        "0000",
        &"0f".repeat(8),
        &"0f".repeat(17),
        &"0f".repeat(33),
        &"0f".repeat(500),
        mapped,
    ] {
        let key = names.parse(NS, &format!("{head}{hex}")).expect("whole bytes");
        assert!(!seen.contains(&key), "{hex}");
        seen.push(key);
    }
    // A block hash of 32 bytes that equals a mapped hash is another object.
    assert_eq!(seen[7].hash(), seen[0].hash());
    for hex in ["", "0", "0f0", "0F", "0g", "0f 0", "\u{e9}"] {
        assert_eq!(names.parse(NS, &format!("{head}{hex}")), None, "{hex:?}");
    }
}

#[test]
fn inconsistent_vllm_config_is_refused_by_field() {
    let shared = |store_tp_size| StoreFormat::SharedLbhnc { store_tp_size };
    let cases = [
        (VllmConfig { tp_size: 0, ..llama(1) }, "tp_size"),
        (VllmConfig { pp_size: 0, ..llama(1) }, "pp_size"),
        (VllmConfig { pcp_size: 0, ..llama(1) }, "pcp_size"),
        (VllmConfig { dcp_size: 0, ..llama(1) }, "dcp_size"),
        (VllmConfig { group_replication: vec![], ..llama(1) }, "group_replication"),
        (VllmConfig { group_replication: vec![0], ..llama(1) }, "group_replication"),
        (VllmConfig { group_replication: vec![1, 3], ..llama(8) }, "group_replication"),
        (VllmConfig { group_replication: vec![1; 65_536], ..llama(8) }, "group_replication"),
        (VllmConfig { store_format: shared(0), ..llama(4) }, "store_tp_size"),
        (VllmConfig { store_format: shared(6), ..llama(4) }, "store_tp_size"),
        (VllmConfig { store_format: shared(2), ..llama(4) }, "store_tp_size"),
        (VllmConfig { store_format: shared(8), dcp_size: 2, ..llama(4) }, "store_format"),
        (VllmConfig { store_format: shared(8), pcp_size: 2, ..llama(4) }, "store_format"),
        (
            VllmConfig { store_format: shared(8), group_replication: vec![1, 1], ..llama(4) },
            "store_format",
        ),
        (VllmConfig { store_format: StoreFormat::SharedMqa, ..llama(4) }, "group_replication"),
    ];
    for (config, field) in cases {
        let error = VllmNames::new(config).expect_err("a bad configuration");
        assert_eq!(error.field, field, "{error}");
    }
}

/// Key strings that differ only in prefix or store format have equal keys, so their namespaces must
/// differ.
#[test]
fn vllm_namespace_facts_separate_equal_keys() {
    let id =
        |config| Namespace { extra: vllm(config).namespace_facts(), ..Default::default() }.id();
    let replicated =
        |store_format| VllmConfig { store_format, group_replication: vec![4], ..llama(4) };
    let all = [
        id(llama(4)),
        id(VllmConfig { cache_prefix: "a".into(), ..llama(4) }),
        id(VllmConfig { model: "other".into(), ..llama(4) }),
        id(replicated(StoreFormat::SharedMqa)),
        id(replicated(StoreFormat::Fallback { layout: "LBHNC".into() })),
        id(replicated(StoreFormat::Fallback { layout: "LBNHC".into() })),
        id(VllmConfig { store_format: StoreFormat::SharedLbhnc { store_tp_size: 4 }, ..llama(4) }),
        id(VllmConfig { store_format: StoreFormat::SharedLbnhc { store_tp_size: 4 }, ..llama(4) }),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(!all[i + 1..].contains(a), "{i}");
    }
}
