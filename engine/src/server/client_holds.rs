//! What a client holds of the store beyond its operations: pins, what it looks at, and groups that it began. They are of its
//! connection, named by the client, and go with it; what another connection holds has no name here.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::sync::Arc;
use pagelith_layouts::checksum::key_hash;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::{Lies, ViewItem, digest};
use pagelith_layouts::wire::request::{Ask, Verb};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_transport::link::Link;
use rustc_hash::FxHashMap;

use super::answer::Answered;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::request::Options;
use crate::memory::pins::ClientName;
use crate::read::pin;
use crate::read::pin::Pin;
use crate::read::view;
use crate::read::view::View;
use crate::state::reserve::reserve;
use crate::state::shared::Shared;
use crate::write::groups;
use crate::write::groups::JoinedGroup;

/// Most objects that a connection has pinned; what they are attached to counts too.
pub(crate) const PINNED_MAX: usize = 65_536;
/// Of the arena all clients together look at this share at most, or at one page.
pub(crate) const VIEWED_SHARE: u64 = 4;
/// Longest lease that a client gets: a lease outlives its connection, and nobody could end it before.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most objects that the open groups of a connection consist of: a quarter of what those of all together may.
pub(crate) const REQUIRED_MAX: usize = crate::state::pending_groups::REQUIRED_MAX / 4;

/// What a connection holds.
#[derive(Default)]
pub(crate) struct Held {
    client: ClientName,
    pins: FxHashMap<u64, Pin>,
    rows: usize,
    views: FxHashMap<u64, Vec<View>>,
    groups: FxHashMap<u64, Begun>,
}

/// A group that a client began.
struct Begun {
    joined: JoinedGroup,
    /// What it consists of, in the client's order.
    required: Vec<ObjectKey>,
}

impl Held {
    /// Nothing, of this client.
    pub fn of(client: ClientName) -> Held {
        Held { client, ..Held::default() }
    }

    /// Do what is asked of pins and leases; how many objects it was done with.
    pub fn pins(&mut self, shared: &Arc<Shared>, ask: &Ask<'_>) -> Result<u64> {
        shared.check_open()?;
        let objects = match ask {
            Ask::Pin(name, _) if self.has(*name) => return Err(has_name(*name)),
            Ask::Pin(name, keys) => {
                let pin = Pin::for_client(shared, &self.client, keys.iter(), PINNED_MAX - self.rows)?;
                let pinned = pin.pinned();
                self.rows += pin.rows();
                if pinned > 0 {
                    self.pins.insert(*name, pin);
                }
                pinned
            }
            Ask::Unpin(name) => {
                let pinned = self.pins.remove(name).map_or(0, |pin| {
                    self.rows -= pin.rows();
                    pin.pinned()
                });
                pinned + self.views.remove(name).map_or(0, |views| look_no_more(shared, views))
            }
            Ask::Lease(ms, keys) => {
                let duration = Duration::from_millis(*ms);
                if duration > LEASE_MAX {
                    let max = LEASE_MAX.as_millis();
                    return Err(Error::invalid(format!("a lease is too long ms={ms} max={max}")));
                }
                pin::lease_for_client(shared, &self.client, keys.iter(), duration)?
            }
            ask => return Err(Error::invalid(format!("nothing to hold verb={:?}", ask.verb()))),
        };
        Ok(objects as u64)
    }

    /// Where these objects lie in memory, if this link shows that: they stay there until they are let go.
    pub fn view(
        &mut self,
        link: &dyn Link,
        shared: &Arc<Shared>,
        name: u64,
        keys: impl Iterator<Item = ObjectKey>,
    ) -> Result<Vec<ViewItem>> {
        if self.has(name) {
            return Err(has_name(name));
        }
        let mut views = Vec::new();
        let seen = keys.map(|key| {
            let Some(view) = view::view(shared, &key)? else { return Ok(ViewItem::of(key_hash(&key), None)) };
            let Some((region, at)) = link.place(&[view.part()]) else {
                let detail = "the store shows this process none of its memory";
                return Err(Error::new(ErrorKind::Incompatible, detail));
            };
            let most = shared.config.arena_bytes() / VIEWED_SHARE;
            if !reserve(&shared.viewed, view.pinned_bytes(), most) {
                return Err(Error::busy(format!("too much of the arena is looked at max={most}")));
            }
            let (length, digest) = (view.len() as u64, digest(view.checksums()));
            views.push(view);
            Ok(ViewItem::of(key_hash(&key), Some(Lies { region, at, length, digest })))
        });
        let seen: Result<Vec<ViewItem>> = seen.collect();
        match seen.is_ok() && !views.is_empty() && !mutant::on(Mutant::ViewLetGo) {
            true => _ = self.views.insert(name, views),
            false => _ = look_no_more(shared, views),
        }
        seen
    }

    fn has(&self, name: u64) -> bool {
        self.pins.contains_key(&name) || self.views.contains_key(&name)
    }

    /// Begin a group; how many objects it consists of.
    pub fn begin(
        &mut self,
        shared: &Shared,
        name: u64,
        required: Vec<ObjectKey>,
        options: &Options,
    ) -> Result<u64> {
        if self.groups.contains_key(&name) {
            return Err(Error::invalid(format!("a group of this link has this name name={name}")));
        }
        let all = |groups: &FxHashMap<u64, Begun>| groups.values().map(|g| g.required.len()).sum::<usize>();
        if all(&self.groups) + required.len() > REQUIRED_MAX {
            // What is over needs no name any more.
            self.groups.retain(|_, begun| begun.joined.is_open(shared));
        }
        let objects = all(&self.groups) + required.len();
        if objects > REQUIRED_MAX {
            let detail = format!(
                "open groups of this link require too many objects objects={objects} max={REQUIRED_MAX}"
            );
            return Err(Error::busy(detail));
        }
        let joined = groups::join(shared, &required, options, true)?;
        let count = required.len() as u64;
        self.groups.insert(name, Begun { joined, required });
        Ok(count)
    }

    /// The group of a name; an error if there is none.
    pub fn group(&self, name: u64) -> Result<JoinedGroup> {
        self.groups.get(&name).map(|begun| begun.joined.clone()).ok_or_else(groups::not_open)
    }

    /// Give a group up; how many objects it consisted of.
    pub fn abort(&mut self, shared: &Shared, name: u64) -> Result<u64> {
        let begun = self.groups.remove(&name).ok_or_else(groups::not_open)?;
        begun.joined.abort(shared);
        Ok(begun.required.len() as u64)
    }

    /// Which objects of a group are neither put nor here.
    pub fn missing(&self, shared: &Shared, name: u64) -> Answered {
        match self.groups.get(&name) {
            Some(begun) => {
                let missing = begun.joined.missing(shared);
                Answered::bits(
                    Verb::Missing,
                    begun.required.iter().map(|key| missing.contains(key)).collect(),
                )
            }
            None => Answered::failed(Verb::Missing, groups::not_open()),
        }
    }

    /// The connection has ended.
    pub fn let_go(&mut self, shared: &Shared) {
        let Held { pins, groups, views, .. } = std::mem::take(self);
        drop(pins);
        if mutant::on(Mutant::HeldForTheGone) {
            std::mem::forget(views);
            return;
        }
        views.into_values().for_each(|views| _ = look_no_more(shared, views));
        shared.lock().leave_groups(groups.into_values().map(|begun| begun.joined.id().0), shared.now());
    }
}

fn has_name(name: u64) -> Error {
    Error::invalid(format!("a pin or view of this link has this name name={name}"))
}

/// A client looks there no more; how many objects.
fn look_no_more(shared: &Shared, views: Vec<View>) -> usize {
    let bytes: u64 = views.iter().map(View::pinned_bytes).sum();
    shared.viewed.fetch_sub(bytes, Relaxed);
    views.len()
}
