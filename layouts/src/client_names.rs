//! The key strings of other stores' clients, to and from [`ObjectKey`]: SGLang's Mooncake backend ([`sglang`]),
//! vLLM's Mooncake connector ([`vllm`]), and every other string as an opaque key. `docs/names.md` has the tables.
//!
//! Invariants. Under one context a text that is read prints as itself, and a key that is printed reads as itself:
//! no two texts for one key, no two keys for one text. An opaque key lies in a pool of its own, which no grammar
//! here can name. What a client's text says beyond the key (its prefix, its payload format) belongs into the
//! namespace: [`ClientNames::namespace_facts`].

pub mod chain;
pub mod sglang;
pub mod vllm;

use crate::ids::NamespaceId;
use crate::key::{ObjectKey, Role};
use crate::namespace::opaque_hash;
use crate::shard::Shard;
use sglang::SglangNames;
use vllm::VllmNames;

/// The pool of opaque keys. No grammar of this module reads a text as a key of this pool.
pub const OPAQUE_POOL: &str = "opaque";
/// The component of an opaque key, and of every pool whose page is one object without parts.
pub const DATA: &str = "data";

/// Whose key strings a caller hands over.
#[derive(Clone, Debug)]
pub enum ClientNames {
    /// Nobody's that is known: every text is opaque.
    Opaque,
    /// SGLang's Mooncake backend under one configuration.
    Sglang(SglangNames),
    /// vLLM's Mooncake connector under one configuration.
    Vllm(VllmNames),
}

impl ClientNames {
    /// Read a client's text; `None` if it is not exactly what that client would print here.
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
                Err(NoClientName::of(key, "an opaque text cannot be had back from its hash"))
            }
            ClientNames::Sglang(names) => names.print(key),
            ClientNames::Vllm(names) => names.print(key),
        }
    }

    /// What the client's texts say that keys do not: pairs of name and value for [`Namespace::extra`]. A caller who
    /// leaves them out lets two prefixes (tenants, weights) or two payload formats meet under one key.
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

/// The key that stands for a caller's text, whatever bytes it is: the one it spells if it is known under `names`,
/// else [`opaque_key`]. Never fails.
pub fn key_of(namespace: NamespaceId, text: &[u8], names: &ClientNames) -> ObjectKey {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| names.parse(namespace, text))
        .unwrap_or_else(|| opaque_key(namespace, text))
}

/// The key of a text that says nothing: pool [`OPAQUE_POOL`], the target model's, whole, under
/// [`opaque_hash`] of the text. A text in the form of [`ObjectKey`]'s own is a text like any other.
pub fn opaque_key(namespace: NamespaceId, text: &[u8]) -> ObjectKey {
    let hash = opaque_hash(text);
    ObjectKey::new(namespace, hash, Role::Target, OPAQUE_POOL, DATA, Shard::Whole)
        .expect("both constants are names of the alphabet")
}

/// A client's configuration that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("client configuration: {rule} field={field} value={value}")]
pub struct ContextError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What it must be.
    pub rule: &'static str,
}

impl ContextError {
    /// An error unless `ok`.
    fn unless(
        ok: bool,
        field: &'static str,
        value: &dyn std::fmt::Debug,
        rule: &'static str,
    ) -> Result<(), ContextError> {
        if ok { Ok(()) } else { Err(ContextError { field, value: format!("{value:?}"), rule }) }
    }

    /// An error unless every size is at least 1.
    fn unless_sizes(sizes: &[(&'static str, u16)]) -> Result<(), ContextError> {
        sizes.iter().try_for_each(|(field, size)| ContextError::unless(*size > 0, field, size, "at least 1"))
    }
}

/// A key that a client has no text for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has no name for this key: {rule} key={key}")]
pub struct NoClientName {
    /// The key in its own text form.
    pub key: String,
    /// Why not.
    pub rule: &'static str,
}

impl NoClientName {
    fn of(key: &ObjectKey, rule: &'static str) -> NoClientName {
        NoClientName { key: key.to_string(), rule }
    }
}

/// A number at the head of a text, as a client prints it: decimal, no sign, no leading zero; and what follows it.
fn take_number(text: &str) -> Option<(u16, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    let spelled_once = digits == 1 || !number.starts_with('0');
    Some((number.parse().ok().filter(|_| spelled_once)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_spelling() {
        assert_eq!(take_number("0_k"), Some((0, "_k")));
        assert_eq!(take_number("65535"), Some((65_535, "")));
        for bad in ["", "_k", "00", "01", "+1", "-1", " 1", "65536", "99999999999999999999", "\u{661}"] {
            assert_eq!(take_number(bad), None, "{bad:?}");
        }
    }
}
