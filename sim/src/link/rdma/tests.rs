use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Clock;
use pagelith_io::runtime::Runtime;
use pagelith_io::shm::SharedRegion;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::link_error::LinkError;

use super::{GIVEN_UP_MAX, RdmaFaults, RegisteredRegion};
use crate::clock::SimClock;
use crate::link::{SimLink, SimNet};
use crate::runtime::SimRuntime;

const LEN: usize = 50_000;
const OP: OpId = OpId(1);

struct TestEnv {
    clock: SimClock,
    runtime: SimRuntime,
    net: SimNet,
    client: SimLink,
    server: SimLink,
    region: Arc<SharedRegion>,
    /// A registered buffer of the client.
    buffer: Option<AlignedBuf>,
}

fn world(seed: u64, stall: u32) -> TestEnv {
    let clock = SimClock::new();
    let runtime = SimRuntime::new(clock.clone(), seed);
    let (mut buffers, region) = AlignedBuf::shown(1, LEN).expect("memory");
    let shared: Arc<dyn Runtime> = Arc::new(runtime.clone());
    let faults = RdmaFaults { stall, ..RdmaFaults::default() };
    let setup = (vec![RegisteredRegion::new(region.clone(), u64::MAX)], 0, faults);
    let limits = LinkLimits::default();
    let (net, client, server) = SimNet::with_rdma(seed, clock.clone(), &shared, limits, setup);
    let buffer = buffers.pop();
    TestEnv { clock, runtime, net, client, server, region, buffer }
}

fn frame(kind: FrameKind) -> Frame {
    Frame::new(kind, OP, vec![1])
}

fn buffer(byte: u8) -> Part {
    let mut buffer = AlignedBuf::new(LEN).expect("memory");
    buffer.fill(byte);
    buffer.into_part()
}

fn push(part: Part) -> Push {
    Push { op: OP, item: 0, offset: 0, parts: vec![part], token: 7, allow_ref: true }
}

fn names(events: &[LinkEvent]) -> Vec<&'static str> {
    let name = |event: &LinkEvent| match event {
        LinkEvent::Frame(_) => "frame",
        LinkEvent::Received { .. } => "received",
        LinkEvent::ReceivedRef { .. } => "reference",
        LinkEvent::Pushed { sent: true, .. } => "pushed",
        LinkEvent::Pushed { sent: false, .. } => "flushed",
        LinkEvent::Retracted { .. } => "retracted",
        LinkEvent::Ended(_) => "ended",
    };
    events.iter().map(name).collect()
}

impl TestEnv {
    /// Steps tasks and polls both ends for a time.
    fn settle(&mut self, time: Duration) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
        let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
        let until = self.clock.now().after(time);
        while self.clock.now() < until {
            self.client.poll(&mut at_client);
            self.server.poll(&mut at_server);
            self.runtime.run_for(Duration::from_millis(1));
        }
        (at_client, at_server)
    }

    /// The client exposes its registered buffer and requests an object.
    fn request(&mut self) {
        let part = self.buffer.take().expect("once").into_part();
        self.client.expose(OP, 0, 0, vec![part]).expect("room");
        self.client.send(frame(FrameKind::Request)).expect("room");
        let (at_client, at_server) = self.settle(Duration::from_millis(5));
        assert_eq!((names(&at_client), names(&at_server)), (vec![], vec!["frame"]));
    }

    /// Fills memory that was handed back, and checks that nothing changes it for a second.
    fn assert_untouched(&mut self, events: Vec<LinkEvent>) {
        let mut parts: Vec<Part> = events
            .into_iter()
            .filter_map(|event| match event {
                LinkEvent::Retracted { parts, .. } => Some(parts),
                _ => None,
            })
            .flatten()
            .collect();
        let own = parts[0].bytes_mut().expect("exclusive memory");
        own.fill(0xC3);
        self.runtime.run_for(Duration::from_secs(1));
        assert!(parts[0].bytes().iter().all(|byte| *byte == 0xC3), "written late");
        assert!(self.region.offset_of(parts[0].addr(), LEN).is_some());
    }
}

#[test]
fn get_is_received_with_its_notice_and_before_its_outcome() {
    for seed in 0..20 {
        let mut world = world(seed, 100_000);
        world.request();
        world.server.push(push(buffer(3))).expect("room");
        world.server.send(frame(FrameKind::Outcome)).expect("room");
        let (at_client, at_server) = world.settle(Duration::from_secs(2));
        assert_eq!(names(&at_server), ["pushed"], "seed={seed}");
        assert_eq!(names(&at_client), ["received", "frame"], "seed={seed}");
        let LinkEvent::Received { parts, .. } = &at_client[0] else { panic!("{at_client:?}") };
        assert!(parts[0].bytes().iter().all(|byte| *byte == 3), "seed={seed}");
        let stats = world.net.net_stats().fabric;
        assert_eq!((stats.placed, stats.notices, stats.violations()), (1, 1, 0), "seed={seed}");
    }
}

#[test]
fn memory_outside_the_registered_travels_on_the_stream() {
    let mut world = world(1, 0);
    let (registered, other) = (world.buffer.take().expect("once").into_part(), buffer(0));
    let (half, _) = registered.split(LEN / 2);
    let (rest, _) = other.split(LEN - LEN / 2);
    world.client.expose(OP, 0, 0, vec![half, rest]).expect("room");
    world.client.send(frame(FrameKind::Request)).expect("room");
    world.settle(Duration::from_millis(5));
    world.server.push(push(buffer(5))).expect("room");
    let (at_client, _) = world.settle(Duration::from_millis(50));
    let LinkEvent::Received { parts, .. } = &at_client[0] else { panic!("{at_client:?}") };
    assert!(parts.iter().all(|part| part.bytes().iter().all(|byte| *byte == 5)));
    assert_eq!(world.net.net_stats().fabric.placed, 1, "the half that is registered");
}

#[test]
fn retracted_memory_returns_with_the_outcome() {
    let mut world = world(1, 0);
    world.request();
    world.client.retract(OP);
    let (at_client, _) = world.settle(GIVEN_UP_MAX / 2);
    assert!(at_client.is_empty(), "the server may still write: {at_client:?}");
    world.server.push(push(buffer(3))).expect("room");
    world.server.send(frame(FrameKind::Outcome)).expect("room");
    let (at_client, _) = world.settle(Duration::from_millis(20));
    assert_eq!(names(&at_client), ["frame", "retracted"]);
    world.assert_untouched(at_client);
}

#[test]
fn memory_that_does_not_return_costs_the_queue_pair() {
    for seed in 0..20 {
        let mut world = world(seed, 1_000_000);
        world.request();
        world.server.push(push(buffer(3))).expect("room");
        world.settle(Duration::from_millis(1));
        world.client.retract(OP);
        let (at_client, _) = world.settle(GIVEN_UP_MAX - Duration::from_millis(5));
        assert!(at_client.is_empty(), "seed={seed} {at_client:?}");
        let (at_client, _) = world.settle(Duration::from_millis(20));
        assert_eq!(names(&at_client), ["retracted", "ended"], "seed={seed}");
        assert_eq!(world.net.net_stats().fabric.forced, 1);
        world.assert_untouched(at_client);
    }
}

#[test]
fn bytes_of_a_crashed_server_land_until_the_clients_queue_pair_is_down() {
    let mut landed_late = 0;
    for seed in 0..40 {
        let mut world = world(seed, 0);
        world.request();
        world.server.push(push(buffer(3))).expect("room");
        world.clock.advance(Duration::from_micros(10));
        world.net.crash_server();
        world.net.cut();
        let mut events = Vec::new();
        world.client.poll(&mut events);
        assert!(events.is_empty(), "its queue pair is still up: {events:?}");
        world.client.wait(&mut events, Duration::from_secs(1));
        assert_eq!(names(&events), ["retracted", "ended"], "seed={seed}");
        assert!(matches!(events[1], LinkEvent::Ended(LinkError::Disconnected)), "{events:?}");
        landed_late += world.net.net_stats().fabric.landed_late;
        world.assert_untouched(events);
    }
    assert!(landed_late > 20, "a run that meets nothing shows nothing: {landed_late}");
}

#[test]
fn pushed_memory_of_the_server_returns_with_the_flush() {
    let mut world = world(1, 1_000_000);
    world.request();
    world.server.push(push(buffer(3))).expect("room");
    world.server.close();
    let mut events = Vec::new();
    world.server.poll(&mut events);
    assert!(events.is_empty(), "the device may still read it: {events:?}");
    world.server.wait(&mut events, Duration::from_secs(1));
    let names = names(&events);
    assert!(names == ["flushed", "ended"] || names == ["pushed", "ended"], "{events:?}");
}

#[test]
fn put_is_read_from_registered_memory_and_taken() {
    let mut world = world(1, 0);
    let mut buffer_of_client = world.buffer.take().expect("once");
    buffer_of_client.fill(9);
    world.server.expose(OP, 0, 0, vec![buffer(0)]).expect("room");
    world.client.push(push(buffer_of_client.into_part())).expect("room");
    let (at_client, at_server) = world.settle(Duration::from_millis(20));
    assert_eq!((names(&at_client), names(&at_server)), (vec!["pushed"], vec!["received"]));
    let LinkEvent::Received { parts, .. } = &at_server[0] else { panic!("{at_server:?}") };
    assert!(parts[0].bytes().iter().all(|byte| *byte == 9));
    assert_eq!(world.net.net_stats().fabric.fetched, 1);
}

#[test]
fn memory_of_a_retracted_read_returns_with_its_completion() {
    let mut world = world(1, 1_000_000);
    let buffer_of_client = world.buffer.take().expect("once");
    world.server.expose(OP, 0, 0, vec![buffer(0)]).expect("room");
    world.client.push(push(buffer_of_client.into_part())).expect("room");
    let (_, at_server) = world.settle(Duration::from_millis(2));
    assert!(at_server.is_empty(), "{at_server:?}");
    world.server.retract(OP);
    let (_, at_server) = world.settle(Duration::from_millis(2));
    assert!(at_server.is_empty(), "the device still writes it: {at_server:?}");
    let (_, at_server) = world.settle(Duration::from_secs(3));
    assert_eq!(names(&at_server), ["retracted"]);
}

#[test]
fn dropped_end_waits_until_nothing_can_land() {
    for seed in 0..20 {
        let mut world = world(seed, 1_000_000);
        let address = world.buffer.as_ref().expect("there").as_ptr() as usize;
        world.request();
        world.server.push(push(buffer(3))).expect("room");
        world.settle(Duration::from_millis(1));
        let TestEnv { client, runtime, net, region, .. } = world;
        drop(client);
        let registered = RegisteredRegion::new(region.clone(), u64::MAX);
        let at = region.offset_of(address, LEN).expect("registered");
        let mut before = vec![0; LEN];
        registered.read(at, &mut before);
        runtime.run_for(Duration::from_secs(1));
        let mut after = vec![0; LEN];
        registered.read(at, &mut after);
        assert!(before == after, "seed={seed}: written after the drop");
        assert_eq!(net.net_stats().fabric.leaked, 0);
    }
}
