//! Namespaces: sets of servers that may share pages. And the cryptographic hash that maps opaque
//! keys.

use sha2::{Digest, Sha256};

use crate::ids::{NamespaceId, PrefixHash};

/// Domain tags of equal length: descriptions with different tags never hash the same input.
const TAG: &[u8; 21] = b"pagelith-namespace-v1";
const TAG_WITH_LAYERS: &[u8; 21] = b"pagelith-namespace-v2";

/// Describes pages that servers may share. Two servers that differ in any field never see each
/// other's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Tenant; tenants never share pages.
    pub tenant: String,
    /// Model name.
    pub model: String,
    /// Weights revision.
    pub revision: String,
    /// Element type of the state, in the inference engine's spelling.
    pub dtype: String,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Host or object layout, in the inference engine's spelling.
    pub layout: String,
    /// Version of that layout.
    pub layout_version: u32,
    /// Layers of each pipeline stage, in order; empty if one stage has all layers. Two servers with
    /// the same number of stages but different boundaries have pages with equal names and different
    /// bytes.
    pub layer_split: Vec<LayerRange>,
    /// Names and values of everything else that pages depend on: quantisation, LoRA, salt, and
    /// facts from a client's key strings
    /// ([`ClientNames::namespace_facts`](crate::client_names::ClientNames::namespace_facts)).
    pub extra: Vec<(String, String)>,
}

/// The layers of one pipeline stage; a packed draft's layers count as layers of its stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerRange {
    /// First layer.
    pub from: u32,
    /// One past the last layer.
    pub to: u32,
}

impl Namespace {
    /// The namespace's stable fingerprint: the first 16 bytes of SHA-256 over a domain tag and
    /// every field with its length, so that no two descriptions produce the same input. The order
    /// of `extra` matters.
    ///
    /// Descriptions with a layer split use a different domain tag: those without one keep the
    /// fingerprint they had before `layer_split` existed.
    pub fn id(&self) -> NamespaceId {
        let tag = if self.layer_split.is_empty() { TAG } else { TAG_WITH_LAYERS };
        let mut h = Sha256::new_with_prefix(tag);
        let mut text = |s: &str| {
            h.update((s.len() as u64).to_le_bytes());
            h.update(s.as_bytes());
        };
        for s in [&self.tenant, &self.model, &self.revision, &self.dtype, &self.layout] {
            text(s);
        }
        for (name, value) in &self.extra {
            text(name);
            text(value);
        }
        h.update(self.page_tokens.to_le_bytes());
        h.update(self.layout_version.to_le_bytes());
        h.update((self.extra.len() as u64).to_le_bytes());
        if !self.layer_split.is_empty() {
            for stage in &self.layer_split {
                h.update(stage.from.to_le_bytes());
                h.update(stage.to.to_le_bytes());
            }
            h.update((self.layer_split.len() as u64).to_le_bytes());
        }
        let mut id = [0; 16];
        id.copy_from_slice(&h.finalize()[..16]);
        NamespaceId(id)
    }
}

/// The prefix hash of a caller's opaque key: SHA-256 with a domain tag, so that it collides neither
/// with another opaque key nor with a token hash chain.
pub fn opaque_hash(key: &[u8]) -> PrefixHash {
    let mut h = Sha256::new_with_prefix(b"pagelith-opaque-key-v1");
    h.update((key.len() as u64).to_le_bytes());
    h.update(key);
    PrefixHash(h.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_id_depends_on_every_field_boundary() {
        let base = Namespace { model: "ab".into(), revision: "c".into(), ..Default::default() };
        let mut seen = vec![base.id()];
        for change in [
            |n: &mut Namespace| n.tenant = "t".into(),
            |n: &mut Namespace| (n.model, n.revision) = ("a".into(), "bc".into()),
            |n: &mut Namespace| n.dtype = "bf16".into(),
            |n: &mut Namespace| n.page_tokens = 64,
            |n: &mut Namespace| n.layout = "page_first".into(),
            |n: &mut Namespace| n.layout_version = 1,
            |n: &mut Namespace| n.extra.push(("layers".into(), "0-31".into())),
            |n: &mut Namespace| n.extra.push((String::new(), String::new())),
            |n: &mut Namespace| n.layer_split = vec![LayerRange { from: 0, to: 32 }],
            |n: &mut Namespace| n.layer_split = vec![LayerRange { from: 0, to: 32 }; 2],
            |n: &mut Namespace| n.layer_split = vec![LayerRange { from: 1, to: 32 }],
            |n: &mut Namespace| n.layer_split = vec![LayerRange { from: 0, to: 31 }],
            |n: &mut Namespace| n.layer_split = vec![LayerRange::default()],
        ] {
            let mut n = base.clone();
            change(&mut n);
            assert!(!seen.contains(&n.id()), "{n:?}");
            seen.push(n.id());
        }
    }

    #[test]
    fn namespace_id_is_stable() {
        // Computed once by this code; a change would make every stored page unreachable.
        let n = Namespace {
            model: "llama-3-8b".into(),
            dtype: "bf16".into(),
            page_tokens: 64,
            ..Default::default()
        };
        assert_eq!(n.id().to_string(), STABLE);
    }
    const STABLE: &str = "c28c725d7a0a45db0374830d103add15";

    /// Both values were also computed independently of this code, from the rule in
    /// `docs/format.md`.
    #[test]
    fn ids_of_full_namespace_and_opaque_key_are_stable() {
        let n = Namespace {
            tenant: "acme".into(),
            model: "llama-3-8b".into(),
            revision: "8c22764".into(),
            dtype: "bf16".into(),
            page_tokens: 64,
            layout: "page_first".into(),
            layout_version: 2,
            extra: vec![("layers".into(), "0-31".into()), ("quant".into(), "none".into())],
            ..Default::default()
        };
        assert_eq!(n.id().to_string(), "9869cc7744a2065eb81013ce7d142cbb");
        let opaque = "e686f6000184cd0afa9653ed018e7d480410026fbf97dc4ee7294b79675a2be0";
        assert_eq!(opaque_hash(b"request-7").to_string(), opaque);
    }
}
