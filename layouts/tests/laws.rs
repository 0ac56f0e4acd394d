//! Properties of random values: `decode(encode(x)) == x`; each text has one key and each key one
//! text; decoding of any bytes never panics and never uses a length beyond the bytes.

mod common;

#[path = "laws/any_bytes.rs"]
mod any_bytes;
#[path = "laws/keys.rs"]
mod keys;
#[path = "laws/manifest.rs"]
mod manifest;
#[path = "laws/namespaces.rs"]
mod namespaces;
#[path = "laws/scan.rs"]
mod scan;
#[path = "laws/structures.rs"]
mod structures;

use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::{Shard, Slice};
use proptest::prelude::*;

/// Configuration with `cases` cases (`PROPTEST_CASES=25600` makes it a hundred times as many).
/// Failures are not stored in a file: a failure that a property finds becomes a named test.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: cases * (default.cases / 256).max(1),
        failure_persistence: None,
        ..default
    }
}

fn slice() -> impl Strategy<Value = Slice> {
    let of = prop_oneof![Just(1u16), 1..9u16, Just(u16::MAX), 1..=u16::MAX];
    let slice = of.prop_flat_map(|of| (0..of, Just(of)));
    slice.prop_map(|(rank, of)| Slice::new(rank, of).expect("rank below of"))
}

fn shard() -> impl Strategy<Value = Shard> {
    let rank = (slice(), slice(), slice(), slice());
    let heads = (slice(), 0..u16::MAX)
        .prop_flat_map(|(group, from)| (Just(group), Just(from), from + 1..=u16::MAX));
    prop_oneof![
        Just(Shard::Whole),
        rank.prop_map(|(tp, pp, cp, dcp)| Shard::Rank { tp, pp, cp, dcp }),
        heads.prop_map(|(group, layer_from, layer_to)| Shard::Heads {
            group,
            layer_from,
            layer_to
        }),
    ]
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Target), Just(Role::Draft)]
}

fn key_in(namespace: impl Strategy<Value = NamespaceId>) -> impl Strategy<Value = ObjectKey> {
    let names = ("[A-Za-z0-9_.-]{1,30}", "[A-Za-z0-9_.-]{1,23}");
    (namespace, any::<[u8; 32]>(), role(), names, shard()).prop_map(
        |(namespace, hash, role, names, shard)| {
            ObjectKey::new(namespace, PrefixHash(hash), role, &names.0, &names.1, shard)
                .expect("valid names")
        },
    )
}

fn key() -> impl Strategy<Value = ObjectKey> {
    key_in(any::<[u8; 16]>().prop_map(NamespaceId))
}
