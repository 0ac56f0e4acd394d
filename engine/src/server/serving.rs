//! Serves a store to other processes from threads of this one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::entropy::Entropy;
use pagelith_io::fault::IoFault;
use pagelith_io::memory_facts::MemoryFacts;
use pagelith_io::runtime::{Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::staging::StagingPool;
use pagelith_io::sync::Arc;
use pagelith_io::system::{SystemClock, SystemEntropy, Threads};
use pagelith_io::verbs::RemoteAccess;
use pagelith_transport::address::Address;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::Link;
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rdma::host::RdmaHost;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, ListenError, Listener};

pub use self::refusal_limit::{LogDecision, RefusalLimit};
use super::Server;
use crate::api::error::{Error, ErrorKind, Result};
use crate::config::Size;
use crate::store::embedded::Store;
use crate::store::rdma;

mod refusal_limit;

/// Default memory for staging hits from SSD, that of `pagelith serve`.
const STAGING_BYTES: Size = Size::mib(64);
/// How long a thread waits for its sockets before it checks for the end.
const WAIT: Duration = Duration::from_millis(50);
/// Longest wait for the threads at the end: the close of a client's descriptors may block in the
/// kernel, and the owner has a store to close.
const END_MAX: Duration = Duration::from_secs(10);

/// Configures how a store is served: [`Serving::builder`].
#[must_use]
pub struct ServeBuilder {
    store: Store,
    listen: ListenConfig,
    limits: LinkLimits,
    staging: Size,
    rdma: Option<Arc<RdmaHost>>,
}

/// Serves a store to clients and peers. Dropping it ends their links and waits for its threads,
/// which first finish what they are waiting for, at most 10 s. The store stays open.
pub struct Serving {
    address: Address,
    state: Arc<ServingState>,
    acceptor: Box<dyn Join>,
}

#[derive(Default)]
struct ServingState {
    stop: AtomicBool,
    /// Tasks that have not come to their end; one that panics never does.
    tasks: AtomicUsize,
}

impl Serving {
    /// Serve `store` at `address`; port 0 for any free port. By default only processes of this host
    /// are admitted, with all rights.
    pub fn builder(store: &Store, address: Address) -> ServeBuilder {
        let admission = ClientAuth::Connection(Rights::all());
        let serves_rdma = store.shared.config.rdma().serve;
        ServeBuilder {
            rdma: store.rdma().filter(|_| serves_rdma).cloned(),
            store: store.clone(),
            listen: ListenConfig { address, admission, allow_remote: false },
            limits: default_limits(),
            staging: STAGING_BYTES,
        }
    }

    /// The address, with the port that is used.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// End the links, as the drop does.
    ///
    /// # Errors
    /// `Internal` if one of the threads has panicked; `Unavailable` if they did not end in 10 s.
    pub fn end(self) -> Result<()> {
        if !self.stop() {
            let detail = format!(
                "threads of the server did not end in {END_MAX:?}; close the store all the same"
            );
            return Err(Error::new(ErrorKind::Unavailable, detail));
        }
        match self.state.tasks.load(Ordering::Acquire) {
            0 => Ok(()),
            tasks => {
                let detail = format!("threads of the server panicked threads={tasks}");
                Err(Error::new(ErrorKind::Internal, detail))
            }
        }
    }

    /// End the threads. False if they did not end in time, or this is not the first call.
    fn stop(&self) -> bool {
        !self.state.stop.swap(true, Ordering::Relaxed) && self.acceptor.join(END_MAX)
    }
}

impl ServeBuilder {
    /// How clients authenticate, and with which rights.
    pub fn admission(mut self, admission: ClientAuth) -> ServeBuilder {
        self.listen.admission = admission;
        self
    }

    /// Admit clients of other hosts, which must authenticate with a key.
    pub fn allow_remote(mut self) -> ServeBuilder {
        self.listen.allow_remote = true;
        self
    }

    /// Limits of links. By default the server maps at most twice the memory of the machine, half of
    /// it for one client process.
    pub fn limits(mut self, limits: LinkLimits) -> ServeBuilder {
        self.limits = limits;
        self
    }

    /// Memory for staging hits from SSD, for all links together. Default 64 MiB.
    pub fn staging(mut self, bytes: Size) -> ServeBuilder {
        self.staging = bytes;
        self
    }

    /// Let clients use RDMA with the devices of `host`, with which the store's memory is registered
    /// ([`Store::register_rdma`]). By default they may if `rdma.serve` is set.
    pub fn rdma(mut self, host: Arc<RdmaHost>) -> ServeBuilder {
        self.rdma = Some(host);
        self
    }

    /// Listen, and serve each client on a thread of its own. Clients of a Unix socket that have all
    /// rights share the arena if `dram.shared` is set.
    ///
    /// # Errors
    /// `Invalid` if other hosts can reach the address without [`ServeBuilder::allow_remote`], or
    /// without keys; `Unavailable` if the address cannot be bound; `Busy` if there is no memory or
    /// no thread.
    pub fn start(self) -> Result<Serving> {
        let ServeBuilder { store, listen, limits, staging, rdma: host } = self;
        let bytes = usize::try_from(staging.bytes()).unwrap_or(usize::MAX);
        let no_memory =
            |error: std::io::Error| Error::busy(format!("no memory for staging: {error}"));
        let has_all_rights = matches!(listen.admission, ClientAuth::Connection(_));
        let arena = store
            .shared_memory()
            .filter(|_| matches!(listen.address, Address::Unix(_)) && has_all_rights);
        let (staging, regions) = match arena {
            Some(arena) => {
                let (staging, memory) = StagingPool::shared(bytes).map_err(no_memory)?;
                (staging, vec![arena, memory])
            }
            None => (StagingPool::new(bytes).map_err(no_memory)?, Vec::new()),
        };
        let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
        let offer = Capabilities::of_this_build(entropy.bytes16());
        let listener = Listener::new(&listen, offer, entropy, clock.clone(), limits)
            .map_err(listen_error)?
            .with_shared_regions(regions);
        let listener = match host {
            Some(host) => {
                rdma::register(&host, "staging", Arc::new(staging.clone()), RemoteAccess::NONE)?;
                listener.with_rdma(host)
            }
            None => listener,
        };
        let (address, state) = (listener.address().clone(), Arc::new(ServingState::default()));
        let task = Acceptor {
            listener,
            store,
            staging,
            state: state.clone(),
            links: Vec::new(),
            refusals: RefusalLimit::default(),
            clock,
        };
        let acceptor = spawn("pagelith-serve", &state, Box::new(task))?;
        Ok(Serving { address, state, acceptor })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ServingState {
    /// The last step of a task.
    fn done(&self) -> Step {
        self.tasks.fetch_sub(1, Ordering::AcqRel);
        Step::Done
    }
}

/// Start a task, and count it.
fn spawn(name: &str, state: &ServingState, task: Box<dyn Task>) -> Result<Box<dyn Join>> {
    state.tasks.fetch_add(1, Ordering::AcqRel);
    let uncount = |_: &IoFault| _ = state.tasks.fetch_sub(1, Ordering::AcqRel);
    Ok(Threads.spawn(name, task, Signal::default()).inspect_err(uncount)?)
}

fn listen_error(error: ListenError) -> Error {
    let kind = match error {
        ListenError::RemoteNotAllowed(_) | ListenError::NoKey(_) => ErrorKind::Invalid,
        ListenError::Unresolved(_) | ListenError::System { .. } => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot listen: {error}"))
}

/// Default of the maximum mapped bytes of memory that clients share: twice the memory of the
/// machine.
///
/// # Errors
/// If the memory size of the machine cannot be read.
pub fn mapped_max_default() -> std::result::Result<u64, IoFault> {
    Ok(2 * MemoryFacts::read()?.total)
}

/// The number of links does not follow the limit on descriptors, as that of `pagelith serve` does:
/// the embedding process has its own uses of them.
fn default_limits() -> LinkLimits {
    let defaults = LinkLimits::default();
    let mapped_max = mapped_max_default().unwrap_or_else(|fault| {
        tracing::warn!(%fault, "mapped memory of clients has no bound: set mapped_max");
        defaults.mapped_max
    });
    LinkLimits { mapped_max, mapped_of_peer_max: mapped_max / 2, ..defaults }
}

fn log_suppressed(refused: u64) {
    if refused > 0 {
        tracing::warn!(refused, "refused further connections without a log line each");
    }
}

/// Accepts clients, and starts a thread for each.
struct Acceptor {
    listener: Listener,
    store: Store,
    staging: StagingPool,
    state: Arc<ServingState>,
    links: Vec<Box<dyn Join>>,
    refusals: RefusalLimit,
    clock: Arc<SystemClock>,
}

impl Acceptor {
    fn start(&self, link: Box<dyn Link>) -> Result<Box<dyn Join>> {
        let server = Server::new(&self.store, link, self.staging.clone())?;
        let link = ServedLink { server, state: self.state.clone() };
        spawn("pagelith-client", &self.state, Box::new(link))
    }

    /// Log that a client was refused, or that accept failed.
    fn log_refusal(&mut self, peer: &str, why: &LinkError) {
        let decision = self.refusals.refused(self.clock.now(), peer.is_empty());
        log_suppressed(decision.suppressed);
        match (decision.line, peer) {
            (false, _) => {}
            (true, "") => tracing::warn!(%why, "accept failed, it is paused for a moment"),
            (true, peer) => tracing::warn!(peer, %why, "refused a client"),
        }
    }
}

impl Task for Acceptor {
    fn step(&mut self) -> Step {
        if self.state.stop.load(Ordering::Relaxed) {
            self.links.iter().for_each(|link| while !link.join(WAIT) {});
            return self.state.done();
        }
        let mut arrivals = Vec::new();
        self.listener.wait(&mut arrivals, WAIT);
        log_suppressed(self.refusals.roll_over(self.clock.now()).suppressed);
        self.links.retain(|link| !link.join(Duration::ZERO));
        for arrival in arrivals {
            match arrival {
                AdmissionResult::Link(link) => {
                    let peer = link.params().peer.clone();
                    match self.start(link) {
                        Ok(link) => self.links.push(link),
                        Err(error) => tracing::warn!(%peer, %error, "cannot serve a client"),
                    }
                }
                AdmissionResult::Refused { peer, why } => self.log_refusal(&peer, &why),
            }
        }
        Step::Again
    }
}

/// Serves one client until its link closes.
struct ServedLink {
    server: Server,
    state: Arc<ServingState>,
}

impl Task for ServedLink {
    fn step(&mut self) -> Step {
        if self.server.closed().is_some() {
            return self.state.done();
        }
        if self.state.stop.load(Ordering::Relaxed) {
            self.server.close();
            return self.state.done();
        }
        self.server.wait(WAIT);
        Step::Again
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::server::tests::Pair;

    /// A thread that ends in time or not, with the time that it was given.
    struct Thread {
        ends: bool,
        given: Arc<Mutex<Vec<Duration>>>,
    }

    impl Join for Thread {
        fn join(&self, timeout: Duration) -> bool {
            self.given.lock().expect("no panic").push(timeout);
            self.ends
        }
    }

    /// The result of the end, with `tasks` tasks that did not come to theirs.
    fn end(ends: bool, tasks: usize) -> (Result<()>, Vec<Duration>) {
        let (given, state) = (Arc::default(), ServingState::default());
        state.tasks.store(tasks, Ordering::Release);
        let acceptor = Box::new(Thread { ends, given: Arc::clone(&given) });
        let address = "tcp:127.0.0.1:1".parse().expect("an address");
        let serving = Serving { address, state: Arc::new(state), acceptor };
        let ended = serving.end();
        let given = given.lock().expect("no panic").clone();
        (ended, given)
    }

    #[test]
    fn end_waits_once_for_threads_that_hang_and_reports_them() {
        let (ended, given) = end(false, 1);
        assert_eq!(ended.map_err(|error| error.kind), Err(ErrorKind::Unavailable));
        assert_eq!(given, [END_MAX], "the drop waits no more");
    }

    #[test]
    fn mapped_memory_of_clients_is_bounded_by_default() {
        let store = Pair::new(Rights::all()).store;
        let limits = Serving::builder(&store, "tcp:127.0.0.1:0".parse().expect("one")).limits;
        let total = MemoryFacts::read().expect("facts").total;
        assert_eq!((limits.mapped_max, limits.mapped_of_peer_max), (2 * total, total));
    }

    #[test]
    fn end_reports_threads_that_have_panicked() {
        let (ended, _) = end(true, 2);
        let error = ended.expect_err("reported");
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.message.ends_with("threads=2"), "{error}");
        assert_eq!(end(true, 0).0, Ok(()));
    }
}
