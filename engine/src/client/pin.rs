//! Pins, leases and hints over a link.

use std::sync::Weak;
use std::time::Duration;

use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::Ask;

use super::Attached;
use super::lease_connection::{Keeper, Kept};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::request::Options;
use crate::rpc::remote_get::Manner;

/// Most keys of one pin or lease on the wire.
const KEYS_MAX: usize = 4096;

/// Keeps objects of another process's store from being evicted or reclaimed, until it is dropped, or until the link that
/// it is held over ends: [`Pin::is_held`], which it does with its client. Removing and clearing are stronger.
pub struct Pin {
    keeper: Weak<Keeper>,
    link: u64,
    names: Vec<u64>,
    pinned: usize,
}

impl Pin {
    /// How many of the objects were here and were pinned.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Whether they are pinned still, as far as is known here: not once the link has ended, which lets go of them at the store's
    /// end, or the store was started again. A store that cannot be reached is noticed after the time in which silence means
    /// death ([`Limits::dead_after`](pagelith_transport::limits::Limits::dead_after)).
    pub fn is_held(&self) -> bool {
        self.keeper.upgrade().is_some_and(|keeper| keeper.stands(self.link))
    }
}

impl Drop for Pin {
    /// Waits until the store has let go, for as long as a call may take.
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.upgrade() else { return };
        keeper.let_go();
        keeper.unpin(self.link, &self.names);
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

/// What was pinned, over which link.
#[derive(Default)]
struct Taken {
    link: u64,
    names: Vec<u64>,
    pinned: usize,
}

impl Attached {
    /// As [`crate::Store::pin`], for as long as the link lasts: [`Pin::is_held`]. The store is not to take this process for
    /// dead meanwhile: see [`Attached::looked_at_by`].
    ///
    /// # Errors
    /// `Busy` if this client, or all together, would have too much pinned; `Unavailable` if the store cannot be reached;
    /// `Incompatible` if it is of a time before pins of clients.
    pub fn pin(&self, keys: &[ObjectKey], options: Options) -> Result<Pin> {
        let manner = self.manner(&options);
        let Taken { link, names, pinned } =
            self.keeper.take(manner.deadline, |kept| self.pin_once(kept, keys, manner))?;
        Ok(Pin { keeper: Arc::downgrade(&self.keeper), link, names, pinned })
    }

    /// All of it over one link, or nothing.
    fn pin_once(&self, kept: &mut Kept, keys: &[ObjectKey], manner: Manner) -> Result<Taken> {
        let mut taken = Taken::default();
        for chunk in keys.chunks(KEYS_MAX) {
            let name = kept.name();
            let told = kept.number(&*self.clock, &Ask::Pin(name, List::of(chunk)), manner);
            let first = taken.names.is_empty();
            taken.names.push(name);
            let error = match told {
                Ok((pinned, link)) if first || link == taken.link => {
                    taken.pinned += usize::try_from(pinned).map_or(chunk.len(), |n| n.min(chunk.len()));
                    taken.link = link;
                    continue;
                }
                Ok(_) => Error::new(
                    ErrorKind::Unavailable,
                    "the link to the store ended, and with it what was pinned",
                ),
                Err(error) => error,
            };
            // What was not answered in time may be pinned all the same.
            let (link, now) = (kept.desk.lines.made(), self.clock.now());
            taken.names.iter().for_each(|name| kept.say(link, &Ask::Unpin(*name), manner, now));
            return Err(error);
        }
        Ok(taken)
    }

    /// As [`crate::Store::lease`], whatever becomes of the link; in whole milliseconds, rounded up.
    ///
    /// # Errors
    /// `Invalid` if `duration` is more than a day; else as of [`Attached::pin`].
    pub fn lease(&self, keys: &[ObjectKey], duration: Duration, options: Options) -> Result<usize> {
        let ms = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1);
        let mut leased = 0;
        for chunk in keys.chunks(KEYS_MAX) {
            let here = self.number(&Ask::Lease(ms, List::of(chunk)), &options)?;
            leased += usize::try_from(here).map_or(chunk.len(), |here| here.min(chunk.len()));
        }
        Ok(leased)
    }

    /// As [`crate::Store::prefetch`].
    ///
    /// # Errors
    /// As of [`Attached::exists_batch`]; `Incompatible` if the store is of a version without it.
    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        let mut taken = 0;
        for (at, chunk) in (0..).step_by(KEYS_MAX).zip(keys.chunks(KEYS_MAX)) {
            let options = Options { depth: options.depth.saturating_add(at), ..options };
            let some = self.number(&Ask::Prefetch(List::of(chunk)), &options)?;
            taken += usize::try_from(some).map_or(chunk.len(), |some| some.min(chunk.len()));
        }
        Ok(taken)
    }
}
