//! Drivers, found when the program runs.

use std::sync::Arc;

use super::ascend::Ascend;
use super::calls::{Calls, failed};
use super::cuda::Cuda;
use super::error::{DeviceError, Result};
use super::facts::DeviceFacts;
use super::handle::DeviceHandle;
use super::kind::{Device, DriverKind};
use crate::dynamic_library::DynamicLibrary;

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
    /// the default one, and must be the calling thread's.
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
