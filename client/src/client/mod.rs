//! A client of a store in another process, on this host or another: the calls of a `Store`, over a
//! link.
//!
//! - The client verifies the bytes of a get in their destination before it returns `Hit`; the store
//!   verifies the bytes of a put before it stores them.
//! - Each concurrent call has a link of its own, dialed if none is idle and kept for later calls. A
//!   link that is idle for some seconds ends.
//! - If the link ends during a call, the call is retried once over a new link, whichever call it
//!   is. Only what belongs to one link (a pin, a view, an open group) is lost with it.
//! - A caller with several batches in flight uses one link for all of them: [`Session`].
//! - A restarted store process has lost all puts that no flush covered; the next flush reports this
//!   once.

mod batch;
mod control;
mod device_memory;
mod devices;
mod events;
mod exists;
mod group;
mod idle;
mod lease_connection;
mod page_store;
mod pin;
mod put;
mod rdma_memory;
mod session;
mod split_call;
#[cfg(test)]
mod stand_ins;
mod unflushed_puts;
mod view;

use std::time::Duration;

use pagelith_io::buffer::BorrowScope;
use pagelith_io::clock::{Clock, Mono};
use pagelith_io::entropy::Entropy;
use pagelith_io::runtime::Runtime;
use pagelith_io::shm::SharedRegion;
use pagelith_io::sync::{Arc, Mutex, PoisonError};
use pagelith_io::system::{SystemClock, SystemEntropy, Threads};
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::RequestBody;
use pagelith_transport::address::Address;
use pagelith_transport::auth::Key;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, SocketDial};
use pagelith_transport::link::Link;
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rdma::host::RdmaHost;
use pagelith_transport::rdma::registration::RdmaRegistration;
use pagelith_transport::shown::SharedRegions;

use self::batch::{RemotePutBatch, begin_get};
use self::device_memory::DeviceMemory;
use self::events::EventCursor;
use self::idle::IdleConnections;
use self::lease_connection::LeaseConnection;
use self::rdma_memory::RdmaMemory;
use self::unflushed_puts::UnflushedPuts;
use crate::api::borrowed::{self, BorrowedGroup};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CompletedGet, CompletedPut, FlushReport, GetOutcome, PutOutcome};
use crate::api::request::{Get, GetSlice, Options, PutGroup, PutSlice, RequestEpoch};
use crate::rpc::client::RpcClient;
use crate::rpc::connections::PeerConnections;
use crate::rpc::remote_get::{CallOptions, LinkFailures, no_link};
use crate::rpc::{ControlReply, Peer, Peers};

pub use self::group::Group;
pub use self::pin::Pin;
pub use self::rdma_memory::register_memory;
pub use self::session::Session;
pub use self::view::View;

/// Longest single wait, so that a wait for several conditions checks each of them.
const WAIT_STEP: Duration = Duration::from_millis(20);
/// How long to wait before a busy store is tried again.
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// The index of the only store in a [`PeerConnections`].
const STORE: usize = 0;

/// A store in another process. Clones share its links; the links end with the last clone.
#[derive(Clone)]
pub struct Client {
    remote: Arc<Peers>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    idle: Arc<Mutex<IdleConnections>>,
    requests: Arc<Mutex<u64>>,
    unflushed: Arc<Mutex<UnflushedPuts>>,
    event_cursor: Arc<Mutex<EventCursor>>,
    shared_regions: SharedRegions,
    leases: Arc<LeaseConnection>,
    /// As `leases`, for open groups, whose payload may occupy the link for long.
    group_leases: Arc<LeaseConnection>,
    rdma: RdmaMemory,
    device_memory: Arc<DeviceMemory>,
}

impl Client {
    /// Attach to the store that `dial` connects to. `timeout` limits this call, and later calls
    /// that specify no timeout.
    ///
    /// # Errors
    /// `Unavailable` if the store does not respond in time, `Denied` if it rejects this process,
    /// `Incompatible` if the two have no common protocol; the message names the cause.
    pub fn attach(dial: Arc<dyn Dial>, clock: Arc<dyn Clock>, timeout: Duration) -> Result<Client> {
        let link = first_link(&*dial, &*clock, timeout).map_err(|why| attach_error(&why))?;
        Client::with_link(dial, "store".to_owned(), clock, timeout, Some(link))
    }

    /// A client that uses `link`, or dials with the first call. Log lines name the store `name`.
    fn with_link(
        dial: Arc<dyn Dial>,
        name: String,
        clock: Arc<dyn Clock>,
        timeout: Duration,
        link: Option<Box<dyn Link>>,
    ) -> Result<Client> {
        let peer = Peer { name, weight: 1.0, preferred: false, dial };
        let remote = Arc::new(Peers::new(vec![peer])?);
        let leases = Arc::new(LeaseConnection::new(remote.clone(), clock.clone(), timeout));
        let group_leases = Arc::new(LeaseConnection::new(remote.clone(), clock.clone(), timeout));
        let mut connections = PeerConnections::for_client(remote.clone());
        link.into_iter().for_each(|link| connections.pool.adopt(STORE, link));
        let idle = IdleConnections::new(connections, clock.now());
        Ok(Client {
            remote,
            clock,
            timeout,
            idle: Arc::new(Mutex::new(idle)),
            requests: Arc::default(),
            unflushed: Arc::default(),
            event_cursor: Arc::default(),
            shared_regions: SharedRegions::default(),
            leases,
            group_leases,
            rdma: RdmaMemory::default(),
            device_memory: Arc::default(),
        })
    }

    /// Attach to the store process at `address`, which identifies this process by `key`. As
    /// [`Client::attach`]. A host name is resolved again for each link.
    pub fn to(address: &Address, key: Option<&Key>, timeout: Duration) -> Result<Client> {
        Client::over(Client::dial(address, key), timeout)
    }

    /// As [`Client::to`], but succeeds also if no process responds there yet: calls fail as
    /// `Unavailable` until it can be reached, and each call tries to connect, as after a restart.
    /// If a process responds and rejects this one, that is an error here too.
    pub fn expecting(address: &Address, key: Option<&Key>, timeout: Duration) -> Result<Client> {
        Client::expecting_over(Client::dial(address, key), timeout)
    }

    /// Dial options of [`Client::to`]: no RDMA, and the system's clock, which the calls use too.
    pub fn dial(address: &Address, key: Option<&Key>) -> SocketDial {
        let offer = Capabilities::of_this_build(SystemEntropy.bytes16());
        SocketDial::new(address.clone(), key.cloned(), offer, Arc::new(SystemClock::new()))
    }

    /// As [`Client::to`], over links of `dial`, whose clock the calls use too.
    pub fn over(dial: SocketDial, timeout: Duration) -> Result<Client> {
        Client::connect(dial, timeout, false)
    }

    /// As [`Client::expecting`], over links of `dial`.
    pub fn expecting_over(dial: SocketDial, timeout: Duration) -> Result<Client> {
        Client::connect(dial, timeout, true)
    }

    fn connect(dial: SocketDial, timeout: Duration, may_be_down: bool) -> Result<Client> {
        let (address, clock) = (dial.address.clone(), dial.clock.clone());
        let (shared_regions, rdma) = (dial.shared_regions.clone(), dial.rdma.host().cloned());
        let link = match first_link(&dial, &*clock, timeout).map_err(|why| attach_error(&why)) {
            Ok(link) => Some(link),
            Err(error) if may_be_down && error.kind == ErrorKind::Unavailable => {
                tracing::warn!(%address, %error, "store process is down; calls fail as Unavailable until it is up");
                None
            }
            Err(mut error) => {
                error.message = format!("{} address={address}", error.message);
                return Err(error);
            }
        };
        let attached =
            Client::with_link(Arc::new(dial), address.to_string(), clock, timeout, link)?;
        let attached = Client { shared_regions, rdma: RdmaMemory::new(rdma), ..attached };
        Ok(attached.with_runtime(Arc::new(Threads)))
    }

    /// Let a task of `runtime` keep the connections of leases alive. A store treats a process that
    /// is silent for some seconds as dead, and releases its leases. Without the task only the calls
    /// of this process keep the connections alive.
    #[must_use]
    pub fn with_runtime(self, runtime: Arc<dyn Runtime>) -> Client {
        self.leases.set_runtime(runtime.clone());
        self.group_leases.set_runtime(runtime.clone());
        self.device_memory.set_runtime(runtime);
        self
    }

    /// Share `region` with a store process on this host, so that puts from it are copied once and
    /// not sent. Share only memory that lives as long as this client: a link of the store maps it
    /// until the link ends. Over RDMA it is registered, as by [`Client::register_memory`].
    ///
    /// # Errors
    /// `Invalid` if more than [`REGIONS_MAX`](pagelith_transport::shown::REGIONS_MAX) regions are
    /// shared. As [`Client::register_memory`], over RDMA.
    pub fn share(&self, region: Arc<SharedRegion>) -> Result<()> {
        self.rdma.share(&self.shared_regions, region)?;
        self.lock_idle().drop_all();
        Ok(())
    }

    /// Register memory that gets fill and puts read repeatedly, such as a host pool: `len` bytes
    /// from `base`. Over RDMA the store process then moves bytes straight into and out of it.
    /// `None`, without any effect, over other links.
    ///
    /// The memory stays locked until the registration is dropped, once for each device. After that
    /// no device accesses it; drop the registration only when no call uses the memory, since such a
    /// call would lose its link. The store process learns addresses and keys: a defect of it could
    /// change any byte of the memory.
    ///
    /// # Errors
    /// `Busy` if the process may not lock so much memory (`RLIMIT_MEMLOCK`), `Invalid` if the
    /// memory is not mapped or a device refuses it; nothing is registered then, and calls work as
    /// without a registration.
    pub fn register_memory(&self, base: *const u8, len: usize) -> Result<Option<RdmaRegistration>> {
        self.rdma.register(base, len)
    }

    /// The RDMA devices of this client, if it has any.
    pub fn rdma(&self) -> Option<&Arc<RdmaHost>> {
        self.rdma.host()
    }

    /// As `Store::begin_request`.
    pub fn begin_request(&self) -> RequestEpoch {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests += 1;
        RequestEpoch(*requests)
    }

    /// As `Store::put_batch`. `Unavailable` if the store cannot be reached.
    pub fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = objects.chunks(1).map(|object| (None, object)).collect();
        self.put_borrowed(&groups, &[], options)
    }

    /// As `Store::put_groups`.
    pub fn put_groups(
        &self,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|group| (None, *group)).collect();
        self.put_borrowed(&groups, &[], options)
    }

    /// As `Store::put_attached`.
    pub fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|(base, group)| (Some(*base), *group)).collect();
        self.put_borrowed(&groups, &[], options)
    }

    /// As `Store::put_parts`. `Incompatible` if the store is of a version that accepts
    /// only whole groups.
    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        if required.is_empty() {
            return parts
                .iter()
                .map(|_| Err(Error::invalid("a group requires no object")))
                .collect();
        }
        let parts: Vec<_> = parts.iter().map(|part| (None, *part)).collect();
        self.put_borrowed(&parts, required, options)
    }

    fn put_borrowed(
        &self,
        groups: &[BorrowedGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let options = Options { request: Some(self.request(&options)), ..options };
        let deadline = self.clock.now().after(options.timeout.unwrap_or(self.timeout));
        let attempt = |groups: &[BorrowedGroup<'_>], options| {
            BorrowScope::scope(|lender| {
                let done =
                    self.put_owned(borrowed::borrow_groups(lender, groups), required, options);
                borrowed::outcomes_of_groups(groups, done)
            })
        };
        let wait = |left: Duration| {
            self.with_connections(|connections| {
                connections.wait_for_peer(STORE, self.clock.now(), left.min(BUSY_RETRY))
            });
        };
        borrowed::retry_while_busy(
            groups,
            options,
            || deadline.since(self.clock.now()),
            attempt,
            wait,
        )
    }

    /// Put groups; returns one outcome for each object, with its memory. Without capacity at the
    /// store the outcome is `Busy` at once.
    pub fn put(&self, groups: Vec<PutGroup>, options: Options) -> Vec<CompletedPut> {
        self.put_owned(groups, &[], options)
    }

    /// Put groups, or parts of a group that consists of the objects `required` if that is not
    /// empty.
    fn put_owned(
        &self,
        groups: Vec<PutGroup>,
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<CompletedPut> {
        let call = self.call_options(&options);
        self.with_connections(|connections| {
            let mut puts = RemotePutBatch::begin(connections, groups, required, call);
            self.drive(connections, |connections, now| {
                let mut failures = LinkFailures::default();
                let all_done = puts.advance(connections, now, &mut failures);
                failures.apply(connections, now);
                all_done
            });
            self.unflushed().note(puts.take_acknowledgements());
            puts.finish()
        })
    }

    /// As `Store::get_batch`; the tier of a hit is the store's tier. `Unavailable` if the
    /// store cannot be reached.
    pub fn get_batch(
        &self,
        gets: &mut [GetSlice<'_, '_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        BorrowScope::scope(|lender| {
            let done = self.get(borrowed::borrow_gets(lender, gets), options);
            done.into_iter().map(|done| done.outcome).collect()
        })
    }

    /// Get objects; returns all memory once each object has its outcome.
    pub fn get(&self, gets: Vec<Get>, options: Options) -> Vec<CompletedGet> {
        let call = self.call_options(&options);
        self.with_connections(|connections| {
            let mut get = begin_get(connections, gets, call);
            self.drive(connections, |connections, now| get.advance(connections, now));
            get.finish()
        })
    }

    /// As `Store::remove`. If the link ended during the call, the removal was requested
    /// twice, and the result counts what the second request found.
    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        if keys.is_empty() {
            return Ok(0);
        }
        let removed = self.number(&RequestBody::Remove(List::of(keys)), &options)?;
        Ok(usize::try_from(removed).unwrap_or(usize::MAX))
    }

    /// As `Store::clear`. If the link ended during the call, the clear may have been
    /// executed twice, which raises the generation twice. Clearing a namespace without objects does
    /// not raise it.
    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        self.number(&RequestBody::Clear(namespace), &options).map(Generation)
    }

    /// As `Store::flush`: it covers the puts of all clients. The report counts what was
    /// not yet reported to this process, in the namespaces of its key.
    ///
    /// # Errors
    /// `Unavailable` also, once, if the store process was restarted after a put of this client that
    /// no flush covered: the put may be lost.
    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        let before = *self.unflushed();
        let (reply, instance) = self.control(&RequestBody::Flush, &options)?;
        let ControlReply::Flushed(report) = reply else { return Err(no_link()) };
        self.unflushed().record_flush(before, instance)?;
        Ok(report)
    }

    /// The store's counters, as a JSON object.
    pub fn stats(&self, options: Options) -> Result<String> {
        match self.control(&RequestBody::Stats, &options)? {
            (ControlReply::Text(text), _) => Ok(text),
            (
                ControlReply::Number(_)
                | ControlReply::Flushed(_)
                | ControlReply::Bits(_)
                | ControlReply::Events(_)
                | ControlReply::Views(_),
                _,
            ) => Err(no_link()),
        }
    }

    /// Check that the store responds.
    pub fn ping(&self, options: Options) -> Result<()> {
        self.control(&RequestBody::Ping, &options).map(|_| ())
    }

    fn unflushed(&self) -> pagelith_io::sync::MutexGuard<'_, UnflushedPuts> {
        self.unflushed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Poll the connections of leases, so that the store does not treat this process as dead.
    fn keep_alive(&self) {
        self.leases.keep_alive();
        self.group_leases.keep_alive();
    }

    fn request(&self, options: &Options) -> RequestEpoch {
        options.request.unwrap_or_else(|| self.begin_request())
    }

    fn call_options(&self, options: &Options) -> CallOptions {
        let RequestEpoch(request) = self.request(options);
        let deadline = self.clock.now().after(options.timeout.unwrap_or(self.timeout));
        let (depth, prefill_tokens_per_s) = (options.depth, options.prefill_tokens_per_s);
        CallOptions { request, depth, deadline, prefill_tokens_per_s }
    }

    fn lock_idle(&self) -> pagelith_io::sync::MutexGuard<'_, IdleConnections> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take connections for exclusive use, with the share count at that moment.
    fn checkout(&self) -> (PeerConnections, u64) {
        let (reused, share_count) = self.lock_idle().take();
        let mut connections =
            reused.unwrap_or_else(|| PeerConnections::for_client(self.remote.clone()));
        // Detect a link that ended since its last use before a request is sent over it.
        connections.poll(self.clock.now());
        (connections, share_count)
    }

    /// Keep connections for later calls, unless regions that they lack were shared meanwhile.
    fn checkin(&self, connections: PeerConnections, share_count: u64) {
        let mut idle = self.lock_idle();
        let unused = idle.put_back(connections, share_count, self.clock.now());
        // The end of a link takes system calls, and other calls wait for the lock.
        drop(idle);
        drop(unused);
    }

    /// Run `body` with exclusive connections.
    fn with_connections<R>(&self, body: impl FnOnce(&mut PeerConnections) -> R) -> R {
        let (mut connections, share_count) = self.checkout();
        let result = body(&mut connections);
        self.checkin(connections, share_count);
        result
    }

    /// Make progress until `advance` returns true.
    fn drive(
        &self,
        connections: &mut PeerConnections,
        advance: impl FnMut(&mut PeerConnections, Mono) -> bool,
    ) {
        control::drive(&*self.clock, connections, advance, &|| self.keep_alive());
    }
}

/// How often to try an idempotent request: twice if a link is up, since that link may end during
/// the request.
fn attempts(connections: &PeerConnections) -> usize {
    1 + usize::from(connections.pool.live(STORE).is_some())
}

/// Wake the store before a request arrives.
fn wake_store(connections: &mut PeerConnections) {
    connections.pool.live_mut(STORE).into_iter().for_each(RpcClient::wake_peer);
}

fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

fn first_link(
    dial: &dyn Dial,
    clock: &dyn Clock,
    timeout: Duration,
) -> std::result::Result<Box<dyn Link>, LinkError> {
    let deadline = clock.now().after(timeout);
    let mut dialing = dial.begin()?;
    loop {
        let left = deadline.since(clock.now());
        match dialing.wait(left.min(WAIT_STEP)) {
            DialProgress::Ready(link) => return Ok(link),
            DialProgress::Failed(why) => return Err(why),
            DialProgress::Waiting(_) if left.is_zero() => {
                let limit_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                return Err(LinkError::HandshakeTimeout { limit_ms });
            }
            DialProgress::Waiting(waiting) => dialing = waiting,
        }
    }
}

fn attach_error(why: &LinkError) -> Error {
    use pagelith_layouts::wire::greeting::RefusalReason;
    let kind = match why {
        LinkError::AuthenticationFailed { .. } => ErrorKind::Denied,
        LinkError::Incompatible(_) | LinkError::NoRdma { .. } => ErrorKind::Incompatible,
        LinkError::Refused(refusal) => match refusal.reason {
            RefusalReason::Denied => ErrorKind::Denied,
            RefusalReason::Version | RefusalReason::Feature => ErrorKind::Incompatible,
            RefusalReason::Busy | RefusalReason::Malformed | RefusalReason::Late => {
                ErrorKind::Unavailable
            }
        },
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot attach to the store: {why}"))
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
