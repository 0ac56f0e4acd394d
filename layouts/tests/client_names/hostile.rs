//! Texts that no client prints: they are not parsed, and map to opaque keys that no other text has.

use pagelith_layouts::client_names::sglang::{HeadLayers, SglangConfig};
use pagelith_layouts::client_names::vllm::VllmConfig;
use pagelith_layouts::client_names::{ClientNames, key_of, opaque_key};
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;

use super::{H, K, NS, sglang, vllm};

fn kv((pp_rank, from, to): (u16, u16, u16)) -> HeadLayers {
    HeadLayers { role: Role::Target, pool: "kv".into(), pp_rank, from, to }
}

/// Configurations of all three kinds.
fn contexts() -> [ClientNames; 3] {
    let model = || "m".to_owned();
    [
        ClientNames::Opaque,
        sglang(SglangConfig {
            model_name: model(),
            tp_size: 2,
            pp_size: 2,
            tp_lcm_size: Some(4),
            head_layers: [(0, 0, 16), (1, 16, 32)].map(kv).into(),
            ..Default::default()
        }),
        vllm(VllmConfig { model: model(), tp_size: 2, pp_size: 2, ..Default::default() }),
    ]
}

#[test]
fn near_miss_texts_are_not_parsed() {
    let upper = H.to_uppercase();
    let sglang_texts = [
        format!("m_{H}"),
        format!("m_{H}_"),
        format!("m_{H}__"),
        format!("m_{H}_0_0"),
        format!("m_{H}_0_k"),
        format!("m_{H}_0_0_"),
        format!("m_{H}_0_0_k "),
        format!(" m_{H}_0_0_k"),
        format!("m_{H}_0_0_k\0"),
        format!("m_{H}_0_0_k_k"),
        format!("m_{H}_0_0__k"),
        format!("m_{H}_00_0_k"),
        format!("m_{H}_0_00_k"),
        format!("m_{H}_+0_0_k"),
        format!("m_{H}_-0_0_k"),
        // Four head groups (2 ranks of 2), two stages.
        format!("m_{H}_4_0_k"),
        format!("m_{H}_0_2_k"),
        format!("m_{H}_65536_0_k"),
        format!("m_{H}_99999999999999999999999_0_k"),
        // A checkpoint belongs to one of two ranks.
        format!("m_{H}_2_0_temporal"),
        format!("m_{H}_0_0_conv_"),
        format!("m_{H}_0_0_conv_01"),
        format!("m_{H}_0_0_conv_65536"),
        format!("m_{H}_0_0_conv_0_0"),
        format!("m_{H}_0_0_K"),
        format!("m_{H}_0_0_auxiliary_swa"),
        format!("m_{H}_0_0_some_new_pool"),
        // The client's text for a list of ranks, printed if heads are split but the pool is not.
        format!("m_{H}_['0_0', '1_0']_draft_k"),
        // Prefixes of other servers.
        format!("{H}_0_0_k"),
        format!("_{H}_0_0_k"),
        format!("M_{H}_0_0_k"),
        format!("m_m_{H}_0_0_k"),
        format!("m{H}_0_0_k"),
        // Invalid hashes.
        format!("m_{upper}_0_0_k"),
        format!("m_{}_0_0_k", &H[..63]),
        format!("m_{H}0_0_0_k"),
        format!("m_{}g_0_0_k", &H[..63]),
        format!("m_{}\u{e9}_0_0_k", &H[..63]),
        format!("m_{}\u{e9}_0_0_k", &H[..62]),
        // Draft names outside the grammar.
        format!("m_{H}_0_0_d:k"),
        format!("d:m_{H}_0_0_k"),
        format!("m_{H}_d:0_0_k"),
    ];
    let vllm_texts = [
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{upper}"),
        format!("m@tp_rank:00@pcp0@dcp0@pp_rank:0@group:0@{H}"),
        format!("m@tp_rank:2@pcp0@dcp0@pp_rank:0@group:0@{H}"),
        format!("m@tp_rank:0@pcp1@dcp0@pp_rank:0@group:0@{H}"),
        format!("m@tp_rank:0@pcp0@dcp1@pp_rank:0@group:0@{H}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:2@group:0@{H}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:1@{H}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:00@{H}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{H} "),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@@{H}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0{H}"),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@{H}"),
        format!("x@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{H}"),
        format!(
            "m@store_pp:2@store_format:tp_shared_mqa@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{H}"
        ),
        format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:d:0@{H}"),
        format!("m@cfg:0123456789ab@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{H}"),
    ];
    // The unedited texts are parsed, so each refusal above is caused by its edit.
    let [_, sglang, vllm] = contexts();
    assert!(sglang.parse(NS, &format!("m_{H}_3_1_k")).is_some());
    assert!(vllm.parse(NS, &format!("m@tp_rank:1@pcp0@dcp0@pp_rank:1@group:0@{H}")).is_some());
    for text in sglang_texts.iter().chain(&vllm_texts) {
        for names in contexts() {
            assert_eq!(names.parse(NS, text), None, "{text:?}");
            let key = key_of(NS, text.as_bytes(), &names);
            assert_eq!(key, opaque_key(NS, text.as_bytes()));
            assert_eq!((key.role(), key.pool()), (Role::Target, "opaque"), "{text:?}");
        }
    }
}

/// The store's own text form is a key for the key parser, and an opaque text for the client parser.
#[test]
fn own_text_form_is_opaque_to_clients() {
    for text in
        [format!("{K}kv/k/whole"), format!("{K}d:kv/k/whole"), format!("{K}opaque/data/whole")]
    {
        let ours: ObjectKey = text.parse().expect("a key's text");
        for names in contexts() {
            let key = key_of(NS, text.as_bytes(), &names);
            assert_eq!(
                (key.pool(), key.role(), key.shard()),
                ("opaque", Role::Target, Shard::Whole)
            );
            assert_ne!(key, ours);
        }
    }
}

#[test]
fn any_bytes_map_to_opaque_key() {
    let long = vec![b'_'; 10_000_000];
    let nines = format!("m_{H}_{}", "9".repeat(1_000_000));
    let hex = format!("m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{}", "0".repeat(999_999));
    let texts: [&[u8]; 9] = [
        b"",
        b"\0",
        b"_",
        b"\xff\xfe",
        b"m_\xff",
        H.as_bytes(),
        &long,
        nines.as_bytes(),
        hex.as_bytes(),
    ];
    for names in contexts() {
        let mut keys: Vec<_> = texts.iter().map(|text| key_of(NS, text, &names)).collect();
        assert!(keys.iter().all(|key| key.pool() == "opaque" && key.namespace() == NS));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), texts.len());
    }
    // A valid name except for one byte that is not UTF-8.
    let mut text = format!("m_{H}_3_1_k").into_bytes();
    text[0] = 0xff;
    assert_eq!(key_of(NS, &text, &contexts()[1]).pool(), "opaque");
}

/// Computed independently of this code: SHA-256 of "pagelith-opaque-key-v1", 10 as 64 bits, "client
/// key".
#[test]
fn opaque_key_is_stable_and_in_its_namespace() {
    let hash = "9c566e73f9e8a4e7047c29de7389b9ff93c115e84990217f3b3d49aa34e34614";
    let key = opaque_key(NS, b"client key");
    assert_eq!(key.to_string(), format!("{NS}/{hash}/opaque/data/whole"));
    assert_ne!(opaque_key(NamespaceId([0xac; 16]), b"client key"), key);
    let read = sglang(SglangConfig::default()).parse(NamespaceId([0xac; 16]), &format!("{H}_0_k"));
    assert_eq!(read.map(|key| key.namespace()), Some(NamespaceId([0xac; 16])));
}
