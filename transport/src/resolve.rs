//! Resolution of host names. It happens for each new link, so a host that has moved is found at its
//! new address.
//!
//! The system resolver blocks, for many seconds if no name server responds. So each lookup runs on
//! its own thread, and callers wait for it with a deadline. A call for the name of the lookup that
//! a [`Resolver`] started last joins that lookup while it runs, and gets the same result.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::sync::{Condvar, Mutex, PoisonError, wait_while};

use crate::address::Endpoint;
use crate::link_error::LinkError;

/// Finds the addresses of hosts.
pub trait Resolve: Send + Sync {
    /// The addresses of `host` with `port`, in the order in which to try them. May block.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system resolver, as configured on this host.
struct System;

impl Resolve for System {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        (host, port).to_socket_addrs().map(Iterator::collect)
    }
}

/// Resolves host names. Clones share the running lookup.
#[derive(Clone)]
pub struct Resolver {
    resolve: Arc<dyn Resolve>,
    running: Arc<Mutex<Option<Arc<NameLookup>>>>,
}

/// The lookup of one name.
pub(crate) struct NameLookup {
    host: String,
    port: u16,
    found: Mutex<Option<Result<Vec<SocketAddr>, LinkError>>>,
    done: Condvar,
}

impl Default for Resolver {
    /// Uses the system resolver.
    fn default() -> Resolver {
        Resolver::new(Arc::new(System))
    }
}

impl Resolver {
    /// A resolver that calls `resolve`, on a separate thread for each lookup.
    pub fn new(resolve: Arc<dyn Resolve>) -> Resolver {
        Resolver { resolve, running: Arc::default() }
    }

    /// Start a lookup of `host`, or join the running one. Never waits.
    pub(crate) fn begin(&self, host: &str, port: u16) -> Result<Arc<NameLookup>, LinkError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let joins = |lookup: &&Arc<NameLookup>| {
            lookup.host == host && lookup.port == port && lookup.found(Duration::ZERO).is_none()
        };
        if let Some(lookup) = running.as_ref().filter(joins) {
            return Ok(lookup.clone());
        }
        let (found, done) = (Mutex::default(), Condvar::default());
        let lookup = Arc::new(NameLookup { host: host.to_owned(), port, found, done });
        let (shared, resolve) = (lookup.clone(), self.resolve.clone());
        let started = std::thread::Builder::new()
            .name("pagelith-resolve".to_owned())
            .spawn(move || shared.complete(resolve.resolve(&shared.host, shared.port)));
        started.map_err(|error| LinkError::SystemCall {
            operation: "start of a resolver thread",
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        *running = Some(lookup.clone());
        Ok(lookup)
    }

    /// The addresses of `endpoint`. Waits for the lookup, at most `limit`.
    pub fn addresses(
        &self,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, LinkError> {
        match endpoint {
            Endpoint::Ip(address) => Ok(vec![*address]),
            Endpoint::Name { host, port } => {
                let lookup = self.begin(host, *port)?;
                lookup.found(limit).unwrap_or_else(|| Err(lookup.timed_out(limit)))
            }
        }
    }
}

impl NameLookup {
    fn complete(&self, found: io::Result<Vec<SocketAddr>>) {
        let found = match found {
            Ok(addresses) if addresses.is_empty() => {
                Err(self.unresolved("it has no address".to_owned()))
            }
            Ok(addresses) => Ok(addresses),
            Err(error) => Err(self.unresolved(error.to_string())),
        };
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        self.done.notify_all();
    }

    /// The result, if the lookup has completed. Waits for it, at most `timeout`.
    pub fn found(&self, timeout: Duration) -> Option<Result<Vec<SocketAddr>, LinkError>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match timeout.is_zero() {
            true => found.clone(),
            false => wait_while(&self.done, found, timeout, |found| found.is_none()).clone(),
        }
    }

    /// The error of a lookup that has not completed within `limit`.
    pub fn timed_out(&self, limit: Duration) -> LinkError {
        self.unresolved(format!("no answer within {} ms", limit.as_millis()))
    }

    fn unresolved(&self, detail: String) -> LinkError {
        LinkError::NameNotResolved { host: self.host.clone(), detail }
    }
}
