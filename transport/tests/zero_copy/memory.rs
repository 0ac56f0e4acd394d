//! What comes back when, by a kernel that the test is.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_transport::limits::Limits;
use pagelith_transport::link::{Event, Link, Push};
use proptest::prelude::*;

use crate::common::*;
use crate::kernel::*;

#[test]
fn memory_comes_back_when_the_kernel_says_so_in_any_order() {
    let mut watched = watched(usize::MAX);
    for op in 1..=4 {
        watched.client.push(push(op, 0, 0, &[op as u8; 100])).expect("room");
    }
    watched.poll();
    assert_eq!((watched.told(), look(&watched.kernel).sends), (vec![], 4), "sent, and read still");
    assert_eq!(watched.client.counts().bytes_out, 400);
    watched.complete(1, 1);
    assert_eq!(watched.told(), ["pushed 200 true"]);
    watched.complete(2, 3);
    assert_eq!(watched.told(), ["pushed 300 true", "pushed 400 true"]);
    let room = watched.client.room().pushes;
    watched.complete(0, 0);
    assert_eq!((watched.told(), watched.client.room().pushes), (vec!["pushed 100 true".into()], room + 1));
    assert_eq!(watched.client.counts().bytes_zero_copy, 400);
}

/// A wait ends with the completion, though nothing arrives.
#[test]
fn a_wait_ends_with_what_is_not_read_any_more() {
    let mut watched = watched(usize::MAX);
    watched.client.push(push(1, 0, 0, &[1; 100])).expect("room");
    watched.poll();
    look(&watched.kernel).complete(0, 0);
    let mut events = Vec::new();
    watched.client.wait(&mut events, Duration::from_secs(1));
    assert_eq!(told(&events), ["pushed 100 true"]);
}

/// What is short is copied and back at once; heads are written over by the next and never read later.
#[test]
fn heads_and_what_is_short_are_copied() {
    let mut watched = watched(usize::MAX);
    let pushes: Vec<Push> =
        (1..=5).map(|op| push(op, 0, 0, &vec![7; [MIN - 1, MIN, 300, 1, 90][op as usize - 1]])).collect();
    let memory: Vec<Range<usize>> =
        pushes.iter().flat_map(|push| push.parts.iter().map(|p| p.addr()..p.addr() + p.len())).collect();
    for push in pushes {
        watched.client.push(push).expect("room");
    }
    watched.poll();
    assert_eq!(watched.told(), ["pushed 100 true", "pushed 400 true"]);
    let kernel = look(&watched.kernel);
    assert_eq!(kernel.sends, 3);
    for read in kernel.reads.values().flatten() {
        let inside = memory.iter().any(|part| part.start <= read.start && read.end <= part.end);
        assert!(inside, "what is no push's memory is read read={read:?}");
    }
}

/// Given up while it is read: what was not sent yet is not sent, the frame is finished from a copy, and the memory is back when the
/// kernel says so. Nothing else on the link is disturbed.
#[test]
fn what_is_given_up_is_back_when_it_is_not_read() {
    let mut watched = watched(usize::MAX);
    lock(&watched.way).most = 64 + 60;
    for (op, item) in [(1, 0), (1, 1), (2, 0)] {
        watched.client.push(push(op, item, 0, &bytes(op * 10 + u64::from(item), 100))).expect("room");
    }
    watched.poll();
    watched.client.retract(OpId(1));
    watched.poll();
    assert_eq!(watched.told(), ["pushed 101 false"], "what the kernel does not have is back");
    lock(&watched.way).most = 0;
    for (op, item) in [(1, 0), (2, 0)] {
        watched.server.expose(OpId(op), item, 0, scatter(&[0; 100], &[])).expect("room");
    }
    let mut got = Vec::new();
    for _ in 0..8 {
        watched.poll();
        watched.server.poll(&mut got);
    }
    assert_eq!(handed(&got, (1, 0)), Some(bytes(10, 100)));
    assert_eq!(handed(&got, (2, 0)), Some(bytes(20, 100)));
    watched.complete(0, 0);
    assert_eq!(watched.told(), ["pushed 100 false"]);
    watched.complete(1, 1);
    assert_eq!(watched.told(), ["pushed 200 true"]);
    watched.clock.pass(Limits::default().given_up_max);
    watched.poll();
    assert!(!watched.is_closed(), "nothing is waited for any more");
}

/// A peer that acknowledges nothing: the connection is cut when its time is up, and what a device has in its hands is waited for.
#[test]
fn what_is_given_up_and_not_acknowledged_ends_the_link() {
    for sent in [true, false] {
        let mut watched = watched(usize::MAX);
        lock(&watched.way).most = if sent { 0 } else { 64 + 60 };
        watched.client.push(push(1, 0, 0, &[1; 100])).expect("room");
        watched.client.push(push(2, 0, 0, &[2; 100])).expect("room");
        watched.poll();
        watched.client.retract(OpId(1));
        watched.poll();
        watched.clock.pass(Limits::default().given_up_max - Duration::from_millis(1));
        assert!(watched.client.due() <= Duration::from_millis(1), "nobody would look in time");
        watched.poll();
        assert!(watched.told().is_empty() && !look(&watched.kernel).aborted, "sent={sent}");
        watched.clock.pass(Duration::from_millis(1));
        watched.poll();
        let back = if sent { vec![] } else { vec!["pushed 200 false".to_owned()] };
        assert_eq!((watched.told(), look(&watched.kernel).aborted), (back, true), "sent={sent}");
        let room = watched.client.room();
        assert_eq!(
            (room.pushes, room.frames, watched.client.push(push(3, 0, 0, &[1])).is_err()),
            (0, 0, true)
        );
        look(&watched.kernel).complete_all();
        watched.poll();
        let told = watched.told();
        assert_eq!(told[0], format!("pushed 100 {sent}"));
        assert_eq!(
            told.last().expect("an end"),
            "closed: what was sent was given up and is not acknowledged waited_ms=100"
        );
        watched.poll();
        assert!(watched.told().is_empty(), "closed is the last event");
    }
}

/// Ended by this side: the peer has a while to take what was sent; then the connection is cut.
#[test]
fn a_link_that_is_closed_lets_the_peer_take_what_was_sent() {
    for takes in [true, false] {
        let mut watched = watched(usize::MAX);
        watched.client.push(push(1, 0, 0, &[1; 100])).expect("room");
        watched.poll();
        watched.client.close();
        watched.poll();
        {
            let mut kernel = look(&watched.kernel);
            kernel.idle_device = true;
            assert!(kernel.finished && !kernel.aborted, "what was sent is lost");
            if takes {
                kernel.complete_all();
            }
        }
        assert!(watched.told().is_empty());
        watched.clock.pass(Limits::default().given_up_max);
        watched.poll();
        assert_eq!(watched.told(), ["pushed 100 true", "closed: closed by this side"]);
        assert_eq!(look(&watched.kernel).aborted, !takes);
    }
}

/// A peer that is dead, or has gone, or breaks the protocol: the connection is cut at once.
#[test]
fn any_other_end_cuts_the_connection() {
    let ends: [fn(&mut Watched); 3] = [
        |watched| {
            watched.clock.pass(Limits::default().ping_after);
            watched.poll();
            watched.clock.pass(Limits::default().dead_after);
        },
        |watched| watched.server.close(),
        |watched| lock(&watched.server.stream().expect("open").writes).bytes.extend([0xff; 64]),
    ];
    for (i, end) in ends.into_iter().enumerate() {
        let mut watched = watched(usize::MAX);
        watched.client.push(push(1, 0, 0, &[1; 100])).expect("room");
        watched.poll();
        end(&mut watched);
        watched.poll();
        assert!(watched.told().is_empty() && look(&watched.kernel).aborted, "i={i}");
        look(&watched.kernel).complete_all();
        watched.poll();
        assert_eq!(watched.told().len(), 2, "i={i}");
    }
}

/// Memory that is read when its link is dropped is waited for, and leaked if it is read even then.
#[test]
fn a_link_that_is_dropped_drops_no_memory_that_is_read() {
    for device in [true, false] {
        let mut watched = watched(usize::MAX);
        look(&watched.kernel).idle_device = !device;
        let memory: Arc<[u8]> = vec![5; 100].into();
        let parts = vec![Part::from_shared(memory.clone())];
        watched
            .client
            .push(Push { op: OpId(1), item: 0, offset: 0, parts, token: 0, may_show: false })
            .expect("room");
        watched.poll();
        drop(watched.client);
        let kernel = look(&watched.kernel);
        assert!(kernel.finished && kernel.aborted, "device={device}");
        assert_eq!((Arc::strong_count(&memory) > 1, !kernel.reads.is_empty()), (device, device));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Sends,
    Reads,
    Complete { from: u32, length: u32 },
    GiveUp(u64),
    Room(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..400).prop_map(Step::Push),
        4 => Just(Step::Sends),
        3 => Just(Step::Reads),
        4 => (0u32..30, 1u32..6).prop_map(|(from, length)| Step::Complete { from, length }),
        1 => (0u64..20).prop_map(Step::GiveUp),
        2 => (0usize..300).prop_map(Step::Room),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any order of sends, completions and hand-backs, in calls of any length: nothing comes back while it is read (`Watched::poll`
    /// looks), everything comes back once, and what was not given up arrives.
    #[test]
    fn nothing_comes_back_while_it_is_read(calls in 1usize..200, steps in prop::collection::vec(step(), 1..80)) {
        let mut watched = watched(calls);
        let (mut ops, mut given_up, mut got) = (0u64, std::collections::BTreeSet::new(), Vec::new());
        for step in steps {
            match step {
                Step::Push(length) => {
                    ops += 1;
                    watched.client.push(push(ops, 0, 0, &bytes(ops, length))).expect("room");
                    watched.server.expose(OpId(ops), 0, 0, scatter(&vec![0; length], &[])).expect("room");
                }
                Step::Sends => watched.poll(),
                Step::Reads => watched.server.poll(&mut got),
                Step::Complete { from, length } => watched.complete(from, from + length - 1),
                Step::GiveUp(op) => {
                    watched.client.retract(OpId(op));
                    given_up.insert(op);
                }
                Step::Room(most) => lock(&watched.way).most = most + 1,
            }
        }
        lock(&watched.way).most = 0;
        for _ in 0..8 + ops * 500 / calls as u64 {
            watched.poll();
            watched.server.poll(&mut got);
            look(&watched.kernel).complete_all();
        }
        watched.poll();
        let mut back: Vec<u64> = watched.events.iter().map(|event| match event {
            Event::Pushed { op, .. } => op.0,
            other => panic!("{other:?}"),
        }).collect();
        back.sort_unstable();
        prop_assert_eq!(back, (1..=ops).collect::<Vec<_>>());
        prop_assert_eq!(watched.client.room().pushes, Limits::default().pushes_max);
        for op in (1..=ops).filter(|op| !given_up.contains(op)) {
            let landed = handed(&got, (op, 0)).expect("it arrives");
            prop_assert!(landed == bytes(op, landed.len()), "op={}", op);
        }
    }
}
