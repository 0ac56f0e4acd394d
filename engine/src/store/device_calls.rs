//! The calls of a store with devices. Each delegates to the module that implements it.

use pagelith_io::device::{CallerStream, Device, DeviceHandle, Driver};
use pagelith_layouts::key::ObjectKey;

use crate::api::device::pieces::{DeviceGet, DeviceGroup};
use crate::api::device::{get, put};
use crate::api::error::Result;
use crate::api::outcome::{GetOutcome, PutOutcome};
use crate::api::request::Options;
use crate::store::devices;
use crate::store::embedded::Store;

impl Store {
    /// Bind a device, which the engine of this process has initialised: the right to copy between
    /// the store and memory of it. With `dram.pin`, the first device also has the store's memory
    /// made resident and page-locked, which is logged. Binding the device again returns the same
    /// handle. Opening a store never uses a device.
    ///
    /// # Errors
    /// `Unavailable` without the driver; `Invalid` if the device does not exist, or is not
    /// initialised yet (with the remedy), or if `dram.pin` names another driver; `Busy` if the
    /// memory cannot be locked, and then nothing is; `Closed`.
    pub fn bind_device(&self, device: Device) -> Result<DeviceHandle> {
        devices::bind(&self.shared, device)
    }

    /// As [`Store::bind_device`], with this driver.
    ///
    /// # Errors
    /// As [`Store::bind_device`].
    pub fn bind_device_of(&self, driver: &Driver, ordinal: u32) -> Result<DeviceHandle> {
        devices::bind_with(&self.shared, driver, ordinal)
    }

    /// Get objects into memory of a device that is bound to this store, after the work that the
    /// stream `after` has now. Returns when the device is done, so that work of any stream may then
    /// use the hits. Objects in DRAM are copied from there, others through staging memory.
    ///
    /// # Errors
    /// For each get, as [`Store::get_batch`]. `Unavailable` if the device fails, or is not done
    /// within the timeout: it may then still write to the pieces, which it keeps until it is done.
    pub fn get_to_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        gets: &[DeviceGet<'_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        get::get(self, device, after, gets, options)
    }

    /// Put groups, as [`Store::put_groups`], out of memory of a device, after the work that the
    /// stream `after` has now; or, unless `required` is empty, parts of groups that consist of
    /// those objects, as [`Store::put_parts`]. Returns when the device is done with the pieces.
    ///
    /// # Errors
    /// For each group, as these calls; `Unavailable` if the device fails, or is not done within the
    /// timeout: it may then still read the pieces, which it keeps until it is done.
    pub fn put_from_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        groups: &[DeviceGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        put::put(self, device, after, (groups, required), options)
    }
}
