//! What calls with devices need of their store.

use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::device::Owner;
use pagelith_io::staging::StagingPool;
use pagelith_layouts::key::ObjectKey;

use super::bound::Devices;
use super::pieces::DeviceGet;
use crate::api::borrowed::BorrowedGroup;
use crate::api::error::Result;
use crate::api::outcome::{CompletedGet, PutOutcome};
use crate::api::request::{Get, Options};

/// An object in memory of the store, verified.
pub struct InPlace {
    /// The bytes to be copied.
    pub part: Part,
    /// Keeps the memory; dropped after the part.
    pub owner: Owner,
    /// Bytes of the store's memory that it keeps.
    pub bytes: u64,
}

/// A store, as calls with devices use it.
pub trait DeviceStore: Sync {
    /// The time now.
    fn now(&self) -> Mono;

    /// The deadline of a call.
    fn deadline(&self, options: &Options) -> Mono;

    /// Wait, at most so long: a device raises no signal.
    fn pause(&self, longest: Duration);

    /// The devices bound to the store.
    fn devices(&self) -> &Devices;

    /// The memory through which bytes are copied.
    fn staging(&self) -> Result<&StagingPool>;

    /// What decides how much that is.
    fn staging_setting(&self) -> &'static str;

    /// Bytes of staging memory that a get of a range may need beyond those of its destination.
    fn range_margin(&self) -> u64;

    /// Bytes of the memory in which objects are found in place; 0 for a store in another process.
    fn arena_bytes(&self) -> u64;

    /// Begin a call: its request. An error if the store is closed.
    fn begin(&self, options: Options) -> Result<Options>;

    /// The bytes of a get of `wanted` bytes, if the store has them in memory of this process.
    fn in_place(
        &self,
        get: &DeviceGet<'_>,
        wanted: u64,
        options: &Options,
    ) -> Result<Option<InPlace>>;

    /// Count hits of objects that were found in place: key, and bytes copied.
    fn count_in_place(&self, hits: &[(ObjectKey, u64)]);

    /// Get into memory of this process. Waits until no read uses it any more.
    fn get_owned(&self, gets: Vec<Get>, options: Options) -> Result<Vec<CompletedGet>>;

    /// Put groups, or parts of groups that consist of `required` if that is not empty.
    fn put_borrowed(
        &self,
        groups: &[BorrowedGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>>;
}
