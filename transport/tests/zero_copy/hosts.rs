//! Real sockets: over loopback, where the kernel copies, and between two hosts.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemEntropy;
use pagelith_layouts::ids::OpId;
use pagelith_transport::capability::Offer;
use pagelith_transport::limits::Limits;
use pagelith_transport::link::{Event, Link};
use pagelith_transport::pending::Progress;
use pagelith_transport::socket::{Arrival, Listen, Listener, SocketLink, connect};

use crate::common::*;
use crate::network::{End, Network};

/// Bytes of a push, each its own memory; how many.
const OBJECT: usize = 128 << 10;
const OBJECTS: u64 = 128;
/// Most waits for what comes in some of them, a millisecond each at most.
const ROUNDS_MAX: u32 = 10_000;

/// A server that sends and a client that is sent to. Time is the test's.
pub struct Ends {
    pub server: SocketLink,
    pub client: SocketLink,
    clock: Arc<HandClock>,
    network: Option<Network>,
}

fn within_host() -> Limits {
    Limits { zero_copy_within_host: true, ..Limits::default() }
}

/// The server on the first host and the client on the second, or both on this one.
pub fn linked(network: Option<Network>, limits: Limits) -> Ends {
    let offer = Offer { data_bytes_max: 4 << 20, ..offer() };
    let clock = Arc::new(HandClock::default());
    let address = if network.is_some() { "tcp:10.78.0.1:7411" } else { "tcp:127.0.0.1:0" };
    let address = address.parse().expect("an address");
    let listen = Listen { address, admission: keys(1), beyond_this_host: network.is_some() };
    let listening = || {
        let (entropy, clock) = (Arc::new(SystemEntropy), clock.clone());
        Listener::new(&listen, offer, entropy, clock, limits).expect("listens")
    };
    let mut listener = match &network {
        Some(network) => network.inside(0, listening),
        None => listening(),
    };
    let to = listener.address().clone();
    let connecting = || {
        let clock: Arc<dyn Clock> = clock.clone();
        connect(&to, offer, Some(key(1)), &SystemEntropy, clock, limits, &[]).expect("a socket")
    };
    let mut progress = match &network {
        Some(network) => network.inside(1, connecting).poll(),
        None => connecting().poll(),
    };
    let mut arrivals = Vec::new();
    for _ in 0..1000 {
        listener.poll(&mut arrivals);
        progress = match progress {
            Progress::Waiting(pending) => pending.wait(Duration::from_millis(10)),
            over => over,
        };
        if !matches!(progress, Progress::Waiting(_)) && !arrivals.is_empty() {
            break;
        }
    }
    match (progress, arrivals.pop()) {
        (Progress::Ready(client), Some(Arrival::Link(server))) => {
            Ends { server: *server, client: *client, clock, network }
        }
        _ => panic!("they do not meet"),
    }
}

impl Ends {
    /// Where the bytes of each object go.
    fn expose(&mut self) {
        for op in 1..=OBJECTS {
            self.client.expose(OpId(op), 0, 0, scatter(&vec![0; OBJECT], &[])).expect("room");
        }
    }

    fn push(&mut self) {
        for op in 1..=OBJECTS {
            self.server.push(push(op, 0, 0, &bytes(op, OBJECT))).expect("room");
        }
    }

    /// Poll the server alone until nothing moves; who has memory back writes into it at once. How many have.
    fn send_alone(&mut self) -> usize {
        let (mut back, mut quiet) = (0, 0);
        while quiet < 100 {
            let (before, mut events) = (self.server.counts().bytes_out, Vec::new());
            self.server.wait(&mut events, Duration::from_millis(1));
            back += events.len();
            scribble(events);
            quiet = if self.server.counts().bytes_out == before { quiet + 1 } else { 0 };
        }
        back
    }

    /// Poll both until everything is there; all of it is as it was when it was pushed.
    fn receive(&mut self, mut back: usize) {
        let (mut got, mut landed) = (Vec::new(), 0);
        for round in 0.. {
            if landed == OBJECTS && back == OBJECTS as usize {
                return;
            }
            assert!(round < ROUNDS_MAX, "it does not come back={back} landed={landed}");
            let mut events = Vec::new();
            self.server.wait(&mut events, Duration::from_millis(1));
            back += events.iter().filter(|event| matches!(event, Event::Pushed { sent: true, .. })).count();
            assert!(!events.iter().any(|event| matches!(event, Event::Closed(_))), "{:?}", told(&events));
            scribble(events);
            self.client.poll(&mut got);
            for event in got.drain(..) {
                let Event::Landed { op, parts, .. } = event else { panic!("{event:?}") };
                assert!(gathered(&parts) == bytes(op.0, OBJECT), "what was sent has changed op={}", op.0);
                landed += 1;
            }
        }
    }
}

fn until_closed(link: &mut SocketLink, events: &mut Vec<Event>) {
    for _ in 0..ROUNDS_MAX {
        link.wait(events, Duration::from_millis(1));
        if matches!(events.last(), Some(Event::Closed(_))) {
            return;
        }
    }
    panic!("it does not end: {:?}", told(events));
}

/// Write into memory that came back: whoever reads it still sends this.
fn scribble(events: Vec<Event>) {
    for event in events {
        let Event::Pushed { parts, .. } = event else { continue };
        for mut part in parts {
            part.bytes_mut().expect("its owner's").fill(0xee);
        }
    }
}

/// The networks that there are here, and loopback.
fn everywhere(test: &str) -> Vec<Option<Network>> {
    let networks = [End::Plain, End::Program].into_iter().filter_map(|end| Network::of(test, end));
    std::iter::once(None).chain(networks.map(Some)).collect()
}

/// The peer reads nothing at first, so that the kernel has much to send when the first memory comes back.
#[test]
fn memory_that_came_back_is_its_owners() {
    for network in everywhere("owners") {
        let limits = if network.is_some() { Limits::default() } else { within_host() };
        let mut ends = linked(network, limits);
        ends.expose();
        ends.push();
        let back = ends.send_alone();
        assert!(ends.server.counts().bytes_zero_copy > 0, "{:?}", ends.server.counts());
        ends.receive(back);
    }
}

#[test]
fn a_peer_on_this_host_is_sent_copies() {
    let mut ends = linked(None, Limits::default());
    ends.expose();
    ends.push();
    ends.receive(0);
    assert_eq!(ends.server.counts().bytes_zero_copy, 0);
}

#[test]
fn zero_copy_goes_on_until_the_kernel_says_that_it_copies() {
    let total = OBJECTS * OBJECT as u64;
    for end in [End::Plain, End::Program] {
        let Some(network) = Network::of("copies", end) else { return };
        let mut ends = linked(Some(network), Limits::default());
        for round in 0..4 {
            ends.expose();
            ends.push();
            ends.receive(0);
            let counts = ends.server.counts();
            let share = counts.bytes_zero_copy as f64 / (total * (round + 1)) as f64;
            // What is left of an object after a send that was cut short is copied if it is short.
            let goes_on = share > 0.7;
            assert!(counts.bytes_zero_copy > 0, "{counts:?}");
            assert!(goes_on == (end == End::Program) || round == 0, "{end:?} round={round} {counts:?}");
        }
    }
}

/// The peer reads nothing, and the server gives up: memory is back at once or when the connection has been cut.
#[test]
fn a_peer_that_never_reads_keeps_memory_no_longer_than_its_link() {
    for network in everywhere("never") {
        let limits = if network.is_some() { Limits::default() } else { within_host() };
        let mut ends = linked(network, limits);
        ends.push();
        let mut back = ends.send_alone();
        assert!(back < OBJECTS as usize, "the peer's memory is larger than thought");
        (1..=OBJECTS).for_each(|op| ends.server.retract(OpId(op)));
        let mut events = Vec::new();
        ends.server.poll(&mut events);
        back += events.len();
        assert!(back < OBJECTS as usize, "nothing is read: {:?}", told(&events));
        ends.clock.pass(limits.given_up_max);
        until_closed(&mut ends.server, &mut events);
        let told = told(&events);
        assert_eq!(
            told.last().map(String::as_str),
            Some("closed: what was sent was given up and is not acknowledged waited_ms=100")
        );
        let pushed = told.iter().filter(|told| told.starts_with("pushed")).count();
        assert!(pushed > 0 && told.len() == pushed + 1, "{told:?}");
        // The peer finds out.
        until_closed(&mut ends.client, &mut Vec::new());
    }
}

/// The cable is pulled out while bytes are on their way: the peer is dead in time, and the memory back before the link's end.
#[test]
fn a_peer_that_is_cut_off_keeps_nothing() {
    for end in [End::Plain, End::Program] {
        let Some(network) = Network::of("cut", end) else { return };
        let mut ends = linked(Some(network), Limits::default());
        ends.network.as_ref().expect("a network").pull_out();
        ends.push();
        assert_eq!(ends.send_alone(), 0, "somebody acknowledged what cannot have arrived");
        assert!(ends.server.counts().bytes_zero_copy > 0);
        let mut events = Vec::new();
        ends.clock.pass(Limits::default().ping_after);
        ends.server.poll(&mut events);
        ends.clock.pass(Limits::default().dead_after);
        until_closed(&mut ends.server, &mut events);
        let told = told(&events);
        assert_eq!(
            (told.len() as u64, &told[told.len() - 1][..]),
            (OBJECTS + 1, "closed: nothing was heard of the peer silent_ms=8000")
        );
    }
}
