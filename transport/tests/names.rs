//! Links to hosts that are known by name.
#![allow(clippy::disallowed_methods, reason = "a resolver that blocks is played by a test")]

mod common;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::HandClock;
use pagelith_io::clock::Clock;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_transport::address::{Address, Endpoint};
use pagelith_transport::capability::Offer;
use pagelith_transport::closed::Closed;
use pagelith_transport::dial::{Dial, Dialing, Dialled, SocketDial};
use pagelith_transport::handshake::Admission;
use pagelith_transport::limits::Limits;
use pagelith_transport::link::Link;
use pagelith_transport::resolve::{Resolve, Resolver};
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{Arrival, Listen, ListenError, Listener};

/// Longest single wait. Every wait here is for something that comes.
const WAIT: Duration = Duration::from_secs(10);

/// Names that mean what a test says.
#[derive(Default)]
struct Names(Mutex<Vec<SocketAddr>>);

impl Names {
    fn are(&self, addresses: &[SocketAddr]) {
        *self.0.lock().expect("no panic") = addresses.to_vec();
    }
}

impl Resolve for Names {
    fn resolve(&self, host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "store.test" => Ok(self.0.lock().expect("no panic").clone()),
            _ => Err(io::Error::other("no such host")),
        }
    }
}

fn offer(instance: u8) -> Offer {
    Offer::of_this_build([instance; 16])
}

fn listen(address: &str) -> Listen {
    let admission = Admission::Connection(Rights::all());
    Listen { address: address.parse().expect("an address"), admission, beyond_this_host: false }
}

fn listener(address: &str, instance: u8) -> Listener {
    let clock = Arc::new(SystemClock::new());
    Listener::new(&listen(address), offer(instance), Arc::new(SystemEntropy), clock, Limits::default())
        .expect("listens")
}

fn ip(listener: &Listener) -> SocketAddr {
    match listener.address() {
        Address::Tcp(Endpoint::Ip(address)) => *address,
        other => panic!("no IP address: {other}"),
    }
}

/// An address of this host at which nobody listens.
fn nobody() -> SocketAddr {
    ip(&listener("tcp:127.0.0.1:0", 9))
}

fn dial(address: &str, resolve: Arc<dyn Resolve>) -> SocketDial {
    let clock = Arc::new(SystemClock::new());
    let dial = SocketDial::new(address.parse().expect("an address"), None, offer(8), clock);
    SocketDial { resolver: Resolver::new(resolve), ..dial }
}

/// Which process is reached, the servers being these.
fn reached(dial: &SocketDial, servers: &mut [&mut Listener]) -> Result<u8, Closed> {
    let (mut dialing, mut links) = (dial.begin()?, Vec::<Box<dyn Link>>::new());
    let clock = SystemClock::new();
    while clock.now().since(Default::default()) < WAIT {
        let mut arrivals = Vec::new();
        servers.iter_mut().for_each(|server| server.poll(&mut arrivals));
        for arrival in arrivals {
            let Arrival::Link(link) = arrival else { panic!("refused") };
            links.push(link);
        }
        dialing = match dialing.wait(Duration::from_millis(1)) {
            Dialled::Ready(link) => return Ok(link.facts().peer_instance[0]),
            Dialled::Over(why) => return Err(why),
            Dialled::Waiting(dialing) => dialing,
        };
    }
    panic!("waited in vain")
}

#[test]
fn a_host_that_moved_is_found_by_the_next_dial() {
    let names = Arc::new(Names::default());
    let (mut first, mut second) = (listener("tcp:127.0.0.1:0", 1), listener("tcp:127.0.0.1:0", 2));
    let dial = dial("tcp:store.test:7411", names.clone());
    names.are(&[ip(&first)]);
    assert_eq!(reached(&dial, &mut [&mut first, &mut second]), Ok(1));
    names.are(&[ip(&second)]);
    assert_eq!(reached(&dial, &mut [&mut first, &mut second]), Ok(2));
    names.are(&[]);
    let detail = "it has no address".to_owned();
    let unresolved = Closed::Unresolved { host: "store.test".to_owned(), detail };
    assert_eq!(reached(&dial, &mut [&mut first]), Err(unresolved));
}

#[test]
fn every_address_of_a_name_is_tried() {
    let names = Arc::new(Names::default());
    let mut last = listener("tcp:127.0.0.1:0", 3);
    let dial = dial("tcp:store.test:7411", names.clone());
    names.are(&[nobody(), nobody(), ip(&last)]);
    assert_eq!(reached(&dial, &mut [&mut last]), Ok(3));
    names.are(&[nobody(), nobody()]);
    let refused = reached(&dial, &mut []);
    assert!(matches!(&refused, Err(Closed::System { .. })), "{refused:?}");
}

#[test]
fn a_name_that_is_not_known_is_said_with_the_name() {
    let dial = dial("tcp:other.test:7411", Arc::new(Names::default()));
    let said = reached(&dial, &mut []).expect_err("no such host").to_string();
    assert!(said.contains("no such host") && said.ends_with("host=other.test"), "{said}");
}

/// Answers when it is told to.
struct Slow {
    asked: AtomicUsize,
    may_answer: Mutex<Receiver<SocketAddr>>,
}

impl Resolve for Slow {
    fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.may_answer.lock().expect("no panic").recv();
        answer.map(|address| vec![address]).map_err(io::Error::other)
    }
}

#[test]
fn a_resolver_that_hangs_blocks_no_dial_and_takes_one_thread() {
    let (answer, may_answer): (Sender<SocketAddr>, _) = channel();
    let may_answer = Mutex::new(may_answer);
    let slow = Arc::new(Slow { asked: AtomicUsize::new(0), may_answer });
    let clock = Arc::new(HandClock::default());
    let dial = SocketDial { clock: clock.clone(), ..dial("tcp:store.test:7411", slow.clone()) };
    let waiting = |dialled| match dialled {
        Dialled::Waiting(dialing) => dialing,
        Dialled::Ready(_) => panic!("there is no address yet"),
        Dialled::Over(why) => panic!("{why}"),
    };
    let begin = || -> Box<dyn Dialing> { waiting(dial.begin().expect("begun").poll()) };
    let (first, second) = (begin(), begin());
    clock.pass(dial.limits.handshake);
    for dialing in [first, second] {
        let Dialled::Over(why) = dialing.poll() else { panic!("its time is up") };
        assert!(why.to_string().contains("no answer within 5000 ms"), "{why}");
    }
    // Who begins now joins the lookup that runs.
    let mut third = begin();
    let mut server = listener("tcp:127.0.0.1:0", 4);
    answer.send(ip(&server)).expect("it waits");
    let mut links = Vec::new();
    let instance = loop {
        server.poll(&mut links);
        third = match third.wait(Duration::from_millis(1)) {
            Dialled::Ready(link) => break link.facts().peer_instance[0],
            dialled => waiting(dialled),
        };
    };
    assert_eq!((instance, slow.asked.load(Ordering::SeqCst)), (4, 1));
}

#[test]
fn localhost_is_listened_at_and_reached_by_name() {
    let mut server = listener("tcp:localhost:0", 5);
    let Address::Tcp(Endpoint::Name { host, port }) = server.address().clone() else { panic!("no name") };
    assert_eq!((host.as_str(), port != 0), ("localhost", true));
    let address = server.address().to_string();
    let dial = SocketDial::new(address.parse().expect("one"), None, offer(8), Arc::new(SystemClock::new()));
    assert_eq!(reached(&dial, &mut [&mut server]), Ok(5));
}

#[test]
fn a_name_is_listened_at_beyond_this_host_only_where_that_is_said() {
    let names = Arc::new(Names::default());
    let resolver = Resolver::new(names.clone());
    let made = |listen: &Listen| {
        let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
        Listener::resolved_by(&resolver, listen, offer(1), entropy, clock, Limits::default())
            .map(|listener| listener.address().clone())
    };
    let by_name = listen("tcp:store.test:0");
    let far: SocketAddr = "192.0.2.1:0".parse().expect("one");
    let near: SocketAddr = "127.0.0.1:0".parse().expect("one");
    names.are(&[near, far]);
    assert_eq!(made(&by_name), Err(ListenError::BeyondThisHost(by_name.address.clone())));
    // Said or not: without a key it is refused.
    let said = Listen { beyond_this_host: true, ..by_name.clone() };
    assert_eq!(made(&said), Err(ListenError::NoKey(by_name.address.clone())));
    names.are(&[near]);
    assert!(made(&by_name).is_ok_and(|address| address.to_string().starts_with("tcp:store.test:")));
    let unknown = made(&listen("tcp:other.test:0"));
    assert!(matches!(&unknown, Err(ListenError::Unresolved(Closed::Unresolved { .. }))), "{unknown:?}");
}
