//! Links that may or must have RDMA, to peers without it.
#![allow(clippy::disallowed_methods, reason = "tests copy files")]
#![allow(clippy::print_stdout, reason = "the fake library's controls say what they skip")]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../io/tests/verbs/fake.rs"]
mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::{Fake, copied, load};
use pagelith_io::clock::Clock;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::wire::greeting::Feature;
use pagelith_transport::address::Address;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, SocketDial};
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::Link;
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rdma::host::{RdmaHost, RdmaSettings};
use pagelith_transport::rdma::rdma_use::RdmaUse;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{ListenConfig, Listener};

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn offer() -> Capabilities {
    Capabilities::of_this_build([7; 16])
}

/// A listener without RDMA.
fn listener(address: Address) -> Listener {
    let admission = ClientAuth::Connection(Rights::all());
    let listen = ListenConfig { address, admission, allow_remote: false };
    let limits = LinkLimits::default();
    Listener::new(&listen, offer(), Arc::new(SystemEntropy), clock(), limits).expect("listens")
}

fn dial(listener: &mut Listener, rdma: RdmaUse) -> Result<Box<dyn Link>, LinkError> {
    let dial =
        SocketDial { rdma, ..SocketDial::new(listener.address().clone(), None, offer(), clock()) };
    let (mut dialing, mut arrivals) = (dial.begin().expect("a socket"), Vec::new());
    loop {
        listener.wait(&mut arrivals, Duration::from_millis(1));
        match dialing.wait(Duration::from_millis(1)) {
            DialProgress::Waiting(waiting) => dialing = waiting,
            DialProgress::Ready(link) => return Ok(link),
            DialProgress::Failed(why) => return Err(why),
        }
    }
}

#[test]
fn peer_without_rdma_is_refused_where_it_is_demanded_and_counted_where_it_is_offered() {
    let (_dir, path) = copied();
    assert_eq!(Fake::at(&path).device(""), 1);
    let settings = RdmaSettings { library: Some(load(&path)), ..RdmaSettings::default() };
    let host = RdmaHost::open(&settings).expect("a host");
    let mut listener = listener("tcp:127.0.0.1:0".parse().expect("an address"));
    let why = dial(&mut listener, RdmaUse::Demanded(host.clone())).err().expect("no link");
    assert!(matches!(&why, LinkError::NoRdma { .. }) && !why.retryable(), "{why}");
    assert!(why.to_string().contains("start the peer with --rdma"), "{why}");
    let link = dial(&mut listener, RdmaUse::Offered(host.clone())).expect("a link");
    assert_eq!(link.params().features & Feature::Rdma.bit(), 0);
    assert!(link.params().missing.contains(&"rdma"), "{:?}", link.params().missing);
    assert_eq!(host.counters().counts().no_rdma_peer, 2);
    dial(&mut listener, RdmaUse::Off).expect("a link");
    assert_eq!(host.counters().counts().no_rdma_peer, 2);
}

#[test]
fn unix_socket_has_no_rdma_and_refuses_none() {
    let (_dir, path) = copied();
    assert_eq!(Fake::at(&path).device(""), 1);
    let settings = RdmaSettings { library: Some(load(&path)), ..RdmaSettings::default() };
    let host = RdmaHost::open(&settings).expect("a host");
    let dir = tempfile::tempdir().expect("a directory");
    let mut listener = listener(Address::Unix(dir.path().join("socket"))).with_rdma(host.clone());
    let link = dial(&mut listener, RdmaUse::Demanded(host.clone())).expect("a link");
    assert_eq!(link.params().features & Feature::Rdma.bit(), 0);
    assert_eq!(host.counters().counts().no_rdma_peer, 0);
}
