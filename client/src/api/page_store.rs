//! One interface to a store, whether it is embedded in this process or attached in another.

use std::time::Duration;

use pagelith_io::device::{CallerStream, Device, DeviceHandle, Driver};
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;

use super::device::pieces::{DeviceGet, DeviceGroup};
use super::error::{Error, ErrorKind, Result};
use super::events::Events;
use super::hint::Hint;
use super::hits::{PagesFound, PagesQuery};
use super::outcome::{CompletedBatch, FlushReport, GetOutcome, PutOutcome, Ticket};
use super::request::{Get, GetSlice, Options, PutGroup, PutSlice, RequestEpoch};

/// A store of pages: the embedded `Store`, or the [`Client`](crate::client::Client) of a store
/// process. Code that is written against it runs over both. The two differ in the errors of a link:
/// a store process that cannot be reached is `Unavailable`.
///
/// Each call has the documentation of the method of `Store` with its name. Calls of a closed store
/// fail as `Closed`, but for `stats`, `take_events`, and a group's `missing` and `abort`.
pub trait PageStore: Send + Sync {
    /// Begin a request: batches with it count as equally recent, deeper pages before shallower
    /// ones.
    fn begin_request(&self) -> RequestEpoch;

    /// Put standalone objects; one outcome for each.
    fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>>;

    /// Put groups, each of objects of one page; one outcome for each group.
    fn put_groups(&self, groups: &[&[PutSlice<'_>]], options: Options) -> Vec<Result<PutOutcome>>;

    /// Put groups, each attached to the base group that has the key given with it.
    fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>>;

    /// Put parts of base groups that consist of `required`, and commit those that are complete.
    fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>>;

    /// Begin the base group of a page that consists of `required`, or join it.
    fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Box<dyn PageGroup>>;

    /// Get objects; one outcome for each.
    fn get_batch(&self, gets: &mut [GetSlice<'_, '_>], options: Options)
    -> Vec<Result<GetOutcome>>;

    /// Bind a device, which the engine of this process has initialised.
    fn bind_device(&self, device: Device) -> Result<DeviceHandle>;

    /// As `bind_device`, with this driver.
    fn bind_device_of(&self, driver: &Driver, ordinal: u32) -> Result<DeviceHandle>;

    /// Get objects into memory of a device; one outcome for each.
    fn get_to_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        gets: &[DeviceGet<'_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>>;

    /// Put groups out of memory of a device, or parts of groups that consist of `required`.
    fn put_from_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        groups: &[DeviceGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>>;

    /// Whether each object is present.
    fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<bool>>;

    /// Number of leading `keys` whose objects are present.
    fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> Result<usize>;

    /// The longest prefix that can be restored if the state of a page is in several pools.
    fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound>;

    /// Hint that these objects will be requested soon; returns how many will be read into DRAM.
    fn prefetch(&self, keys: &[ObjectKey], options: Options) -> Result<usize>;

    /// View objects in place in the store's DRAM; `None` for those that are not there.
    fn view_batch(
        &self,
        keys: &[ObjectKey],
        options: Options,
    ) -> Result<Vec<Option<Box<dyn PageView>>>>;

    /// Keep objects from being evicted or reclaimed until the pin is dropped.
    fn pin(&self, keys: &[ObjectKey], options: Options) -> Result<Box<dyn PagePin>>;

    /// Keep objects from being evicted or reclaimed for `duration`; returns how many are present.
    fn lease(&self, keys: &[ObjectKey], duration: Duration, options: Options) -> Result<usize>;

    /// Give a hint about the future use of objects of one namespace; returns to how many present
    /// objects it was applied.
    fn hint(&self, keys: &[ObjectKey], hint: Hint, options: Options) -> Result<usize>;

    /// Remove objects durably, with their groups; returns how many of `keys` were present.
    fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize>;

    /// Make all objects of a namespace invisible for ever; returns its new generation.
    fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation>;

    /// Make all objects put so far durable.
    fn flush(&self, options: Options) -> Result<FlushReport>;

    /// Counters, as a JSON object; `docs/operations.md` describes each.
    fn stats(&self, options: Options) -> Result<String>;

    /// Take the events since the last call, at most `most`. Those of a store process count from the
    /// first call, which returns none.
    fn take_events(&self, most: usize, options: Options) -> Result<Events>;

    /// Create a session, which submits batches without waiting for them.
    fn session(&self) -> Result<Box<dyn PageSession>>;

    /// Put one standalone object of one piece.
    fn put_one(&self, key: ObjectKey, bytes: &[u8], options: Options) -> Result<PutOutcome> {
        only(self.put_batch(&[PutSlice { key, pieces: &[bytes] }], options))
    }

    /// Put a page: a group of objects of one piece each.
    fn put_page(&self, objects: &[(ObjectKey, &[u8])], options: Options) -> Result<PutOutcome> {
        let pieces: Vec<[&[u8]; 1]> = objects.iter().map(|(_, bytes)| [*bytes]).collect();
        let keys = objects.iter().map(|(key, _)| *key);
        let group: Vec<_> =
            keys.zip(&pieces).map(|(key, pieces)| PutSlice { key, pieces }).collect();
        only(self.put_groups(&[&group], options))
    }

    /// Get one whole object into `into`, which must have its length.
    fn get_one(&self, key: ObjectKey, into: &mut [u8], options: Options) -> Result<GetOutcome> {
        only(self.get_batch(&mut [GetSlice { key, range: None, pieces: &mut [into] }], options))
    }
}

/// An open base group of a page. Dropping it does not end the group, which stays open until its
/// deadline, or, over a link, until the client's link ends.
pub trait PageGroup: Send + Sync {
    /// The objects of the group, in the order in which they are stored on SSD.
    fn required(&self) -> &[ObjectKey];

    /// Put objects of the group; one outcome for each, `Waiting` on success.
    fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>>;

    /// The required objects that are neither put nor in the store.
    fn missing(&self, options: Options) -> Result<Vec<ObjectKey>>;

    /// Make the group visible: `Waiting` if objects are missing, and it stays open.
    fn commit(&self, options: Options) -> Result<PutOutcome>;

    /// Drop the objects that were put.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached: the group then ends at its deadline.
    fn abort(&self) -> Result<()>;
}

/// Keeps objects from being evicted or reclaimed until it is dropped.
pub trait PagePin: Send + Sync {
    /// The number of objects that were present and are pinned.
    fn pinned(&self) -> usize;

    /// Whether they are still pinned: not after a close, nor after the end of the client's link.
    fn is_held(&self) -> bool;
}

/// An object's bytes in the memory of its store, verified when the view was created.
pub trait PageView: Send + Sync {
    /// Length in bytes, at least 1.
    fn length(&self) -> usize;

    /// Address of the bytes, for reading only, while the view exists. `None` if this process could
    /// not map them.
    fn address(&self) -> Option<*const u8>;

    /// Whether the bytes have been held until now: if so, all bytes read before are correct.
    fn is_held(&self) -> bool;

    /// Copy the bytes from `from` on into `to`; true if they were held during the copy.
    ///
    /// # Panics
    /// If the view has fewer bytes.
    fn copy_out(&self, from: u64, to: &mut [u8]) -> bool;
}

/// One thread's handle of a store, with several batches in flight. Batches make progress while one
/// of its methods runs.
pub trait PageSession: Send {
    /// Submit a batch of gets, without waiting for it.
    fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket;

    /// Submit groups to be put, without waiting: without room the outcome is `Busy`.
    fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket;

    /// Make progress without waiting; returns a finished batch, if there is one.
    fn poll(&mut self) -> Option<(Ticket, CompletedBatch)>;

    /// Wait for a batch, at most `timeout`. `None` if it is not finished by then, or was returned.
    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Option<CompletedBatch>;

    /// Wait for the first batch that finishes, at most `timeout`.
    fn wait_any(&mut self, timeout: Duration) -> Option<(Ticket, CompletedBatch)>;

    /// Whether a batch, or what a late batch left, may be in flight, so that polls are needed.
    fn is_busy(&self) -> bool {
        true
    }
}

/// The outcome of a batch of one.
fn only<T>(outcomes: Vec<Result<T>>) -> Result<T> {
    let none = || Error::new(ErrorKind::Internal, "a call has no outcome");
    outcomes.into_iter().next().unwrap_or_else(|| Err(none()))
}
