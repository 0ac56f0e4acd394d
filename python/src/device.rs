//! Devices that are bound to a store.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use pagelith::{DeviceError, DeviceHandle, DriverKind};
use pyo3::prelude::*;

use crate::errors::{ForkedError, InvalidError, UnavailableError};
use crate::store::is_forked;

/// A device that is bound to a store. `(device, address, length)` names memory of it in a put or
/// get, which must stay allocated until `late_copies` is 0.
#[pyclass(frozen, module = "pagelith")]
pub struct Device {
    handle: ManuallyDrop<DeviceHandle>,
    process: u32,
}

impl Device {
    pub fn of(handle: DeviceHandle, process: u32) -> Device {
        Device { handle: ManuallyDrop::new(handle), process }
    }

    /// To call the driver with: in a forked child an error.
    pub fn handle(&self) -> PyResult<&DeviceHandle> {
        match is_forked(self.process) {
            true => Err(ForkedError::new_err(
                "the device was bound before a fork and belongs to the parent process",
            )),
            false => Ok(&self.handle),
        }
    }
}

#[pymethods]
impl Device {
    /// `cuda:N`, or `ascend:N`.
    #[getter]
    fn name(&self) -> String {
        self.handle.device().to_string()
    }

    /// Number of lists of copies that calls gave up at their timeout, and that the device may still
    /// execute. Their memory is kept.
    #[getter]
    fn late_copies(&self, py: Python<'_>) -> PyResult<usize> {
        let handle = self.handle()?;
        Ok(py.detach(|| handle.late_copies()))
    }

    fn __repr__(&self) -> String {
        format!("Device({})", self.handle.device())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A forked child cannot use the driver.
        if !is_forked(self.process) {
            // SAFETY: the handle is not used after this.
            let handle = unsafe { ManuallyDrop::take(&mut self.handle) };
            // The GIL is released: the last handle calls the driver.
            Python::attach(|py| py.detach(|| drop(handle)));
        }
    }
}

/// The device of a name such as `cuda:0`, `npu:1` or `ascend:1`.
pub fn named(name: &str) -> PyResult<pagelith::Device> {
    let wrong =
        || InvalidError::new_err(format!("device must be cuda:N, npu:N or ascend:N, got={name:?}"));
    let (kind, number) = name.split_once(':').ok_or_else(wrong)?;
    let driver = match kind {
        "cuda" => DriverKind::Cuda,
        "npu" | "ascend" => DriverKind::Ascend,
        _ => return Err(wrong()),
    };
    let ordinal = number.parse().map_err(|_| wrong())?;
    Ok(pagelith::Device { driver, ordinal })
}

/// The exception for an error of a device.
pub fn device_error(error: &DeviceError) -> PyErr {
    let text = format!("device: {error}");
    match error {
        DeviceError::ForeignMemory { .. } | DeviceError::OutsideMemory { .. } => {
            InvalidError::new_err(text)
        }
        _ => UnavailableError::new_err(text),
    }
}

/// The devices that a program has bound to one store.
#[derive(Default)]
pub struct BoundDevices(Mutex<Vec<DeviceHandle>>);

impl BoundDevices {
    pub fn add(&self, handle: &DeviceHandle) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.iter().any(|other| other.is_clone_of(handle)) {
            all.push(handle.clone());
        }
    }

    pub fn all(&self) -> Vec<DeviceHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forget all; in a forked child without releasing them.
    pub fn end(&self, process: u32) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if is_forked(process) {
            std::mem::forget(all);
        }
    }
}
