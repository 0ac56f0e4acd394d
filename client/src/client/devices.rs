//! Gets of a client into memory of devices, and puts out of it: through page-locked memory of this
//! process, in which the bytes are verified.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::device::{CallerStream, Device, DeviceHandle, Driver};
use pagelith_io::signal::Signal;
use pagelith_io::staging::StagingPool;
use pagelith_layouts::key::ObjectKey;

use super::Client;
use crate::api::borrowed::BorrowedGroup;
use crate::api::device::bound::{Devices, device_error};
use crate::api::device::pieces::{DeviceGet, DeviceGroup};
use crate::api::device::store::{DeviceStore, InPlace};
use crate::api::device::{get, put};
use crate::api::error::Result;
use crate::api::outcome::{CompletedGet, GetOutcome, PutOutcome};
use crate::api::request::{Get, Options};

impl Client {
    /// Copy to and from devices through so much memory, a multiple of 4096; 64 MiB by default. Once
    /// a device is bound, the next bind refuses another size.
    #[must_use]
    pub fn with_device_staging(self, bytes: usize) -> Client {
        self.device_memory.set_staging_bytes(bytes);
        self
    }

    /// As `Store::bind_device`. The first device has staging memory of this process page-locked,
    /// which is [shared](Client::share) with the store process too.
    ///
    /// # Errors
    /// As `Store::bind_device`.
    pub fn bind_device(&self, device: Device) -> Result<DeviceHandle> {
        let driver = Driver::load(device.driver).map_err(|why| device_error(&why))?;
        self.bind_device_of(&driver, device.ordinal)
    }

    /// As [`Client::bind_device`], with this driver.
    ///
    /// # Errors
    /// As [`Client::bind_device`].
    pub fn bind_device_of(&self, driver: &Driver, ordinal: u32) -> Result<DeviceHandle> {
        self.device_memory.bind(driver, ordinal, |region| {
            if let Err(error) = self.share(region) {
                tracing::warn!(%error, "puts out of devices are sent, and not shared");
            }
        })
    }

    /// As `Store::get_to_device`. The bytes are verified in this process before they are copied.
    ///
    /// # Errors
    /// As `Store::get_to_device`, and [`Client::get_batch`]. `Invalid` if an object exceeds half of
    /// the staging memory.
    pub fn get_to_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        gets: &[DeviceGet<'_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        get::get(self, device, after, gets, options)
    }

    /// As `Store::put_from_device`.
    ///
    /// # Errors
    /// As `Store::put_from_device`, and [`Client::put_groups`]. `Invalid` if a group exceeds half
    /// of the staging memory.
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

impl DeviceStore for Client {
    fn now(&self) -> Mono {
        self.clock.now()
    }

    fn deadline(&self, options: &Options) -> Mono {
        self.clock.now().after(options.timeout.unwrap_or(self.timeout))
    }

    fn pause(&self, longest: Duration) {
        self.keep_alive();
        match self.device_memory.runtime() {
            Some(runtime) => {
                let never = Signal::default();
                runtime.pause(&never, never.value(), longest);
            }
            None => self.with_connections(|links| links.wait(self.clock.now(), longest)),
        }
    }

    fn devices(&self) -> &Devices {
        &self.device_memory.devices
    }

    fn staging(&self) -> Result<&StagingPool> {
        self.device_memory.staging()
    }

    fn staging_setting(&self) -> &'static str {
        "staging_bytes"
    }

    /// The store process reads ranges into memory of its own.
    fn range_margin(&self) -> u64 {
        0
    }

    fn arena_bytes(&self) -> u64 {
        0
    }

    fn begin(&self, options: Options) -> Result<Options> {
        Ok(Options { request: Some(self.request(&options)), ..options })
    }

    fn in_place(&self, _: &DeviceGet<'_>, _: u64, _: &Options) -> Result<Option<InPlace>> {
        Ok(None)
    }

    fn count_in_place(&self, _: &[(ObjectKey, u64)]) {}

    fn get_owned(&self, gets: Vec<Get>, options: Options) -> Result<Vec<CompletedGet>> {
        Ok(self.get(gets, options))
    }

    fn put_borrowed(
        &self,
        groups: &[BorrowedGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        self.put_borrowed(groups, required, options)
    }
}
