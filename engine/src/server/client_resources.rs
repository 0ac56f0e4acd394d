//! Pins, views and open groups of a client. They belong to its connection and are released with it.
//! Names are chosen by the client and valid on its connection only.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::sync::Arc;
use pagelith_layouts::checksum::key_hash;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::hint::WireHint;
use pagelith_layouts::wire::outcome::{RegionExtent, ViewItem, digest};
use pagelith_layouts::wire::request::{RequestBody, Verb};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_transport::link::Link;
use rustc_hash::FxHashMap;

use super::op_outcome::OpOutcome;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::hint::Hint;
use crate::api::request::Options;
use crate::memory::pins::ClientName;
use crate::read::pin;
use crate::read::pin::Pin;
use crate::read::view;
use crate::read::view::View;
use crate::state::reserve::count_reserved;
use crate::state::shared::Shared;
use crate::store::hint;
use crate::write::open_group;
use crate::write::open_group::JoinedGroup;

/// Maximum number of pins of a connection; the bases of pinned objects count too.
pub(crate) const PINNED_MAX: usize = 65_536;
/// All clients together may view 1/`VIEWED_SHARE` of the arena, or one frame if that is more.
pub(crate) const VIEWED_SHARE: u64 = 4;
/// Maximum duration of a client's lease or hint. A lease, unlike a pin, outlives its connection,
/// and a client cannot release it before its time.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum number of objects in the open groups of a connection: a quarter of the maximum for all
/// connections.
pub(crate) const REQUIRED_MAX: usize = crate::state::pending_groups::REQUIRED_MAX / 4;

/// Pins, views and open groups of a connection.
#[derive(Default)]
pub(crate) struct ClientResources {
    client: ClientName,
    pins: FxHashMap<u64, Pin>,
    rows: usize,
    views: FxHashMap<u64, Vec<View>>,
    groups: FxHashMap<u64, OpenGroup>,
}

/// A group that the client began.
struct OpenGroup {
    joined: JoinedGroup,
    /// Keys of its objects, in the client's order.
    required: Vec<ObjectKey>,
}

impl ClientResources {
    /// None yet, for this client.
    pub fn new(client: ClientName) -> ClientResources {
        ClientResources { client, ..ClientResources::default() }
    }

    /// Executes a pin, unpin, lease or hint request; returns the number of objects affected.
    pub fn handle_pin(&mut self, shared: &Arc<Shared>, body: &RequestBody<'_>) -> Result<u64> {
        shared.check_open()?;
        let objects = match body {
            RequestBody::Pin(name, _) if self.has(*name) => return Err(name_in_use(*name)),
            RequestBody::Pin(name, keys) => {
                let pin =
                    Pin::for_client(shared, &self.client, keys.iter(), PINNED_MAX - self.rows)?;
                let pinned = pin.pinned();
                self.rows += pin.rows();
                if pinned > 0 {
                    self.pins.insert(*name, pin);
                }
                pinned
            }
            RequestBody::Unpin(name) => {
                let pinned = self.pins.remove(name).map_or(0, |pin| {
                    self.rows -= pin.rows();
                    pin.pinned()
                });
                pinned + self.views.remove(name).map_or(0, |views| release_views(shared, views))
            }
            RequestBody::Lease(ms, keys) => {
                let duration = Duration::from_millis(*ms);
                check_duration("lease", duration)?;
                pin::lease_for_client(shared, &self.client, keys.iter(), duration)?
            }
            RequestBody::Hint(number, keys) => {
                let hint = WireHint::from_number(*number).map(Hint::of_wire).ok_or_else(|| {
                    let detail = format!("the store does not know this hint number={number}");
                    Error::new(ErrorKind::Incompatible, detail)
                })?;
                check_duration("hint", hint.duration().unwrap_or_default())?;
                let keys: Vec<_> = keys.iter().collect();
                hint::hint_of(shared, &self.client, &keys, hint)?
            }
            body => {
                return Err(Error::invalid(format!(
                    "verb is not a pin, unpin, lease or hint verb={:?}",
                    body.verb()
                )));
            }
        };
        Ok(objects as u64)
    }

    /// Locations of these objects in shared memory, if the link shares it. The objects stay
    /// there until the view is released.
    pub fn view(
        &mut self,
        link: &dyn Link,
        shared: &Arc<Shared>,
        name: u64,
        keys: impl Iterator<Item = ObjectKey>,
    ) -> Result<Vec<ViewItem>> {
        if self.has(name) {
            return Err(name_in_use(name));
        }
        let mut views = Vec::new();
        let items = keys.map(|key| {
            let Some(view) = view::view(shared, &key)? else {
                return Ok(ViewItem::of(key_hash(&key), None));
            };
            let Some((region, at)) = link.region_offset(&[view.part()]) else {
                let detail = "the store shares no memory with this client";
                return Err(Error::new(ErrorKind::Incompatible, detail));
            };
            let most = shared.config.arena_bytes() / VIEWED_SHARE;
            if !count_reserved(&shared.bytes.viewed, view.pinned_bytes(), most) {
                return Err(Error::busy(format!(
                    "views of all clients keep too much of the arena, release views max={most}"
                )));
            }
            let (length, digest) = (view.len() as u64, digest(view.checksums()));
            views.push(view);
            Ok(ViewItem::of(key_hash(&key), Some(RegionExtent { region, at, length, digest })))
        });
        let items: Result<Vec<ViewItem>> = items.collect();
        match items.is_ok() && !views.is_empty() && !mutant::on(Mutant::ViewFrameNotPinned) {
            true => _ = self.views.insert(name, views),
            false => _ = release_views(shared, views),
        }
        items
    }

    fn has(&self, name: u64) -> bool {
        self.pins.contains_key(&name) || self.views.contains_key(&name)
    }

    /// Begins a group; returns the number of its objects.
    pub fn begin(
        &mut self,
        shared: &Shared,
        name: u64,
        required: Vec<ObjectKey>,
        options: &Options,
    ) -> Result<u64> {
        if self.groups.contains_key(&name) {
            return Err(Error::invalid(format!(
                "name is in use by a group of this link name={name}"
            )));
        }
        let all = |groups: &FxHashMap<u64, OpenGroup>| {
            groups.values().map(|g| g.required.len()).sum::<usize>()
        };
        if all(&self.groups) + required.len() > REQUIRED_MAX {
            // Groups that ended need no name.
            self.groups.retain(|_, begun| begun.joined.is_open(shared));
        }
        let objects = all(&self.groups) + required.len();
        if objects > REQUIRED_MAX {
            let detail = format!(
                "open groups of this link require too many objects objects={objects} max={REQUIRED_MAX}"
            );
            return Err(Error::busy(detail));
        }
        let joined = open_group::join(shared, &required, options, true)?;
        let count = required.len() as u64;
        self.groups.insert(name, OpenGroup { joined, required });
        Ok(count)
    }

    /// The group with this name, or an error.
    pub fn group(&self, name: u64) -> Result<JoinedGroup> {
        self.groups.get(&name).map(|begun| begun.joined.clone()).ok_or_else(open_group::not_open)
    }

    /// Aborts a group; returns the number of its objects.
    pub fn abort(&mut self, shared: &Shared, name: u64) -> Result<u64> {
        let begun = self.groups.remove(&name).ok_or_else(open_group::not_open)?;
        begun.joined.abort(shared);
        Ok(begun.required.len() as u64)
    }

    /// For each object of a group, whether it still has to be put.
    pub fn missing(&self, shared: &Shared, name: u64) -> OpOutcome {
        let of = |begun: &OpenGroup| {
            let missing = begun.joined.missing_if_open(shared)?;
            Ok(begun.required.iter().map(|key| missing.contains(key)).collect())
        };
        match self.groups.get(&name).ok_or_else(open_group::not_open).and_then(of) {
            Ok(bits) => OpOutcome::bits(Verb::Missing, bits),
            Err(error) => OpOutcome::failed(Verb::Missing, error),
        }
    }

    /// Releases everything: the connection has ended.
    pub fn release_all(&mut self, shared: &Shared) {
        let ClientResources { pins, groups, views, .. } = std::mem::take(self);
        drop(pins);
        if mutant::on(Mutant::ViewPinLeaked) {
            std::mem::forget(views);
            return;
        }
        views.into_values().for_each(|views| _ = release_views(shared, views));
        shared.lock().release_group_links(
            groups.into_values().map(|begun| begun.joined.id().0),
            shared.now(),
        );
    }
}

fn name_in_use(name: u64) -> Error {
    Error::invalid(format!("name is in use by a pin or view of this link name={name}"))
}

/// Refuses a lease or hint that lasts too long.
fn check_duration(what: &str, duration: Duration) -> Result<()> {
    if duration > LEASE_MAX {
        let (ms, max) = (duration.as_millis(), LEASE_MAX.as_millis());
        return Err(Error::invalid(format!("{what} is too long ms={ms} max={max}")));
    }
    Ok(())
}

/// Ends views; returns the number of their objects.
fn release_views(shared: &Shared, views: Vec<View>) -> usize {
    let bytes: u64 = views.iter().map(View::pinned_bytes).sum();
    shared.bytes.viewed.fetch_sub(bytes, Relaxed);
    views.len()
}
