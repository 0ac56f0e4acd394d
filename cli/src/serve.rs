//! `pagelith serve`: a store that other processes ask over sockets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use pagelith::Store;
use pagelith::config::{Config, Size, SizeError, ValidConfig};
use pagelith::io::clock::{Clock, Mono};
use pagelith::io::fault::IoFault;
use pagelith::io::shm::Region;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::io::threads::no_thread;
use pagelith::key_file;
use pagelith::layouts::align::align_down;
use pagelith::serve::Server;
use pagelith::transport::address::{Address, Endpoint};
use pagelith::transport::auth::KeyRing;
use pagelith::transport::closed::Closed;
use pagelith::transport::handshake::Admission;
use pagelith::transport::limits::Limits;
use pagelith::transport::link::Link;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{Arrival, Listen, Listener, Socket, SocketLink};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::clients::{self, ClientFlags, ClientMemory};
use crate::exit::Verdict;
use crate::http::{Http, Serving};
use crate::output::{log, never_wait_for_the_log, out};
use crate::peers::{PeerFlags, offer};
use crate::refusals::Sparing;
use crate::settings::{Defaults, StoreFlags};

/// How long the listener and idle links wait at a time; a signal is noticed within it.
const WAIT: Duration = Duration::from_millis(100);
const TRANSFER_DEFAULT: Size = Size::mib(64);
const TRANSFER_RANGE: (Size, Size) = (Size::kib(64), Size::gib(1024));

/// Serve a store to other processes of this host.
///
/// Prints `listening tcp:HOST:PORT` (or `unix:PATH`) once it takes connections. Without keys whoever can connect may read,
/// write and remove everything, so the address must be loopback or a Unix socket. SIGTERM, SIGINT and SIGHUP (unless it was ignored
/// when this began, as under nohup) close the store, within close_timeout_ms, and end the process; SIGQUIT ends it at once.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    store: StoreFlags,
    /// Where to listen, at all addresses of a host name; port 0 for any that is free. A Unix socket takes this user's processes, and root's
    #[arg(long, value_name = "tcp:HOST:PORT|unix:PATH", default_value = "tcp:127.0.0.1:7411")]
    listen: Address,
    /// Keys of the clients and what each may do, a file of entries as `pagelith key` prints them; without it whoever can
    /// connect may do everything
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    peers: PeerFlags,
    /// Listen also where other hosts can connect; nothing is encrypted
    #[arg(long, requires = "keys")]
    beyond_this_host: bool,
    /// Where `/metrics` and `/healthz` are answered over HTTP, on loopback; port 0 for any that is free
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<Endpoint>,
    /// Bytes of memory for hits from SSD on their way out, of all connections together; whole pages of 4096 bytes are used
    #[arg(long, value_name = "SIZE", default_value_t = TRANSFER_DEFAULT, value_parser = transfer_size)]
    transfer: Size,
    #[command(flatten)]
    clients: ClientFlags,
}

/// Those of the store; `shared` with clients that may look at everything, beside memory of this length.
pub(crate) fn defaults(shared: Option<Size>) -> Defaults {
    Defaults { shared, ..Defaults::of_the_store() }
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Verdict> {
    never_wait_for_the_log();
    let stop = Arc::new(AtomicBool::new(false));
    let descriptors = ClientFlags::descriptors();
    // Of clients' memory that becomes shorter while it is looked at.
    pagelith::io::shm::survive_shrinking().context("cannot take SIGBUS")?;
    for signal in signals() {
        signal_hook::flag::register(signal, stop.clone()).context("cannot take signals")?;
    }
    let admission = match &args.keys {
        Some(path) => Admission::Keys(Arc::new(KeyRing::new(key_file::ring(path)?, &SystemEntropy)?)),
        None => Admission::Connection(Rights::all()),
    };
    // Who may do everything may look at everything. Where clients have keys, they see what their keys are for.
    let shared = matches!(args.listen, Address::Unix(_)) && args.keys.is_none();
    let with_peers = |config: &mut Config| args.peers.apply(config);
    let config = args.store.resolve(defaults(shared.then_some(args.transfer)), None, &with_peers)?;
    args.peers.check(&config)?;
    let memory = ClientMemory::beside(&config, args.transfer)?;
    let (staging, transfer) = transfer_memory(&config, args.transfer).context("no memory --transfer")?;
    let listen = Listen { address: args.listen.clone(), admission, beyond_this_host: args.beyond_this_host };
    // An address that cannot be bound is found before a store is made. Clients are refused until the store is open.
    drop(listener(&listen, args.clients.limits(&args.listen, descriptors)?)?);
    args.metrics.as_ref().map(Http::check).transpose()?;
    let opened = Store::open_until(config, &stop);
    if opened.is_err() && stop.load(Ordering::Relaxed) {
        log!("told to end before the store was open");
        return Ok(Verdict::Fine);
    }
    let store = opened.context("cannot open the store")?;
    crate::said::opened(store.opened());
    let regions = store.shared_memory().into_iter().chain(transfer).collect();
    let serving = Serving::new(staging);
    let limits = args.clients.limits(&args.listen, descriptors)?;
    clients::said(&limits, &args.listen, descriptors, &memory);
    let mut listener = listener(&listen, limits)?.showing(regions).telling(store.shared_catalog());
    let mut http = args.metrics.as_ref().map(Http::listen).transpose()?;
    let mut lines =
        http.iter().map(|http| format!("metrics http://{}/metrics", http.address())).collect::<Vec<_>>();
    lines.push(format!("listening {}", listener.address()));
    // Stdout may be closed: serve all the same.
    out!("{}", lines.join("\n")).unwrap_or_else(|error| log!("{error:#}"));
    let served = serve(&store, &mut listener, http.as_mut(), &serving, &stop);
    drop((listener, http));
    let close_timeout = store.close_timeout();
    let closed = store.close_within(close_timeout);
    log!(
        "closed durable_objects={} lost_objects={} unsaved_objects={} unsaved_bytes={}",
        closed.flushed.durable_objects,
        closed.flushed.lost_objects,
        closed.unsaved_objects,
        closed.unsaved_bytes,
    );
    served?;
    let is_whole = closed.unsaved_objects == 0 && closed.flushed.lost_objects == 0;
    match closed.error {
        Some(error) if !is_whole => Err(error).context("not everything is durable"),
        None if !is_whole => bail!("not everything is durable"),
        // Such as of a file system that was full from the start.
        Some(error) => {
            log!("the ssd tier took nothing at the end, and nothing was to be written: {error}");
            Ok(Verdict::Fine)
        }
        None => Ok(Verdict::Fine),
    }
}

/// Those that end the process: the store is closed, whatever comes meanwhile. SIGHUP only if it is not ignored, as `nohup` has it.
fn signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGTERM, SIGINT];
    signals.extend((!is_ignored(SIGHUP, &status)).then_some(SIGHUP));
    signals
}

/// Whether the process of this `/proc/PID/status` ignores a signal.
fn is_ignored(signal: i32, status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}

/// Serve clients until the process is told to end. It returns even if one of their threads panics.
fn serve(
    store: &Store,
    listener: &mut Listener,
    http: Option<&mut Http>,
    serving: &Serving,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let accepting = || {
            if let Some(http) = http {
                start(scope, "metrics", move || http.answer(store, serving, stop, WAIT))?;
            }
            let (mut arrivals, mut sparing) = (Vec::new(), Sparing::default());
            let clock = SystemClock::new();
            while !stop.load(Ordering::Relaxed) {
                serving.note_turn();
                listener.wait(&mut arrivals, WAIT);
                say_left_out(sparing.passed(clock.now()).left_out);
                for arrival in arrivals.drain(..) {
                    match arrival {
                        Arrival::Link(link) => welcome(link, scope, store, serving, stop),
                        Arrival::Refused { peer, why } => refused(&mut sparing, clock.now(), &peer, &why),
                    }
                }
            }
            Ok(())
        };
        let ended = catch_unwind(AssertUnwindSafe(accepting));
        stop.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|_| Err(anyhow!("the accept loop panicked, please report it")))
    })
}

/// Tell the log that a client was not let in, or that none could be accepted.
fn refused(sparing: &mut Sparing, now: Mono, peer: &str, why: &Closed) {
    let due = sparing.refused(now, peer.is_empty());
    say_left_out(due.left_out);
    match (due.line, peer) {
        (false, _) => {}
        (true, "") => log!("no connection is accepted for a moment: {why}"),
        (true, peer) => log!("refused peer={peer}: {why}"),
    }
}

fn say_left_out(lines: u64) {
    if lines > 0 {
        log!("refused more connections than are named refused={lines}");
    }
}

/// Give a client a thread, or tell the log why it has none.
fn welcome<'scope>(
    link: Box<SocketLink>,
    scope: &'scope Scope<'scope, '_>,
    store: &'scope Store,
    serving: &'scope Serving,
    stop: &'scope AtomicBool,
) {
    let peer = link.facts().peer.clone();
    let unmapped_bytes = link.stream().map_or(0, Socket::unmapped_bytes);
    if unmapped_bytes > 0 {
        log!(
            "memory that a client shares is not mapped and is read by calls: free it there, or raise --client-memory \
             peer={peer} bytes={unmapped_bytes}"
        );
    }
    let attended = move || {
        let _counted = serving.count_link();
        attend(store, link, serving.staging.clone(), stop);
    };
    if let Err(error) = start(scope, "client", attended) {
        log!("refused peer={peer}: {error}");
    }
}

/// Start a thread, whose panic ends nothing but itself.
fn start<'scope>(
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
    builder.spawn_scoped(scope, guarded).map(drop).map_err(|error| no_thread(name, &error))
}

fn listener(listen: &Listen, limits: Limits) -> anyhow::Result<Listener> {
    let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
    Listener::new(listen, offer(), entropy, clock, limits).context("cannot listen")
}

/// Memory for objects on their way, and what clients are shown of it, where `dram.shared` is set.
fn transfer_memory(config: &ValidConfig, bytes: Size) -> std::io::Result<(StagingPool, Option<Arc<Region>>)> {
    let bytes = align_down(bytes.bytes()) as usize;
    if config.dram_shared() {
        let (staging, memory) = StagingPool::shared(bytes)?;
        // The drive fills huge pages in fewer requests. What the system declines comes as it is used.
        let _ = memory.prefault();
        return Ok((staging, Some(memory)));
    }
    Ok((StagingPool::new(bytes)?, None))
}

/// The value of `--transfer`: as `staging.bytes` has it.
fn transfer_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
    let (least, most) = TRANSFER_RANGE;
    match (least..=most).contains(&size) {
        true => Ok(size),
        false => Err(format!("must be a size between {least} and {most}")),
    }
}

/// Serve one client until it leaves or the process is told to end.
fn attend(store: &Store, link: Box<dyn Link>, staging: StagingPool, stop: &AtomicBool) {
    let peer = link.facts().peer.clone();
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
    fn signal_that_the_status_masks_is_ignored() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(SIGHUP, &status("0000000000001001")));
        assert!(!is_ignored(SIGHUP, &status("0000000000001002")) && !is_ignored(SIGHUP, ""));
    }

    #[test]
    fn thread_that_panics_ends_alone() {
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            start(scope, "first", || panic!("planted")).expect("a thread");
            start(scope, "second", move || said.send(7).expect("heard")).expect("a thread");
        });
        assert_eq!(heard.recv(), Ok(7));
    }
}
