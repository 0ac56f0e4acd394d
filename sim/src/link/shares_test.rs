use std::os::fd::AsFd;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::shm::{PeerMemory, SharedRegion};
use pagelith_layouts::ids::OpId;
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::shown::LinkRegions;

use super::*;
use crate::runtime::SimRuntime;

const LEN: usize = 9000;

struct TestEnv {
    clock: SimClock,
    net: SimNet,
    client: SimLink,
    server: SimLink,
}

/// Two ends on one host. The server shares `region`.
fn world(region: &Arc<SharedRegion>) -> TestEnv {
    let clock = SimClock::new();
    let runtime: Arc<dyn Runtime> = Arc::new(SimRuntime::new(clock.clone(), 1));
    let (net, client, server) = SimNet::new(1, clock.clone(), &runtime, LinkLimits::default());
    let view =
        PeerMemory::of(region.as_fd().try_clone_to_owned().expect("a descriptor")).expect("memory");
    let own = LinkRegions { own: vec![region.clone()], ..LinkRegions::default() };
    let theirs = LinkRegions { theirs: vec![Arc::new(view)], ..LinkRegions::default() };
    TestEnv { clock, net, client: client.sharing(theirs), server: server.sharing(own) }
}

fn shown(byte: u8) -> (Part, Arc<SharedRegion>) {
    let (mut buffers, region) = AlignedBuf::shown(1, LEN).expect("memory");
    buffers[0].fill(byte);
    (buffers.remove(0).into_part(), region)
}

fn memory(len: usize) -> Vec<Part> {
    vec![AlignedBuf::new(len).expect("memory").into_part()]
}

impl TestEnv {
    /// Polls this end until an event arrives, or for a tenth of a second.
    fn poll(&mut self, side: LinkRole) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        for _ in 0..100 {
            match side {
                LinkRole::Client => self.client.poll(&mut events),
                LinkRole::Server => self.server.poll(&mut events),
            }
            if !events.is_empty() {
                break;
            }
            self.clock.advance(Duration::from_millis(1));
        }
        events
    }

    fn push(&mut self, part: Part) {
        let (op, item, offset, parts, token, allow_ref) = (OpId(1), 0, 0, vec![part], 7, true);
        self.client.expose(op, item, offset, memory(LEN)).expect("room");
        self.server.push(Push { op, item, offset, parts, token, allow_ref }).expect("room");
    }
}

#[test]
fn referenced_memory_returns_after_release() {
    let (part, region) = shown(3);
    let mut world = world(&region);
    assert!(
        world.server.sends_by_ref(std::slice::from_ref(&part))
            && !world.client.sends_by_ref(&memory(5))
    );
    world.push(part);
    assert!(world.poll(LinkRole::Server).is_empty(), "it is not taken");
    let Some(LinkEvent::ReceivedRef { shown, parts, .. }) = world.poll(LinkRole::Client).pop()
    else {
        panic!("not shown")
    };
    let mut seen = vec![0; LEN];
    shown.copy_out(0, &mut seen);
    assert!(seen == vec![3; LEN] && parts[0].bytes() == vec![0; LEN], "and nothing landed");
    world.client.release_ref(shown);
    let back = world.poll(LinkRole::Server).pop();
    assert!(matches!(back, Some(LinkEvent::Pushed { token: 7, sent: true, .. })), "{back:?}");
    let NetStats { shown, looked_late, broken, .. } = world.net.net_stats();
    assert_eq!((shown, looked_late, broken), (1, 0, 0));
}

#[test]
fn retracted_reference_read_late_is_counted() {
    let (part, region) = shown(3);
    let mut world = world(&region);
    world.push(part);
    world.server.retract(OpId(1));
    let back = world.poll(LinkRole::Server).pop();
    assert!(matches!(back, Some(LinkEvent::Pushed { sent: false, .. })), "{back:?}");
    assert!(matches!(world.poll(LinkRole::Client).pop(), Some(LinkEvent::ReceivedRef { .. })));
    assert_eq!((world.net.net_stats().looked_late, world.net.net_stats().broken), (1, 0));
}

#[test]
fn reference_without_exposed_memory_is_not_read() {
    let (part, region) = shown(3);
    let mut world = world(&region);
    world.push(part);
    world.client.retract(OpId(1));
    assert!(matches!(world.poll(LinkRole::Client).pop(), Some(LinkEvent::Retracted { .. })));
    assert!(world.poll(LinkRole::Client).is_empty());
    let back = world.poll(LinkRole::Server).pop();
    assert!(matches!(back, Some(LinkEvent::Pushed { sent: true, .. })), "{back:?}");
    assert_eq!(world.net.net_stats().late, 1);
}
