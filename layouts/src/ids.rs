//! Newtypes for identifiers and counters; no bare `u64` crosses a crate boundary.

use std::fmt;

macro_rules! number_ids {
    ($($(#[doc = $doc:literal])+ $name:ident($inner:ty) as $text:literal;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($text, "={}"), self.0)
            }
        }
    )+};
}

number_ids! {
    /// Number of a segment in the store, from 0; segments are striped over the directories.
    SegmentId(u32) as "segment";
    /// How often a segment has been reused: 0 if never used, incremented before each reuse.
    Incarnation(u64) as "incarnation";
    /// Position in the log of a segment's incarnation: the count of incarnations opened in the
    /// store, from 1.
    SegmentOrder(u64) as "order";
    /// Position of a put or remove among all of the store, from 1. A copy made by reclaim keeps its
    /// sequence.
    Sequence(u64) as "sequence";
    /// Counter of a namespace, from 1. A clear raises it above the store's last sequence, which
    /// makes all older objects invisible for ever.
    Generation(u64) as "generation";
    /// Identifier of a group of any kind, unique in a store: the sequence of its put or remove. A
    /// field `base_group` has the same type but contains a hash, by which an attached group names
    /// its base.
    GroupId(u64) as "group";
    /// Operation on a link, numbered by its client from 1; unique among those in flight on the
    /// connection.
    OpId(u64) as "op";
}

impl Generation {
    /// Generation of a namespace that was never cleared.
    pub const FIRST: Generation = Generation(1);
}

macro_rules! byte_ids {
    ($($(#[doc = $doc:literal])+ $name:ident($len:literal);)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Parse lower-case hexadecimal of exactly the right length.
            pub fn from_hex(text: &str) -> Option<$name> {
                let mut bytes = [0; $len];
                from_hex(text, &mut bytes).then_some($name(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    )+};
}

byte_ids! {
    /// Random identifier of a store, chosen at creation. Every structure contains it, so that bytes
    /// of another store are refused.
    StoreId(16);
    /// Fingerprint of a namespace; see [`crate::namespace::Namespace`].
    NamespaceId(16);
    /// Prefix hash of a page: it covers every token up to the end of the page.
    PrefixHash(32);
}

/// Decode lower-case hexadecimal; false (with `out` unspecified) for any other text.
fn from_hex(text: &str, out: &mut [u8]) -> bool {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    text.len() == out.len() * 2
        && out.iter_mut().zip(text.chunks_exact(2)).all(|(byte, pair)| {
            let value = digit(pair[0]).zip(digit(pair[1]));
            *byte = value.map_or(0, |(hi, lo)| hi << 4 | lo);
            value.is_some()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_of_wrong_case_or_length_is_refused() {
        let id = StoreId(std::array::from_fn(|i| i as u8 * 16 + 1));
        assert_eq!(StoreId::from_hex(&id.to_string()), Some(id));
        assert_eq!(StoreId::from_hex(&id.to_string().to_uppercase()), None);
        assert_eq!(StoreId::from_hex("00"), None);
        assert_eq!(StoreId::from_hex(&"0g".repeat(16)), None);
    }
}
