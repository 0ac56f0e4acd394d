//! The items of a put: groups of objects with their lengths and the expected checksums of their
//! bytes.

use super::List;
use crate::checksum::{Checksum, block_count};
use crate::error::FormatError;
use crate::format::structure;
use crate::key::{KeyCheck, ObjectKey};
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// One object to put.
    pub struct PutItem = 160 {
        /// Whole key.
        pub key: ObjectKey,
        /// Length, at least 1.
        pub length: u64,
        /// Its group in the request, from 0, in order.
        pub group: u32,
        /// Number of its payload checksums; 0 if the server computes them.
        pub checksum_count: u32,
        /// 1 plus the sender's region that holds all of its bytes, if they are passed by reference.
        shown: u32,
        /// Zero.
        reserved: u32,
        /// Offset of the bytes in that region.
        at: u64,
    }
}

const WHAT: &str = "put";

/// The kind of groups in a put, with the keys or the name that the kind requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutGroupKind<'a> {
    /// Complete base groups.
    Nothing,
    /// Attached groups; for each group, a key of the base group that it is attached to.
    Bases(List<'a, ObjectKey>),
    /// Parts of base groups. The keys list the objects of a complete group; their page is ignored.
    Required(List<'a, ObjectKey>),
    /// Single objects for the open group with this name.
    Open(u64),
}

impl<'a> PutGroupKind<'a> {
    /// The keys as in the frame.
    pub(super) fn keys(self) -> List<'a, ObjectKey> {
        match self {
            PutGroupKind::Nothing | PutGroupKind::Open(_) => List::of(&[]),
            PutGroupKind::Bases(keys) | PutGroupKind::Required(keys) => keys,
        }
    }
}

/// The groups of a put, borrowed from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutBody<'a> {
    items: List<'a, PutItem>,
    with: PutGroupKind<'a>,
    checksums: List<'a, Checksum>,
    block_bytes: u32,
    group_count: u32,
    steady: u64,
}

/// One object of a put, with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutObject<'a> {
    /// Its number in the request; pulls and the outcome refer to it by this number.
    pub number: u32,
    /// Whole key.
    pub key: ObjectKey,
    /// Length in bytes.
    pub length: u64,
    /// Its group, from 0.
    pub group: u32,
    /// One checksum per block; empty if the server computes them.
    pub checksums: List<'a, Checksum>,
    /// The sender's region that holds its bytes, and their offset in it; `None` if they must be
    /// pulled.
    pub shown: Option<(u32, u64)>,
}

impl<'a> PutBody<'a> {
    /// Check that the items, checksums and counts are consistent.
    pub(super) fn checked(
        items: List<'a, PutItem>,
        with: PutGroupKind<'a>,
        checksums: List<'a, Checksum>,
        block_bytes: u32,
        group_count: u32,
        steady: u64,
    ) -> Result<PutBody<'a>, FormatError> {
        let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
        // The first item has group 0; each other item has the group of the item before it, or the
        // next one.
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
        Ok(PutBody { items, with, checksums, block_bytes, group_count, steady })
    }

    /// The kind of the groups.
    pub fn group_kind(&self) -> PutGroupKind<'a> {
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

    /// A key of the base group that `group` is attached to; `None` if it is not attached.
    pub fn base(&self, group: u32) -> Option<ObjectKey> {
        match self.with {
            PutGroupKind::Bases(bases) => bases.get(group as usize),
            PutGroupKind::Nothing | PutGroupKind::Required(_) | PutGroupKind::Open(_) => None,
        }
    }

    /// The objects of a complete group, as keys of any page, if the groups are parts; else `None`.
    pub fn required(&self) -> Option<List<'a, ObjectKey>> {
        match self.with {
            PutGroupKind::Required(required) => Some(required),
            PutGroupKind::Nothing | PutGroupKind::Bases(_) | PutGroupKind::Open(_) => None,
        }
    }

    /// The name of the open group that the objects are put into, if any.
    pub fn open(&self) -> Option<u64> {
        match self.with {
            PutGroupKind::Open(name) => Some(name),
            PutGroupKind::Nothing | PutGroupKind::Bases(_) | PutGroupKind::Required(_) => None,
        }
    }

    /// Reserved: by this number clients of earlier builds said that what they show without
    /// checksums is as it was. A server pulls it.
    pub fn steady(&self) -> Option<u64> {
        (self.steady != 0).then_some(self.steady)
    }

    /// The items as in the frame.
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

/// Builder of a put.
#[derive(Clone, Debug, Default)]
pub struct PutBuilder {
    items: Vec<PutItem>,
    bases: Vec<ObjectKey>,
    required: Vec<ObjectKey>,
    open: Option<u64>,
    checksums: Vec<Checksum>,
    block_bytes: u32,
    groups: u32,
    steady: u64,
}

impl PutBuilder {
    /// An empty put whose checksums are of blocks of `block_bytes`.
    pub fn new(block_bytes: u32) -> PutBuilder {
        PutBuilder { block_bytes, ..PutBuilder::default() }
    }

    /// An empty put of parts of groups. A complete group has the objects `required`, which are keys
    /// of any page.
    pub fn of_parts(block_bytes: u32, required: &[ObjectKey]) -> PutBuilder {
        PutBuilder { required: required.to_vec(), ..PutBuilder::new(block_bytes) }
    }

    /// An empty put into the open group `name`; each object is a group of its own in the request.
    pub fn for_open_group(block_bytes: u32, name: u64) -> PutBuilder {
        PutBuilder { open: Some(name), ..PutBuilder::new(block_bytes) }
    }

    /// Reserve memory for `objects` more objects.
    pub fn reserve(&mut self, objects: usize) {
        self.items.reserve(objects);
    }

    /// Begin a group; `base` is a key of the base group that it is attached to. All groups of a put
    /// have one kind.
    pub fn group(&mut self, base: Option<ObjectKey>) {
        self.groups += 1;
        self.bases.extend(base);
    }

    /// Add an object to the last group begun. With empty `checksums`, the server computes them.
    pub fn object(&mut self, key: ObjectKey, length: u64, checksums: &[Checksum]) {
        let group = self.groups.saturating_sub(1);
        let checksum_count = checksums.len() as u32;
        self.items.push(PutItem {
            key,
            length,
            group,
            checksum_count,
            shown: 0,
            reserved: 0,
            at: 0,
        });
        self.checksums.extend_from_slice(checksums);
    }

    /// Pass the last object by reference: its bytes begin at offset `at` of `region` of this side.
    pub fn shown(&mut self, region: u32, at: u64) {
        if let Some(item) = self.items.last_mut() {
            (item.shown, item.at) = (region.saturating_add(1), at);
        }
    }

    /// Reserved: the number that [`PutBody::steady`] reads. Not into an open group.
    pub fn steady(&mut self, number: u64) {
        self.steady = number;
    }

    /// Whether any object is passed by reference. Such a put is valid only on the connection that
    /// shares the regions.
    pub fn has_refs(&self) -> bool {
        self.items.iter().any(|item| item.shown != 0)
    }

    /// The put so far. An error names the inconsistent field, for example if a group has no objects
    /// or an object has too many checksums.
    pub fn puts(&self) -> Result<PutBody<'_>, FormatError> {
        if !self.bases.is_empty() && self.bases.len() != self.groups as usize {
            return Err(FormatError::field(WHAT, "bases", self.bases.len()));
        }
        let checksums = List::of(&self.checksums);
        let block_bytes = if checksums.is_empty() { 0 } else { self.block_bytes };
        let with = match (self.bases.as_slice(), self.required.as_slice()) {
            ([], []) if self.open.is_some() => PutGroupKind::Open(self.open.unwrap_or(0)),
            ([], []) => PutGroupKind::Nothing,
            (bases, []) => PutGroupKind::Bases(List::of(bases)),
            ([], required) => PutGroupKind::Required(List::of(required)),
            _ => return Err(FormatError::field(WHAT, "required", self.required.len())),
        };
        if self.open.is_some() && self.steady != 0 {
            return Err(FormatError::field(WHAT, "steady", self.steady));
        }
        PutBody::checked(
            List::of(&self.items),
            with,
            checksums,
            block_bytes,
            self.groups,
            self.steady,
        )
    }
}
