//! Unauthenticated connections: a flood of them blocks no client, and the number of links is
//! bounded.

mod common;

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use pagelith_io::clock::Clock;
use pagelith_io::shm::{PAIR_MEMORY_BYTES, SharedMemory};
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::wire::LinkRole;
use pagelith_layouts::wire::greeting::RefusalReason;
use pagelith_transport::address::{Address, Endpoint};
use pagelith_transport::auth::Key;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::handshake::{ClientAuth, Handshake};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link_error::LinkError;
use pagelith_transport::pending::{HandshakeProgress, PendingHandshake};
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener, SocketLink, connect};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, bind,
    connect as start, sendmsg, socket,
};

/// Maximum single wait. In a passing test each wait ends with an event.
const WAIT: Duration = Duration::from_secs(10);

fn at(
    address: Address,
    admission: ClientAuth,
    limits: LinkLimits,
    clock: Arc<dyn Clock>,
) -> Listener {
    let listen = ListenConfig { address, admission, allow_remote: false };
    Listener::new(&listen, offer(), Arc::new(SystemEntropy), clock, limits).expect("listens")
}

fn loopback() -> Address {
    "tcp:127.0.0.1:0".parse().expect("an address")
}

fn port(listener: &Listener) -> SocketAddr {
    match listener.address() {
        Address::Tcp(Endpoint::Ip(address)) => *address,
        other => panic!("no IP address: {other}"),
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

/// A connection that sends nothing.
trait Silent {}
impl Silent for TcpStream {}
impl Silent for UnixStream {}

fn silent(address: &Address) -> Box<dyn Silent> {
    match address {
        Address::Tcp(Endpoint::Ip(to)) => Box::new(TcpStream::connect(to).expect("connected")),
        Address::Unix(path) => Box::new(UnixStream::connect(path).expect("connected")),
        Address::Tcp(Endpoint::Name { .. }) => panic!("the listener has an IP address"),
    }
}

/// A silent connection from another address of this host.
fn silent_from(from: &str, to: SocketAddr) -> TcpStream {
    let from: SocketAddr = from.parse().expect("an address");
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &from).expect("an address of this host");
    start(&stream, &to).expect("connected");
    stream.into()
}

/// A client's greeting, as bytes.
fn greeting_of(offer: Capabilities, key: Option<Key>) -> Vec<u8> {
    let (ours, theirs) = pipe(usize::MAX);
    let handshake = Handshake::client(offer, key, &*entropy());
    let outside = (clock(), LinkLimits::default());
    let pending =
        PendingHandshake::new(ours, "nobody".into(), LinkRole::Client, offer, handshake, outside)
            .poll();
    assert!(matches!(pending, HandshakeProgress::Waiting(_)), "it waits for a reply");
    lock(&theirs.reads).bytes.iter().copied().collect()
}

/// Connect a client until it is admitted or refused, while other connections arrive.
fn meet(
    listener: &mut Listener,
    key: Option<Key>,
    arrivals: &mut Vec<AdmissionResult>,
    mut meanwhile: impl FnMut(),
) -> Result<SocketLink, LinkError> {
    let address = listener.address().clone();
    let begun = connect(
        &address,
        offer(),
        key,
        None,
        &SystemEntropy,
        (clock(), LinkLimits::default()),
        &[],
    );
    let mut progress = begun.expect("a socket").poll();
    for _ in 0..10_000 {
        listener.poll(arrivals);
        progress = match progress {
            HandshakeProgress::Waiting(pending) => pending.wait(Duration::from_millis(5)),
            HandshakeProgress::Ready(link) => return Ok(*link),
            HandshakeProgress::Failed(why) => return Err(why),
        };
        meanwhile();
    }
    panic!("the handshake does not end");
}

fn links(arrivals: &[AdmissionResult]) -> usize {
    arrivals.iter().filter(|arrival| matches!(arrival, AdmissionResult::Link(_))).count()
}

fn reason(why: &LinkError) -> Option<RefusalReason> {
    if let LinkError::Refused(refusal) = why { Some(refusal.reason) } else { None }
}

#[test]
fn half_open_connections_block_no_client() {
    let dir = tempfile::tempdir().expect("a directory");
    for address in [loopback(), Address::Unix(dir.path().join("socket"))] {
        let mut listener = at(address.clone(), keys(1), LinkLimits::default(), clock());
        let address = listener.address().clone();
        let mut arrivals = Vec::new();
        let mut half_open: Vec<_> = (0..64).map(|_| silent(&address)).collect();
        for round in 0..20 {
            // An attacker replaces each closed connection at once.
            let more = || half_open.push(silent(&address));
            let met = meet(&mut listener, Some(key(1)), &mut arrivals, more);
            assert!(met.is_ok(), "address={address} round={round} {:?}", met.err());
        }
        while links(&arrivals) < 20 {
            listener.wait(&mut arrivals, WAIT);
        }
        let refused = |arrival: &AdmissionResult| match arrival {
            AdmissionResult::Refused { why: LinkError::HandshakeTimeout { .. }, .. }
            | AdmissionResult::Link(_) => true,
            AdmissionResult::Refused { why, .. } => reason(why) == Some(RefusalReason::Busy),
        };
        assert!(arrivals.iter().all(refused), "only silent connections are evicted");
        assert!(listener.held_bytes().len() <= LinkLimits::default().unauthenticated_max);
    }
}

#[test]
fn greeted_peer_survives_a_flood_of_silent_connections() {
    let dir = tempfile::tempdir().expect("a directory");
    for address in [loopback(), Address::Unix(dir.path().join("socket"))] {
        // The clock is stopped: nothing times out.
        let time = Arc::new(ManualClock::default());
        let mut listener = at(address, keys(1), LinkLimits::default(), time.clone());
        let (address, mut arrivals) = (listener.address().clone(), Vec::new());
        let first = silent(&address);
        let begun = connect(
            &address,
            offer(),
            Some(key(1)),
            None,
            &SystemEntropy,
            (time, LinkLimits::default()),
            &[],
        );
        let mut progress = begun.expect("a socket").poll();
        while listener.greeted() < 1 {
            listener.wait(&mut arrivals, Duration::from_millis(5));
        }
        let mut flood = Vec::new();
        while arrivals.len() < 100 {
            flood.push(silent(&address));
            listener.wait(&mut arrivals, WAIT);
        }
        assert!(listener.greeted() == 1 && links(&arrivals) == 0, "address={address}");
        while links(&arrivals) == 0 {
            listener.wait(&mut arrivals, Duration::from_millis(5));
            progress = match progress {
                HandshakeProgress::Waiting(pending) => pending.poll(),
                ready @ HandshakeProgress::Ready(_) => ready,
                HandshakeProgress::Failed(why) => panic!("address={address} {why}"),
            };
        }
        drop((first, flood));
    }
}

#[test]
fn source_evicts_no_connection_of_a_smaller_source() {
    let limits = LinkLimits { unauthenticated_max: 8, ..LinkLimits::default() };
    // The clock is stopped: nothing times out.
    let mut listener = at(loopback(), keys(1), limits, Arc::new(ManualClock::default()));
    let (to, mut arrivals) = (port(&listener), Vec::new());
    let quiet: Vec<_> = (0..3).map(|_| silent_from("127.0.0.2:0", to)).collect();
    while listener.held_bytes().len() < quiet.len() {
        listener.wait(&mut arrivals, WAIT);
    }
    let mut many = Vec::new();
    for _ in 0..50 {
        many.push(silent_from("127.0.0.1:0", to));
        listener.wait(&mut arrivals, WAIT);
    }
    for _ in 0..1000 {
        if arrivals.len() < 46 {
            listener.wait(&mut arrivals, Duration::from_millis(10));
        }
    }
    assert_eq!(listener.held_bytes().len(), 7, "one source has at most half of the connections");
    let of = |arrival: &AdmissionResult| match arrival {
        AdmissionResult::Refused { peer, .. } => peer.starts_with("127.0.0.1:"),
        AdmissionResult::Link(_) => false,
    };
    assert!(arrivals.iter().all(of));
    // At the limit, the source with most connections loses one.
    arrivals.clear();
    let others: Vec<_> = ["127.0.0.3:0", "127.0.0.4:0"].map(|from| silent_from(from, to)).into();
    while arrivals.is_empty() {
        listener.wait(&mut arrivals, WAIT);
    }
    assert!(arrivals.iter().all(of) && arrivals.len() == 1 && listener.held_bytes().len() == 8);
    drop((quiet, many, others));
}

#[test]
fn peer_without_greeting_times_out_before_one_without_proof() {
    let time = Arc::new(ManualClock::default());
    let limits = LinkLimits::default();
    let mut listener = at(loopback(), keys(1), limits, time.clone());
    let (to, mut arrivals) = (port(&listener), Vec::new());
    let silent = TcpStream::connect(to).expect("connected");
    let mut greeted = TcpStream::connect(to).expect("connected");
    greeted.write_all(&greeting_of(offer(), Some(key(1)))).expect("greeted");
    // The server's own greeting.
    let mut heard = [0; 1];
    while listener.held_bytes().len() < 2 {
        listener.wait(&mut arrivals, WAIT);
    }
    greeted.set_nonblocking(true).expect("set");
    while greeted.read(&mut heard).is_err() {
        listener.poll(&mut arrivals);
    }
    time.pass(limits.greeting);
    listener.poll(&mut arrivals);
    let late = |arrivals: &[AdmissionResult], limit: Duration| match arrivals {
        [AdmissionResult::Refused { why: LinkError::HandshakeTimeout { limit_ms }, .. }] => {
            u128::from(*limit_ms) == limit.as_millis()
        }
        _ => false,
    };
    assert!(late(&arrivals, limits.greeting) && listener.held_bytes().len() == 1);
    arrivals.clear();
    time.pass(limits.handshake - limits.greeting);
    listener.poll(&mut arrivals);
    assert!(late(&arrivals, limits.handshake) && listener.held_bytes().is_empty());
    drop(silent);
}

#[test]
fn client_beyond_links_max_is_refused_until_another_link_closes() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || ClientAuth::Connection(Rights::all());
    let cases = [
        (loopback(), keys(1), Some(key(1))),
        (loopback(), open(), None),
        (Address::Unix(dir.path().join("socket")), open(), None),
    ];
    for (address, admission, key) in cases {
        let limits = LinkLimits { links_max: 2, ..LinkLimits::default() };
        let mut listener = at(address.clone(), admission, limits, clock());
        let (mut arrivals, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            clients.push(meet(&mut listener, key.clone(), &mut arrivals, || {}).expect("a permit"));
        }
        while links(&arrivals) < 2 {
            listener.wait(&mut arrivals, WAIT);
        }
        let why = meet(&mut listener, key.clone(), &mut arrivals, || {}).err().expect("no permit");
        assert_eq!(reason(&why), Some(RefusalReason::Busy));
        assert!(why.to_string().contains("links_max=2") && why.retryable(), "{why}");
        assert_eq!(listener.links(), 2);
        // The server's end of one of them.
        let served =
            arrivals.iter().position(|arrival| matches!(arrival, AdmissionResult::Link(_)));
        drop(arrivals.remove(served.expect("a link")));
        assert_eq!(listener.links(), 1);
        meet(&mut listener, key, &mut arrivals, || {}).expect("the permit of the closed link");
    }
}

/// A descriptor whose close blocks: a socket that lingers until its peer has read all bytes, which
/// it never does. Dropping the returned stream ends the wait.
fn lingering() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut lingers = TcpStream::connect(listener.local_addr().expect("known")).expect("connected");
    let (reader, _) = listener.accept().expect("accepted");
    set_socket_linger(&lingers, Some(Duration::from_secs(60))).expect("set");
    lingers.set_nonblocking(true).expect("set");
    while lingers.write(&[0; 65536]).is_ok() {}
    (reader, lingers.into())
}

fn send_fds(client: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(client, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).expect("sent");
}

#[test]
fn descriptor_with_a_blocking_close_blocks_no_client() {
    let admission = || ClientAuth::Connection(Rights::all());
    for with_greeting in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listen = ListenConfig {
            address: Address::Unix(path.clone()),
            admission: admission(),
            allow_remote: false,
        };
        let limits = LinkLimits { handshake: Duration::from_secs(600), ..LinkLimits::default() };
        let mut listener =
            Listener::new(&listen, sharing(), Arc::new(SystemEntropy), clock(), limits)
                .expect("listens");
        let (reader, lingers) = lingering();
        let hostile = UnixStream::connect(&path).expect("connected");
        let greeting = greeting_of(sharing(), None);
        if with_greeting {
            send_fds(&hostile, &greeting, &[lingers.as_fd()]);
        } else {
            let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
            (&hostile).write_all(&greeting).expect("greeted");
            send_fds(&hostile, &[1], &[memory.as_fd(), lingers.as_fd()]);
        }
        drop(lingers);
        let mut arrivals = Vec::new();
        let met = meet(&mut listener, None, &mut arrivals, || {});
        assert!(met.is_ok(), "{:?}", met.err());
        while arrivals.is_empty() {
            listener.wait(&mut arrivals, WAIT);
        }
        assert!(
            matches!(arrivals[..], [AdmissionResult::Link(_)]),
            "only the peer that passed the descriptor waits"
        );
        // The blocked handshake ends after its peer has gone.
        drop(reader);
        drop(hostile);
        while arrivals.len() < 2 {
            listener.wait(&mut arrivals, WAIT);
        }
        assert!(
            matches!(arrivals[1], AdmissionResult::Refused { .. }),
            "with_greeting={with_greeting}"
        );
    }
}
