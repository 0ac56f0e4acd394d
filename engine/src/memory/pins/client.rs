//! The pins and leases of one client, and the share of the store that it may keep. The limits leave
//! memory for the puts of other clients.

use std::collections::HashMap;

use pagelith_io::clock::Mono;

use super::PinTarget;
use crate::api::error::{Error, Result};
use crate::config::ValidConfig;

/// All clients together keep at most 1/`ALL_SHARE` of the store.
const ALL_SHARE: u64 = 2;
/// One client keeps at most 1/`CLIENT_SHARE` of that.
const CLIENT_SHARE: u64 = 2;

/// Objects and bytes pinned or leased by a client, or by all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PinTotals {
    pub objects: u64,
    /// Arena bytes.
    pub bytes: u64,
}

impl PinTotals {
    /// The limit for all clients of a store with this configuration, never 0.
    pub fn of(config: &ValidConfig) -> PinTotals {
        let (objects, bytes) = (config.max_objects(), config.arena_bytes());
        PinTotals {
            objects: (objects / ALL_SHARE).max(CLIENT_SHARE),
            bytes: (bytes / ALL_SHARE).max(CLIENT_SHARE),
        }
    }

    /// The limit for one client.
    pub fn share_of_client(&self) -> PinTotals {
        PinTotals { objects: self.objects / CLIENT_SHARE, bytes: self.bytes / CLIENT_SHARE }
    }

    /// An error if `self`, the amounts of `holder`, would exceed `most` with `additional`.
    pub fn check(&self, additional: &PinTotals, most: &PinTotals, holder: &str) -> Result<()> {
        // An object that is already kept may be pinned again.
        if additional.objects == 0
            || self.objects + additional.objects <= most.objects
                && self.bytes + additional.bytes <= most.bytes
        {
            return Ok(());
        }
        let PinTotals { objects, bytes } = most;
        let (more, more_bytes) = (additional.objects, additional.bytes);
        Err(Error::busy(format!(
            "too much is pinned or leased holder={holder} more_objects={more} more_bytes={more_bytes} objects_max={objects} bytes_max={bytes}"
        )))
    }

    pub fn add(&mut self, additional: &PinTotals) {
        self.objects += additional.objects;
        self.bytes += additional.bytes;
    }

    pub fn subtract(&mut self, released: &PinTotals) {
        self.objects -= released.objects;
        self.bytes -= released.bytes;
    }
}

/// Pins and lease of one object.
#[derive(Debug)]
struct ClientObject {
    pins: u32,
    lease: Option<Mono>,
    group: u128,
}

/// Objects that a client has pinned or leased.
#[derive(Debug, Default)]
pub(crate) struct ClientPins {
    objects: HashMap<u128, ClientObject>,
    /// Number of these objects of each group, and the group's bytes when the first was added.
    groups: HashMap<u128, (u32, u64)>,
    bytes: u64,
}

impl ClientPins {
    pub fn totals(&self) -> PinTotals {
        PinTotals { objects: self.objects.len() as u64, bytes: self.bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Amounts that it would keep in addition if it kept `targets` too.
    pub fn additional(&self, targets: &[PinTarget]) -> PinTotals {
        let new = targets.iter().filter(|target| !self.objects.contains_key(&target.fingerprint));
        let (mut objects, mut groups, mut bytes) = (HashMap::new(), HashMap::new(), 0);
        for target in new {
            objects.insert(target.fingerprint, ());
            if !self.groups.contains_key(&target.group) && groups.insert(target.group, ()).is_none()
            {
                bytes += target.bytes;
            }
        }
        PinTotals { objects: objects.len() as u64, bytes }
    }

    /// Add a pin, or a lease until `lease`.
    pub fn keep(&mut self, target: &PinTarget, lease: Option<Mono>) {
        let is_new = !self.objects.contains_key(&target.fingerprint);
        let object = self.objects.entry(target.fingerprint).or_insert(ClientObject {
            pins: 0,
            lease: None,
            group: target.group,
        });
        object.pins += u32::from(lease.is_none());
        object.lease = object.lease.max(lease);
        if is_new {
            let (count, _) = self.groups.entry(target.group).or_insert_with(|| {
                self.bytes += target.bytes;
                (0, target.bytes)
            });
            *count += 1;
        }
    }

    /// Remove a pin; returns the amounts that are no longer kept.
    pub fn unpin(&mut self, fingerprint: u128) -> PinTotals {
        let Some(object) = self.objects.get_mut(&fingerprint) else { return PinTotals::default() };
        object.pins = object.pins.saturating_sub(1);
        let is_released = object.pins == 0 && object.lease.is_none();
        if is_released { self.remove(fingerprint) } else { PinTotals::default() }
    }

    /// A leased object was removed; returns the amounts that are no longer kept.
    pub fn end_lease(&mut self, fingerprint: u128) -> PinTotals {
        let Some(object) = self.objects.get_mut(&fingerprint) else { return PinTotals::default() };
        object.lease = None;
        let is_released = object.pins == 0;
        if is_released { self.remove(fingerprint) } else { PinTotals::default() }
    }

    /// End expired leases; returns the amounts that are no longer kept.
    pub fn expire(&mut self, now: Mono) -> PinTotals {
        let mut expired = Vec::new();
        for (fingerprint, object) in &mut self.objects {
            object.lease = object.lease.filter(|until| *until > now);
            if object.pins == 0 && object.lease.is_none() {
                expired.push(*fingerprint);
            }
        }
        let mut released = PinTotals::default();
        expired.into_iter().for_each(|fingerprint| released.add(&self.remove(fingerprint)));
        released
    }

    fn remove(&mut self, fingerprint: u128) -> PinTotals {
        let Some(object) = self.objects.remove(&fingerprint) else { return PinTotals::default() };
        let mut released = PinTotals { objects: 1, bytes: 0 };
        if let Some((count, bytes)) = self.groups.get_mut(&object.group) {
            *count -= 1;
            if *count == 0 {
                released.bytes = *bytes;
                self.bytes -= *bytes;
                self.groups.remove(&object.group);
            }
        }
        released
    }
}
