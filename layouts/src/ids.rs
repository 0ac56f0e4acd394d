//! Newtypes for every number that has a meaning; no bare `u64` crosses a crate.

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
    /// A segment's number in the store, from 0; striped over the directories.
    SegmentId(u32) as "segment";
    /// How often a segment has been put to use: 0 never, raised each time before it is written again.
    Incarnation(u64) as "incarnation";
    /// When a segment's incarnation was opened, counted over the whole store from 1: the log's order.
    SegmentOrder(u64) as "order";
    /// The order of puts and removes over the whole store, from 1. A copy made by reclaim keeps it.
    Sequence(u64) as "sequence";
    /// A namespace's counter, from 1; raising it (clear) makes all older objects invisible for ever.
    Generation(u64) as "generation";
    /// A group's name, unique in a store: the sequence of its record.
    GroupId(u64) as "group";
    /// An operation on a link, named by its client, from 1; unique among those in flight on that connection.
    OpId(u64) as "op";
}

impl Generation {
    /// The generation of a namespace that was never cleared.
    pub const FIRST: Generation = Generation(1);
}

macro_rules! byte_ids {
    ($($(#[doc = $doc:literal])+ $name:ident($len:literal);)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(transparent)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Read from lower-case hexadecimal of exactly the right length.
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
    /// A store's random name, made when it is made; in every structure, so that no other store's bytes pass.
    StoreId(16);
    /// A namespace's fingerprint; see [`crate::namespace::Namespace`].
    NamespaceId(16);
    /// A page's prefix hash: it stands for every token up to the page's end.
    PrefixHash(32);
}

/// Decode lower-case hexadecimal; false (and `out` unspecified) if it is anything else.
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
    fn hex_is_strict() {
        let id = StoreId(std::array::from_fn(|i| i as u8 * 16 + 1));
        assert_eq!(StoreId::from_hex(&id.to_string()), Some(id));
        assert_eq!(StoreId::from_hex(&id.to_string().to_uppercase()), None);
        assert_eq!(StoreId::from_hex("00"), None);
        assert_eq!(StoreId::from_hex(&"0g".repeat(16)), None);
    }
}
