//! The context of a bound device, which each call of the driver runs in.

use std::path::Path;
use std::sync::Arc;

use super::calls::{Called, Calls, Failed, Opaque, failed};
use super::error::Result;
use super::kind::Device;
use crate::verbs::Locality;

const SYSFS: &str = "/sys";

/// A device's context, which is kept until the value is dropped.
pub(super) struct BoundContext {
    calls: Arc<dyn Calls>,
    device: Device,
    context: Opaque,
}

impl BoundContext {
    /// The context of a device that the engine of this process has initialised.
    pub fn new(calls: Arc<dyn Calls>, device: Device) -> Result<BoundContext> {
        let context = calls.bind(device)?;
        Ok(BoundContext { calls, device, context })
    }

    pub fn device(&self) -> Device {
        self.device
    }

    /// The NUMA node to which the device is attached, if it is known.
    pub fn node(&self) -> Option<u32> {
        let pci = self.call(|calls| calls.pci(self.device.ordinal)).ok().flatten();
        let locality = pci.and_then(|pci| Locality::of_pci_device(Path::new(SYSFS), &pci).ok());
        locality.and_then(|locality| locality.node)
    }

    /// Call the driver in the device's context, and give the thread its own back. If the driver
    /// could not take the context away from a thread that has none, another thread makes the call.
    pub fn call<T: Send>(&self, call: impl FnOnce(&dyn Calls) -> Called<T> + Send) -> Result<T> {
        let calls = &*self.calls;
        let in_context = || {
            let own = calls.current()?;
            if own == Some(self.context) {
                return call(calls);
            }
            if own.is_none() && !calls.can_leave() {
                return on_own_thread(|| {
                    calls.make_current(Some(self.context))?;
                    call(calls)
                });
            }
            calls.make_current(Some(self.context))?;
            let result = call(calls);
            if let Err(why) = calls.make_current(own) {
                let error = failed(calls, self.device, why);
                tracing::error!(%error, "the thread keeps the device's context");
            }
            result
        };
        in_context().map_err(|why| failed(calls, self.device, why))
    }
}

/// Run `call` on a thread that ends with it. An error too if the system starts no thread: a panic
/// would release memory that the device uses.
#[allow(clippy::disallowed_methods, reason = "its thread ends before it returns")]
fn on_own_thread<T: Send>(call: impl FnOnce() -> Called<T> + Send) -> Called<T> {
    std::thread::scope(|scope| {
        let started = std::thread::Builder::new().spawn_scoped(scope, call);
        let thread = started.map_err(|error| Failed {
            call: "thread",
            code: error.raw_os_error().unwrap_or(libc::EAGAIN),
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Drop for BoundContext {
    fn drop(&mut self) {
        if let Err(why) = self.calls.unbind(self.device.ordinal) {
            // As after the engine has ended the driver.
            let error = failed(&*self.calls, self.device, why);
            tracing::debug!(%error, "context is not released");
        }
    }
}
