//! Host names, resolved whenever a link is made: a host that has moved is found at its new address.
//!
//! The system's resolver blocks, for many seconds if no name server answers. So it runs on a thread of its own, and
//! whoever waits for it does so with a deadline. A [`Resolver`] has one such thread at a time for a name: lookups of the
//! same name meanwhile have the same answer.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::sync::{Condvar, Mutex, PoisonError, wait_while};

use crate::address::Endpoint;
use crate::closed::Closed;

/// Finds the addresses of hosts.
pub trait Resolve: Send + Sync {
    /// The addresses of `host` with `port`, in the order in which they are to be tried. May block.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system's resolver: its hosts file, its name servers, or whatever it is set up for.
struct System;

impl Resolve for System {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        (host, port).to_socket_addrs().map(Iterator::collect)
    }
}

/// A way to resolve names. Clones share the lookup that runs.
#[derive(Clone)]
pub struct Resolver {
    resolve: Arc<dyn Resolve>,
    running: Arc<Mutex<Option<Arc<Lookup>>>>,
}

/// The lookup of a name.
pub(crate) struct Lookup {
    host: String,
    port: u16,
    found: Mutex<Option<Result<Vec<SocketAddr>, Closed>>>,
    done: Condvar,
}

impl Default for Resolver {
    /// The system's.
    fn default() -> Resolver {
        Resolver::new(Arc::new(System))
    }
}

impl Resolver {
    /// One that asks `resolve`, on a thread of its own.
    pub fn new(resolve: Arc<dyn Resolve>) -> Resolver {
        Resolver { resolve, running: Arc::default() }
    }

    /// Begin to look `host` up, or join the lookup of it that runs. Never waits.
    pub(crate) fn begin(&self, host: &str, port: u16) -> Result<Arc<Lookup>, Closed> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let joins = |lookup: &&Arc<Lookup>| {
            lookup.host == host && lookup.port == port && lookup.found(Duration::ZERO).is_none()
        };
        if let Some(lookup) = running.as_ref().filter(joins) {
            return Ok(lookup.clone());
        }
        let (found, done) = (Mutex::default(), Condvar::default());
        let lookup = Arc::new(Lookup { host: host.to_owned(), port, found, done });
        let (own, resolve) = (lookup.clone(), self.resolve.clone());
        let started = std::thread::Builder::new()
            .name("pagelith-resolve".to_owned())
            .spawn(move || own.answer(resolve.resolve(&own.host, own.port)));
        started.map_err(|error| Closed::System {
            operation: "start a thread that resolves a host name",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        *running = Some(lookup.clone());
        Ok(lookup)
    }

    /// The addresses of `endpoint`, for which this waits, at most `limit`.
    pub fn addresses(&self, endpoint: &Endpoint, limit: Duration) -> Result<Vec<SocketAddr>, Closed> {
        match endpoint {
            Endpoint::Ip(address) => Ok(vec![*address]),
            Endpoint::Name { host, port } => {
                let lookup = self.begin(host, *port)?;
                lookup.found(limit).unwrap_or_else(|| Err(lookup.late(limit)))
            }
        }
    }
}

impl Lookup {
    fn answer(&self, found: io::Result<Vec<SocketAddr>>) {
        let found = match found {
            Ok(addresses) if addresses.is_empty() => Err(self.unresolved("it has no address".to_owned())),
            Ok(addresses) => Ok(addresses),
            Err(error) => Err(self.unresolved(error.to_string())),
        };
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        self.done.notify_all();
    }

    /// What was found, once something was, for which this waits, at most `timeout`.
    pub fn found(&self, timeout: Duration) -> Option<Result<Vec<SocketAddr>, Closed>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match timeout.is_zero() {
            true => found.clone(),
            false => wait_while(&self.done, found, timeout, |found| found.is_none()).clone(),
        }
    }

    /// Nothing was found by then.
    pub fn late(&self, limit: Duration) -> Closed {
        self.unresolved(format!("no answer within {} ms", limit.as_millis()))
    }

    fn unresolved(&self, detail: String) -> Closed {
        Closed::Unresolved { host: self.host.clone(), detail }
    }
}
