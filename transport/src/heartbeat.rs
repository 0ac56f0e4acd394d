//! Detection of dead peers: a ping after a silence, and a failure if no byte follows it in time.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};

use crate::limits::LinkLimits;
use crate::link_error::LinkError;

/// Time of the last bytes received, and of the ping sent since.
pub(crate) struct Heartbeat {
    pub clock: Arc<dyn Clock>,
    last_heard: Mono,
    pinged_at: Option<Mono>,
    pings: u64,
}

impl Heartbeat {
    pub fn new(clock: Arc<dyn Clock>) -> Heartbeat {
        Heartbeat { last_heard: clock.now(), clock, pinged_at: None, pings: 0 }
    }

    pub fn heard(&mut self, now: Mono) {
        (self.last_heard, self.pinged_at) = (now, None);
    }

    /// The ping that is due now, if any; an error if the last ping got no reply in time.
    pub fn beat(&mut self, now: Mono, limits: &LinkLimits) -> Result<Option<Frame>, LinkError> {
        let silent = now.since(self.last_heard);
        match self.pinged_at {
            Some(at) if now.since(at) >= limits.dead_after.saturating_sub(limits.ping_after) => {
                let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
                Err(LinkError::PeerTimeout { silent_ms })
            }
            None if silent >= limits.ping_after => {
                self.pinged_at = Some(now);
                self.pings += 1;
                Ok(Some(Frame::bare(FrameKind::Ping, OpId(self.pings))))
            }
            _ => Ok(None),
        }
    }

    /// Time until [`Heartbeat::beat`] has something to do.
    pub fn due(&self, now: Mono, limits: &LinkLimits) -> Duration {
        let (from, wait) = match self.pinged_at {
            Some(at) => (at, limits.dead_after.saturating_sub(limits.ping_after)),
            None => (self.last_heard, limits.ping_after),
        };
        wait.saturating_sub(now.since(from))
    }
}
