//! Keys: each text has one key, and each key one text.

use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{config, key, shard};

/// Check that a text is refused or prints as itself.
fn has_one_spelling(text: &str) -> Result<(), TestCaseError> {
    if let Ok(key) = text.parse::<ObjectKey>() {
        prop_assert_eq!(key.to_string(), text);
    }
    Ok(())
}

/// A key that differs in one field only, selected by `which`.
fn neighbour(key: &ObjectKey, which: u8, other: &ObjectKey) -> ObjectKey {
    let role = if key.role() == Role::Target { Role::Draft } else { Role::Target };
    let of = |n, h, r, pool: &str, component: &str, s| {
        ObjectKey::new(n, h, r, pool, component, s).expect("parts of valid keys")
    };
    let (n, h, p, c, s) = (key.namespace(), key.hash(), key.pool(), key.component(), key.shard());
    match which {
        0 => of(other.namespace(), h, key.role(), p, c, s),
        1 => of(n, other.hash(), key.role(), p, c, s),
        2 => of(n, h, role, p, c, s),
        3 => of(n, h, key.role(), other.pool(), c, s),
        4 => of(n, h, key.role(), p, other.component(), s),
        _ => of(n, h, key.role(), p, c, other.shard()),
    }
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn random_key_round_trips_as_bytes_and_text(key in key()) {
        prop_assert_eq!(ObjectKey::decode(key.as_bytes()), Ok(key));
        prop_assert_eq!(key.to_string().parse::<ObjectKey>(), Ok(key));
    }

    #[test]
    fn distinct_keys_have_distinct_texts(a in key(), b in key(), which in 0..6u8) {
        for b in [b, neighbour(&a, which, &b)] {
            prop_assert_eq!(a == b, a.to_string() == b.to_string());
            prop_assert_eq!(a.cmp(&b), a.as_bytes().cmp(b.as_bytes()));
            prop_assert_eq!(a == b, a.cmp(&b).is_eq());
        }
    }

    #[test]
    fn any_text_is_refused_or_round_trips(text in ".{0,200}") {
        has_one_spelling(&text)?;
    }

    #[test]
    fn edited_key_text_is_refused_or_round_trips(
        key in key(),
        at in any::<Index>(),
        what in select(vec!["", "0", "+", "a", "A", "/", ".", ":", "d:", " ", "of", "\u{e9}", "rank", ".tp0of1"]),
        replace in any::<bool>(),
    ) {
        let text = key.to_string();
        let at = at.index(text.len());
        has_one_spelling(&format!("{}{what}{}", &text[..at], &text[at + usize::from(replace)..]))?;
    }

    #[test]
    fn shard_round_trips(shard in shard()) {
        prop_assert_eq!(Shard::parse(&shard.to_string()), Some(shard));
    }

    #[test]
    fn text_of_shard_parts_is_refused_or_round_trips(
        parts in prop::collection::vec(select(vec![
            "whole", "rank", "heads", ".", "tp", "pp", "cp", "dcp", "of", "to", ".layers", "layers",
            "0", "1", "2", "00", "65535", "65536", "+1", "-", "",
        ]), 0..12),
    ) {
        let text = parts.concat();
        if let Some(shard) = Shard::parse(&text) {
            prop_assert_eq!(shard.to_string(), text);
        }
    }

    #[test]
    fn any_128_bytes_are_refused_or_key_with_text(
        base in key(),
        edits in prop::collection::vec((any::<Index>(), prop_oneof![Just(0u8), Just(1), any::<u8>()]), 0..4),
    ) {
        let mut bytes = *base.as_bytes();
        edits.iter().for_each(|(at, value)| bytes[at.index(128)] = *value);
        if let Ok(key) = ObjectKey::decode(&bytes) {
            prop_assert_eq!(key.as_bytes(), &bytes);
            prop_assert_eq!(key.to_string().parse::<ObjectKey>(), Ok(key));
        }
    }

    #[test]
    fn hex_text_is_refused_or_round_trips(text in "[0-9a-fA-F]{30,34}") {
        if let Some(id) = NamespaceId::from_hex(&text) {
            prop_assert_eq!(id.to_string(), text);
        }
    }
}
