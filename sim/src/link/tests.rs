use std::collections::BTreeSet;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Clock;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::link::{Link, LinkEvent, Push};

use super::*;
use crate::entropy::SplitMix64;
use crate::runtime::SimRuntime;

struct TestEnv {
    clock: SimClock,
    net: SimNet,
    client: SimLink,
    server: SimLink,
}

fn world(seed: u64) -> TestEnv {
    let clock = SimClock::new();
    let runtime: Arc<dyn Runtime> = Arc::new(SimRuntime::new(clock.clone(), seed));
    let (net, client, server) = SimNet::new(seed, clock.clone(), &runtime, LinkLimits::default());
    TestEnv { clock, net, client, server }
}

/// The bytes of an operation's item; they differ between operations.
fn content(op: u64, item: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::new(op << 8 | u64::from(item)).fill(&mut bytes);
    bytes
}

fn memory(bytes: &[u8]) -> Vec<Part> {
    let mut buffer = AlignedBuf::new(bytes.len()).expect("memory");
    buffer.copy_from_slice(bytes);
    let (first, rest) = buffer.into_part().split(bytes.len() / 3);
    vec![first, rest]
}

fn concat_bytes(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
}

fn request(op: u64) -> Frame {
    Frame::new(FrameKind::Request, OpId(op), vec![1])
}

fn outcome(op: u64) -> Frame {
    Frame::new(FrameKind::Outcome, OpId(op), vec![2])
}

fn push(op: u64, item: u32, bytes: &[u8]) -> Push {
    Push { op: OpId(op), item, offset: 0, parts: memory(bytes), token: op, allow_ref: true }
}

/// The events as text, without memory.
fn event_names(events: &[LinkEvent]) -> Vec<String> {
    let line = |event: &LinkEvent| match event {
        LinkEvent::Frame(frame) => format!("{:?} {}", frame.kind, frame.op.0),
        LinkEvent::Received { op, item, .. } => format!("landed {} {item}", op.0),
        LinkEvent::ReceivedRef { op, item, .. } => format!("shown {} {item}", op.0),
        LinkEvent::Pushed { token, .. } => format!("pushed {token}"),
        LinkEvent::Retracted { op, item, .. } => format!("retracted {} {item}", op.0),
        LinkEvent::Ended(why) => format!("closed: {why}"),
    };
    events.iter().map(line).collect()
}

/// Polls both ends for a second of simulated time.
fn settle(world: &mut TestEnv) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        world.client.poll(&mut at_client);
        world.server.poll(&mut at_server);
        world.clock.advance(Duration::from_millis(1));
    }
    (at_client, at_server)
}

#[test]
fn link_without_faults_delivers_in_order() {
    let mut world = world(1);
    let bytes = content(1, 0, 100_000);
    world.client.expose(OpId(1), 0, 0, memory(&vec![0; bytes.len()])).expect("room");
    world.client.send(request(1)).expect("room");
    let (_, request) = settle(&mut world);
    assert_eq!(event_names(&request), ["Request 1"]);
    world.server.push(push(1, 0, &bytes)).expect("room");
    world.server.send(outcome(1)).expect("room");
    let (got, sent) = settle(&mut world);
    assert_eq!(
        (event_names(&got), event_names(&sent)),
        (vec!["landed 1 0".into(), "Outcome 1".into()], vec!["pushed 1".to_owned()])
    );
    let LinkEvent::Received { parts, .. } = &got[0] else { panic!("{got:?}") };
    assert!(concat_bytes(parts) == bytes);
    world.server.close();
    let (got, sent) = settle(&mut world);
    assert_eq!(
        (event_names(&got), event_names(&sent)),
        (vec!["closed: closed by the peer".into()], vec!["closed: closed by this side".to_owned()])
    );
}

#[test]
fn half_open_partitioned_and_cut_links_report_their_reason() {
    let dead = LinkLimits::default().dead_after;
    let pending = |world: &mut TestEnv| {
        world.client.expose(OpId(1), 0, 0, memory(&[0; 9])).expect("room");
        world.server.push(push(1, 0, &[7; 9])).expect("room");
    };
    let mut deaf = world(2);
    pending(&mut deaf);
    deaf.net.stop_receiving(LinkRole::Client);
    assert_eq!(event_names(&settle(&mut deaf).0), Vec::<String>::new());
    deaf.clock.advance(dead);
    let (at_client, at_server) = settle(&mut deaf);
    assert_eq!(event_names(&at_client)[0], "retracted 1 0");
    assert!(
        event_names(&at_client)[1].starts_with("closed: nothing was heard of the peer"),
        "{:?}",
        event_names(&at_client)
    );
    assert!(
        event_names(&at_server)[0].starts_with("closed: nothing was heard of the peer"),
        "{:?}",
        event_names(&at_server)
    );

    let mut apart = world(3);
    pending(&mut apart);
    apart.net.partition(dead / 2);
    assert_eq!(event_names(&settle(&mut apart).0), Vec::<String>::new());
    apart.clock.advance(dead / 2);
    assert_eq!(event_names(&settle(&mut apart).0), ["landed 1 0"], "the held packet arrives");

    let mut broken = world(4);
    pending(&mut broken);
    broken.net.cut();
    let (at_client, at_server) = settle(&mut broken);
    assert_eq!(event_names(&at_client), ["retracted 1 0", "closed: the connection ended"]);
    assert_eq!(event_names(&at_server), ["pushed 1", "closed: the connection ended"]);
}

#[test]
fn wait_advances_time_only_to_next_arrival() {
    let mut world = world(5);
    world.server.send(outcome(1)).expect("room");
    let mut events = Vec::new();
    world.client.wait(&mut events, Duration::from_secs(60));
    assert_eq!(event_names(&events), ["Outcome 1"]);
    assert!(world.clock.now().0 <= LinkFaults::default().delay_max.as_nanos() as u64 + 10_000);
    world.client.wait(&mut events, Duration::from_secs(60));
    assert!(world.clock.now().0 >= 60_000_000_000, "nothing came, and all of the time passed");
}

/// The result of a run of one seed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    trace: u64,
    packets: u64,
    exposed: u64,
    landed: u64,
    retracted: u64,
    late: u64,
    connections: u64,
}

/// Gets with retracts at random moments, over a network with all faults.
fn run(seed: u64, steps: u32) -> Tally {
    let mut rng = SplitMix64::new(seed);
    let mut tally = Tally::default();
    let mut op = 0;
    let mut left = steps;
    while left > 0 {
        tally.connections += 1;
        let mut world = world(rng.next_u64());
        world.net.set_faults(LinkFaults {
            delay_max: Duration::from_micros(500),
            drop: 10_000,
            duplicate: 50_000,
            reorder: 200_000,
            cut: 200,
            ..LinkFaults::default()
        });
        let mut open: BTreeSet<u64> = BTreeSet::new();
        let mut ended = false;
        while left > 0 && !ended {
            left -= 1;
            step(&mut world, &mut rng, &mut op, &mut open, &mut tally, &mut ended);
        }
        tally.late += world.client.counts().bytes_late;
        tally.packets += world.net.packets();
        tally.trace ^= world.net.trace().rotate_left(tally.connections as u32);
        world.client.close();
        let mut events = Vec::new();
        world.client.poll(&mut events);
        check(&events, &mut tally, &mut ended);
    }
    tally
}

fn step(
    world: &mut TestEnv,
    rng: &mut SplitMix64,
    op: &mut u64,
    open: &mut BTreeSet<u64>,
    tally: &mut Tally,
    ended: &mut bool,
) {
    match rng.below(4) {
        0 => {
            *op += 1;
            for item in 0..2 {
                let room = world.client.expose(OpId(*op), item, 0, memory(&vec![0; length(*op)]));
                tally.exposed += u64::from(room.is_ok());
            }
            open.insert(*op);
            let _ = world.client.send(request(*op));
        }
        1 => {
            if let Some(given_up) = open.iter().copied().nth(rng.below(8) as usize) {
                open.remove(&given_up);
                world.client.retract(OpId(given_up));
            }
        }
        _ => world.clock.advance(Duration::from_micros(rng.below(400))),
    }
    let mut events = Vec::new();
    world.server.poll(&mut events);
    for event in &events {
        if let LinkEvent::Frame(frame) = event {
            for item in 0..2 {
                let _ = world.server.push(push(
                    frame.op.0,
                    item,
                    &content(frame.op.0, item, length(frame.op.0)),
                ));
            }
            let _ = world.server.send(outcome(frame.op.0));
        }
    }
    events.clear();
    world.client.poll(&mut events);
    check(&events, tally, ended);
}

fn length(op: u64) -> usize {
    3 + (op as usize * 7919) % (3 * PACKET_BYTES)
}

/// Returned memory has the bytes of its own operation, or none.
fn check(events: &[LinkEvent], tally: &mut Tally, ended: &mut bool) {
    for event in events {
        assert!(!*ended, "an event after the last: {event:?}");
        match event {
            LinkEvent::Received { op, item, parts, .. } => {
                tally.landed += 1;
                assert!(
                    concat_bytes(parts) == content(op.0, *item, length(op.0)),
                    "wrong bytes landed {op} item={item}"
                );
            }
            LinkEvent::Retracted { op, item, parts, .. } => {
                tally.retracted += 1;
                let own = content(op.0, *item, length(op.0));
                let clean = concat_bytes(parts)
                    .iter()
                    .zip(&own)
                    .all(|(byte, own)| *byte == 0 || byte == own);
                assert!(clean, "another operation's bytes landed {op} item={item}");
            }
            LinkEvent::Ended(_) => *ended = true,
            LinkEvent::ReceivedRef { .. } => panic!("this test registers no memory"),
            LinkEvent::Frame(_) | LinkEvent::Pushed { .. } => {}
        }
    }
}

/// `TEST_PAGELITH_LINK_STEPS=700000` runs a million packets.
#[test]
fn exposed_memory_returns_once_with_own_bytes_or_none() {
    let steps = std::env::var("TEST_PAGELITH_LINK_STEPS").ok().and_then(|text| text.parse().ok());
    let tally = run(7, steps.unwrap_or(20_000));
    assert_eq!(tally.exposed, tally.landed + tally.retracted, "{tally:?}");
    let all_kinds =
        tally.landed > 500 && tally.retracted > 500 && tally.late > 0 && tally.connections > 1;
    assert!(all_kinds, "a run that meets nothing shows nothing: {tally:?}");
}

#[test]
fn link_same_seed_gives_same_trace() {
    assert_eq!(run(11, 3000), run(11, 3000));
    assert_ne!(run(11, 3000).trace, run(12, 3000).trace);
}
