//! A client's text is parsed under a configuration and formats back to itself, or it is opaque; 128
//! bytes that are a key have no name or one that parses to the key. The first bytes choose the
//! configuration, the rest is the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_layouts::client_names::sglang::{
    HeadLayers, SglangBackend, SglangConfig, SglangNames,
};
use pagelith_layouts::client_names::vllm::{MAPPED, StoreFormat, VllmConfig, VllmNames};
use pagelith_layouts::client_names::{ClientNames, OPAQUE_POOL, key_of, opaque_key};
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::{ObjectKey, Role};

const NS: NamespaceId = NamespaceId([7; 16]);

/// Three layers of `kv` per stage, and one of the draft on the last.
fn head_layers(pp_size: u16) -> Vec<HeadLayers> {
    let of = |role, pp_rank, from, to| HeadLayers { role, pool: "kv".into(), pp_rank, from, to };
    let kv = (0..pp_size).map(|pp| of(Role::Target, pp, 3 * pp, 3 * pp + 3));
    kv.chain([of(Role::Draft, pp_size.saturating_sub(1), 0, 1)]).collect()
}

/// The configuration of three bytes; `None` if they contradict one another.
fn names(choice: &[u8; 3]) -> Option<ClientNames> {
    let [kind, sizes, more] = choice.map(u16::from);
    let (tp_size, pp_size) = (sizes % 8, sizes / 8 % 4);
    let (a, b) = (more % 4, more / 4 % 4);
    if kind & 1 == 0 {
        let split = kind & 8 != 0;
        let config = SglangConfig {
            backend_tag: (kind & 2 != 0).then(|| "t".into()),
            model_name: if kind & 4 != 0 { "o/m".into() } else { String::new() },
            tp_size,
            pp_size,
            cp_size: a,
            cp_rank: a.saturating_sub(1),
            dcp_size: b,
            logical_page_tokens: (b > 1).then_some(192),
            tp_lcm_size: split.then_some(2 * tp_size),
            head_layers: if split { head_layers(pp_size) } else { Vec::new() },
            rank_replicated: kind & 16 != 0,
            draft_rank_replicated: kind & 32 != 0,
            backend: if kind & 64 != 0 {
                SglangBackend::DirectLinker
            } else {
                SglangBackend::HostPools
            },
        };
        return SglangNames::new(config).ok().map(ClientNames::Sglang);
    }
    let store_format = match kind / 8 % 5 {
        0 => StoreFormat::RankLocal,
        1 => StoreFormat::SharedLbhnc { store_tp_size: 8 },
        2 => StoreFormat::SharedLbnhc { store_tp_size: 8 },
        3 => StoreFormat::SharedMqa,
        _ => StoreFormat::Fallback { layout: "LBHNC".into() },
    };
    let config = VllmConfig {
        cache_prefix: if kind & 2 != 0 { "p".into() } else { String::new() },
        model: if kind & 4 != 0 { "o/m".into() } else { String::new() },
        store_format,
        tp_size,
        pp_size,
        pcp_size: a,
        dcp_size: b,
        group_replication: vec![1 + sizes / 32 % 4],
    };
    VllmNames::new(config).ok().map(ClientNames::Vllm)
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, text)) = data.split_first_chunk::<3>() else { return };
    let Some(names) = names(choice) else { return };
    let key = key_of(NS, text, &names);
    match std::str::from_utf8(text).ok().and_then(|text| Some((text, names.parse(NS, text)?))) {
        None => assert_eq!(key, opaque_key(NS, text)),
        Some((text, read)) => {
            assert_eq!(key, read);
            assert_ne!(key.pool(), OPAQUE_POOL);
            assert_eq!(ObjectKey::decode(key.as_bytes()), Ok(key));
            if key.component() != MAPPED {
                assert_eq!(names.print(&key).as_deref(), Ok(text));
            }
        }
    }
    if let Some(Ok(key)) = text.first_chunk().map(ObjectKey::decode) {
        if let Ok(text) = names.print(&key) {
            assert_eq!(names.parse(key.namespace(), &text), Some(key));
        }
    }
});
