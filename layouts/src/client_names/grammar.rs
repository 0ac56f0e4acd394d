//! The grammars of callers' key strings, and the keys of all other strings.

use super::sglang::SglangNames;
use super::vllm::VllmNames;
use super::{DATA, NoClientName, OPAQUE_POOL};
use crate::ids::NamespaceId;
use crate::key::{ObjectKey, Role};
use crate::namespace::opaque_hash;
use crate::shard::Shard;

/// The grammar of a caller's key strings.
#[derive(Clone, Debug)]
pub enum ClientNames {
    /// No known client: every text is opaque.
    Opaque,
    /// SGLang's Mooncake backend with one configuration.
    Sglang(SglangNames),
    /// vLLM's Mooncake connector with one configuration.
    Vllm(VllmNames),
}

impl ClientNames {
    /// Parse a client's text; `None` if this client would not print exactly this text.
    pub fn parse(&self, namespace: NamespaceId, text: &str) -> Option<ObjectKey> {
        match self {
            ClientNames::Opaque => None,
            ClientNames::Sglang(names) => names.parse(namespace, text),
            ClientNames::Vllm(names) => names.parse(namespace, text),
        }
    }

    /// The text that the client uses for a key.
    ///
    /// # Errors
    /// [`NoClientName`] if the client has no text for it.
    pub fn print(&self, key: &ObjectKey) -> Result<String, NoClientName> {
        match self {
            ClientNames::Opaque => {
                Err(NoClientName::of(key, "an opaque text cannot be restored from its hash"))
            }
            ClientNames::Sglang(names) => names.print(key),
            ClientNames::Vllm(names) => names.print(key),
        }
    }

    /// Facts in the client's texts that keys do not hold, as pairs of name and value for
    /// [`Namespace::extra`]. Without them, two prefixes (tenants, weights) or two payload formats
    /// would share keys.
    ///
    /// [`Namespace::extra`]: crate::namespace::Namespace::extra
    pub fn namespace_facts(&self) -> Vec<(String, String)> {
        match self {
            ClientNames::Opaque => Vec::new(),
            ClientNames::Sglang(names) => names.namespace_facts(),
            ClientNames::Vllm(names) => names.namespace_facts(),
        }
    }
}

/// The key of a caller's text, which may be any bytes: the parsed key if `names` accepts the text,
/// else [`opaque_key`]. Never fails.
pub fn key_of(namespace: NamespaceId, text: &[u8], names: &ClientNames) -> ObjectKey {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| names.parse(namespace, text))
        .unwrap_or_else(|| opaque_key(namespace, text))
}

/// The key of an opaque text: pool [`OPAQUE_POOL`], target model, whole, with [`opaque_hash`] of
/// the text. A text in [`ObjectKey`]'s own text form gets no special treatment.
pub fn opaque_key(namespace: NamespaceId, text: &[u8]) -> ObjectKey {
    let hash = opaque_hash(text);
    ObjectKey::new(namespace, hash, Role::Target, OPAQUE_POOL, DATA, Shard::Whole)
        .expect("OPAQUE_POOL and DATA are valid names")
}
