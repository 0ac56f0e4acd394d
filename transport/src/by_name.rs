//! A link to a host name, on its way: the name is resolved, and its addresses are tried one after the other.
//!
//! All of that takes as long as one handshake may. Each address has an equal share of the time that is left when it is
//! tried.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;

use crate::address::Address;
use crate::closed::Closed;
use crate::dial::{Dialing, Dialled, SocketDial};
use crate::limits::Limits;
use crate::pending::Progress;
use crate::resolve::Lookup;
use crate::socket::SocketPending;

pub(crate) struct ByName {
    dial: SocketDial,
    until: Mono,
    lookup: Arc<Lookup>,
    /// The address that is tried now; `None` while the name is resolved.
    tried: Option<Box<SocketPending>>,
    rest: VecDeque<SocketAddr>,
}

impl ByName {
    /// Begin. Never waits.
    pub fn begin(dial: SocketDial, host: &str, port: u16) -> Result<ByName, Closed> {
        let until = dial.clock.now().after(dial.limits.handshake);
        let lookup = dial.resolver.begin(host, port)?;
        Ok(ByName { dial, until, lookup, tried: None, rest: VecDeque::new() })
    }

    fn left(&self) -> Duration {
        self.until.since(self.dial.clock.now())
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

    /// Go on, and wait for something to go on with, at most `timeout`.
    fn turn(mut self: Box<Self>, timeout: Duration) -> Dialled {
        let tried = self.tried.take().map(|tried| match timeout.is_zero() {
            true => (*tried).poll(),
            false => (*tried).wait(timeout),
        });
        let mut progress = match tried {
            Some(progress) => progress,
            None => {
                let left = self.left();
                match self.lookup.found(timeout.min(left)) {
                    None if left.is_zero() => {
                        return Dialled::Over(self.lookup.late(self.dial.limits.handshake));
                    }
                    None => return Dialled::Waiting(self),
                    Some(Err(why)) => return Dialled::Over(why),
                    Some(Ok(addresses)) => self.rest = addresses.into(),
                }
                match self.connect() {
                    Ok(pending) => pending.poll(),
                    Err(why) => return Dialled::Over(why),
                }
            }
        };
        loop {
            match progress {
                Progress::Waiting(pending) => {
                    self.tried = Some(Box::new(pending));
                    return Dialled::Waiting(self);
                }
                Progress::Ready(link) => return Dialled::Ready(link),
                // A store has answered there: another address is no help.
                Progress::Over(why) if !why.retryable() || self.rest.is_empty() => return Dialled::Over(why),
                Progress::Over(_) => match self.connect() {
                    Ok(pending) => progress = pending.poll(),
                    Err(why) => return Dialled::Over(why),
                },
            }
        }
    }
}

impl Dialing for ByName {
    fn poll(self: Box<Self>) -> Dialled {
        self.turn(Duration::ZERO)
    }

    fn wait(self: Box<Self>, timeout: Duration) -> Dialled {
        self.turn(timeout)
    }
}
