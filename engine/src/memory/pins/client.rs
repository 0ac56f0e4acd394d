//! The pins and leases of one client, and its share of the store: other clients' puts find room
//! whatever it holds.

use std::collections::HashMap;

use pagelith_io::clock::Mono;

use super::PinTarget;
use crate::api::error::{Error, Result};
use crate::config::ValidConfig;

/// All clients together hold at most 1/`ALL_SHARE` of the store.
const ALL_SHARE: u64 = 2;
/// One client holds at most 1/`CLIENT_SHARE` of that.
const CLIENT_SHARE: u64 = 2;

/// Amounts held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HoldTotals {
    pub objects: u64,
    /// Arena bytes.
    pub bytes: u64,
}

impl HoldTotals {
    /// The limit for all clients of a store with this configuration, never 0.
    pub fn of(config: &ValidConfig) -> HoldTotals {
        let (objects, bytes) = (config.max_objects(), config.arena_bytes());
        HoldTotals {
            objects: (objects / ALL_SHARE).max(CLIENT_SHARE),
            bytes: (bytes / ALL_SHARE).max(CLIENT_SHARE),
        }
    }

    /// The limit for one client.
    pub fn share_of_client(&self) -> HoldTotals {
        HoldTotals { objects: self.objects / CLIENT_SHARE, bytes: self.bytes / CLIENT_SHARE }
    }

    /// An error if `self`, the amounts of `who`, would exceed `most` with `more`.
    pub fn check(&self, more: &HoldTotals, most: &HoldTotals, who: &str) -> Result<()> {
        // An object that is held already may be pinned again.
        if more.objects == 0
            || self.objects + more.objects <= most.objects && self.bytes + more.bytes <= most.bytes
        {
            return Ok(());
        }
        let HoldTotals { objects, bytes } = most;
        let (more, more_bytes) = (more.objects, more.bytes);
        Err(Error::busy(format!(
            "{who} would pin or lease too much more_objects={more} more_bytes={more_bytes} objects_max={objects} bytes_max={bytes}"
        )))
    }

    pub fn add(&mut self, more: &HoldTotals) {
        self.objects += more.objects;
        self.bytes += more.bytes;
    }

    pub fn take(&mut self, less: &HoldTotals) {
        self.objects -= less.objects;
        self.bytes -= less.bytes;
    }
}

/// Pins and lease of one object.
#[derive(Debug)]
struct ClientObject {
    pins: u32,
    lease: Option<Mono>,
    group: u128,
}

/// Objects that a client holds.
#[derive(Debug, Default)]
pub(crate) struct Client {
    objects: HashMap<u128, ClientObject>,
    /// Number of held objects of each group, and the group's bytes when the first was held.
    groups: HashMap<u128, (u32, u64)>,
    bytes: u64,
}

impl Client {
    pub fn totals(&self) -> HoldTotals {
        HoldTotals { objects: self.objects.len() as u64, bytes: self.bytes }
    }

    pub fn holds_nothing(&self) -> bool {
        self.objects.is_empty()
    }

    /// How much more it would hold with `rows`.
    pub fn more(&self, rows: &[PinTarget]) -> HoldTotals {
        let new = rows.iter().filter(|row| !self.objects.contains_key(&row.fingerprint));
        let (mut objects, mut groups, mut bytes) = (HashMap::new(), HashMap::new(), 0);
        for row in new {
            objects.insert(row.fingerprint, ());
            if !self.groups.contains_key(&row.group) && groups.insert(row.group, ()).is_none() {
                bytes += row.bytes;
            }
        }
        HoldTotals { objects: objects.len() as u64, bytes }
    }

    /// Add a pin, or a lease until `lease`.
    pub fn hold(&mut self, row: &PinTarget, lease: Option<Mono>) {
        let is_new = !self.objects.contains_key(&row.fingerprint);
        let held = self.objects.entry(row.fingerprint).or_insert(ClientObject {
            pins: 0,
            lease: None,
            group: row.group,
        });
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

    /// Remove a pin; returns the amounts that are no longer held.
    pub fn let_go(&mut self, fingerprint: u128) -> HoldTotals {
        let Some(held) = self.objects.get_mut(&fingerprint) else { return HoldTotals::default() };
        held.pins = held.pins.saturating_sub(1);
        let is_free = held.pins == 0 && held.lease.is_none();
        if is_free { self.remove(fingerprint) } else { HoldTotals::default() }
    }

    /// A leased object was removed; returns the amounts that are no longer held.
    pub fn end_lease(&mut self, fingerprint: u128) -> HoldTotals {
        let Some(held) = self.objects.get_mut(&fingerprint) else { return HoldTotals::default() };
        held.lease = None;
        let is_free = held.pins == 0;
        if is_free { self.remove(fingerprint) } else { HoldTotals::default() }
    }

    /// End expired leases; returns the amounts that are no longer held.
    pub fn expire(&mut self, now: Mono) -> HoldTotals {
        let mut expired = Vec::new();
        for (fingerprint, held) in &mut self.objects {
            held.lease = held.lease.filter(|until| *until > now);
            if held.pins == 0 && held.lease.is_none() {
                expired.push(*fingerprint);
            }
        }
        let mut less = HoldTotals::default();
        expired.into_iter().for_each(|fingerprint| less.add(&self.remove(fingerprint)));
        less
    }

    fn remove(&mut self, fingerprint: u128) -> HoldTotals {
        let Some(held) = self.objects.remove(&fingerprint) else { return HoldTotals::default() };
        let mut less = HoldTotals { objects: 1, bytes: 0 };
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
