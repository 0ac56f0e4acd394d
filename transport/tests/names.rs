//! Links to host names.
#![allow(clippy::disallowed_methods, reason = "tests simulate a resolver that blocks")]

mod common;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::ManualClock;
use pagelith_io::clock::Clock;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_transport::address::{Address, Endpoint};
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, Dialing, SocketDial};
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::Link;
use pagelith_transport::link_error::LinkError;
use pagelith_transport::resolve::{Resolve, Resolver};
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, ListenError, Listener};

/// Maximum single wait. In a passing test each wait ends with an event.
const WAIT: Duration = Duration::from_secs(10);

/// A resolver whose addresses the test sets.
#[derive(Default)]
struct FakeResolver(Mutex<Vec<SocketAddr>>);

impl FakeResolver {
    fn set(&self, addresses: &[SocketAddr]) {
        *self.0.lock().expect("no panic") = addresses.to_vec();
    }
}

impl Resolve for FakeResolver {
    fn resolve(&self, host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "store.test" => Ok(self.0.lock().expect("no panic").clone()),
            _ => Err(io::Error::other("no such host")),
        }
    }
}

fn offer(instance: u8) -> Capabilities {
    Capabilities::of_this_build([instance; 16])
}

fn listen(address: &str) -> ListenConfig {
    let admission = ClientAuth::Connection(Rights::all());
    ListenConfig { address: address.parse().expect("an address"), admission, allow_remote: false }
}

fn listener(address: &str, instance: u8) -> Listener {
    let clock = Arc::new(SystemClock::new());
    Listener::new(
        &listen(address),
        offer(instance),
        Arc::new(SystemEntropy),
        clock,
        LinkLimits::default(),
    )
    .expect("listens")
}

fn ip(listener: &Listener) -> SocketAddr {
    match listener.address() {
        Address::Tcp(Endpoint::Ip(address)) => *address,
        other => panic!("no IP address: {other}"),
    }
}

/// An address of this host at which no process listens.
fn closed_port() -> SocketAddr {
    ip(&listener("tcp:127.0.0.1:0", 9))
}

fn dial(address: &str, resolve: Arc<dyn Resolve>) -> SocketDial {
    let clock = Arc::new(SystemClock::new());
    let dial = SocketDial::new(address.parse().expect("an address"), None, offer(8), clock);
    SocketDial { resolver: Resolver::new(resolve), ..dial }
}

/// The instance of the server that a dial reaches.
fn dial_instance(dial: &SocketDial, servers: &mut [&mut Listener]) -> Result<u8, LinkError> {
    let (mut dialing, mut links) = (dial.begin()?, Vec::<Box<dyn Link>>::new());
    let clock = SystemClock::new();
    while clock.now().since(Default::default()) < WAIT {
        let mut arrivals = Vec::new();
        servers.iter_mut().for_each(|server| server.poll(&mut arrivals));
        for arrival in arrivals {
            let AdmissionResult::Link(link) = arrival else { panic!("refused") };
            links.push(link);
        }
        dialing = match dialing.wait(Duration::from_millis(1)) {
            DialProgress::Ready(link) => return Ok(link.params().peer_instance[0]),
            DialProgress::Failed(why) => return Err(why),
            DialProgress::Waiting(dialing) => dialing,
        };
    }
    panic!("no link within {WAIT:?}")
}

#[test]
fn next_dial_finds_a_host_that_moved() {
    let names = Arc::new(FakeResolver::default());
    let (mut first, mut second) = (listener("tcp:127.0.0.1:0", 1), listener("tcp:127.0.0.1:0", 2));
    let dial = dial("tcp:store.test:7411", names.clone());
    names.set(&[ip(&first)]);
    assert_eq!(dial_instance(&dial, &mut [&mut first, &mut second]), Ok(1));
    names.set(&[ip(&second)]);
    assert_eq!(dial_instance(&dial, &mut [&mut first, &mut second]), Ok(2));
    names.set(&[]);
    let detail = "it has no address".to_owned();
    let unresolved = LinkError::NameNotResolved { host: "store.test".to_owned(), detail };
    assert_eq!(dial_instance(&dial, &mut [&mut first]), Err(unresolved));
}

#[test]
fn all_addresses_of_a_name_are_tried() {
    let names = Arc::new(FakeResolver::default());
    let mut last = listener("tcp:127.0.0.1:0", 3);
    let dial = dial("tcp:store.test:7411", names.clone());
    names.set(&[closed_port(), closed_port(), ip(&last)]);
    assert_eq!(dial_instance(&dial, &mut [&mut last]), Ok(3));
    names.set(&[closed_port(), closed_port()]);
    let refused = dial_instance(&dial, &mut []);
    assert!(matches!(&refused, Err(LinkError::SystemCall { .. })), "{refused:?}");
}

#[test]
fn unknown_host_error_names_the_host() {
    let dial = dial("tcp:other.test:7411", Arc::new(FakeResolver::default()));
    let text = dial_instance(&dial, &mut []).expect_err("no such host").to_string();
    assert!(text.contains("no such host") && text.ends_with("host=other.test"), "{text}");
}

/// A resolver that blocks until the test sends the address.
struct BlockingResolver {
    calls: AtomicUsize,
    answers: Mutex<Receiver<SocketAddr>>,
}

impl Resolve for BlockingResolver {
    fn resolve(&self, _host: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.lock().expect("no panic").recv();
        answer.map(|address| vec![address]).map_err(io::Error::other)
    }
}

#[test]
fn hung_resolver_blocks_no_dial_and_uses_one_thread() {
    let (answer, answers): (Sender<SocketAddr>, _) = channel();
    let answers = Mutex::new(answers);
    let slow = Arc::new(BlockingResolver { calls: AtomicUsize::new(0), answers });
    let clock = Arc::new(ManualClock::default());
    let dial = SocketDial { clock: clock.clone(), ..dial("tcp:store.test:7411", slow.clone()) };
    let waiting = |dialled| match dialled {
        DialProgress::Waiting(dialing) => dialing,
        DialProgress::Ready(_) => panic!("there is no address yet"),
        DialProgress::Failed(why) => panic!("{why}"),
    };
    let begin = || -> Box<dyn Dialing> { waiting(dial.begin().expect("begun").poll()) };
    let (first, second) = (begin(), begin());
    clock.pass(dial.limits.handshake);
    for dialing in [first, second] {
        let DialProgress::Failed(why) = dialing.poll() else { panic!("its time limit has passed") };
        assert!(why.to_string().contains("no answer within 5000 ms"), "{why}");
    }
    // A new dial joins the running lookup.
    let mut third = begin();
    let mut server = listener("tcp:127.0.0.1:0", 4);
    answer.send(ip(&server)).expect("it waits");
    let mut links = Vec::new();
    let instance = loop {
        server.poll(&mut links);
        third = match third.wait(Duration::from_millis(1)) {
            DialProgress::Ready(link) => break link.params().peer_instance[0],
            dialled => waiting(dialled),
        };
    };
    assert_eq!((instance, slow.calls.load(Ordering::SeqCst)), (4, 1));
}

#[test]
fn localhost_accepts_a_link_by_name() {
    let mut server = listener("tcp:localhost:0", 5);
    let Address::Tcp(Endpoint::Name { host, port }) = server.address().clone() else {
        panic!("no name")
    };
    assert_eq!((host.as_str(), port != 0), ("localhost", true));
    let address = server.address().to_string();
    let dial = SocketDial::new(
        address.parse().expect("one"),
        None,
        offer(8),
        Arc::new(SystemClock::new()),
    );
    assert_eq!(dial_instance(&dial, &mut [&mut server]), Ok(5));
}

#[test]
fn host_name_with_a_remote_address_needs_the_option_and_a_key() {
    let names = Arc::new(FakeResolver::default());
    let resolver = Resolver::new(names.clone());
    let made = |listen: &ListenConfig| {
        let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
        Listener::with_resolver(&resolver, listen, offer(1), entropy, clock, LinkLimits::default())
            .map(|listener| listener.address().clone())
    };
    let by_name = listen("tcp:store.test:0");
    let far: SocketAddr = "192.0.2.1:0".parse().expect("one");
    let near: SocketAddr = "127.0.0.1:0".parse().expect("one");
    names.set(&[near, far]);
    assert_eq!(made(&by_name), Err(ListenError::RemoteNotAllowed(by_name.address.clone())));
    // With the option too, a listener without a key is refused.
    let text = ListenConfig { allow_remote: true, ..by_name.clone() };
    assert_eq!(made(&text), Err(ListenError::NoKey(by_name.address.clone())));
    names.set(&[near]);
    assert!(made(&by_name).is_ok_and(|address| address.to_string().starts_with("tcp:store.test:")));
    let unknown = made(&listen("tcp:other.test:0"));
    assert!(
        matches!(&unknown, Err(ListenError::Unresolved(LinkError::NameNotResolved { .. }))),
        "{unknown:?}"
    );
}
