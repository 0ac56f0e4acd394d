//! Key strings of clients: every row of `docs/names.md` as a handwritten pair, properties for
//! random values in both directions, and texts that no client prints.

#[path = "client_names/chain.rs"]
mod chain;
#[path = "client_names/hostile.rs"]
mod hostile;
#[path = "client_names/laws.rs"]
mod laws;
#[path = "client_names/namespaces.rs"]
mod namespaces;
#[path = "client_names/sglang.rs"]
mod sglang;
#[path = "client_names/vllm.rs"]
mod vllm;

use pagelith_layouts::client_names::ClientNames;
use pagelith_layouts::client_names::sglang::{SglangConfig, SglangNames};
use pagelith_layouts::client_names::vllm::{VllmConfig, VllmNames};
use pagelith_layouts::ids::NamespaceId;
use proptest::prelude::ProptestConfig;

const NS: NamespaceId = NamespaceId([0xab; 16]);

/// A page hash as written by a client, and the prefix `NAMESPACE/HASH/` of the key's own text form.
const H: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const K: &str = concat!(
    "abababababababababababababababab/",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef/"
);

fn sglang(config: SglangConfig) -> ClientNames {
    ClientNames::Sglang(SglangNames::new(config).expect("a good configuration"))
}

fn vllm(config: VllmConfig) -> ClientNames {
    ClientNames::Vllm(VllmNames::new(config).expect("a good configuration"))
}

/// Check that each text parses to its key and each key prints as its text. Texts are given without
/// the part before the hash.
fn pairs(names: &ClientNames, head: &str, rows: &[(&str, &str)]) {
    for (tail, key) in rows {
        let (text, key) =
            (format!("{head}{tail}"), format!("{K}{key}").parse().expect("a key's text"));
        assert_eq!(names.parse(NS, &text), Some(key), "{text}");
        assert_eq!(names.print(&key), Ok(text));
    }
}

fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: cases * (default.cases / 256).max(1),
        failure_persistence: None,
        ..default
    }
}
