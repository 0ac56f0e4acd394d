//! What a put asks to store: groups of objects with their lengths and the checksums that their bytes must have.

use super::List;
use crate::checksum::{Checksum, block_count};
use crate::error::FormatError;
use crate::format::structure;
use crate::key::{KeyCheck, ObjectKey};
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// One object to be put.
    pub struct PutItem = 160 {
        /// Whole key.
        pub key: ObjectKey,
        /// Length in bytes, at least 1.
        pub length: u64,
        /// Number of the group that it is of, from 0, in order.
        pub group: u32,
        /// Number of its payload checksums: one a block; 0 for the server to make them of what arrives.
        pub checksum_count: u32,
        /// 1 more than the number of the sender's region that all of its bytes lie in, where it is not to be pulled; else 0.
        shown: u32,
        /// Zero.
        reserved: u32,
        /// Where in that region they begin, in bytes; else zero.
        at: u64,
    }
}

const WHAT: &str = "put";

/// What the groups of a put go with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With<'a> {
    /// Nothing: they are base groups.
    Nothing,
    /// For each group an object of the base group that it is attached to.
    Bases(List<'a, ObjectKey>),
    /// They are parts of base groups, which consist of these objects, keys of any page, on their own page.
    Required(List<'a, ObjectKey>),
    /// They are objects, each by itself, of the group that was begun under this name.
    Open(u64),
}

impl<'a> With<'a> {
    /// The keys as they lie in the frame.
    pub(super) fn keys(self) -> List<'a, ObjectKey> {
        match self {
            With::Nothing | With::Open(_) => List::of(&[]),
            With::Bases(keys) | With::Required(keys) => keys,
        }
    }
}

/// The groups of a put; a view that owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Puts<'a> {
    items: List<'a, PutItem>,
    with: With<'a>,
    checksums: List<'a, Checksum>,
    block_bytes: u32,
    group_count: u32,
    steady: u64,
}

/// One object of a put, with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutObject<'a> {
    /// Its number in the request: what it is pulled and answered by.
    pub number: u32,
    /// Whole key.
    pub key: ObjectKey,
    /// Length in bytes.
    pub length: u64,
    /// The group that it is of, from 0.
    pub group: u32,
    /// One a block; none if the server is to make them.
    pub checksums: List<'a, Checksum>,
    /// The sender's region that its bytes lie in, and where in it they begin; `None` if they are to be pulled.
    pub shown: Option<(u32, u64)>,
}

impl<'a> Puts<'a> {
    /// The view, if all of it goes together.
    pub(super) fn checked(
        items: List<'a, PutItem>,
        with: With<'a>,
        checksums: List<'a, Checksum>,
        block_bytes: u32,
        group_count: u32,
        steady: u64,
    ) -> Result<Puts<'a>, FormatError> {
        let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
        // The first item's group is 0; each other's is that of the one before, or the next.
        let mut last = None;
        let (mut sums, mut keys) = (0u64, KeyCheck::default());
        for item in items.iter() {
            keys.check(&item.key)?;
            if !(1..=OBJECT_BYTES_MAX).contains(&item.length) {
                return wrong("length", item.length);
            }
            if item.reserved != 0 {
                return wrong("reserved", item.reserved.into());
            }
            if (item.shown == 0 && item.at != 0) || item.at.checked_add(item.length).is_none() {
                return wrong("at", item.at);
            }
            let next = last.map_or(0, |group: u32| group.saturating_add(1));
            if item.group != next && Some(item.group) != last {
                return wrong("group", item.group.into());
            }
            last = Some(item.group);
            let count = u64::from(item.checksum_count);
            if count != 0 && (block_bytes == 0 || count != block_count(item.length, block_bytes)) {
                return wrong("checksum_count", count);
            }
            sums += count;
        }
        if last.map_or(0, |group| u64::from(group) + 1) != u64::from(group_count) {
            return wrong("group_count", group_count.into());
        }
        if sums != checksums.len() as u64 {
            return wrong("checksum_count", sums);
        }
        Ok(Puts { items, with, checksums, block_bytes, group_count, steady })
    }

    /// What the groups go with.
    pub fn with(&self) -> With<'a> {
        self.with
    }

    /// Block size of the checksums in bytes; 0 if there are none.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Number of groups.
    pub fn group_count(&self) -> u32 {
        self.group_count
    }

    /// An object of the base group that a group is attached to.
    pub fn base(&self, group: u32) -> Option<ObjectKey> {
        match self.with {
            With::Bases(bases) => bases.get(group as usize),
            With::Nothing | With::Required(_) | With::Open(_) => None,
        }
    }

    /// What the groups consist of that these are parts of, as keys of any page; `None` if they are whole.
    pub fn required(&self) -> Option<List<'a, ObjectKey>> {
        match self.with {
            With::Required(required) => Some(required),
            With::Nothing | With::Bases(_) | With::Open(_) => None,
        }
    }

    /// The name of the open group that the objects are put into, if they are.
    pub fn open(&self) -> Option<u64> {
        match self.with {
            With::Open(name) => Some(name),
            With::Nothing | With::Bases(_) | With::Required(_) => None,
        }
    }

    /// Reserved: by this number clients of earlier builds said that what they show without checksums is
    /// as it was. A server pulls it.
    pub fn steady(&self) -> Option<u64> {
        (self.steady != 0).then_some(self.steady)
    }

    /// The items as they lie in the frame.
    pub fn items(&self) -> List<'a, PutItem> {
        self.items
    }

    pub(super) fn checksums(&self) -> List<'a, Checksum> {
        self.checksums
    }

    /// All objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = PutObject<'a>> + use<'a> {
        let (checksums, mut first) = (self.checksums, 0usize);
        self.items.iter().enumerate().map(move |(number, item)| {
            let last = first + item.checksum_count as usize;
            let own = checksums.slice(first, last);
            first = last;
            let PutItem { key, length, group, .. } = item;
            let shown = item.shown.checked_sub(1).map(|region| (region, item.at));
            PutObject { number: number as u32, key, length, group, checksums: own, shown }
        })
    }
}

/// A put that is being put together.
#[derive(Clone, Debug, Default)]
pub struct PutDraft {
    items: Vec<PutItem>,
    bases: Vec<ObjectKey>,
    required: Vec<ObjectKey>,
    open: Option<u64>,
    checksums: Vec<Checksum>,
    block_bytes: u32,
    groups: u32,
    steady: u64,
}

impl PutDraft {
    /// An empty put whose checksums are of blocks of `block_bytes`.
    pub fn new(block_bytes: u32) -> PutDraft {
        PutDraft { block_bytes, ..PutDraft::default() }
    }

    /// An empty put of parts of groups, which consist of the objects `required`, keys of any page.
    pub fn of_parts(block_bytes: u32, required: &[ObjectKey]) -> PutDraft {
        PutDraft { required: required.to_vec(), ..PutDraft::new(block_bytes) }
    }

    /// An empty put into the group that was begun under this name: each object is a group of its own here.
    pub fn into_open(block_bytes: u32, name: u64) -> PutDraft {
        PutDraft { open: Some(name), ..PutDraft::new(block_bytes) }
    }

    /// Room for so many objects more.
    pub fn reserve(&mut self, objects: usize) {
        self.items.reserve(objects);
    }

    /// Begin a group; `base` is an object of the group that it is attached to. A put has groups of one kind.
    pub fn group(&mut self, base: Option<ObjectKey>) {
        self.groups += 1;
        self.bases.extend(base);
    }

    /// Add an object to the last group begun; no checksums for the server to make them.
    pub fn object(&mut self, key: ObjectKey, length: u64, checksums: &[Checksum]) {
        let group = self.groups.saturating_sub(1);
        let checksum_count = checksums.len() as u32;
        self.items.push(PutItem { key, length, group, checksum_count, shown: 0, reserved: 0, at: 0 });
        self.checksums.extend_from_slice(checksums);
    }

    /// The last object's bytes lie in a region of this side from `at` on, and need not be pulled.
    pub fn shown(&mut self, region: u32, at: u64) {
        if let Some(item) = self.items.last_mut() {
            (item.shown, item.at) = (region.saturating_add(1), at);
        }
    }

    /// Reserved: the number that [`Puts::steady`] reads. Not into an open group.
    pub fn steady(&mut self, number: u64) {
        self.steady = number;
    }

    /// Whether it says where bytes lie: only on one connection that means something.
    pub fn shows(&self) -> bool {
        self.items.iter().any(|item| item.shown != 0)
    }

    /// The put so far. An error names what does not go together: a group without objects, a checksum too many.
    pub fn puts(&self) -> Result<Puts<'_>, FormatError> {
        if !self.bases.is_empty() && self.bases.len() != self.groups as usize {
            return Err(FormatError::field(WHAT, "bases", self.bases.len()));
        }
        let checksums = List::of(&self.checksums);
        let block_bytes = if checksums.is_empty() { 0 } else { self.block_bytes };
        let with = match (self.bases.as_slice(), self.required.as_slice()) {
            ([], []) if self.open.is_some() => With::Open(self.open.unwrap_or(0)),
            ([], []) => With::Nothing,
            (bases, []) => With::Bases(List::of(bases)),
            ([], required) => With::Required(List::of(required)),
            _ => return Err(FormatError::field(WHAT, "required", self.required.len())),
        };
        if self.open.is_some() && self.steady != 0 {
            return Err(FormatError::field(WHAT, "steady", self.steady));
        }
        Puts::checked(List::of(&self.items), with, checksums, block_bytes, self.groups, self.steady)
    }
}
