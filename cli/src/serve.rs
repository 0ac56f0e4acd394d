//! `pagelith serve`: a store that other processes ask over sockets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pagelith::Store;
use pagelith::config::{Config, Size};
use pagelith::io::shm::Region;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::key_file;
use pagelith::serve::Server;
use pagelith::transport::address::Address;
use pagelith::transport::auth::KeyRing;
use pagelith::transport::handshake::Admission;
use pagelith::transport::limits::Limits;
use pagelith::transport::link::Link;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{Arrival, Listen, Listener};

use crate::exit::Verdict;
use crate::fresh::FreshDir;
use crate::http::{Http, Serving};
use crate::peers::{PeerFlags, offer};
use crate::settings::{Defaults, StoreFlags};

/// How long the listener and idle links wait at a time; a signal is noticed within it.
const WAIT: Duration = Duration::from_millis(100);
const TRANSFER_DEFAULT: Size = Size::mib(64);

/// Serve a store to other processes of this host.
///
/// Prints `listening tcp:HOST:PORT` (or `unix:PATH`) once it takes connections. Without keys whoever can connect may read,
/// write and remove everything, so the address must be loopback or a Unix socket. SIGTERM and SIGINT flush the store and end it.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    store: StoreFlags,
    /// Where to listen; port 0 for any that is free. A Unix socket takes this user's processes, and root's
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
    metrics: Option<SocketAddr>,
    /// Bytes of memory for hits from SSD on their way out, of all connections together
    #[arg(long, value_name = "SIZE", default_value_t = TRANSFER_DEFAULT)]
    transfer: Size,
}

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<Verdict> {
    let stop = Arc::new(AtomicBool::new(false));
    // Of clients' memory that becomes shorter while it is looked at.
    pagelith::io::shm::survive_shrinking().context("cannot take SIGBUS")?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).context("cannot take signals")?;
    }
    let admission = match &args.keys {
        Some(path) => Admission::Keys(Arc::new(KeyRing::new(key_file::ring(path)?, &SystemEntropy)?)),
        None => Admission::Connection(Rights::all()),
    };
    let mut fresh = FreshDir::named("pagelith-serve");
    // Who may do everything may look at everything. Where clients have keys, they see what their keys are for.
    let shared = matches!(args.listen, Address::Unix(_)) && args.keys.is_none();
    let defaults = Defaults { dram: Size::mib(256), ssd: Size::ZERO, shared };
    let with_peers = |config: &mut Config| args.peers.apply(config);
    let config = args.store.resolve(defaults, &fresh.path().join("store"), &with_peers)?;
    args.peers.check(&config)?;
    fresh.make_for(config.ssd_dirs())?;
    let store = Store::open(config).context("cannot open the store")?;
    crate::said::opened(store.opened());
    let (staging, regions) = transfer_memory(&store, args.transfer).context("no memory --transfer")?;
    let serving = Serving { links: AtomicU64::new(0), staging };
    let listen = Listen { address: args.listen.clone(), admission, beyond_this_host: args.beyond_this_host };
    let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
    let listener =
        Listener::new(&listen, offer(), entropy, clock, Limits::default()).context("cannot listen")?;
    let mut listener =
        listener.showing(regions).telling(store.shared_catalog()).lending(store.shared_files());
    let http = args.metrics.map(Http::listen).transpose()?;
    if let Some(http) = &http {
        println!("metrics http://{}/metrics", http.address());
    }
    println!("listening {}", listener.address());
    std::thread::scope(|scope| {
        if let Some(http) = &http {
            let (store, serving, stop) = (&store, &serving, &stop);
            scope.spawn(move || http.answer(store, serving, stop, WAIT));
        }
        let mut arrivals = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            listener.wait(&mut arrivals, WAIT);
            for arrival in arrivals.drain(..) {
                match arrival {
                    Arrival::Link(link) => {
                        let (store, serving, stop) = (&store, &serving, &stop);
                        scope.spawn(move || {
                            serving.links.fetch_add(1, Ordering::Relaxed);
                            attend(store, link, serving.staging.clone(), stop);
                            serving.links.fetch_sub(1, Ordering::Relaxed);
                        });
                    }
                    Arrival::Refused { peer, why } => eprintln!("refused peer={peer}: {why}"),
                }
            }
        }
    });
    let flushed = store.close().context("cannot close the store")?;
    eprintln!("closed durable_objects={} lost_objects={}", flushed.durable_objects, flushed.lost_objects);
    Ok(Verdict::Fine)
}

/// Memory for objects on their way, and what clients are shown of it and of the arena, where `dram.shared` is set.
fn transfer_memory(store: &Store, bytes: Size) -> std::io::Result<(StagingPool, Vec<Arc<Region>>)> {
    let bytes = bytes.bytes() as usize;
    let Some(arena) = store.shared_memory() else { return Ok((StagingPool::new(bytes)?, Vec::new())) };
    let (staging, memory) = StagingPool::shared(bytes)?;
    Ok((staging, vec![arena, memory]))
}

/// Serve one client until it leaves or the process is told to end.
fn attend(store: &Store, link: Box<dyn Link>, staging: StagingPool, stop: &AtomicBool) {
    let peer = link.facts().peer.clone();
    eprintln!("serving peer={peer}");
    let mut server = match Server::new(store, link, staging) {
        Ok(server) => server,
        Err(error) => return eprintln!("cannot serve peer={peer}: {error}"),
    };
    while server.closed().is_none() && !stop.load(Ordering::Relaxed) {
        server.wait(WAIT);
    }
    server.close();
}
