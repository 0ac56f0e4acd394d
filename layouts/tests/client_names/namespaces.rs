//! Namespace fingerprints: distinct namespaces have distinct ids.

use pagelith_layouts::client_names::sglang::SglangConfig;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::namespace::{LayerRange, Namespace};
use proptest::prelude::*;

use super::{config, sglang};

fn full() -> Namespace {
    Namespace {
        tenant: "acme".into(),
        model: "llama-3-8b".into(),
        revision: "8c22764".into(),
        dtype: "bf16".into(),
        page_tokens: 64,
        layout: "page_first".into(),
        layout_version: 2,
        layer_split: vec![LayerRange { from: 0, to: 16 }, LayerRange { from: 16, to: 32 }],
        extra: vec![("quant".into(), "none".into())],
    }
}

/// Computed independently of this code, from the rule in `docs/format.md`.
#[test]
fn id_of_namespace_with_layer_split_is_stable() {
    assert_eq!(full().id().to_string(), "edcdfaf0eda2838caa2cb8b37db57a50");
}

type Change = fn(&mut Namespace, &str, u32);

/// Changes of a single field, for every field.
const CHANGES: [Change; 13] = [
    |n, text, _| n.tenant += text,
    |n, text, _| n.model += text,
    |n, text, _| n.revision += text,
    |n, text, _| n.dtype += text,
    |n, text, _| n.layout += text,
    |n, _, by| n.page_tokens ^= by,
    |n, _, by| n.layout_version ^= by,
    |n, _, by| n.layer_split.push(LayerRange { from: by, to: by }),
    |n, _, by| n.layer_split.iter_mut().for_each(|s| s.from ^= by),
    |n, _, by| n.layer_split.iter_mut().for_each(|s| s.to ^= by),
    |n, text, _| n.extra.push((text.into(), String::new())),
    |n, text, _| n.extra.iter_mut().for_each(|(name, _)| name.push_str(text)),
    |n, text, _| n.extra.iter_mut().for_each(|(_, value)| value.push_str(text)),
];

#[test]
fn namespaces_differing_in_one_field_have_different_ids() {
    let base = full();
    let mut seen = vec![base.id(), Namespace { layer_split: vec![], ..base.clone() }.id()];
    for change in CHANGES {
        let mut n = base.clone();
        change(&mut n, "x", 1);
        assert_ne!(n, base);
        assert!(!seen.contains(&n.id()), "{n:?}");
        seen.push(n.id());
    }
}

/// Two clients' configurations under which the same text would name different bytes.
#[test]
fn namespace_facts_separate_equal_keys() {
    let id = |config| -> NamespaceId {
        Namespace { extra: sglang(config).namespace_facts(), ..Default::default() }.id()
    };
    let all = [
        id(SglangConfig::default()),
        id(SglangConfig { backend_tag: Some(String::new()), ..Default::default() }),
        id(SglangConfig { backend_tag: Some("w1".into()), ..Default::default() }),
        id(SglangConfig { backend_tag: Some("w2".into()), ..Default::default() }),
        id(SglangConfig { model_name: "m".into(), ..Default::default() }),
        id(SglangConfig { rank_replicated: true, ..Default::default() }),
        id(SglangConfig { draft_rank_replicated: true, ..Default::default() }),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(!all[i + 1..].contains(a), "{i}");
    }
    // Sizes are in every key and need no separate namespace: servers of 4 and 8 ranks may share
    // one.
    assert_eq!(id(SglangConfig { tp_size: 4, ..Default::default() }), id(SglangConfig::default()));
}

/// Short strings of separators, length prefixes and parts of each other: the most likely collisions
/// of concatenation.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(""),
        Just("a"),
        Just("ab"),
        Just("b"),
        Just("/"),
        Just("_"),
        Just("\0"),
        Just("\u{1}\0\0\0\0\0\0\0"),
        Just("\0\0\0\0\0\0\0\0"),
        Just("pagelith-namespace-v2")
    ];
    prop::collection::vec(piece, 0..3).prop_map(|pieces| pieces.concat())
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(1), Just(64), Just(u32::MAX), any::<u32>()]
}

prop_compose! {
    fn namespace()(
        (tenant, model, revision, dtype, layout) in (text(), text(), text(), text(), text()),
        (page_tokens, layout_version) in (number(), number()),
        extra in prop::collection::vec((text(), text()), 0..3),
        layers in prop::collection::vec((number(), number()), 0..3),
    ) -> Namespace {
        let layer_split = layers.into_iter().map(|(from, to)| LayerRange { from, to }).collect();
        Namespace { tenant, model, revision, dtype, page_tokens, layout, layout_version, layer_split, extra }
    }
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn namespace_ids_are_equal_only_for_equal_namespaces(a in namespace(), b in namespace()) {
        prop_assert_eq!(a.id() == b.id(), a == b);
        prop_assert_eq!(a.id(), a.clone().id());
    }

    #[test]
    fn change_of_any_field_changes_namespace_id(n in namespace(), which in 0..CHANGES.len(), by in 1..u32::MAX) {
        let mut changed = n.clone();
        CHANGES[which](&mut changed, "\0", by);
        prop_assert_eq!(n.id() == changed.id(), n == changed);
    }

    /// The boundary between two strings moves; their concatenation stays the same.
    #[test]
    fn moved_field_boundary_changes_namespace_id(n in namespace(), at in any::<prop::sample::Index>()) {
        let joined = format!("{}{}", n.model, n.revision);
        let mut cut = at.index(joined.len() + 1);
        while !joined.is_char_boundary(cut) {
            cut -= 1;
        }
        let (model, revision) = (joined[..cut].to_owned(), joined[cut..].to_owned());
        let moved = Namespace { model, revision, ..n.clone() };
        prop_assert_eq!(n.id() == moved.id(), n == moved);
    }
}
