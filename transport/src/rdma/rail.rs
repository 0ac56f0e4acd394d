//! A rail: a port of an RDMA device of this host.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::verbs::{
    Attachment, Device, DeviceEvent, GidWish, Port, ProtectionDomain, VerbsError,
};

use super::rail_health::RailHealth;

/// A port that carries data of links. Its number is its position in
/// [`RdmaHost::rails`](super::host::RdmaHost::rails).
pub struct Rail {
    port: u8,
    gid: GidWish,
    domain: Arc<ProtectionDomain>,
    health: Mutex<RailHealth>,
    /// The device reported that all of its objects are unusable.
    is_dead: AtomicBool,
}

impl Rail {
    pub(super) fn new(port: u8, gid: GidWish, domain: Arc<ProtectionDomain>) -> Rail {
        Rail { port, gid, domain, health: Mutex::default(), is_dead: AtomicBool::new(false) }
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    /// The number of the port; the first is 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The domain of queue pairs and registered memory. Rails of one device share it.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The port and its GID as they are now, for a new queue pair: addresses and the state of the
    /// port may have changed since the host was opened.
    ///
    /// # Errors
    /// If the port is not active, has no usable GID, or if its device failed.
    pub fn attachment(&self) -> Result<Attachment, VerbsError> {
        self.consume_events()?;
        if self.is_dead.load(Ordering::Relaxed) {
            let device = self.device().name().to_owned();
            return Err(VerbsError::DeviceFailed { device });
        }
        let port = Port::of(self.device(), self.port)?;
        port.check_active()?;
        let gid = port.choose_gid(self.gid)?;
        Ok(Attachment { port, gid })
    }

    /// Take events from the device, which would keep them otherwise. What they report is queried
    /// for each queue pair, but for the end of the device.
    fn consume_events(&self) -> Result<(), VerbsError> {
        while let Some(event) = self.device().next_event()? {
            if event == DeviceEvent::DeviceFatal {
                self.is_dead.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Whether new links may use the rail: it does not rest after failures.
    pub fn is_up(&self, now: Mono) -> bool {
        self.health().is_up(now) && !self.is_dead.load(Ordering::Relaxed)
    }

    /// Note that a queue pair of the rail failed, other than by a fault of a request. Returns the
    /// length of the rest that the failure begins, if it begins one.
    pub fn note_failure(&self, now: Mono) -> Option<Duration> {
        self.health().note_failure(now)
    }

    fn health(&self) -> std::sync::MutexGuard<'_, RailHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device().name(), self.port)
    }
}

impl fmt::Debug for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rail({self})")
    }
}
