//! Binds devices to a store, and lets their driver lock the store's memory.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::device::{
    CallerStream, Copies, Device, DeviceError, DeviceHandle, DeviceRange, Driver, DriverKind,
    LockedMemory,
};
use pagelith_io::signal::Signal;
use pagelith_io::sync::Arc;

use crate::api::error::{Error, ErrorKind, Result};
use crate::config::DramPin;
use crate::state::reserve::count_reserved;
use crate::state::shared::Shared;

/// Queries of a device without a pause between them: a short copy ends before a pause would.
const POLLS: u32 = 100;
/// Pause between two queries after these.
const POLL_STEP: Duration = Duration::from_micros(50);

/// See [`crate::Store::bind_device`].
pub(crate) fn bind(shared: &Shared, device: Device) -> Result<DeviceHandle> {
    check_kind(shared, device)?;
    let driver = Driver::load(device.driver).map_err(|why| device_error(&why))?;
    bind_with(shared, &driver, device.ordinal)
}

/// As [`bind`], with this driver.
pub(crate) fn bind_with(shared: &Shared, driver: &Driver, ordinal: u32) -> Result<DeviceHandle> {
    shared.check_open()?;
    let device = Device { driver: driver.kind(), ordinal };
    check_kind(shared, device)?;
    let mut bound = shared.devices.lock();
    if let Some(handle) = bound.handles.iter().find(|handle| handle.device() == device) {
        return Ok(handle.clone());
    }
    let handle = driver.bind(ordinal).map_err(|why| device_error(&why))?;
    if shared.config.dram_pin() != DramPin::Off && bound.locked.is_empty() {
        bound.locked = lock_store(shared, &handle).map_err(|why| device_error(&why))?;
    }
    bound.handles.push(handle.clone());
    Ok(handle)
}

/// The driver of the setting `dram.pin` is that of the device.
fn check_kind(shared: &Shared, device: Device) -> Result<()> {
    let wanted = match shared.config.dram_pin() {
        DramPin::Off => return Ok(()),
        DramPin::Cuda => DriverKind::Cuda,
        DramPin::Ascend => DriverKind::Ascend,
    };
    if wanted == device.driver {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "dram.pin names another driver; set it to {} device={device} dram.pin={wanted}",
        device.driver
    )))
}

/// Lock the arena and the staging memory, or neither.
fn lock_store(
    shared: &Shared,
    handle: &DeviceHandle,
) -> std::result::Result<Vec<Arc<LockedMemory>>, DeviceError> {
    let began = shared.now();
    let arena = LockedMemory::new(handle, "dram.bytes", shared.memory.clone())?;
    let staging = Arc::new(shared.ssd.staging.clone());
    let staging = LockedMemory::new(handle, "staging.bytes", staging)?;
    let bytes = arena.bytes() + staging.bytes();
    let took_ms = shared.now().since(began).as_millis() as u64;
    tracing::info!(device = %handle.device(), bytes, took_ms, "memory is page-locked");
    Ok(vec![Arc::new(arena), Arc::new(staging)])
}

/// The store's error for one of a device.
pub(crate) fn device_error(why: &DeviceError) -> Error {
    let kind = match why {
        DeviceError::NoDevice { .. }
        | DeviceError::ContextAbsent { .. }
        | DeviceError::ContextOther { .. }
        | DeviceError::ForeignMemory { .. }
        | DeviceError::OutsideMemory { .. } => ErrorKind::Invalid,
        DeviceError::NotLocked { .. } => ErrorKind::Busy,
        DeviceError::LibraryAbsent { .. }
        | DeviceError::LibraryUnusable { .. }
        | DeviceError::CallFailed { .. } => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("device: {why}"))
}

/// The device and the deadline of a call that copies to or from it.
pub(crate) struct DeviceCall<'a> {
    pub shared: &'a Arc<Shared>,
    pub device: &'a DeviceHandle,
    pub after: Option<&'a CallerStream>,
    pub deadline: Mono,
}

impl DeviceCall<'_> {
    /// A list of copies, which holds the locks of the store's memory.
    pub fn begin(&self) -> Result<Copies> {
        let mut copies = self.device.begin(self.after).map_err(|why| device_error(&why))?;
        copies.hold(Box::new(self.shared.devices.lock().locked.clone()));
        Ok(copies)
    }

    /// Wait until the device is done with the copies, or for the deadline.
    pub fn wait(&self, copies: &mut Copies) -> Result<()> {
        let mut polls = 0;
        loop {
            if copies.poll().map_err(|why| device_error(&why))? {
                return Ok(());
            }
            if self.is_late() {
                let device = self.device.device();
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "device is not done with copies in time; their memory is kept until it \
                         is device={device}"
                    ),
                ));
            }
            if polls >= POLLS {
                self.pause(POLL_STEP);
            }
            polls += 1;
        }
    }

    /// Wait for staging memory that is released elsewhere. False at the deadline.
    pub fn wait_for_staging(&self) -> bool {
        self.pause(POLL_STEP);
        !self.is_late()
    }

    /// Whether the deadline has passed.
    pub fn is_late(&self) -> bool {
        self.deadline.since(self.shared.now()).is_zero()
    }

    fn pause(&self, longest: Duration) {
        let left = self.deadline.since(self.shared.now());
        // A device raises no signal.
        let never = Signal::default();
        self.shared.env.runtime.pause(&never, never.value(), left.min(longest));
    }

    /// Most bytes of staging memory that copies may use at a time. Reads of the store use the rest.
    pub fn staging_max(&self) -> u64 {
        self.shared.ssd.staging.capacity() as u64 / 2
    }

    /// Staging memory of `bytes` bytes, and what counts it; `None` if all is in use now.
    pub fn stage(&self, bytes: usize) -> Option<(Part, StagedBytes)> {
        let used = &self.shared.bytes.device_staging;
        if !count_reserved(used, bytes as u64, self.staging_max()) {
            return None;
        }
        let counted = StagedBytes { shared: Arc::downgrade(self.shared), bytes: bytes as u64 };
        // The rest of the last page is released with the part.
        let (part, _) = self.shared.ssd.staging.try_part(bytes)?.split(bytes);
        Some((part, counted))
    }

    /// An error if a range is of another handle.
    pub fn check(&self, ranges: &[DeviceRange]) -> Result<()> {
        if ranges.iter().all(|range| self.device.has_named(range)) {
            return Ok(());
        }
        let device = self.device.device();
        Err(Error::invalid(format!(
            "memory was named through another handle; name it through the one of this call \
             device={device}"
        )))
    }

    /// An error if `bytes` bytes never fit into staging memory.
    pub fn check_staging(&self, bytes: u64) -> Result<()> {
        let most = self.staging_max();
        if bytes <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "bytes exceed half of the staging memory; raise staging.bytes bytes={bytes} max={most}"
        )))
    }
}

/// Bytes of staging memory that copies use.
pub(crate) struct StagedBytes {
    shared: Weak<Shared>,
    bytes: u64,
}

impl Drop for StagedBytes {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.bytes.device_staging.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// Sum of the ranges' lengths.
pub(crate) fn total(ranges: &[DeviceRange]) -> u64 {
    ranges.iter().map(|range| range.bytes() as u64).sum()
}

/// `part` in pieces of the ranges' lengths, whose sum is its own.
pub(crate) fn split(
    part: Part,
    ranges: &[DeviceRange],
) -> impl Iterator<Item = (Part, &DeviceRange)> {
    let mut rest = Some(part);
    ranges.iter().filter_map(move |range| {
        let (piece, after) = rest.take()?.split(range.bytes());
        rest = Some(after);
        Some((piece, range))
    })
}
