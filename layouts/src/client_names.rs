//! Conversion between the key strings of other stores' clients and [`ObjectKey`]: SGLang's Mooncake
//! backend ([`sglang`]), vLLM's Mooncake connector ([`vllm`]), and every other string as an opaque
//! key. `docs/names.md` has the tables.
//!
//! Invariants, under one configuration:
//! - Text and key are one to one: a parsed text prints as itself, and a printed key parses as
//!   itself.
//! - Opaque keys have a pool of their own ([`OPAQUE_POOL`]), which no grammar of this module
//!   produces.
//! - Facts in a client's text that the key does not hold (its prefix, its payload format) belong in
//!   the namespace: [`ClientNames::namespace_facts`].

pub mod chain;
mod grammar;
pub mod sglang;
pub mod vllm;

use crate::key::ObjectKey;

pub use grammar::{ClientNames, key_of, opaque_key};

/// The pool of opaque keys. No grammar of this module reads a text as a key of this pool.
pub const OPAQUE_POOL: &str = "opaque";
/// The component of an opaque key, and of every pool whose page is a single object.
pub const DATA: &str = "data";

/// An invalid client configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("client configuration: {rule} field={field} value={value}")]
pub struct ContextError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The rule that the value breaks.
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
    fn ensure_sizes(sizes: &[(&'static str, u16)]) -> Result<(), ContextError> {
        sizes.iter().try_for_each(|(field, size)| {
            ContextError::unless(*size > 0, field, size, "at least 1")
        })
    }
}

/// The error for a key that a client has no text for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has no name for this key: {rule} key={key}")]
pub struct NoClientName {
    /// The key in its own text form.
    pub key: String,
    /// The reason.
    pub rule: &'static str,
}

impl NoClientName {
    fn of(key: &ObjectKey, rule: &'static str) -> NoClientName {
        NoClientName { key: key.to_string(), rule }
    }
}

/// Split a number off the start of a text: decimal, no sign, no leading zero. Returns the number
/// and the rest.
fn take_number(text: &str) -> Option<(u16, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at_checked(digits)?;
    let canonical = digits == 1 || !number.starts_with('0');
    Some((number.parse().ok().filter(|_| canonical)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_with_second_spelling_is_refused() {
        assert_eq!(take_number("0_k"), Some((0, "_k")));
        assert_eq!(take_number("65535"), Some((65_535, "")));
        for bad in
            ["", "_k", "00", "01", "+1", "-1", " 1", "65536", "99999999999999999999", "\u{661}"]
        {
            assert_eq!(take_number(bad), None, "{bad:?}");
        }
    }
}
