//! Pins, leases, prefetches and hints over a link.

use std::sync::Weak;
use std::time::Duration;

use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::RequestBody;

use super::Client;
use super::lease_connection::{LeaseConnection, LeaseLink};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::hint::{Hint, check_namespace, whole_ms};
use crate::api::request::Options;
use crate::rpc::remote_get::CallOptions;

/// Maximum keys of one pin or lease request.
const KEYS_MAX: usize = 4096;

/// Keeps objects of a store in another process from being evicted or reclaimed. It ends when it is
/// dropped, when its link ends ([`Pin::is_held`]), or when its client is dropped. Removals and
/// clears ignore pins.
pub struct Pin {
    leases: Weak<LeaseConnection>,
    link: u64,
    names: Vec<u64>,
    pinned: usize,
}

impl Pin {
    /// The number of objects that were found and pinned.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Whether the objects are still pinned, as far as this side knows. They are not once the link
    /// has ended, which releases them at the store, or the store process was restarted. An
    /// unreachable store is detected after
    /// [`LinkLimits::dead_after`](pagelith_transport::limits::LinkLimits::dead_after).
    pub fn is_held(&self) -> bool {
        self.leases.upgrade().is_some_and(|leases| leases.is_connected(self.link))
    }
}

impl Drop for Pin {
    /// Waits until the store has released the pins, at most the timeout of calls.
    fn drop(&mut self) {
        let Some(leases) = self.leases.upgrade() else { return };
        leases.release();
        leases.unpin(self.link, &self.names);
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("pinned", &self.pinned).finish_non_exhaustive()
    }
}

/// The names of pins, and their link.
#[derive(Default)]
struct PinnedKeys {
    link: u64,
    names: Vec<u64>,
    pinned: usize,
}

impl Client {
    /// As `Store::pin`, for the life of the link: [`Pin::is_held`]. The link must be kept alive
    /// meanwhile: see [`Client::with_runtime`].
    ///
    /// # Errors
    /// `Busy` if this client, or all clients together, would have too much pinned; `Unavailable` if
    /// the store cannot be reached; `Incompatible` if it is of a version without pins of clients.
    pub fn pin(&self, keys: &[ObjectKey], options: Options) -> Result<Pin> {
        let call = self.call_options(&options);
        let PinnedKeys { link, names, pinned } = self
            .leases
            .acquire(call.deadline, |lease_link| self.pin_once(lease_link, keys, call))?;
        Ok(Pin { leases: Arc::downgrade(&self.leases), link, names, pinned })
    }

    /// Pin all keys over one link, or none.
    fn pin_once(
        &self,
        lease_link: &mut LeaseLink,
        keys: &[ObjectKey],
        call: CallOptions,
    ) -> Result<PinnedKeys> {
        let mut pinned_keys = PinnedKeys::default();
        for chunk in keys.chunks(KEYS_MAX) {
            let name = lease_link.next_name();
            let reply = lease_link.request_number(
                &*self.clock,
                &RequestBody::Pin(name, List::of(chunk)),
                call,
            );
            let first = pinned_keys.names.is_empty();
            pinned_keys.names.push(name);
            let error = match reply {
                Ok((pinned, link)) if first || link == pinned_keys.link => {
                    pinned_keys.pinned +=
                        usize::try_from(pinned).map_or(chunk.len(), |n| n.min(chunk.len()));
                    pinned_keys.link = link;
                    continue;
                }
                Ok(_) => Error::new(
                    ErrorKind::Unavailable,
                    "the link to the store ended, which released the pins",
                ),
                Err(error) => error,
            };
            // A request without a reply may have been executed.
            let (link, now) = (lease_link.connections.pool.generation(), self.clock.now());
            pinned_keys.names.iter().for_each(|name| {
                lease_link.send_without_reply(link, &RequestBody::Unpin(*name), call, now)
            });
            return Err(error);
        }
        Ok(pinned_keys)
    }

    /// As `Store::lease`, independent of the link; in whole milliseconds, rounded up.
    ///
    /// # Errors
    /// `Invalid` if `duration` is more than a day; otherwise as [`Client::pin`].
    pub fn lease(&self, keys: &[ObjectKey], duration: Duration, options: Options) -> Result<usize> {
        let ms = whole_ms(duration);
        self.sum(keys, options, |chunk| RequestBody::Lease(ms, chunk))
    }

    /// As `Store::hint`. Retained objects count within the bounds of the client's leases. Of a
    /// session that has ended or is expected back, only the last 4096 objects are sent.
    /// Other hints of more objects are several requests: if one is refused, the earlier ones stay
    /// in force.
    ///
    /// # Errors
    /// `Denied` if this client may not read the namespace; `Invalid` for several namespaces, or
    /// more than a day; `Incompatible` if the store is of a version without hints of clients;
    /// otherwise as [`Client::pin`].
    pub fn hint(&self, keys: &[ObjectKey], hint: Hint, options: Options) -> Result<usize> {
        check_namespace(keys)?;
        let number = hint.wire().number();
        let keys = match hint {
            // One request: each counts as a hint of its own, whose last pages are watched.
            Hint::SessionEnded | Hint::ExpectedBack(_) => {
                &keys[keys.len().saturating_sub(KEYS_MAX)..]
            }
            Hint::Demote | Hint::Retain(_) | Hint::Priority(_) => keys,
        };
        self.sum(keys, options, |chunk| RequestBody::Hint(number, chunk))
    }

    /// Send a request for each piece of `keys`, and sum up the numbers of objects in the replies.
    fn sum(
        &self,
        keys: &[ObjectKey],
        options: Options,
        ask: impl Fn(List<'_, ObjectKey>) -> RequestBody<'_>,
    ) -> Result<usize> {
        let call = self.split_call(options);
        let mut sum = 0;
        for (at, chunk) in (0..).step_by(KEYS_MAX).zip(keys.chunks(KEYS_MAX)) {
            let number = self.number(&ask(List::of(chunk)), &call.next(at))?;
            sum += usize::try_from(number).map_or(chunk.len(), |number| number.min(chunk.len()));
        }
        Ok(sum)
    }

    /// As `Store::prefetch`.
    ///
    /// # Errors
    /// As [`Client::exists_batch`]; `Incompatible` if the store is of a version without prefetch.
    #[expect(clippy::redundant_closure, reason = "the variant itself is of one lifetime only")]
    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        self.sum(keys, options, |chunk| RequestBody::Prefetch(chunk))
    }
}
