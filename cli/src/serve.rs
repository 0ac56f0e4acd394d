//! `pagelith serve`: a store that serves other processes over sockets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use pagelith::config::{Config, Size, SizeError, ValidConfig};
use pagelith::io::clock::{Clock, Mono};
use pagelith::io::fault::IoFault;
use pagelith::io::shm::SharedRegion;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::io::threads::thread_start_fault;
use pagelith::io::verbs::RemoteAccess;
use pagelith::key_file;
use pagelith::layouts::align::align_down;
use pagelith::rdma;
use pagelith::server::{RefusalLimit, Server};
use pagelith::transport::address::{Address, Endpoint};
use pagelith::transport::auth::KeyRing;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link::Link;
use pagelith::transport::link_error::LinkError;
use pagelith::transport::rdma::host::RdmaHost;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener, Socket, SocketLink};
use pagelith::{FlushReport, Options, Store};

use crate::client_limits::{self, ClientFlags, ClientMemory};
use crate::end_signals::end_signals;
use crate::exit::RunStatus;
use crate::http::{Http, ServeState};
use crate::output::{log, never_block_on_the_log, out};
use crate::peers::{PeerFlags, offer};
use crate::settings::{StoreDefaults, StoreFlags};

/// Maximum single wait of the listener and of idle links; the delay after which a signal takes
/// effect.
const WAIT: Duration = Duration::from_millis(100);
/// Longest wait for the listener to close, at the end of the process.
const LISTENER_WAIT: Duration = Duration::from_secs(1);
const TRANSFER_DEFAULT: Size = Size::mib(64);
const TRANSFER_RANGE: (Size, Size) = (Size::kib(64), Size::gib(1024));

/// Serve a store to other processes of this host.
///
/// Prints `listening tcp:HOST:PORT` (or `unix:PATH`) once it accepts connections. Without keys
/// every client that can connect may read, write and remove everything, so the address must be
/// loopback or a Unix socket. SIGTERM, SIGINT and SIGHUP (unless it was ignored at start, as under
/// nohup) close the store, within close_timeout_ms, and end the process; SIGQUIT ends it at once.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: pagelith serve --listen unix:/run/pagelith/socket --dir /mnt/nvme/kv --ssd 500GiB"
)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    store: StoreFlags,
    /// Address to listen at, with a host name all of its addresses; port 0 for any free port. A
    /// Unix socket admits processes of this user and of root
    #[arg(long, value_name = "tcp:HOST:PORT|unix:PATH", default_value = "tcp:127.0.0.1:7411")]
    listen: Address,
    /// File with the keys of the clients and the rights of each, as entries that `pagelith key`
    /// prints; without it every client that can connect has all rights
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    peers: PeerFlags,
    /// Allow an address that other hosts can reach; the connection is not encrypted
    #[arg(long, requires = "keys")]
    allow_remote: bool,
    /// Let clients use RDMA: sets rdma.serve. Fails without a usable device; rdma.devices and
    /// rdma.gid_index choose. Clients without RDMA are served over TCP
    #[arg(long)]
    rdma: bool,
    /// Address of the HTTP server for `/metrics` and `/healthz`, on loopback; port 0 for any free
    /// port
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<Endpoint>,
    /// Bytes of memory for staging hits from SSD for all connections together, rounded down to
    /// pages of 4096 bytes
    #[arg(long, value_name = "SIZE", default_value_t = TRANSFER_DEFAULT, value_parser = transfer_size)]
    transfer: Size,
    #[command(flatten)]
    clients: ClientFlags,
}

/// The defaults of the store. With `shared`, its memory is shared with clients that may read all of
/// it, and so is transfer memory of that length.
pub(crate) fn defaults(shared: Option<Size>) -> StoreDefaults {
    StoreDefaults { shared, ..StoreDefaults::of_the_store() }
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<RunStatus> {
    never_block_on_the_log();
    let stop = Arc::new(AtomicBool::new(false));
    let descriptors = ClientFlags::descriptors();
    // A client may truncate its memory while the server reads it.
    pagelith::io::shm::handle_truncation_sigbus().context("cannot take SIGBUS")?;
    for signal in end_signals() {
        signal_hook::flag::register(signal, stop.clone()).context("cannot take signals")?;
    }
    let admission = match &args.keys {
        Some(path) => {
            ClientAuth::Keys(Arc::new(KeyRing::new(key_file::ring(path)?, &SystemEntropy)?))
        }
        None => ClientAuth::Connection(Rights::all()),
    };
    // Memory is shared only if every client has all rights. With keys, clients read only their
    // namespaces.
    let shared = matches!(args.listen, Address::Unix(_)) && args.keys.is_none();
    if args.rdma && matches!(args.listen, Address::Unix(_)) {
        bail!("--rdma needs an address tcp:HOST:PORT, clients at a Unix socket share memory");
    }
    let with_peers = |config: &mut Config| {
        args.peers.apply(config);
        config.rdma.serve |= args.rdma;
    };
    let config =
        args.store.resolve(defaults(shared.then_some(args.transfer)), None, &with_peers)?;
    args.peers.check(&config)?;
    let memory = ClientMemory::for_store(&config, args.transfer)?;
    let (staging, transfer) = transfer_memory(&config, args.transfer)
        .context("cannot allocate the memory of --transfer")?;
    let listen =
        ListenConfig { address: args.listen.clone(), admission, allow_remote: args.allow_remote };
    // Finds an address that cannot be bound before a store is created. Until the store is open,
    // clients are refused.
    drop(listener(&listen, args.clients.limits(&args.listen, descriptors)?)?);
    args.metrics.as_ref().map(Http::check).transpose()?;
    let (deadline, serves_rdma) = (config.deadline(), config.rdma().serve);
    let opened = Store::open_until(config, &stop);
    if opened.is_err() && stop.load(Ordering::Relaxed) {
        log!("received a signal to end before the store was open");
        return Ok(RunStatus::Clean);
    }
    let store = opened.context("cannot open the store")?;
    crate::open_report::log_opened(store.opened());
    let regions = store.shared_memory().into_iter().chain(transfer).collect();
    let serving = ServeState::new(staging);
    let limits = args.clients.limits(&args.listen, descriptors)?;
    client_limits::log_bounds(&limits, &args.listen, descriptors, &memory);
    let mut listener = listener(&listen, limits)?.with_shared_regions(regions);
    if let Some(host) = store.rdma().filter(|_| serves_rdma) {
        let transfer = Arc::new(serving.staging.clone());
        rdma::register(host, "--transfer", transfer, RemoteAccess::NONE)?;
        log!("rdma rails={}", rails(host));
        listener = listener.with_rdma(host.clone());
    }
    let mut http = args.metrics.as_ref().map(Http::listen).transpose()?;
    let mut lines = http
        .iter()
        .map(|http| format!("metrics http://{}/metrics", http.address()))
        .collect::<Vec<_>>();
    lines.push(format!("listening {}", listener.address()));
    // A closed stdout does not prevent serving.
    out!("{}", lines.join("\n")).unwrap_or_else(|error| log!("{error:#}"));
    let served = serve(&store, &mut listener, http.as_mut(), &serving, &stop, deadline);
    drop(http);
    // On a thread, since the close of a pending connection with descriptors may block in the
    // kernel.
    let (closed_listener, listener_is_closed) = mpsc::channel();
    let close_listener = move || {
        drop(listener);
        let _ = closed_listener.send(());
    };
    let thread = std::thread::Builder::new().name("pagelith-listener".to_owned());
    if let Err(error) = thread.spawn(close_listener) {
        log!("{}", thread_start_fault("listener", &error));
    }
    let close_timeout = store.close_timeout();
    let closed = store.close_within(close_timeout);
    log!(
        "closed durable_objects={} lost_objects={} unsaved_objects={} unsaved_bytes={}",
        closed.flushed.durable_objects,
        closed.flushed.lost_objects,
        closed.unsaved_objects,
        closed.unsaved_bytes,
    );
    // Then the socket's file is removed. It ends at once where no thread could be started.
    let _ = listener_is_closed.recv_timeout(LISTENER_WAIT);
    served?;
    let is_whole = closed.unsaved_objects == 0 && closed.flushed.lost_objects == 0;
    match closed.error {
        Some(error) if !is_whole => Err(error).context("not everything is durable"),
        None if !is_whole => bail!("not everything is durable"),
        // For example a file system that was full from the start.
        Some(error) => {
            log!("the ssd tier failed at close, no object was lost: {error}");
            Ok(RunStatus::Clean)
        }
        None => Ok(RunStatus::Clean),
    }
}

/// Serve clients until `stop` is set. Returns even if one of their threads panics. Calls under
/// way end first, within `deadline`.
fn serve(
    store: &Store,
    listener: &mut Listener,
    http: Option<&mut Http>,
    serving: &ServeState,
    stop: &AtomicBool,
    deadline: Duration,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let accepting = || {
            if let Some(http) = http {
                spawn(scope, "metrics", move || http.run(store, serving, stop, WAIT))?;
            }
            let (mut arrivals, mut limit) = (Vec::new(), RefusalLimit::default());
            let clock = SystemClock::new();
            while !stop.load(Ordering::Relaxed) {
                serving.note_accept_poll();
                listener.wait(&mut arrivals, WAIT);
                log_suppressed(limit.roll_over(clock.now()).suppressed);
                for arrival in arrivals.drain(..) {
                    match arrival {
                        AdmissionResult::Link(link) => {
                            start_client(link, scope, store, serving, stop)
                        }
                        AdmissionResult::Refused { peer, why } => {
                            log_refusal(&mut limit, clock.now(), &peer, &why)
                        }
                    }
                }
            }
            Ok(())
        };
        let ended = catch_unwind(AssertUnwindSafe(accepting));
        stop.store(true, Ordering::Relaxed);
        if !serving.wait_for_no_links(deadline) {
            end_without_clients(store, serving);
        }
        ended.unwrap_or_else(|_| Err(anyhow!("the accept loop panicked, please report it")))
    })
}

/// Flush the store and end the process although client threads are blocked. The kernel blocks a
/// thread that closes a descriptor of a dead file system, or a socket that lingers.
fn end_without_clients(store: &Store, serving: &ServeState) -> ! {
    let options = Options::default().timeout(store.close_timeout());
    let flushed = store.flush(options);
    let links = serving.links();
    log!("the process ends although clients' descriptors are still being closed links={links}");
    let code = match flushed {
        Ok(FlushReport { durable_objects, lost_objects, .. }) => {
            log!("flushed durable_objects={durable_objects} lost_objects={lost_objects}");
            if lost_objects == 0 { 0 } else { 2 }
        }
        Err(error) => {
            log!("error: not everything is durable: {error}");
            2
        }
    };
    std::process::exit(code)
}

/// Log that a client was refused, or that accept failed.
fn log_refusal(limit: &mut RefusalLimit, now: Mono, peer: &str, why: &LinkError) {
    let decision = limit.refused(now, peer.is_empty());
    log_suppressed(decision.suppressed);
    match (decision.line, peer) {
        (false, _) => {}
        (true, "") => log!("accept failed, it is paused for a moment: {why}"),
        (true, peer) => log!("refused peer={peer}: {why}"),
    }
}

fn log_suppressed(lines: u64) {
    if lines > 0 {
        log!("refused further connections without a log line each refused={lines}");
    }
}

/// Start the thread of a client, or log why that failed.
fn start_client<'scope>(
    link: Box<SocketLink>,
    scope: &'scope Scope<'scope, '_>,
    store: &'scope Store,
    serving: &'scope ServeState,
    stop: &'scope AtomicBool,
) {
    let peer = link.params().peer.clone();
    let unmapped_bytes = link.stream().map_or(0, Socket::unmapped_bytes);
    if unmapped_bytes > 0 {
        log!(
            "shared memory of a client is not mapped, so reads of it are slow: let the client share less, or raise --client-memory \
             peer={peer} bytes={unmapped_bytes}"
        );
    }
    let counted = serving.count_link();
    let body = move || {
        let _counted = counted;
        serve_client(store, link, serving.staging.clone(), stop);
    };
    if let Err(error) = spawn(scope, "client", body) {
        log!("refused peer={peer}: {error}");
    }
}

/// Start a thread whose panic ends only that thread.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &'static str,
    body: impl FnOnce() + Send + 'scope,
) -> Result<(), IoFault> {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            log!("a thread panicked and has ended, please report it thread={name}");
        }
    };
    let builder = std::thread::Builder::new().name(format!("pagelith-{name}"));
    builder.spawn_scoped(scope, guarded).map(drop).map_err(|error| thread_start_fault(name, &error))
}

/// The rails' names, separated by commas.
fn rails(host: &RdmaHost) -> String {
    host.rails().iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn listener(listen: &ListenConfig, limits: LinkLimits) -> anyhow::Result<Listener> {
    let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
    Listener::new(listen, offer(), entropy, clock, limits).context("cannot listen")
}

/// Transfer memory, and its region to share with clients if `dram.shared` is set.
fn transfer_memory(
    config: &ValidConfig,
    bytes: Size,
) -> std::io::Result<(StagingPool, Option<Arc<SharedRegion>>)> {
    let bytes = align_down(bytes.bytes()) as usize;
    if config.dram_shared() {
        let (staging, memory) = StagingPool::shared(bytes)?;
        // The drive fills huge pages in fewer requests. What the system declines comes as it is
        // used.
        let _ = memory.prefault();
        return Ok((staging, Some(memory)));
    }
    Ok((StagingPool::new(bytes)?, None))
}

/// The value of `--transfer`, with the range of `staging.bytes`.
fn transfer_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
    let (least, most) = TRANSFER_RANGE;
    match (least..=most).contains(&size) {
        true => Ok(size),
        false => Err(format!("must be a size between {least} and {most}")),
    }
}

/// Serve one client until its link closes or `stop` is set.
fn serve_client(store: &Store, link: Box<dyn Link>, staging: StagingPool, stop: &AtomicBool) {
    let peer = link.params().peer.clone();
    log!("serving peer={peer}");
    let mut server = match Server::new(store, link, staging) {
        Ok(server) => server,
        Err(error) => return log!("cannot serve peer={peer}: {error}"),
    };
    while server.closed().is_none() && !stop.load(Ordering::Relaxed) {
        server.wait(WAIT);
    }
    server.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_a_thread_ends_only_that_thread() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            spawn(scope, "first", || panic!("planted")).expect("a thread");
            spawn(scope, "second", move || sender.send(7).expect("a receiver")).expect("a thread");
        });
        assert_eq!(receiver.recv(), Ok(7));
    }
}
