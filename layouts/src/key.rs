//! The key of an object: namespace, prefix hash, pool, component, shard, in 128 bytes.
//!
//! Invariants:
//! - Two keys are equal exactly if their bytes are equal, and exactly if their text forms are
//!   equal.
//! - Keys are ordered by their bytes. Namespace and prefix hash come first, so the objects of a
//!   page are neighbours in that order.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::error::FormatError;
use crate::format::structure;
use crate::ids::{NamespaceId, PrefixHash};
use crate::shard::{RawShard, Shard};

structure! {
    /// The full key of an object.
    pub struct ObjectKey = 128 {
        /// Identifier of the namespace.
        namespace: NamespaceId,
        /// Prefix hash of the page.
        hash: PrefixHash,
        /// Model that the state belongs to: 1 target model, 2 draft model.
        role: u8,
        /// Length of the pool name, 1 to 30.
        pool_len: u8,
        /// Pool name, padded with zeros.
        pool: [u8; 30],
        /// Length of the component name, 1 to 23.
        component_len: u8,
        /// Component name, padded with zeros.
        component: [u8; 23],
        /// Shard.
        shard: RawShard,
    }
}

/// The model whose state an object is. A typed field, so that no pool name can be mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Role {
    /// The target model.
    Target = 1,
    /// The draft model (speculative decoding); prints as `d:` before the pool.
    Draft = 2,
}

/// An invalid pool or component name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name of a {what} must be 1 to {max} of A-Z a-z 0-9 _ - . and is not name={name:?}")]
pub struct NameError {
    /// `pool` or `component`.
    pub what: &'static str,
    /// Longest name in bytes.
    pub max: usize,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// Longest pool name in bytes.
    pub const POOL_MAX: usize = 30;
    /// Longest component name in bytes.
    pub const COMPONENT_MAX: usize = 23;

    /// A key. Pools and components are open sets: any name of the alphabet is valid.
    pub fn new(
        namespace: NamespaceId,
        hash: PrefixHash,
        role: Role,
        pool: &str,
        component: &str,
        shard: Shard,
    ) -> Result<ObjectKey, NameError> {
        Ok(ObjectKey {
            namespace,
            hash,
            role: role as u8,
            pool_len: pool.len() as u8,
            pool: inline("pool", pool)?,
            component_len: component.len() as u8,
            component: inline("component", component)?,
            shard: shard.encode(),
        })
    }

    /// Read a key from its 128 bytes; refuses bytes that [`ObjectKey::new`] cannot produce.
    pub fn decode(bytes: &[u8; ObjectKey::BYTES]) -> Result<ObjectKey, FormatError> {
        let key: ObjectKey = bytemuck::pod_read_unaligned(bytes);
        key.check()?;
        Ok(key)
    }

    /// Check that [`ObjectKey::new`] can produce these bytes.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        const WHAT: &str = "object key";
        if !(1..=2).contains(&self.role) {
            return Err(FormatError::field(WHAT, "role", self.role));
        }
        let name_ok = |len: u8, bytes: &[u8]| {
            let (name, rest) = bytes.split_at_checked(usize::from(len))?;
            (is_name(name) && rest.iter().all(|b| *b == 0)).then_some(())
        };
        name_ok(self.pool_len, &self.pool)
            .ok_or_else(|| FormatError::field(WHAT, "pool", self.pool_len))?;
        name_ok(self.component_len, &self.component)
            .ok_or_else(|| FormatError::field(WHAT, "component", self.component_len))?;
        Shard::decode(&self.shard).map(|_| ())
    }

    /// The fields after namespace and prefix hash. Only these are checked: any namespace and hash
    /// is valid.
    fn checked_fields(&self) -> &[u8] {
        &self.as_bytes()[std::mem::offset_of!(ObjectKey, role)..]
    }

    /// The key's 128 bytes.
    pub fn as_bytes(&self) -> &[u8; ObjectKey::BYTES] {
        bytemuck::cast_ref(self)
    }

    /// Namespace.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// Prefix hash of the page.
    pub fn hash(&self) -> PrefixHash {
        self.hash
    }

    /// Target or draft model.
    pub fn role(&self) -> Role {
        if self.role == Role::Draft as u8 { Role::Draft } else { Role::Target }
    }

    /// Pool name.
    pub fn pool(&self) -> &str {
        text(&self.pool, self.pool_len)
    }

    /// Component name.
    pub fn component(&self) -> &str {
        text(&self.component, self.component_len)
    }

    /// Slice of the component.
    pub fn shard(&self) -> Shard {
        Shard::decode(&self.shard).unwrap_or(Shard::Whole)
    }

    /// The key of the same pool, component and shard on another page of the namespace.
    pub fn on_page(&self, hash: PrefixHash) -> ObjectKey {
        ObjectKey { hash, ..*self }
    }

    /// Whether two keys name objects of one page.
    pub fn same_page(&self, other: &ObjectKey) -> bool {
        self.namespace == other.namespace && self.hash == other.hash
    }
}

fn is_name(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b))
}

fn inline<const N: usize>(what: &'static str, name: &str) -> Result<[u8; N], NameError> {
    let mut out = [0; N];
    match out.get_mut(..name.len()) {
        Some(place) if is_name(name.as_bytes()) => place.copy_from_slice(name.as_bytes()),
        _ => return Err(NameError { what, max: N, name: name.into() }),
    }
    Ok(out)
}

/// Checks a list of keys. The keys of a request mostly differ only in their pages, so that the
/// checked fields are compared with those of the last valid key first.
#[derive(Debug, Default)]
pub(crate) struct KeyCheck {
    /// The last key that passed [`ObjectKey::check`].
    last_valid: Option<ObjectKey>,
}

impl KeyCheck {
    /// As [`ObjectKey::check`].
    pub fn check(&mut self, key: &ObjectKey) -> Result<(), FormatError> {
        if self.last_valid.as_ref().is_none_or(|last| last.checked_fields() != key.checked_fields())
        {
            key.check()?;
            self.last_valid = Some(*key);
        }
        Ok(())
    }

    /// Check every key.
    pub fn check_all(mut keys: impl Iterator<Item = ObjectKey>) -> Result<(), FormatError> {
        let mut checked = KeyCheck::default();
        keys.try_for_each(|key| checked.check(&key))
    }
}

/// A name as text. [`is_name`] admits only ASCII, so the conversion fails for no valid key.
fn text(bytes: &[u8], len: u8) -> &str {
    bytes.get(..usize::from(len)).and_then(|b| std::str::from_utf8(b).ok()).unwrap_or_default()
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for ObjectKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// `NAMESPACE/HASH/[d:]POOL/COMPONENT/SHARD`, hexadecimal in lower case. No name contains `:` or
/// `/`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let draft = if self.role() == Role::Draft { "d:" } else { "" };
        let (pool, component) = (self.pool(), self.component());
        write!(f, "{}/{}/{draft}{pool}/{component}/{}", self.namespace, self.hash, self.shard())
    }
}

/// A text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an object key, expected NAMESPACE/HASH/[d:]POOL/COMPONENT/SHARD text={0:?}")]
pub struct ParseKeyError(pub String);

impl FromStr for ObjectKey {
    type Err = ParseKeyError;

    fn from_str(s: &str) -> Result<ObjectKey, ParseKeyError> {
        let parse = || {
            let mut parts = s.split('/');
            let namespace = NamespaceId::from_hex(parts.next()?)?;
            let hash = PrefixHash::from_hex(parts.next()?)?;
            let pool = parts.next()?;
            let (role, pool) = match pool.strip_prefix("d:") {
                Some(pool) => (Role::Draft, pool),
                None => (Role::Target, pool),
            };
            let component = parts.next()?;
            let shard = Shard::parse(parts.next()?)?;
            let key = ObjectKey::new(namespace, hash, role, pool, component, shard).ok()?;
            parts.next().is_none().then_some(key)
        };
        parse().ok_or_else(|| ParseKeyError(s.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(role: Role, pool: &str, component: &str) -> Result<ObjectKey, NameError> {
        let (namespace, hash) = (NamespaceId([0xab; 16]), PrefixHash([0x01; 32]));
        ObjectKey::new(namespace, hash, role, pool, component, Shard::Whole)
    }

    #[test]
    fn key_round_trips_as_bytes_and_text() {
        for (role, mark) in [(Role::Target, ""), (Role::Draft, "d:")] {
            let k = key(role, "kv", "k").expect("valid names");
            assert_eq!(
                (k.role(), k.pool(), k.component(), k.shard()),
                (role, "kv", "k", Shard::Whole)
            );
            assert_eq!(ObjectKey::decode(k.as_bytes()), Ok(k));
            let text = format!("{}/{}/{mark}kv/k/whole", "ab".repeat(16), "01".repeat(32));
            assert_eq!(k.to_string(), text);
            assert_eq!(text.parse(), Ok(k));
        }
    }

    #[test]
    fn name_outside_alphabet_or_length_is_refused() {
        for (pool, component) in
            [("kv", "k"), (&*"p".repeat(30), &*"c".repeat(23)), ("A-z_0.9", "temporal")]
        {
            assert_eq!(key(Role::Target, pool, component).map(|k| k.pool().len()), Ok(pool.len()));
        }
        let bad = ["", "d:kv", "a/b", "a b", "kv\0", "\u{e9}", "a\n"];
        for name in bad {
            assert_eq!(key(Role::Target, name, "k").unwrap_err().what, "pool", "{name:?}");
            assert_eq!(key(Role::Target, "kv", name).unwrap_err().what, "component", "{name:?}");
        }
        for long in [31, 255, 256, 258] {
            assert_eq!(key(Role::Target, &"p".repeat(long), "k").unwrap_err().max, 30);
            assert_eq!(key(Role::Target, "kv", &"c".repeat(long)).unwrap_err().max, 23);
        }
    }

    #[test]
    fn invalid_key_bytes_are_refused_by_field() {
        let good = *key(Role::Target, "kv", "k").expect("valid names").as_bytes();
        let at = |field: &str| {
            let field =
                ObjectKey::STRUCTURE.fields.iter().find(|f| f.name == field).expect("a field");
            field.offset
        };
        let cases = [
            (at("role"), 0, "role"),
            (at("role"), 3, "role"),
            (at("pool_len"), 0, "pool"),
            (at("pool_len"), 1, "pool"),
            (at("pool_len"), 31, "pool"),
            (at("pool"), b'/', "pool"),
            (at("pool") + 29, b'x', "pool"),
            (at("component_len"), 24, "component"),
            (at("component") + 1, 0x80, "component"),
            (at("shard"), 0, "shard"),
            (at("shard") + 1, 1, "shard"),
            (at("shard") + 23, 1, "shard"),
        ];
        for (offset, value, named) in cases {
            let mut bytes = good;
            bytes[offset] = value;
            let error = ObjectKey::decode(&bytes).expect_err("not a key").to_string();
            assert!(
                error.contains(&format!("field={named} ")),
                "offset={offset} value={value}: {error}"
            );
            // `KeyCheck` refuses it after a valid key, and after itself.
            let all: [ObjectKey; 4] = [good, bytes, bytes, good].map(bytemuck::cast);
            let mut checked = KeyCheck::default();
            let results = all.map(|key| checked.check(&key).map_err(|error| error.to_string()));
            assert_eq!(
                results,
                [Ok(()), Err(error.clone()), Err(error), Ok(())],
                "offset={offset} value={value}"
            );
            assert!(KeyCheck::check_all(all.into_iter()).is_err());
        }
    }

    #[test]
    fn invalid_key_texts_are_refused() {
        let (n, h) = ("ab".repeat(16), "01".repeat(32));
        let bad = [
            String::new(),
            format!("{n}/{h}/kv/k"),
            format!("{n}/{h}/kv/k/whole/"),
            format!("{n}/{h}/kv/k/whole/x"),
            format!(" {n}/{h}/kv/k/whole"),
            format!("{}/{h}/kv/k/whole", n.to_uppercase()),
            format!("{h}/{n}/kv/k/whole"),
            format!("{n}/{h}/d:d:kv/k/whole"),
            format!("{n}/{h}/d:/k/whole"),
            format!("{n}/{h}/kv/d:k/whole"),
            format!("{n}/{h}/D:kv/k/whole"),
            format!("{n}/{h}/kv//whole"),
            format!("{n}/{h}/kv/k/Whole"),
        ];
        for text in bad {
            assert_eq!(text.parse::<ObjectKey>(), Err(ParseKeyError(text.clone())));
        }
    }

    #[test]
    fn objects_of_page_are_adjacent_in_key_order() {
        let of = |page: u8, pool: &str| {
            let hash = PrefixHash([page; 32]);
            ObjectKey::new(NamespaceId([1; 16]), hash, Role::Target, pool, "k", Shard::Whole)
                .expect("valid names")
        };
        let mut keys = [of(2, "a"), of(1, "z"), of(2, "z"), of(1, "a")];
        keys.sort();
        assert_eq!(keys, [of(1, "a"), of(1, "z"), of(2, "a"), of(2, "z")]);
        assert!(keys[0].same_page(&keys[1]) && !keys[1].same_page(&keys[2]));
    }
}
