//! A store process inside of a test's process: the devices of the fake verbs library live in one
//! process, so a client in Python and its store must share it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use pagelith::io::entropy::Entropy;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::io::verbs::RemoteAccess;
use pagelith::server::Server;
use pagelith::transport::address::{Address, Endpoint};
use pagelith::transport::capability::Capabilities;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link::Link;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{Config, MachineLimits, Size, Store, rdma};

const ARENA_MIB: u32 = 32;
const STAGING: usize = 16 << 20;
const WAIT: Duration = Duration::from_millis(100);

/// Open a store in DRAM and serve it over RDMA, with the devices of the process's verbs library, at
/// a port of 127.0.0.1 until the process ends. Returns the port; 0 after an error, which it prints.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_store_serve() -> u16 {
    serve().unwrap_or_else(|error| {
        eprintln!("no store over RDMA: {error}");
        0
    })
}

fn serve() -> Result<u16, Box<dyn Error>> {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(ARENA_MIB);
    config.rdma.serve = true;
    let store = Arc::new(Store::open(config.validate(&MachineLimits::of_this_machine()?)?)?);
    let host = store.rdma().ok_or("the store has no devices")?.clone();
    let staging = StagingPool::new(STAGING)?;
    rdma::register(&host, "staging", Arc::new(staging.clone()), RemoteAccess::NONE)?;
    let admission = ClientAuth::Connection(Rights::all());
    let address: Address = "tcp:127.0.0.1:0".parse()?;
    let listen = ListenConfig { address, admission, allow_remote: false };
    let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
    let offer = Capabilities::of_this_build(entropy.bytes16());
    let listener = Listener::new(&listen, offer, entropy, clock, LinkLimits::default())?;
    let listener = listener.with_rdma(host);
    let Address::Tcp(Endpoint::Ip(at)) = listener.address().clone() else {
        return Err("no port".into());
    };
    std::thread::spawn(move || accept(listener, &store, &staging));
    Ok(at.port())
}

fn accept(mut listener: Listener, store: &Arc<Store>, staging: &StagingPool) {
    loop {
        let mut arrivals = Vec::new();
        listener.wait(&mut arrivals, WAIT);
        for arrival in arrivals {
            match arrival {
                AdmissionResult::Link(link) => {
                    let (store, staging) = (store.clone(), staging.clone());
                    std::thread::spawn(move || serve_client(&store, link, staging));
                }
                AdmissionResult::Refused { peer, why } => eprintln!("refused peer={peer}: {why}"),
            }
        }
    }
}

fn serve_client(store: &Store, link: Box<dyn Link>, staging: StagingPool) {
    match Server::new(store, link, staging) {
        Ok(mut server) => {
            while server.closed().is_none() {
                server.wait(WAIT);
            }
        }
        Err(error) => eprintln!("no server: {error}"),
    }
}
