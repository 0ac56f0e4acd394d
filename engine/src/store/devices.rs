//! Binds devices to a store, and lets their driver lock the store's memory.

use pagelith_io::device::{Device, DeviceError, DeviceHandle, Driver, DriverKind, LockedMemory};
use pagelith_io::sync::Arc;

use crate::api::device::bound::device_error;
use crate::api::error::{Error, Result};
use crate::config::DramPin;
use crate::state::shared::Shared;

/// See [`crate::Store::bind_device`].
pub(crate) fn bind(shared: &Shared, device: Device) -> Result<DeviceHandle> {
    check_kind(shared, device)?;
    let driver = Driver::load(device.driver).map_err(|why| device_error(&why))?;
    bind_with(shared, &driver, device.ordinal)
}

/// As [`bind`], with this driver.
pub(crate) fn bind_with(shared: &Shared, driver: &Driver, ordinal: u32) -> Result<DeviceHandle> {
    shared.check_open()?;
    check_kind(shared, Device { driver: driver.kind(), ordinal })?;
    shared.devices.bind(driver, ordinal, |handle| match shared.config.dram_pin() {
        DramPin::Off => Ok(Vec::new()),
        DramPin::Cuda | DramPin::Ascend => lock_store(shared, handle),
    })
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
) -> std::result::Result<Vec<LockedMemory>, DeviceError> {
    let began = shared.now();
    let arena = LockedMemory::new(handle, "dram.bytes", shared.memory.clone())?;
    let staging = Arc::new(shared.ssd.staging.clone());
    let staging = LockedMemory::new(handle, "staging.bytes", staging)?;
    let bytes = arena.bytes() + staging.bytes();
    let took_ms = shared.now().since(began).as_millis() as u64;
    tracing::info!(device = %handle.device(), bytes, took_ms, "memory is page-locked");
    Ok(vec![arena, staging])
}
