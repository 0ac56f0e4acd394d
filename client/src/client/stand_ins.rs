//! A clock and a store for unit tests.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_transport::dial::{Dial, Dialing};
use pagelith_transport::link_error::LinkError;

/// A clock that the test moves, in seconds.
#[derive(Default)]
pub(super) struct TestClock(pub AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Mono {
        Mono::default().after(Duration::from_secs(self.0.load(Relaxed)))
    }
}

/// A store that cannot be reached.
pub(super) struct Down;

impl Dial for Down {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        Err(LinkError::HandshakeTimeout { limit_ms: 1 })
    }
}
