//! What sends from where the bytes lie cost beside copies: processor time of both ends for each GB, in turns. Run alone:
//! `cargo test --release -p pagelith-transport --test zero_copy -- --ignored --nocapture cost`.

use std::io::Write as _;
use std::time::Duration;

use pagelith_layouts::ids::OpId;
use pagelith_transport::limits::Limits;
use pagelith_transport::link::{Event, Link, Push};
use pagelith_transport::socket::SocketLink;
use rustix::time::{ClockId, clock_gettime};

use crate::common::*;
use crate::hosts::linked;
use crate::network::{End, Network};

const OBJECT: usize = 1 << 20;
/// Objects of a turn, and how many are on their way at a time.
const OBJECTS: u64 = 2048;
const AHEAD: u64 = 32;
const TURNS: usize = 7;
const STEP: Duration = Duration::from_millis(10);

/// Seconds of a clock.
fn seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn send(server: &mut SocketLink) -> f64 {
    let began = seconds(ClockId::ThreadCPUTime);
    let (mut next, mut back, mut events) = (AHEAD, 0, Vec::new());
    for op in 1..=AHEAD {
        server.push(push(op, 0, 0, &bytes(op, OBJECT))).expect("room");
    }
    while back < OBJECTS {
        server.wait(&mut events, STEP);
        for event in events.drain(..) {
            let Event::Pushed { parts, .. } = event else { panic!("{event:?}") };
            back += 1;
            if next < OBJECTS {
                next += 1;
                let again = Push { op: OpId(next), item: 0, offset: 0, parts, token: 0, may_show: false };
                server.push(again).expect("room");
            }
        }
    }
    seconds(ClockId::ThreadCPUTime) - began
}

fn receive(client: &mut SocketLink) -> f64 {
    let began = seconds(ClockId::ThreadCPUTime);
    let (mut next, mut landed, mut events) = (2 * AHEAD, 0, Vec::new());
    while landed < OBJECTS {
        client.wait(&mut events, STEP);
        for event in events.drain(..) {
            let Event::Landed { parts, .. } = event else { panic!("{event:?}") };
            landed += 1;
            if next < OBJECTS {
                next += 1;
                client.expose(OpId(next), 0, 0, parts).expect("room");
            }
        }
    }
    seconds(ClockId::ThreadCPUTime) - began
}

/// Processor time of sender and receiver and time that passed, in seconds a GB; and the share that went without a copy.
fn turn(network: Option<Network>, limits: Limits) -> [f64; 4] {
    let mut ends = linked(network, limits);
    for op in 1..=2 * AHEAD {
        ends.client.expose(OpId(op), 0, 0, scatter(&vec![0; OBJECT], &[])).expect("room");
    }
    let began = seconds(ClockId::Monotonic);
    let (client, server) = (&mut ends.client, &mut ends.server);
    let (received, sent) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(client));
        let sent = send(server);
        (receiver.join().expect("no panic"), sent)
    });
    let total = OBJECTS as f64 * OBJECT as f64;
    let passed = seconds(ClockId::Monotonic) - began;
    let share = ends.server.counts().bytes_zero_copy as f64 / total;
    [sent * 1e9 / total, received * 1e9 / total, passed * 1e9 / total, share]
}

#[test]
#[ignore = "measures; takes a minute"]
fn cost() {
    let with = Limits { zero_copy_within_host: true, ..Limits::default() };
    let without = Limits { zero_copy_min: usize::MAX, ..Limits::default() };
    for end in [None, Some(End::Plain), Some(End::Program)] {
        let mut ratios = Vec::new();
        for _ in 0..TURNS {
            let network = || end.and_then(|end| Network::of("cost", end));
            let (zero, plain) = (turn(network(), with), turn(network(), without));
            ratios.push((
                zero[0] / plain[0],
                (zero[0] + zero[1]) / (plain[0] + plain[1]),
                zero[2] / plain[2],
            ));
            let _ = writeln!(
                std::io::stderr(),
                "{end:?} s/GB sender, receiver, wall; share: zero copy {zero:.3?} copies {plain:.3?}"
            );
        }
        let all = |of: fn(&(f64, f64, f64)) -> f64| {
            let mut all: Vec<f64> = ratios.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            (all[0], all[TURNS / 2], all[TURNS - 1])
        };
        let (sender, both, wall) = (all(|r| r.0), all(|r| r.1), all(|r| r.2));
        let _ = writeln!(
            std::io::stderr(),
            "{end:?} zero copy / copies (least, median, most): sender {sender:.2?} both {both:.2?} wall {wall:.2?}"
        );
    }
}
