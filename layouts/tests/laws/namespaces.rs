//! Namespaces and opaque keys: two namespaces share pages only if they are equal.

use pagelith_layouts::namespace::{LayerRange, Namespace, opaque_hash};
use proptest::prelude::*;

use super::config;

/// Short texts of few letters, so that concatenations are often equal.
fn text() -> impl Strategy<Value = String> {
    "[ab\u{0}]{0,3}"
}

fn namespace() -> impl Strategy<Value = Namespace> {
    let stage = (0..3u32, 0..3u32).prop_map(|(from, to)| LayerRange { from, to });
    let texts = (text(), text(), text(), text(), text());
    let lists = (prop::collection::vec(stage, 0..3), prop::collection::vec((text(), text()), 0..3));
    (texts, 0..3u32, 0..3u32, lists).prop_map(
        |(texts, page_tokens, layout_version, (layer_split, extra))| {
            let (tenant, model, revision, dtype, layout) = texts;
            Namespace {
                tenant,
                model,
                revision,
                dtype,
                page_tokens,
                layout,
                layout_version,
                layer_split,
                extra,
            }
        },
    )
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn only_equal_namespaces_have_equal_ids(a in namespace(), b in namespace()) {
        prop_assert_eq!(a == b, a.id() == b.id());
        prop_assert_eq!(a.id(), a.clone().id());
        // Moving a suffix from one field to the next gives another namespace.
        let moved = Namespace { model: format!("{}{}", a.model, a.revision), revision: String::new(), ..a.clone() };
        prop_assert_eq!(moved == a, moved.id() == a.id());
    }

    #[test]
    fn distinct_opaque_texts_have_distinct_hashes(a in prop::collection::vec(0..3u8, 0..4), b in prop::collection::vec(0..3u8, 0..4)) {
        prop_assert_eq!(a == b, opaque_hash(&a) == opaque_hash(&b));
    }
}
