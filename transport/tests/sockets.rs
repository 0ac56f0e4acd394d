//! Links over real sockets: TCP on loopback, Unix sockets and shared memory. No test sleeps; each
//! wait ends with an event.

#![expect(
    clippy::disallowed_methods,
    reason = "two ends that wait need a thread each; nothing here ships"
)]

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
use pagelith_layouts::wire::greeting::{Feature, Refusal, RefusalReason};
use pagelith_layouts::wire::head;
use pagelith_transport::address::{Address, Endpoint};
use pagelith_transport::auth::Key;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::{LinkLimits, UNAUTHENTICATED_PEER_BYTES_MAX};
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::pending::HandshakeProgress;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{
    self, AdmissionResult, ListenConfig, ListenError, Listener, Socket, SocketLink, connect,
};

/// Maximum single wait. In a passing test each wait ends with an event.
const WAIT: Duration = Duration::from_secs(10);

fn listener(
    admission: ClientAuth,
    offer: Capabilities,
    limits: LinkLimits,
    clock: Arc<dyn Clock>,
) -> Listener {
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let listen = ListenConfig { address, admission, allow_remote: false };
    Listener::new(&listen, offer, Arc::new(SystemEntropy), clock, limits).expect("loopback")
}

fn port(listener: &Listener) -> SocketAddr {
    match listener.address() {
        Address::Tcp(Endpoint::Ip(address)) => *address,
        other => panic!("no IP address: {other}"),
    }
}

/// A listener on a Unix socket, for processes of this user.
fn at(path: &Path) -> Result<Listener, ListenError> {
    let admission = ClientAuth::Connection(Rights::all());
    let listen =
        ListenConfig { address: Address::Unix(path.to_owned()), admission, allow_remote: false };
    Listener::new(&listen, offer(), Arc::new(SystemEntropy), clock(), LinkLimits::default())
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

type Ends = (Result<SocketLink, LinkError>, Result<SocketLink, LinkError>);

/// The carrier of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Tcp,
    Unix,
    Shared,
}

const ALL_CARRIERS: [Carrier; 3] = [Carrier::Tcp, Carrier::Unix, Carrier::Shared];

/// Run the handshake of a client and a server in one thread until both have ended.
fn meet_over(client: (Capabilities, Option<Key>), listener: &mut Listener) -> Ends {
    let (limits, entropy) = (LinkLimits::default(), SystemEntropy);
    let mut progress =
        connect(listener.address(), client.0, client.1, None, &entropy, (clock(), limits), &[])
            .expect("a socket")
            .poll();
    let mut arrivals = Vec::new();
    for _ in 0..1000 {
        if arrivals.is_empty() {
            listener.wait(&mut arrivals, Duration::from_millis(100));
        }
        progress = match progress {
            HandshakeProgress::Waiting(pending) => pending.wait(Duration::from_millis(100)),
            ended => ended,
        };
        if !matches!(progress, HandshakeProgress::Waiting(_)) && !arrivals.is_empty() {
            break;
        }
    }
    let client = match progress {
        HandshakeProgress::Ready(link) => Ok(*link),
        HandshakeProgress::Failed(why) => Err(why),
        HandshakeProgress::Waiting(_) => panic!("the client's handshake does not end"),
    };
    let server = match arrivals.pop().expect("an arrival") {
        AdmissionResult::Link(link) => Ok(*link),
        AdmissionResult::Refused { why, .. } => Err(why),
    };
    (client, server)
}

fn linked(carrier: Carrier, data_bytes_max: u32) -> (SocketLink, SocketLink) {
    let offer = if carrier == Carrier::Shared { sharing() } else { offer() };
    let offer = Capabilities { data_bytes_max, ..offer };
    let dir = tempfile::tempdir().expect("a directory");
    let address = match carrier {
        Carrier::Tcp => "tcp:127.0.0.1:0".parse().expect("an address"),
        Carrier::Unix | Carrier::Shared => Address::Unix(dir.path().join("socket")),
    };
    let listen = ListenConfig { address, admission: keys(1), allow_remote: false };
    let mut listener =
        Listener::new(&listen, offer, Arc::new(SystemEntropy), clock(), LinkLimits::default())
            .expect("listens");
    let (client, server) = meet_over((offer, Some(key(1))), &mut listener);
    let (client, server) = (client.expect("a link"), server.expect("a link"));
    for end in [&client, &server] {
        assert_eq!(end.stream().is_some_and(Socket::is_shared_memory), carrier == Carrier::Shared);
    }
    (client, server)
}

/// Poll both ends until `done` returns true.
fn drive(
    a: &mut SocketLink,
    b: &mut SocketLink,
    done: impl Fn(&[LinkEvent], &[LinkEvent]) -> bool,
) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    for _ in 0..1_000_000 {
        a.poll(&mut at_a);
        b.poll(&mut at_b);
        if done(&at_a, &at_b) {
            return (at_a, at_b);
        }
    }
    panic!("not done: {:?} {:?}", event_lines(&at_a), event_lines(&at_b));
}

#[test]
fn long_objects_arrive_in_odd_scatter_lists() {
    ALL_CARRIERS.into_iter().for_each(long_objects_arrive);
}

fn long_objects_arrive(carrier: Carrier) {
    let objects = [bytes(1, 3_000_001), bytes(2, 1), bytes(3, 4096), bytes(4, 777_777)];
    let lengths: Vec<usize> = (0..900).map(|i| (i * 37) % 1999).collect();
    let (mut client, mut server) = linked(carrier, 64 << 10);
    for (item, object) in objects.iter().enumerate() {
        client
            .expose(OpId(1), item as u32, 0, scatter(&vec![0; object.len()], &lengths))
            .expect("room");
    }
    client.send(request(1, b"a get")).expect("room");
    let (_, asked) = drive(&mut client, &mut server, |_, at_server| !at_server.is_empty());
    assert_eq!(event_lines(&asked), ["Request 1 5"]);
    for (item, object) in objects.iter().enumerate() {
        server.push(push(1, item as u32, 0, object)).expect("room");
    }
    server.send(outcome(1, b"over")).expect("room");
    let (got, sent) =
        drive(&mut client, &mut server, |at_client, _| at_client.len() == objects.len() + 1);
    assert_eq!(
        event_lines(&got)[..],
        ["landed 1 0", "landed 1 1", "landed 1 2", "landed 1 3", "Outcome 1 4"]
    );
    assert_eq!(event_lines(&sent).len(), objects.len());
    for (item, object) in objects.iter().enumerate() {
        assert!(returned(&got, (1, item as u32)).as_ref() == Some(object), "item={item}");
    }
    let total: usize = objects.iter().map(Vec::len).sum();
    assert_eq!((client.counts().bytes_in, server.counts().bytes_out), (total as u64, total as u64));
}

#[test]
fn memory_overwritten_after_the_pushed_event_arrives_unchanged() {
    ALL_CARRIERS.into_iter().for_each(overwritten_after_pushed);
}

/// The peer reads nothing at first, so the kernel buffers many bytes when the first memory is back.
fn overwritten_after_pushed(carrier: Carrier) {
    const OBJECT: usize = 128 << 10;
    const OBJECTS: u64 = 128;
    let (mut client, mut server) = linked(carrier, 4 << 20);
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
    assert!(back < OBJECTS, "{carrier:?}: the kernel's buffers hold all pushes, use more");

    // Retracted pushes come back at once, although the peer still reads nothing.
    let sent = back;
    let is_retracted = |op: u64| op.is_multiple_of(2) || op == sent + 1;
    (1..=OBJECTS).filter(|op| is_retracted(*op)).for_each(|op| server.retract(OpId(op)));
    let mut events = Vec::new();
    server.poll(&mut events);
    back += overwrite(events);
    let retracted = (sent + 1..=OBJECTS).filter(|op| is_retracted(*op)).count() as u64;
    // More, if the kernel has taken another one meanwhile.
    assert!(back >= sent + retracted, "{carrier:?} back={back} sent={sent} retracted={retracted}");

    let mut landed = Vec::new();
    let wanted = |op: &u64| *op <= sent || !is_retracted(*op);
    while !(1..=OBJECTS).filter(wanted).all(|op| landed.contains(&op)) {
        let (mut got, mut events) = (Vec::new(), Vec::new());
        server.poll(&mut events);
        back += overwrite(events);
        client.wait(&mut got, Duration::from_millis(1));
        for event in got {
            let LinkEvent::Received { op, parts, .. } = event else {
                panic!("{carrier:?} {event:?}")
            };
            assert!(
                gathered(&parts) == bytes(op.0, OBJECT),
                "{carrier:?}: op={} has changed",
                op.0
            );
            landed.push(op.0);
        }
    }
    assert_eq!(back, OBJECTS, "{carrier:?}");
}

/// Overwrite all memory that was handed back; returns the number of pushes.
fn overwrite(events: Vec<LinkEvent>) -> u64 {
    let mut count = 0;
    for event in events {
        let LinkEvent::Pushed { parts, .. } = event else { panic!("{event:?}") };
        for mut part in parts {
            part.bytes_mut().expect("its owner's").fill(0xee);
        }
        count += 1;
    }
    count
}

#[test]
fn wait_returns_when_a_frame_arrives() {
    ALL_CARRIERS.into_iter().for_each(wait_returns);
}

fn wait_returns(carrier: Carrier) {
    let (mut client, mut server) = linked(carrier, 1 << 20);
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
    assert_eq!(event_lines(&events), ["Outcome 1 4"]);
    client.close();
    assert_eq!(asking.join().expect("no panic"), ["Request 1 10", "closed: closed by the peer"]);
}

/// Wait for the end; returns all events.
fn client_gone(server: &mut SocketLink, mut events: Vec<LinkEvent>) -> Vec<String> {
    while !matches!(events.last(), Some(LinkEvent::Ended(_))) {
        server.wait(&mut events, WAIT);
    }
    event_lines(&events)
}

/// One thread waits for a listener and several links at once.
#[test]
fn server_waits_for_several_links_at_once() {
    let listener = listener(keys(1), offer(), LinkLimits::default(), clock());
    let mut pairs = ALL_CARRIERS.map(|carrier| linked(carrier, 1 << 20));
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
    assert!(!socket::wait(Some(&listener), &servers, &[], Duration::ZERO), "nothing is ready");
}

#[test]
fn peer_death_mid_frame_closes_the_link() {
    ALL_CARRIERS.into_iter().for_each(peer_death_mid_frame);
}

fn peer_death_mid_frame(carrier: Carrier) {
    let (mut client, mut server) = linked(carrier, 1 << 20);
    client.expose(OpId(1), 0, 0, scatter(&vec![0; 64 << 20], &[])).expect("room");
    server.push(push(1, 0, 0, &vec![7; 64 << 20])).expect("room");
    let mut events = Vec::new();
    server.poll(&mut events);
    drop(server);
    while !matches!(events.last(), Some(LinkEvent::Ended(_))) {
        client.wait(&mut events, WAIT);
    }
    assert_eq!(event_lines(&events), ["retracted 1 0", "closed: the connection ended"]);
}

#[test]
fn wrong_key_and_missing_key_are_refused() {
    for (wrong, reason) in [(Some(key(2)), RefusalReason::Denied), (None, RefusalReason::Denied)] {
        let mut listener = listener(keys(1), offer(), LinkLimits::default(), clock());
        let (client, server) = meet_over((offer(), wrong), &mut listener);
        let Err(LinkError::Refused(Refusal { reason: found, .. })) = client.map(|_| ()) else {
            panic!("not refused")
        };
        assert_eq!(found, reason);
        assert!(server.is_err());
        assert_eq!(listener.held_bytes(), Vec::<usize>::new());
    }
}

#[test]
fn newest_common_version_is_chosen_or_refused() {
    let of = |versions, required| Capabilities { versions, required, ..offer() };
    for (ours, theirs, expected) in [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((1, 9), (2, 5), 5)]
    {
        let mut listener = listener(keys(1), of(theirs, 0), LinkLimits::default(), clock());
        let (client, server) = meet_over((of(ours, 0), Some(key(1))), &mut listener);
        let (mut client, mut server) = (client.expect("a link"), server.expect("a link"));
        assert_eq!((client.params().version, server.params().version), (expected, expected));
        client.send(request(1, b"in the agreed version")).expect("room");
        drive(&mut client, &mut server, |_, at_server| !at_server.is_empty());
    }
    for (ours, theirs) in [((1, 1), (2, 3)), ((2, 3), (1, 1))] {
        let mut listener = listener(keys(1), of(theirs, 0), LinkLimits::default(), clock());
        let (client, server) = meet_over((of(ours, 0), Some(key(1))), &mut listener);
        let refused = client.map(|_| ()).expect_err("apart");
        assert!(!refused.retryable() && server.is_err());
        let (from, to) = theirs;
        let text = format!(
            "no protocol version in common ours={from}..{to} theirs={}..{}",
            ours.0, ours.1
        );
        assert_eq!(refused.to_string(), format!("refused: {text} reason=Version"));
    }
    let few = Capabilities { features: Feature::Groups.bit(), ..offer() };
    let mut listener = listener(keys(1), few, LinkLimits::default(), clock());
    let (client, _) = meet_over((of((1, 1), 0), Some(key(1))), &mut listener);
    // Shared memory and references to it are not for TCP, so they are not missed.
    let within_a_host = [Feature::SharedMemory, Feature::Shown];
    let offered = within_a_host.into_iter().fold(offer(), Capabilities::without).features;
    assert_eq!(client.expect("a link").params().missing, Feature::names(offered & !few.features));
    let (client, server) =
        meet_over((of((1, 1), Feature::Durable.bit()), Some(key(1))), &mut listener);
    let text = client.map(|_| ()).expect_err("durable is required").to_string();
    assert_eq!(text, "incompatible peers: features are missing names=durable");
    // The client fails before the server can learn it.
    let _ = server;
}

/// Many peers that send one byte: their memory, number and time are bounded.
#[test]
fn slow_peers_hold_bounded_memory_for_a_bounded_time() {
    let time = Arc::new(ManualClock::default());
    let limits = LinkLimits { unauthenticated_max: 8, ..LinkLimits::default() };
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
    // One address has half of the capacity, and its youngest connections remain.
    assert_eq!((held.len(), arrivals.len()), (4, 8));
    assert!(held.iter().all(|bytes| *bytes <= UNAUTHENTICATED_PEER_BYTES_MAX / 4), "{held:?}");
    assert_eq!(refusals(arrivals), [RefusalReason::Busy; 8].map(Some));
    time.pass(limits.greeting);
    let mut arrivals = Vec::new();
    listener.poll(&mut arrivals);
    assert_eq!((listener.held_bytes().len(), arrivals.len()), (0, 4));
    assert!(refusals(arrivals).iter().all(Option::is_none));
    // Each received the reason: a refusal, and the end.
    for (stream, reason) in
        slow.iter_mut().zip([RefusalReason::Busy; 8].into_iter().chain([RefusalReason::Late; 4]))
    {
        let mut said = Vec::new();
        // A connection closed with unread bytes may end with a reset after the refusal.
        let _ = stream.read_to_end(&mut said);
        if let Ok((_, _, body)) = head::split(&said, None) {
            assert_eq!(Refusal::decode(body).map(|refusal| refusal.reason), Ok(reason));
        }
    }
}

/// The reasons of the refusals; `None` for a timeout.
fn refusals(arrivals: Vec<AdmissionResult>) -> Vec<Option<RefusalReason>> {
    let reason = |arrival| match arrival {
        AdmissionResult::Refused { why: LinkError::Refused(refusal), .. } => Some(refusal.reason),
        AdmissionResult::Refused { why: LinkError::HandshakeTimeout { .. }, .. } => None,
        AdmissionResult::Refused { why, .. } => panic!("{why}"),
        AdmissionResult::Link(_) => panic!("a link"),
    };
    arrivals.into_iter().map(reason).collect()
}

#[test]
fn remote_listener_needs_the_option_and_a_key() {
    let try_to = |address: &str, admission, allow_remote| {
        let listen = ListenConfig {
            address: format!("tcp:{address}").parse().expect("an address"),
            admission,
            allow_remote,
        };
        Listener::new(&listen, offer(), Arc::new(SystemEntropy), clock(), LinkLimits::default())
            .map(|_| ())
    };
    let open = || ClientAuth::Connection(Rights::all());
    assert!(matches!(try_to("0.0.0.0:0", keys(1), false), Err(ListenError::RemoteNotAllowed(_))));
    assert!(matches!(try_to("[::]:0", open(), false), Err(ListenError::RemoteNotAllowed(_))));
    assert!(matches!(try_to("0.0.0.0:0", open(), true), Err(ListenError::NoKey(_))));
    assert!(matches!(try_to("127.0.0.1:0", open(), true), Err(ListenError::NoKey(_))));
    assert_eq!(try_to("0.0.0.0:0", keys(1), true), Ok(()));
    assert_eq!(try_to("127.0.0.1:0", open(), false), Ok(()));
}

#[test]
fn refused_connection_is_reported_with_errno() {
    let listener = listener(keys(1), offer(), LinkLimits::default(), clock());
    let address = listener.address().clone();
    drop(listener);
    let why = socket::dial(
        &address,
        offer(),
        Some(key(1)),
        &SystemEntropy,
        clock(),
        LinkLimits::default(),
    )
    .map(|_| ())
    .expect_err("refused");
    assert!(why.to_string().contains("errno=111") && why.retryable(), "{why}");
}

#[test]
fn unix_socket_is_private_and_removed_with_its_listener() {
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
    assert!(returned(&got, (1, 0)).as_ref() == Some(&bytes(7, 70_000)));
    // A key is refused if the server supports none, as over TCP.
    let (with_key, _) = meet_over((offer(), Some(key(1))), &mut listener);
    assert!(with_key.is_err());
    drop(listener);
    assert!(!path.exists(), "the file stays");
}

#[test]
fn stale_socket_file_is_replaced_and_other_files_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pagelith");
    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "the stale file is missing");
    let first = at(&path).expect("replaced");
    let refused = |path: &Path| match at(path).map(|_| ()) {
        Err(ListenError::System { operation: "bind", errno, .. }) => errno,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&path), 98, "two processes listen at one path");
    // As a cleaner of temporary files does: the first listener must not remove the second one's
    // file.
    std::fs::remove_file(&path).expect("removed");
    let second = at(&path).expect("another socket");
    drop(first);
    assert!(path.exists(), "the second listener's file was removed");
    drop(second);
    assert!(!path.exists(), "its own file remains");
    std::fs::write(&path, "precious").expect("written");
    assert_eq!(refused(&path), 98);
    assert_eq!(std::fs::read(&path).expect("read"), b"precious");
}

#[test]
fn server_names_the_host_of_a_client_and_ignores_other_text() {
    let seen = |host: &str| {
        let all = ClientAuth::Connection(Rights::all());
        let mut listener = listener(all, offer(), LinkLimits::default(), clock());
        let outside = (clock(), LinkLimits::default());
        let mut progress =
            connect(listener.address(), offer(), None, Some(host), &SystemEntropy, outside, &[])
                .expect("a socket")
                .poll();
        let mut arrivals = Vec::new();
        while arrivals.is_empty() {
            listener.wait(&mut arrivals, Duration::from_millis(10));
            if let HandshakeProgress::Waiting(pending) = progress {
                progress = pending.wait(Duration::from_millis(10));
            }
        }
        match arrivals.pop() {
            Some(AdmissionResult::Link(link)) => link.params().peer.clone(),
            _ => panic!("refused"),
        }
    };
    assert!(seen("node-7.example").ends_with(" host=node-7.example"), "{}", seen("node-7.example"));
    for text in ["", "a b", "a\nb"] {
        assert!(!seen(text).contains("host="), "{}", seen(text));
    }
}
