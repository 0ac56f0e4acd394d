//! Establishes a link to a host name: resolves the name, and tries its addresses one after the
//! other.
//!
//! All tries together take at most [`Limits::handshake`]. Each address gets an equal share of the
//! time that is left when it is tried.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;

use crate::address::Address;
use crate::closed::Closed;
use crate::dial::{DialProgress, Dialing, SocketDial};
use crate::limits::Limits;
use crate::pending::Progress;
use crate::resolve::Lookup;
use crate::socket::SocketPending;

pub(crate) struct NameDial {
    dial: SocketDial,
    deadline: Mono,
    lookup: Arc<Lookup>,
    /// The connection to the current address; `None` while the name is being resolved.
    pending: Option<Box<SocketPending>>,
    /// Addresses not tried yet.
    rest: VecDeque<SocketAddr>,
}

impl NameDial {
    /// Begin. Never waits.
    pub fn begin(dial: SocketDial, host: &str, port: u16) -> Result<NameDial, Closed> {
        let deadline = dial.clock.now().after(dial.limits.handshake);
        let lookup = dial.resolver.begin(host, port)?;
        Ok(NameDial { dial, deadline, lookup, pending: None, rest: VecDeque::new() })
    }

    fn left(&self) -> Duration {
        self.deadline.since(self.dial.clock.now())
    }

    /// Begin to connect to the next address.
    fn connect(&mut self) -> Result<SocketPending, Closed> {
        loop {
            let Some(address) = self.rest.pop_front() else { return Err(Closed::Ended) };
            let tries = u32::try_from(self.rest.len()).unwrap_or(u32::MAX).saturating_add(1);
            let limits = Limits { handshake: self.left() / tries, ..self.dial.limits };
            match self.dial.connect(&Address::from(address), limits) {
                Err(_) if !self.rest.is_empty() => {}
                begun => return begun,
            }
        }
    }

    /// Advance as far as possible, after a wait of at most `timeout`.
    fn advance(mut self: Box<Self>, timeout: Duration) -> DialProgress {
        let polled = self.pending.take().map(|pending| match timeout.is_zero() {
            true => (*pending).poll(),
            false => (*pending).wait(timeout),
        });
        let mut progress = match polled {
            Some(progress) => progress,
            None => {
                let left = self.left();
                match self.lookup.found(timeout.min(left)) {
                    None if left.is_zero() => {
                        return DialProgress::Over(
                            self.lookup.timed_out(self.dial.limits.handshake),
                        );
                    }
                    None => return DialProgress::Waiting(self),
                    Some(Err(why)) => return DialProgress::Over(why),
                    Some(Ok(addresses)) => self.rest = addresses.into(),
                }
                match self.connect() {
                    Ok(pending) => pending.poll(),
                    Err(why) => return DialProgress::Over(why),
                }
            }
        };
        loop {
            match progress {
                Progress::Waiting(pending) => {
                    self.pending = Some(Box::new(pending));
                    return DialProgress::Waiting(self);
                }
                Progress::Ready(link) => return DialProgress::Ready(link),
                // A store responded at this address, so another address does not help.
                Progress::Over(why) if !why.retryable() || self.rest.is_empty() => {
                    return DialProgress::Over(why);
                }
                Progress::Over(_) => match self.connect() {
                    Ok(pending) => progress = pending.poll(),
                    Err(why) => return DialProgress::Over(why),
                },
            }
        }
    }
}

impl Dialing for NameDial {
    fn poll(self: Box<Self>) -> DialProgress {
        self.advance(Duration::ZERO)
    }

    fn wait(self: Box<Self>, timeout: Duration) -> DialProgress {
        self.advance(timeout)
    }
}
