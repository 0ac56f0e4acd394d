//! Drivers, found when the program runs, and the devices that they drive.

use std::fmt;
use std::sync::Arc;

use super::ascend::Ascend;
use super::calls::{Calls, failed};
use super::cuda::Cuda;
use super::error::{DeviceError, Result};
use super::facts::DeviceFacts;
use super::handle::DeviceHandle;
use crate::dynamic_library::DynamicLibrary;

/// The kinds of drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// NVIDIA's CUDA driver.
    Cuda,
    /// Ascend's Computing Language, the runtime of its NPUs.
    Ascend,
}

impl DriverKind {
    /// Both kinds.
    pub const ALL: [DriverKind; 2] = [DriverKind::Cuda, DriverKind::Ascend];

    /// The name, as in the setting `dram.pin`.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Cuda => "cuda",
            DriverKind::Ascend => "ascend",
        }
    }

    /// The library's name on every distribution.
    pub fn library(self) -> &'static str {
        match self {
            DriverKind::Cuda => "libcuda.so.1",
            DriverKind::Ascend => "libascendcl.so",
        }
    }

    pub(super) fn install(self) -> &'static str {
        match self {
            DriverKind::Cuda => {
                "install the NVIDIA driver, or pass it to the container (--gpus, \
                 NVIDIA_DRIVER_CAPABILITIES=compute)"
            }
            DriverKind::Ascend => "install CANN and run its set_env.sh",
        }
    }

    /// The first version that has all functions.
    pub(super) fn oldest(self) -> &'static str {
        match self {
            DriverKind::Cuda => "CUDA 11.0",
            DriverKind::Ascend => "CANN 8.0",
        }
    }

    pub(super) fn tool(self) -> &'static str {
        match self {
            DriverKind::Cuda => "nvidia-smi",
            DriverKind::Ascend => "npu-smi info",
        }
    }

    pub(super) fn visible(self) -> &'static str {
        match self {
            DriverKind::Cuda => "CUDA_VISIBLE_DEVICES",
            DriverKind::Ascend => "ASCEND_RT_VISIBLE_DEVICES",
        }
    }

    pub(super) fn initialise(self) -> &'static str {
        match self {
            DriverKind::Cuda => "torch.cuda.set_device and torch.cuda.init, or cudaSetDevice",
            DriverKind::Ascend => "torch.npu.set_device, or aclrtSetDevice, on the same thread",
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device, by its number among those that the process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its driver.
    pub driver: DriverKind,
    /// Its number.
    pub ordinal: u32,
}

impl Device {
    /// A CUDA device.
    pub fn cuda(ordinal: u32) -> Device {
        Device { driver: DriverKind::Cuda, ordinal }
    }

    /// An Ascend device.
    pub fn ascend(ordinal: u32) -> Device {
        Device { driver: DriverKind::Ascend, ordinal }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.driver, self.ordinal)
    }
}

/// A loaded driver.
#[derive(Clone, Debug)]
pub struct Driver {
    kind: DriverKind,
    pub(super) calls: Arc<dyn Calls>,
}

impl Driver {
    /// Load the system's driver. This does not initialise it.
    ///
    /// # Errors
    /// `LibraryAbsent`, `LibraryUnusable`.
    pub fn load(kind: DriverKind) -> Result<Driver> {
        // SAFETY: these names belong to the drivers, on every distribution.
        unsafe { Driver::load_from(kind, kind.library()) }
    }

    /// Load the driver at `path`. A name without a slash is searched as dlopen(3) does.
    ///
    /// # Errors
    /// As [`Driver::load`].
    ///
    /// # Safety
    ///
    /// Functions of the library that have names of the driver do what those do.
    pub unsafe fn load_from(kind: DriverKind, path: &str) -> Result<Driver> {
        // SAFETY: the caller names a driver, which may be loaded at any time.
        let library = unsafe { DynamicLibrary::load(path) }.map_err(|reason| {
            DeviceError::LibraryAbsent { driver: kind, path: path.to_owned(), reason }
        })?;
        // SAFETY: the caller promises that the functions have their types.
        let calls = unsafe {
            match kind {
                DriverKind::Cuda => {
                    Cuda::of(&library).map(|calls| Arc::new(calls) as Arc<dyn Calls>)
                }
                DriverKind::Ascend => Ascend::of(&library).map(|calls| Arc::new(calls) as _),
            }
        };
        let calls = calls.map_err(|symbol| DeviceError::LibraryUnusable {
            driver: kind,
            path: path.to_owned(),
            symbol,
        })?;
        Ok(Driver { kind, calls })
    }

    /// Its kind.
    pub fn kind(&self) -> DriverKind {
        self.kind
    }

    /// The version of the driver, and its devices. **Initialises the driver in this process**, so
    /// that forked children cannot use it: for diagnosis only.
    ///
    /// # Errors
    /// `CallFailed`; `NoDevice` if there is none.
    pub fn devices(&self) -> Result<(String, Vec<DeviceFacts>)> {
        let device = Device { driver: self.kind, ordinal: 0 };
        let (version, devices) =
            self.calls.list().map_err(|why| failed(&*self.calls, device, why))?;
        if devices.is_empty() {
            return Err(DeviceError::NoDevice { device, count: 0 });
        }
        Ok((version, devices))
    }

    /// Bind a device whose context exists: that which the engine of this process made for it. Under
    /// CUDA it is the primary context, which PyTorch and the runtime API use. Under Ascend it is
    /// the context of the calling thread.
    ///
    /// # Errors
    /// `NoDevice`; `ContextAbsent` before the engine has initialised the device; `ContextOther` if
    /// the thread has another context; `CallFailed`.
    pub fn bind(&self, ordinal: u32) -> Result<DeviceHandle> {
        DeviceHandle::bind(self.calls.clone(), Device { driver: self.kind, ordinal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: DriverKind, path: &str) -> DeviceError {
        // SAFETY: no library of these tests has functions with names of a driver.
        unsafe { Driver::load_from(kind, path) }.expect_err("no driver")
    }

    #[test]
    fn absent_driver_is_reported_with_remedy() {
        for kind in DriverKind::ALL {
            let path = format!("/nowhere/{}", kind.library());
            let text = refused(kind, &path).to_string();
            assert!(text.starts_with(&format!("no {kind} driver: ")), "{text}");
            assert!(text.contains("; install "), "{text}");
            assert!(text.ends_with(&format!("path={path}")), "{text}");
        }
    }

    #[test]
    fn library_without_driver_names_missing_function() {
        for (driver, symbol) in [(DriverKind::Cuda, "cuInit"), (DriverKind::Ascend, "aclInit")] {
            let error = refused(driver, "libc.so.6");
            let path = "libc.so.6".to_owned();
            assert_eq!(error, DeviceError::LibraryUnusable { driver, path, symbol });
        }
    }
}
