//! Objects that one client has pinned and leased, and its share of the store: others' puts find room whatever it holds.

use std::collections::HashMap;

use pagelith_io::clock::Mono;

use super::Row;
use crate::config::ValidConfig;
use crate::error::{Error, Result};

/// All clients together hold one of so many parts of the store.
const ALL_SHARE: u64 = 2;
/// One client holds one of so many parts of that.
const CLIENT_SHARE: u64 = 2;

/// How much is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub objects: u64,
    /// Of the arena.
    pub bytes: u64,
}

impl Totals {
    /// As much as all clients may hold of a store of this configuration: something even of the smallest.
    pub fn of(config: &ValidConfig) -> Totals {
        let (objects, bytes) = (config.max_objects(), config.arena_bytes());
        Totals {
            objects: (objects / ALL_SHARE).max(CLIENT_SHARE),
            bytes: (bytes / ALL_SHARE).max(CLIENT_SHARE),
        }
    }

    /// As much as one of them may.
    pub fn share_of_client(&self) -> Totals {
        Totals { objects: self.objects / CLIENT_SHARE, bytes: self.bytes / CLIENT_SHARE }
    }

    /// An error if `who` has so much, and would have more than `most` with `more`.
    pub fn check(&self, more: &Totals, most: &Totals, who: &str) -> Result<()> {
        // An object that is held already may be pinned once more.
        if more.objects == 0
            || self.objects + more.objects <= most.objects && self.bytes + more.bytes <= most.bytes
        {
            return Ok(());
        }
        let Totals { objects, bytes } = most;
        let (more, more_bytes) = (more.objects, more.bytes);
        Err(Error::busy(format!(
            "{who} would pin or lease too much more_objects={more} more_bytes={more_bytes} objects_max={objects} bytes_max={bytes}"
        )))
    }

    pub fn add(&mut self, more: &Totals) {
        self.objects += more.objects;
        self.bytes += more.bytes;
    }

    pub fn take(&mut self, less: &Totals) {
        self.objects -= less.objects;
        self.bytes -= less.bytes;
    }
}

/// An object that a client holds.
#[derive(Debug)]
struct Held {
    pins: u32,
    lease: Option<Mono>,
    group: u128,
}

/// Objects that a client holds.
#[derive(Debug, Default)]
pub(crate) struct Client {
    objects: HashMap<u128, Held>,
    /// Of each group of these, how many of them there are, and its bytes when the first came.
    groups: HashMap<u128, (u32, u64)>,
    bytes: u64,
}

impl Client {
    pub fn totals(&self) -> Totals {
        Totals { objects: self.objects.len() as u64, bytes: self.bytes }
    }

    pub fn holds_nothing(&self) -> bool {
        self.objects.is_empty()
    }

    /// How much more it would hold with these.
    pub fn more(&self, rows: &[Row]) -> Totals {
        let new = rows.iter().filter(|row| !self.objects.contains_key(&row.fingerprint));
        let (mut objects, mut groups, mut bytes) = (HashMap::new(), HashMap::new(), 0);
        for row in new {
            objects.insert(row.fingerprint, ());
            if !self.groups.contains_key(&row.group) && groups.insert(row.group, ()).is_none() {
                bytes += row.bytes;
            }
        }
        Totals { objects: objects.len() as u64, bytes }
    }

    /// Hold it by one pin more, or by a lease until then.
    pub fn hold(&mut self, row: &Row, lease: Option<Mono>) {
        let is_new = !self.objects.contains_key(&row.fingerprint);
        let held =
            self.objects.entry(row.fingerprint).or_insert(Held { pins: 0, lease: None, group: row.group });
        held.pins += u32::from(lease.is_none());
        held.lease = held.lease.max(lease);
        if is_new {
            let (count, _) = self.groups.entry(row.group).or_insert_with(|| {
                self.bytes += row.bytes;
                (0, row.bytes)
            });
            *count += 1;
        }
    }

    /// Take a pin back; what is held no more.
    pub fn let_go(&mut self, fingerprint: u128) -> Totals {
        let Some(held) = self.objects.get_mut(&fingerprint) else { return Totals::default() };
        held.pins = held.pins.saturating_sub(1);
        let is_over = held.pins == 0 && held.lease.is_none();
        if is_over { self.forget(fingerprint) } else { Totals::default() }
    }

    /// A leased object is gone for good; returns what is held no more.
    pub fn end_lease(&mut self, fingerprint: u128) -> Totals {
        let Some(held) = self.objects.get_mut(&fingerprint) else { return Totals::default() };
        held.lease = None;
        let is_over = held.pins == 0;
        if is_over { self.forget(fingerprint) } else { Totals::default() }
    }

    /// Forget leases that are over; what is held no more.
    pub fn expire(&mut self, now: Mono) -> Totals {
        let mut over = Vec::new();
        for (fingerprint, held) in &mut self.objects {
            held.lease = held.lease.filter(|until| *until > now);
            if held.pins == 0 && held.lease.is_none() {
                over.push(*fingerprint);
            }
        }
        let mut less = Totals::default();
        over.into_iter().for_each(|fingerprint| less.add(&self.forget(fingerprint)));
        less
    }

    fn forget(&mut self, fingerprint: u128) -> Totals {
        let Some(held) = self.objects.remove(&fingerprint) else { return Totals::default() };
        let mut less = Totals { objects: 1, bytes: 0 };
        if let Some((count, bytes)) = self.groups.get_mut(&held.group) {
            *count -= 1;
            if *count == 0 {
                less.bytes = *bytes;
                self.bytes -= *bytes;
                self.groups.remove(&held.group);
            }
        }
        less
    }
}
