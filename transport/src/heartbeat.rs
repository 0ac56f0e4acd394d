//! Whether the peer is there: it is asked after a silence, and dead after a longer one.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, Kind};

use crate::closed::Closed;
use crate::limits::Limits;

/// When the peer was heard last, and whether it was asked since.
pub(crate) struct Heartbeat {
    pub clock: Arc<dyn Clock>,
    heard: Mono,
    asked: Option<Mono>,
    pings: u64,
}

impl Heartbeat {
    pub fn new(clock: Arc<dyn Clock>) -> Heartbeat {
        Heartbeat { heard: clock.now(), clock, asked: None, pings: 0 }
    }

    pub fn heard(&mut self, now: Mono) {
        (self.heard, self.asked) = (now, None);
    }

    /// A ping that is due now; an error once the peer did not answer one for too long.
    pub fn beat(&mut self, now: Mono, limits: &Limits) -> Result<Option<Frame>, Closed> {
        let silent = now.since(self.heard);
        match self.asked {
            Some(asked) if now.since(asked) >= limits.dead_after.saturating_sub(limits.ping_after) => {
                let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
                Err(Closed::Silent { silent_ms })
            }
            None if silent >= limits.ping_after => {
                self.asked = Some(now);
                self.pings += 1;
                Ok(Some(Frame::bare(Kind::Ping, OpId(self.pings))))
            }
            _ => Ok(None),
        }
    }

    /// How long until there is something to do.
    pub fn due(&self, now: Mono, limits: &Limits) -> Duration {
        let (from, least) = match self.asked {
            Some(asked) => (asked, limits.dead_after.saturating_sub(limits.ping_after)),
            None => (self.heard, limits.ping_after),
        };
        least.saturating_sub(now.since(from))
    }
}
