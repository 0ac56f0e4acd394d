//! Links over TCP on loopback: what only a real socket shows. Nothing sleeps; each wait ends with what it waits for.

#![expect(clippy::disallowed_methods, reason = "two ends that wait need a thread each; nothing here ships")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use pagelith_io::clock::Clock;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::greeting::{Feature, Reason, Refusal};
use pagelith_layouts::wire::head;
use pagelith_transport::address::{Address, Endpoint};
use pagelith_transport::auth::Key;
use pagelith_transport::capability::Offer;
use pagelith_transport::closed::Closed;
use pagelith_transport::handshake::Admission;
use pagelith_transport::limits::{Limits, UNKNOWN_PEER_BYTES_MAX};
use pagelith_transport::link::{Event, Link};
use pagelith_transport::pending::Progress;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{self, Arrival, Listen, ListenError, Listener, Socket, SocketLink, connect};

/// Longest single wait. Every wait here is for something that comes.
const WAIT: Duration = Duration::from_secs(10);

fn listener(admission: Admission, offer: Offer, limits: Limits, clock: Arc<dyn Clock>) -> Listener {
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let listen = Listen { address, admission, beyond_this_host: false };
    Listener::new(&listen, offer, Arc::new(SystemEntropy), clock, limits).expect("loopback")
}

fn port(listener: &Listener) -> SocketAddr {
    match listener.address() {
        Address::Tcp(Endpoint::Ip(address)) => *address,
        other => panic!("no IP address: {other}"),
    }
}

/// A listener on a Unix socket, for whoever the kernel says is this user.
fn at(path: &Path) -> Result<Listener, ListenError> {
    let admission = Admission::Connection(Rights::all());
    let listen = Listen { address: Address::Unix(path.to_owned()), admission, beyond_this_host: false };
    Listener::new(&listen, offer(), Arc::new(SystemEntropy), clock(), Limits::default())
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

type Ends = (Result<SocketLink, Closed>, Result<SocketLink, Closed>);

/// What a link is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Tcp,
    Unix,
    Shared,
}

const EVERYTHING: [Over; 3] = [Over::Tcp, Over::Unix, Over::Shared];

/// A client and a server in one thread, until both know how it ended.
fn meet_over(client: (Offer, Option<Key>), listener: &mut Listener) -> Ends {
    let (limits, entropy) = (Limits::default(), SystemEntropy);
    let mut progress = connect(listener.address(), client.0, client.1, &entropy, clock(), limits, &[])
        .expect("a socket")
        .poll();
    let mut arrivals = Vec::new();
    for _ in 0..1000 {
        if arrivals.is_empty() {
            listener.wait(&mut arrivals, Duration::from_millis(100));
        }
        progress = match progress {
            Progress::Waiting(pending) => pending.wait(Duration::from_millis(100)),
            over => over,
        };
        if !matches!(progress, Progress::Waiting(_)) && !arrivals.is_empty() {
            break;
        }
    }
    let client = match progress {
        Progress::Ready(link) => Ok(*link),
        Progress::Over(why) => Err(why),
        Progress::Waiting(_) => panic!("the client's handshake does not end"),
    };
    let server = match arrivals.pop().expect("an arrival") {
        Arrival::Link(link) => Ok(*link),
        Arrival::Refused { why, .. } => Err(why),
    };
    (client, server)
}

fn linked(over: Over, data_bytes_max: u32) -> (SocketLink, SocketLink) {
    let offer = if over == Over::Shared { sharing() } else { offer() };
    let offer = Offer { data_bytes_max, ..offer };
    let dir = tempfile::tempdir().expect("a directory");
    let address = match over {
        Over::Tcp => "tcp:127.0.0.1:0".parse().expect("an address"),
        Over::Unix | Over::Shared => Address::Unix(dir.path().join("socket")),
    };
    let listen = Listen { address, admission: keys(1), beyond_this_host: false };
    let mut listener =
        Listener::new(&listen, offer, Arc::new(SystemEntropy), clock(), Limits::default()).expect("listens");
    let (client, server) = meet_over((offer, Some(key(1))), &mut listener);
    let (client, server) = (client.expect("a link"), server.expect("a link"));
    for end in [&client, &server] {
        assert_eq!(end.stream().is_some_and(Socket::is_shared_memory), over == Over::Shared);
    }
    (client, server)
}

/// Drive both ends until `done` says so.
fn drive(
    a: &mut SocketLink,
    b: &mut SocketLink,
    done: impl Fn(&[Event], &[Event]) -> bool,
) -> (Vec<Event>, Vec<Event>) {
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    for _ in 0..1_000_000 {
        a.poll(&mut at_a);
        b.poll(&mut at_b);
        if done(&at_a, &at_b) {
            return (at_a, at_b);
        }
    }
    panic!("it does not come: {:?} {:?}", told(&at_a), told(&at_b));
}

#[test]
fn long_objects_arrive_in_scatter_lists_of_odd_lengths() {
    EVERYTHING.into_iter().for_each(long_objects_arrive);
}

fn long_objects_arrive(over: Over) {
    let objects = [bytes(1, 3_000_001), bytes(2, 1), bytes(3, 4096), bytes(4, 777_777)];
    let lengths: Vec<usize> = (0..900).map(|i| (i * 37) % 1999).collect();
    let (mut client, mut server) = linked(over, 64 << 10);
    for (item, object) in objects.iter().enumerate() {
        client.expose(OpId(1), item as u32, 0, scatter(&vec![0; object.len()], &lengths)).expect("room");
    }
    client.send(request(1, b"a get")).expect("room");
    let (_, asked) = drive(&mut client, &mut server, |_, at_server| !at_server.is_empty());
    assert_eq!(told(&asked), ["Request 1 5"]);
    for (item, object) in objects.iter().enumerate() {
        server.push(push(1, item as u32, 0, object)).expect("room");
    }
    server.send(outcome(1, b"over")).expect("room");
    let (got, sent) = drive(&mut client, &mut server, |at_client, _| at_client.len() == objects.len() + 1);
    assert_eq!(told(&got)[..], ["landed 1 0", "landed 1 1", "landed 1 2", "landed 1 3", "Outcome 1 4"]);
    assert_eq!(told(&sent).len(), objects.len());
    for (item, object) in objects.iter().enumerate() {
        assert!(handed(&got, (1, item as u32)).as_ref() == Some(object), "item={item}");
    }
    let total: usize = objects.iter().map(Vec::len).sum();
    assert_eq!((client.counts().bytes_in, server.counts().bytes_out), (total as u64, total as u64));
}

#[test]
fn pushed_memory_overwritten_once_handed_back_arrives_as_pushed() {
    EVERYTHING.into_iter().for_each(overwritten_once_handed_back);
}

/// The peer reads nothing at first: the kernel has much to send when the first memory is back.
fn overwritten_once_handed_back(over: Over) {
    const OBJECT: usize = 128 << 10;
    const OBJECTS: u64 = 128;
    let (mut client, mut server) = linked(over, 4 << 20);
    for op in 1..=OBJECTS {
        client.expose(OpId(op), 0, 0, scatter(&vec![0; OBJECT], &[])).expect("room");
        server.push(push(op, 0, 0, &bytes(op, OBJECT))).expect("room");
    }
    let (mut back, mut idle) = (0, 0);
    while idle < 100 {
        let (had, mut events) = (server.counts().bytes_out, Vec::new());
        server.poll(&mut events);
        back += overwrite(events);
        idle = if server.counts().bytes_out == had { idle + 1 } else { 0 };
    }
    assert!(back < OBJECTS, "{over:?}: the peer's memory is larger than thought");

    // Those that are given up come back at once, though the peer still reads nothing.
    let sent = back;
    let is_given_up = |op: u64| op.is_multiple_of(2) || op == sent + 1;
    (1..=OBJECTS).filter(|op| is_given_up(*op)).for_each(|op| server.retract(OpId(op)));
    let mut events = Vec::new();
    server.poll(&mut events);
    back += overwrite(events);
    let given_up = (sent + 1..=OBJECTS).filter(|op| is_given_up(*op)).count() as u64;
    // More, if the kernel took another meanwhile.
    assert!(back >= sent + given_up, "{over:?} back={back} sent={sent} given_up={given_up}");

    let mut landed = Vec::new();
    let wanted = |op: &u64| *op <= sent || !is_given_up(*op);
    while !(1..=OBJECTS).filter(wanted).all(|op| landed.contains(&op)) {
        let (mut got, mut events) = (Vec::new(), Vec::new());
        server.poll(&mut events);
        back += overwrite(events);
        client.wait(&mut got, Duration::from_millis(1));
        for event in got {
            let Event::Landed { op, parts, .. } = event else { panic!("{over:?} {event:?}") };
            assert!(gathered(&parts) == bytes(op.0, OBJECT), "{over:?}: op={} has changed", op.0);
            landed.push(op.0);
        }
    }
    assert_eq!(back, OBJECTS, "{over:?}");
}

/// Write into all memory that was handed back; how many pushes it was.
fn overwrite(events: Vec<Event>) -> u64 {
    let mut count = 0;
    for event in events {
        let Event::Pushed { parts, .. } = event else { panic!("{event:?}") };
        for mut part in parts {
            part.bytes_mut().expect("its owner's").fill(0xee);
        }
        count += 1;
    }
    count
}

#[test]
fn a_wait_ends_with_what_arrives() {
    EVERYTHING.into_iter().for_each(a_wait_ends);
}

fn a_wait_ends(over: Over) {
    let (mut client, mut server) = linked(over, 1 << 20);
    let asking = std::thread::spawn(move || {
        let mut events = Vec::new();
        server.wait(&mut events, WAIT);
        server.send(outcome(1, b"over")).expect("room");
        while server.wants_write() {
            server.poll(&mut events);
        }
        client_gone(&mut server, events)
    });
    client.send(request(1, b"is it here")).expect("room");
    let mut events = Vec::new();
    client.wait(&mut events, WAIT);
    assert_eq!(told(&events), ["Outcome 1 4"]);
    client.close();
    assert_eq!(asking.join().expect("no panic"), ["Request 1 10", "closed: closed by the peer"]);
}

/// Wait for the end; all that was told.
fn client_gone(server: &mut SocketLink, mut events: Vec<Event>) -> Vec<String> {
    while !matches!(events.last(), Some(Event::Closed(_))) {
        server.wait(&mut events, WAIT);
    }
    told(&events)
}

/// One thread with a listener and several links waits for all of them at once.
#[test]
fn a_server_waits_for_all_its_links() {
    let listener = listener(keys(1), offer(), Limits::default(), clock());
    let mut pairs = EVERYTHING.map(|over| linked(over, 1 << 20));
    for which in [2, 0, 1] {
        pairs[which].0.send(request(which as u64 + 1, b"x")).expect("room");
        pairs[which].0.poll(&mut Vec::new());
        let servers: Vec<&SocketLink> = pairs.iter().map(|(_, server)| server).collect();
        assert!(socket::wait(Some(&listener), &servers, &[], WAIT));
        let mut events = [Vec::new(), Vec::new(), Vec::new()];
        pairs.iter_mut().zip(&mut events).for_each(|((_, server), events)| server.poll(events));
        for (i, events) in events.iter().enumerate() {
            assert_eq!(events.len(), usize::from(i == which), "i={i} which={which}");
        }
    }
    let servers: Vec<&SocketLink> = pairs.iter().map(|(_, server)| server).collect();
    assert!(!socket::wait(Some(&listener), &servers, &[], Duration::ZERO), "nothing is there");
}

#[test]
fn a_process_that_dies_in_the_middle_of_data_closes_the_link() {
    EVERYTHING.into_iter().for_each(a_process_dies_in_the_middle);
}

fn a_process_dies_in_the_middle(over: Over) {
    let (mut client, mut server) = linked(over, 1 << 20);
    client.expose(OpId(1), 0, 0, scatter(&vec![0; 64 << 20], &[])).expect("room");
    server.push(push(1, 0, 0, &vec![7; 64 << 20])).expect("room");
    let mut events = Vec::new();
    server.poll(&mut events);
    drop(server);
    while !matches!(events.last(), Some(Event::Closed(_))) {
        client.wait(&mut events, WAIT);
    }
    assert_eq!(told(&events), ["retracted 1 0", "closed: the connection ended"]);
}

#[test]
fn a_wrong_key_and_no_key_are_refused() {
    for (wrong, reason) in [(Some(key(2)), Reason::Denied), (None, Reason::Denied)] {
        let mut listener = listener(keys(1), offer(), Limits::default(), clock());
        let (client, server) = meet_over((offer(), wrong), &mut listener);
        let Err(Closed::Refused(Refusal { reason: found, .. })) = client.map(|_| ()) else {
            panic!("not refused")
        };
        assert_eq!(found, reason);
        assert!(server.is_err());
        assert_eq!(listener.held_bytes(), Vec::<usize>::new());
    }
}

#[test]
fn versions_meet_or_part_by_name() {
    let of = |versions, required| Offer { versions, required, ..offer() };
    for (ours, theirs, expected) in [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((1, 9), (2, 5), 5)] {
        let mut listener = listener(keys(1), of(theirs, 0), Limits::default(), clock());
        let (client, server) = meet_over((of(ours, 0), Some(key(1))), &mut listener);
        let (mut client, mut server) = (client.expect("a link"), server.expect("a link"));
        assert_eq!((client.facts().version, server.facts().version), (expected, expected));
        client.send(request(1, b"in the agreed version")).expect("room");
        drive(&mut client, &mut server, |_, at_server| !at_server.is_empty());
    }
    for (ours, theirs) in [((1, 1), (2, 3)), ((2, 3), (1, 1))] {
        let mut listener = listener(keys(1), of(theirs, 0), Limits::default(), clock());
        let (client, server) = meet_over((of(ours, 0), Some(key(1))), &mut listener);
        let refused = client.map(|_| ()).expect_err("apart");
        assert!(!refused.retryable() && server.is_err());
        let (from, to) = theirs;
        let text = format!("no protocol version in common ours={from}..{to} theirs={}..{}", ours.0, ours.1);
        assert_eq!(refused.to_string(), format!("refused: {text} reason=Version"));
    }
    let few = Offer { features: Feature::Groups.bit(), ..offer() };
    let mut listener = listener(keys(1), few, Limits::default(), clock());
    let (client, _) = meet_over((of((1, 1), 0), Some(key(1))), &mut listener);
    // Shared memory, what lies there and where, a word for it, and files are not for TCP, and so are not missed.
    let within_a_host =
        [Feature::SharedMemory, Feature::Shown, Feature::Catalog, Feature::Steady, Feature::Files];
    let offered = within_a_host.into_iter().fold(offer(), Offer::without).features;
    assert_eq!(client.expect("a link").facts().missing, Feature::names(offered & !few.features));
    let (client, server) = meet_over((of((1, 1), Feature::Durable.bit()), Some(key(1))), &mut listener);
    let text = client.map(|_| ()).expect_err("durable is required").to_string();
    assert_eq!(text, "incompatible peers: features are missing names=durable");
    // The client goes before the server knows it.
    let _ = server;
}

/// Many that say a byte and no more: little is held for each, no more than so many, and all are let go in time.
#[test]
fn slow_peers_hold_little_and_not_for_long() {
    let time = Arc::new(HandClock::default());
    let limits = Limits { unknown_max: 8, ..Limits::default() };
    let mut listener = listener(keys(1), offer(), limits, time.clone());
    let mut slow: Vec<TcpStream> = Vec::new();
    let mut arrivals = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(port(&listener)).expect("a connection");
        stream.write_all(b"P").expect("a byte");
        slow.push(stream);
        listener.wait(&mut arrivals, WAIT);
    }
    while listener.held_bytes().len() + arrivals.len() < 12 {
        listener.wait(&mut arrivals, WAIT);
    }
    let held = listener.held_bytes();
    // Half of the places are for one address, and the youngest have them.
    assert_eq!((held.len(), arrivals.len()), (4, 8));
    assert!(held.iter().all(|bytes| *bytes <= UNKNOWN_PEER_BYTES_MAX / 4), "{held:?}");
    assert_eq!(refusals(arrivals), [Reason::Busy; 8].map(Some));
    time.pass(limits.greeting);
    let mut arrivals = Vec::new();
    listener.poll(&mut arrivals);
    assert_eq!((listener.held_bytes().len(), arrivals.len()), (0, 4));
    assert!(refusals(arrivals).iter().all(Option::is_none));
    // Each was told why: a refusal, and the end.
    for (stream, reason) in slow.iter_mut().zip([Reason::Busy; 8].into_iter().chain([Reason::Late; 4])) {
        let mut said = Vec::new();
        // A connection that was closed with bytes unread may end with a reset behind what was said.
        let _ = stream.read_to_end(&mut said);
        if let Ok((_, _, body)) = head::split(&said, None) {
            assert_eq!(Refusal::decode(body).map(|refusal| refusal.reason), Ok(reason));
        }
    }
}

/// The reasons of refusals that were sent, `None` for those of another kind.
fn refusals(arrivals: Vec<Arrival>) -> Vec<Option<Reason>> {
    let reason = |arrival| match arrival {
        Arrival::Refused { why: Closed::Refused(refusal), .. } => Some(refusal.reason),
        Arrival::Refused { why: Closed::Late { .. }, .. } => None,
        Arrival::Refused { why, .. } => panic!("{why}"),
        Arrival::Link(_) => panic!("a link"),
    };
    arrivals.into_iter().map(reason).collect()
}

#[test]
fn other_hosts_are_let_in_only_when_asked_for_and_by_key() {
    let try_to = |address: &str, admission, beyond_this_host| {
        let listen = Listen {
            address: format!("tcp:{address}").parse().expect("an address"),
            admission,
            beyond_this_host,
        };
        Listener::new(&listen, offer(), Arc::new(SystemEntropy), clock(), Limits::default()).map(|_| ())
    };
    let open = || Admission::Connection(Rights::all());
    assert!(matches!(try_to("0.0.0.0:0", keys(1), false), Err(ListenError::BeyondThisHost(_))));
    assert!(matches!(try_to("[::]:0", open(), false), Err(ListenError::BeyondThisHost(_))));
    assert!(matches!(try_to("0.0.0.0:0", open(), true), Err(ListenError::NoKey(_))));
    assert!(matches!(try_to("127.0.0.1:0", open(), true), Err(ListenError::NoKey(_))));
    assert_eq!(try_to("0.0.0.0:0", keys(1), true), Ok(()));
    assert_eq!(try_to("127.0.0.1:0", open(), false), Ok(()));
}

#[test]
fn nobody_listening_is_named() {
    let listener = listener(keys(1), offer(), Limits::default(), clock());
    let address = listener.address().clone();
    drop(listener);
    let why = socket::dial(&address, offer(), Some(key(1)), &SystemEntropy, clock(), Limits::default())
        .map(|_| ())
        .expect_err("nobody");
    assert!(why.to_string().contains("errno=111") && why.retryable(), "{why}");
}

#[test]
fn a_unix_socket_is_its_users_alone_carries_a_link_and_goes_with_its_listener() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pagelith");
    let mut listener = at(&path).expect("listens");
    let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others may connect");
    let (client, server) = meet_over((offer(), None), &mut listener);
    let (mut client, mut server) = (client.expect("a link"), server.expect("a link"));
    client.expose(OpId(1), 0, 0, scatter(&[0; 70_000], &[70_000])).expect("room");
    client.send(request(1, b"a get")).expect("room");
    drive(&mut client, &mut server, |_, at_server| !at_server.is_empty());
    server.push(push(1, 0, 0, &bytes(7, 70_000))).expect("room");
    let (got, _) = drive(&mut client, &mut server, |at_client, _| !at_client.is_empty());
    assert!(handed(&got, (1, 0)).as_ref() == Some(&bytes(7, 70_000)));
    // A key where none is asked for is refused, as over TCP.
    let (with_key, _) = meet_over((offer(), Some(key(1))), &mut listener);
    assert!(with_key.is_err());
    drop(listener);
    assert!(!path.exists(), "the file stays");
}

#[test]
fn a_file_that_is_left_over_is_replaced_and_one_that_is_used_or_is_no_socket_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pagelith");
    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "nothing is left over");
    let first = at(&path).expect("replaced");
    let refused = |path: &Path| match at(path).map(|_| ()) {
        Err(ListenError::System { operation: "bind", errno, .. }) => errno,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&path), 98, "two listen at one path");
    // As a cleaner of temporary files does: the next one's socket is not the first one's to remove.
    std::fs::remove_file(&path).expect("removed");
    let second = at(&path).expect("another socket");
    drop(first);
    assert!(path.exists(), "the other one's socket is gone");
    drop(second);
    assert!(!path.exists(), "its own is left over");
    std::fs::write(&path, "precious").expect("written");
    assert_eq!(refused(&path), 98);
    assert_eq!(std::fs::read(&path).expect("read"), b"precious");
}
