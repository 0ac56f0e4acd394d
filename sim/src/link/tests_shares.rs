use std::os::fd::AsFd;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::shm::{Region, View};
use pagelith_layouts::ids::OpId;
use pagelith_transport::link::{Event, Link, Push};
use pagelith_transport::shown::LinkRegions;

use super::*;
use crate::runtime::SimRuntime;

const LEN: usize = 9000;

struct World {
    clock: SimClock,
    net: SimNet,
    client: SimLink,
    server: SimLink,
}

/// Two ends on one host. The server shares `region`.
fn world(region: &Arc<Region>) -> World {
    let clock = SimClock::new();
    let runtime: Arc<dyn Runtime> = Arc::new(SimRuntime::new(clock.clone(), 1));
    let (net, client, server) = SimNet::new(1, clock.clone(), &runtime, Limits::default());
    let view =
        View::of(region.as_fd().try_clone_to_owned().expect("a descriptor")).expect("memory");
    let own = LinkRegions { own: vec![region.clone()], ..LinkRegions::default() };
    let theirs = LinkRegions { theirs: vec![Arc::new(view)], ..LinkRegions::default() };
    World { clock, net, client: client.sharing(theirs), server: server.sharing(own) }
}

fn shown(byte: u8) -> (Part, Arc<Region>) {
    let (mut buffers, region) = AlignedBuf::shown(1, LEN).expect("memory");
    buffers[0].fill(byte);
    (buffers.remove(0).into_part(), region)
}

fn memory(len: usize) -> Vec<Part> {
    vec![AlignedBuf::new(len).expect("memory").into_part()]
}

impl World {
    /// Polls this end until an event arrives, or for a tenth of a second.
    fn poll(&mut self, side: Side) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..100 {
            match side {
                Side::Client => self.client.poll(&mut events),
                Side::Server => self.server.poll(&mut events),
            }
            if !events.is_empty() {
                break;
            }
            self.clock.advance(Duration::from_millis(1));
        }
        events
    }

    fn push(&mut self, part: Part) {
        let (op, item, offset, parts, token, may_show) = (OpId(1), 0, 0, vec![part], 7, true);
        self.client.expose(op, item, offset, memory(LEN)).expect("room");
        self.server.push(Push { op, item, offset, parts, token, may_show }).expect("room");
    }
}

#[test]
fn referenced_memory_returns_after_release() {
    let (part, region) = shown(3);
    let mut world = world(&region);
    assert!(world.server.shows(std::slice::from_ref(&part)) && !world.client.shows(&memory(5)));
    world.push(part);
    assert!(world.poll(Side::Server).is_empty(), "it is not taken");
    let Some(Event::Shown { shown, parts, .. }) = world.poll(Side::Client).pop() else {
        panic!("not shown")
    };
    let mut seen = vec![0; LEN];
    shown.copy_out(0, &mut seen);
    assert!(seen == vec![3; LEN] && parts[0].bytes() == vec![0; LEN], "and nothing landed");
    world.client.took(shown);
    let back = world.poll(Side::Server).pop();
    assert!(matches!(back, Some(Event::Pushed { token: 7, sent: true, .. })), "{back:?}");
    let NetStats { shown, looked_late, broken, .. } = world.net.net_stats();
    assert_eq!((shown, looked_late, broken), (1, 0, 0));
}

#[test]
fn retracted_reference_read_late_is_counted() {
    let (part, region) = shown(3);
    let mut world = world(&region);
    world.push(part);
    world.server.retract(OpId(1));
    let back = world.poll(Side::Server).pop();
    assert!(matches!(back, Some(Event::Pushed { sent: false, .. })), "{back:?}");
    assert!(matches!(world.poll(Side::Client).pop(), Some(Event::Shown { .. })));
    assert_eq!((world.net.net_stats().looked_late, world.net.net_stats().broken), (1, 0));
}

#[test]
fn reference_without_exposed_memory_is_not_read() {
    let (part, region) = shown(3);
    let mut world = world(&region);
    world.push(part);
    world.client.retract(OpId(1));
    assert!(matches!(world.poll(Side::Client).pop(), Some(Event::Retracted { .. })));
    assert!(world.poll(Side::Client).is_empty());
    let back = world.poll(Side::Server).pop();
    assert!(matches!(back, Some(Event::Pushed { sent: true, .. })), "{back:?}");
    assert_eq!(world.net.net_stats().late, 1);
}
