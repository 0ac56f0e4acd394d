//! The connection of pins, views and open groups, which the names in this file call leases. The
//! store releases each when the link on which it was acquired ends. So one link carries all of them
//! for a client, and it is polled often enough that the store does not treat this process as dead.
//! The timed leases of `Client::lease` outlive their link and are not among them.
//!
//! Invariants:
//! - One caller at a time uses the link. It does not hold the mutex meanwhile, so other callers
//!   wait at most until their own deadlines.
//! - Links are numbered in the order in which they are established. A lease of an earlier link has
//!   ended and is not released over a later one.

use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::{Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::sync::{Arc, AtomicU64, Condvar, Mutex, PoisonError, wait_while};
use pagelith_layouts::wire::request::RequestBody;

use super::control::control_once;
use super::unflushed_puts::Instance;
use super::{STORE, is_unavailable};
use crate::api::error::{Error, Result};
use crate::rpc::connections::PeerConnections;
use crate::rpc::remote_get::{CallOptions, no_link};
use crate::rpc::{ControlReply, Peers};

/// How often to poll the link while leases are held: several times in the period after which a
/// silent peer counts as dead.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The link of leases, and access to it.
pub(crate) struct LeaseConnection {
    pub clock: Arc<dyn Clock>,
    timeout: Duration,
    /// `None` while a caller uses it.
    link: Mutex<Option<Box<LeaseLink>>>,
    free: Condvar,
    /// Number of leases that are held or may be held.
    leases_held: AtomicU64,
    /// The number of the link that was up after its last use; 0 if none was.
    last_link: AtomicU64,
    /// Runs the keep-alive task; taken when the task starts.
    runtime: Mutex<Option<Arc<dyn Runtime>>>,
}

/// The connections of leases, and the last lease name.
pub(crate) struct LeaseLink {
    pub connections: PeerConnections,
    last_name: u64,
}

impl LeaseLink {
    /// A name that no lease has used, on any link.
    pub fn next_name(&mut self) -> u64 {
        self.last_name += 1;
        self.last_name
    }

    /// The number of the link; `None` if it is not up.
    pub fn link_number(&self) -> Option<u64> {
        self.connections.pool.live(STORE).map(|_| self.connections.pool.generation())
    }

    /// Send a request whose reply is a number, once; returns the reply and the number of its link.
    pub fn request_number(
        &mut self,
        clock: &dyn Clock,
        ask: &RequestBody<'_>,
        call: CallOptions,
    ) -> Result<(u64, u64)> {
        let (number, _) = self.request_number_of(clock, ask, call)?;
        Ok((number, self.connections.pool.generation()))
    }

    /// As [`LeaseLink::request_number`], but returns the process that sent the reply.
    pub fn request_number_of(
        &mut self,
        clock: &dyn Clock,
        ask: &RequestBody<'_>,
        call: CallOptions,
    ) -> Result<(u64, Instance)> {
        // Discard late responses of earlier calls.
        self.connections.take_responses();
        match control_once(clock, &mut self.connections, ask, call, &|| {})? {
            (ControlReply::Number(number), by) => Ok((number, by)),
            (
                ControlReply::Flushed(_)
                | ControlReply::Text(_)
                | ControlReply::Bits(_)
                | ControlReply::Events(_)
                | ControlReply::Views(_),
                _,
            ) => Err(no_link()),
        }
    }

    /// Send a request whose reply has one bit for each object.
    pub fn request_bits(
        &mut self,
        clock: &dyn Clock,
        ask: &RequestBody<'_>,
        call: CallOptions,
    ) -> Result<Vec<bool>> {
        self.connections.take_responses();
        match control_once(clock, &mut self.connections, ask, call, &|| {})? {
            (ControlReply::Bits(bits), _) => Ok(bits),
            (
                ControlReply::Flushed(_)
                | ControlReply::Text(_)
                | ControlReply::Number(_)
                | ControlReply::Events(_)
                | ControlReply::Views(_),
                _,
            ) => Err(no_link()),
        }
    }

    /// Send a request on the link with this number, if it is still up, without waiting for the
    /// reply.
    pub fn send_without_reply(
        &mut self,
        link: u64,
        ask: &RequestBody<'_>,
        call: CallOptions,
        now: Mono,
    ) {
        if self.link_number() == Some(link) {
            let token = self.connections.next_token();
            let client = self.connections.pool.live_mut(STORE);
            let sent = client.map(|client| {
                client.send_control(token, ask, call.request_options(now, 0), call.deadline)
            });
            if let Some(Err(error)) = sent {
                tracing::warn!(%error, "lease was not released; the store keeps it until the link ends");
            }
        }
    }
}

impl LeaseConnection {
    pub fn new(remote: Arc<Peers>, clock: Arc<dyn Clock>, timeout: Duration) -> LeaseConnection {
        let link =
            Box::new(LeaseLink { connections: PeerConnections::for_client(remote), last_name: 0 });
        let (link, free) = (Mutex::new(Some(link)), Condvar::default());
        let (leases_held, last_link) = (AtomicU64::new(0), AtomicU64::new(0));
        LeaseConnection {
            clock,
            timeout,
            link,
            free,
            leases_held,
            last_link,
            runtime: Mutex::default(),
        }
    }

    /// Let a task of this runtime keep the link alive from the first lease on.
    pub fn set_runtime(&self, runtime: Arc<dyn Runtime>) {
        *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
    }

    /// The options of calls without a timeout of their own.
    pub fn default_options(&self) -> CallOptions {
        let deadline = self.clock.now().after(self.timeout);
        CallOptions { request: 0, depth: 0, deadline, prefill_tokens_per_s: 0 }
    }

    /// Use the link; waits while another caller uses it.
    ///
    /// # Errors
    /// `Busy` if other callers use it until `deadline`.
    pub fn with_link<R>(
        &self,
        deadline: Mono,
        body: impl FnOnce(&mut LeaseLink) -> R,
    ) -> Result<R> {
        let mut slot = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let link = loop {
            let left = deadline.since(self.clock.now());
            match slot.take() {
                Some(link) => break link,
                None if left.is_zero() => {
                    return Err(Error::busy(
                        "lease connection is busy: the deadline passed while another call used it",
                    ));
                }
                None => {
                    slot = wait_while(&self.free, slot, KEEP_ALIVE_INTERVAL.min(left), |slot| {
                        slot.is_none()
                    })
                }
            }
        };
        drop(slot);
        let mut guard = LinkGuard { leases: self, link: Some(link) };
        guard.poll().map(body)
    }

    /// The link, if no caller uses it.
    fn try_lock(&self) -> Option<LinkGuard<'_>> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The guard is created only with a link, because its drop returns the content.
        link.map(|link| LinkGuard { leases: self, link: Some(link) })
    }

    /// Poll the link, unless a caller uses it.
    pub fn keep_alive(&self) {
        if self.leases_held.load(Relaxed) > 0
            && let Some(mut guard) = self.try_lock()
        {
            let _ = guard.poll();
        }
    }

    /// Whether the link with this number is up, as far as this side knows. Does not wait.
    pub fn is_connected(&self, link: u64) -> bool {
        if let Some(mut guard) = self.try_lock() {
            let _ = guard.poll();
        }
        self.last_link.load(Relaxed) == link
    }

    /// Whether the store answers over the link with this number, which proves that its leases were
    /// held until then. Polling is not enough: a link that has ended may seem up for a while. Waits
    /// up to the timeout of calls.
    pub fn confirm(&self, link: u64) -> bool {
        let call = self.default_options();
        let confirmed = self.with_link(call.deadline, |lease_link| {
            (lease_link.link_number() == Some(link))
                .then(|| lease_link.request_number(&*self.clock, &RequestBody::Ping, call))
        });
        matches!(confirmed, Ok(Some(Ok((_, number)))) if number == link)
    }

    /// Release the pins or views with these names on the link with this number, if it is still up.
    pub fn unpin(&self, link: u64, names: &[u64]) {
        let call = self.default_options();
        let released = self.with_link(call.deadline, |lease_link| {
            for name in names {
                if lease_link.link_number() != Some(link) {
                    return;
                }
                if let Err(error) = lease_link.request_number(&*self.clock, &RequestBody::Unpin(*name), call)
                {
                    tracing::warn!(%error, "lease was not released; the store keeps it until the link ends");
                }
            }
        });
        if let Err(error) = released {
            tracing::warn!(%error, "lease was not released; the store keeps it until the link ends");
        }
    }

    /// Count one lease less.
    pub fn release(&self) {
        self.leases_held.fetch_sub(1, Relaxed);
    }

    /// Start the task that keeps the link alive, if there is a runtime.
    fn start_keep_alive(self: &Arc<Self>) {
        let mut slot = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(runtime) = slot.take() else { return };
        let task = Box::new(KeepAliveTask(Arc::downgrade(self)));
        if let Err(error) = runtime.spawn("pagelith-leases", task, Signal::default()) {
            tracing::warn!(%error, "keep-alive task of the lease connection cannot start; the store may time this client out between calls");
            // The next acquired lease tries again.
            *slot = Some(runtime);
        }
    }

    /// Acquire a lease; retries once over a new link if the link that was up ends.
    pub fn acquire<R>(
        self: &Arc<Self>,
        deadline: Mono,
        acquire: impl Fn(&mut LeaseLink) -> Result<R>,
    ) -> Result<R> {
        let acquired = self.with_link(deadline, |link| {
            let mut acquired = Err(no_link());
            for _ in 0..super::attempts(&link.connections) {
                acquired = acquire(link);
                if !is_unavailable(&acquired) {
                    break;
                }
            }
            acquired
        })??;
        self.leases_held.fetch_add(1, Relaxed);
        self.start_keep_alive();
        Ok(acquired)
    }
}

/// Returns the link when the caller is done, also after a panic.
struct LinkGuard<'a> {
    leases: &'a LeaseConnection,
    link: Option<Box<LeaseLink>>,
}

impl LinkGuard<'_> {
    /// The link, after it was polled.
    fn poll(&mut self) -> Result<&mut LeaseLink> {
        let link = self.link.as_deref_mut().ok_or_else(no_link)?;
        link.connections.poll(self.leases.clock.now());
        Ok(link)
    }
}

impl Drop for LinkGuard<'_> {
    fn drop(&mut self) {
        let link = self.link.as_ref().and_then(|link| link.link_number());
        self.leases.last_link.store(link.unwrap_or(0), Relaxed);
        *self.leases.link.lock().unwrap_or_else(PoisonError::into_inner) = self.link.take();
        self.leases.free.notify_one();
    }
}

/// Polls the link until the client and all its leases are dropped.
struct KeepAliveTask(Weak<LeaseConnection>);

impl Task for KeepAliveTask {
    fn step(&mut self) -> Step {
        match self.0.upgrade() {
            Some(leases) => {
                leases.keep_alive();
                Step::Idle(KEEP_ALIVE_INTERVAL)
            }
            None => Step::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::entropy::Entropy;
    use pagelith_io::system::{SystemClock, SystemEntropy};
    use pagelith_transport::capability::Capabilities;
    use pagelith_transport::dial::SocketDial;

    use super::*;
    use crate::api::error::ErrorKind;
    use crate::rpc::Peer;

    #[test]
    fn caller_of_busy_lease_connection_waits_only_until_its_deadline() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let address = "tcp:127.0.0.1:1".parse().expect("an address");
        let offer = Capabilities::of_this_build(SystemEntropy.bytes16());
        let dial = Arc::new(SocketDial::new(address, None, offer, clock.clone()));
        let remote = Peers::new(vec![Peer {
            name: "store".to_owned(),
            weight: 1.0,
            preferred: false,
            dial,
        }])
        .expect("a peer");
        let leases = LeaseConnection::new(Arc::new(remote), clock, Duration::from_secs(60));
        let soon = || leases.clock.now().after(Duration::from_millis(2));
        let far = leases.default_options().deadline;
        // Pretend that link 7 was up after the last use.
        leases.last_link.store(7, Relaxed);
        let outer = leases.with_link(far, |_| {
            assert_eq!(leases.with_link(soon(), |_| ()).expect_err("in use").kind, ErrorKind::Busy);
            assert!(!leases.is_connected(1), "a busy link must not block the check");
            leases.leases_held.store(1, Relaxed);
            leases.keep_alive();
            assert!(leases.is_connected(7), "a check during use must not mark the link as ended");
        });
        assert_eq!(
            (outer, leases.with_link(soon(), |_| ())),
            (Ok(()), Ok(())),
            "the link is returned"
        );
    }
}
