//! A rail: a port of an RDMA device of this host.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pagelith_io::clock::Mono;
use pagelith_io::verbs::{
    Attachment, Device, DeviceEvent, GidWish, Port, ProtectionDomain, VerbsError,
};

use super::rail_health::{PeerHost, RailHealth, Rest};

/// A port that carries data of links. Its number is its position in
/// [`RdmaHost::rails`](super::host::RdmaHost::rails).
pub struct Rail {
    port: u8,
    gid: GidWish,
    domain: Arc<ProtectionDomain>,
    health: Mutex<RailHealth>,
    /// A request succeeded since the last failure.
    has_succeeded: AtomicBool,
    /// The device reported that all of its objects are unusable.
    is_dead: AtomicBool,
}

impl Rail {
    pub(super) fn new(port: u8, gid: GidWish, domain: Arc<ProtectionDomain>) -> Rail {
        Rail {
            port,
            gid,
            domain,
            health: Mutex::default(),
            has_succeeded: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
        }
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

    /// Whether new links may use the rail: it is not suspended after failures.
    pub fn is_up(&self, now: Mono) -> bool {
        self.health().is_up(now) && !self.is_dead.load(Ordering::Relaxed)
    }

    /// Whether new links to this peer may use the rail.
    pub fn is_up_for(&self, peer: PeerHost, now: Mono) -> bool {
        self.health().is_up_for(peer, now) && !self.is_dead.load(Ordering::Relaxed)
    }

    /// Note that a request of the rail has succeeded.
    pub fn note_success(&self) {
        // Links of many threads share the flag, so it is written only if it changes.
        if !self.has_succeeded.load(Ordering::Relaxed) {
            self.has_succeeded.store(true, Ordering::Relaxed);
        }
    }

    /// Note that a queue pair of a link to `peer` failed, other than by a fault of a request.
    /// Returns the suspension that the failure begins, if it begins one.
    pub fn note_failure(&self, peer: PeerHost, now: Mono) -> Option<Rest> {
        let mut health = self.health();
        if self.has_succeeded.swap(false, Ordering::Relaxed) {
            health.note_success();
        }
        health.note_failure(peer, now)
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
