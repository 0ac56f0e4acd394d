use std::os::fd::AsFd;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Clock;
use pagelith_io::disk::{Disk, FileId, Op};
use pagelith_io::shm::{Region, View};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::names::SEGMENTS;
use pagelith_transport::link::{Event, Link, Push};
use pagelith_transport::shown::{FilePlace, Regions};

use super::*;
use crate::disk::{Handed, SimDisk};
use crate::runtime::SimRuntime;

const LEN: usize = 9000;

struct World {
    clock: SimClock,
    runtime: Arc<dyn Runtime>,
    disk: SimDisk,
    net: SimNet,
    client: SimLink,
    server: SimLink,
}

/// Two ends on one host. The server shares `region` and lends the segments of a disk.
fn world(region: &Arc<Region>) -> World {
    let clock = SimClock::new();
    let runtime: Arc<dyn Runtime> = Arc::new(SimRuntime::new(clock.clone(), 1));
    let (net, client, server) = SimNet::new(1, clock.clone(), &runtime, Limits::default());
    let view = View::of(region.as_fd().try_clone_to_owned().expect("a descriptor")).expect("memory");
    let disk = SimDisk::new(clock.clone(), 1, 1);
    let own = Regions { own: vec![region.clone()], ..Regions::default() };
    let theirs = Regions { theirs: vec![Arc::new(view)], ..Regions::default() };
    let reads = Some(Handed::new(&disk, &runtime, Duration::ZERO, 1));
    let client = client.sharing(Shares { regions: theirs, lends: None, reads });
    let server = server.sharing(Shares { regions: own, lends: Some((disk.clone(), 1)), reads: None });
    World { clock, runtime, disk, net, client, server }
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
    let Some(Event::Shown { shown, parts, .. }) = world.poll(Side::Client).pop() else { panic!("not shown") };
    let mut seen = vec![0; LEN];
    shown.copy_out(0, &mut seen);
    assert!(seen == vec![3; LEN] && parts[0].bytes() == vec![0; LEN], "and nothing landed");
    world.client.took(shown);
    let back = world.poll(Side::Server).pop();
    assert!(matches!(back, Some(Event::Pushed { token: 7, sent: true, .. })), "{back:?}");
    let NetStats { shown, lent, looked_late, broken, .. } = world.net.net_stats();
    assert_eq!((shown, lent, looked_late, broken), (1, 0, 0, 0));
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

#[test]
fn what_is_lent_is_read_by_the_client_and_what_changes_meanwhile_is_noticed() {
    let (_part, region) = shown(0);
    let mut world = world(&region);
    let owner = world.disk.connect();
    let file = owner.create(0, SEGMENTS, 16 << 10).expect("a file");
    let mut queue = owner.queue(4).expect("a queue");
    let mut write = |byte: u8| {
        let mut buffer = AlignedBuf::new(4096).expect("memory");
        buffer.fill(byte);
        let op = Op::Write { file, offset: 4096, parts: vec![buffer.into_part()] };
        queue.submit(1, op).expect("room");
        queue.wait(&mut Vec::new(), Duration::from_secs(1));
    };
    write(5);
    let place = FilePlace { file: 0, at: 4096, length: 4096 };
    for (op, changes) in [(1, false), (2, true)] {
        let op = OpId(op);
        world.client.expose(op, 0, 0, memory(4096)).expect("room");
        assert!(world.server.lends() && !world.client.lends());
        assert!(world.server.lend(op, 0, op.0, place));
        let Some(Event::Shown { shown, parts, .. }) = world.poll(Side::Client).pop() else {
            panic!("no word")
        };
        assert_eq!(shown.file(), Some(place));
        if changes {
            write(6);
        }
        let files = world.client.files().expect("files").expect("there are some");
        let mut reads = files.queue(4).expect("a queue");
        reads.submit(9, Op::Read { file: FileId(0), offset: place.at, parts }).expect("room");
        let mut done = Vec::new();
        let began = world.clock.now();
        reads.wait(&mut done, Duration::from_secs(1));
        assert!(world.clock.now() > began, "a read takes time");
        let done = done.pop().expect("it ends");
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.op.into_parts()[0].bytes(), [if changes { 6 } else { 5 }; 4096]);
        world.client.took(shown);
        let back = world.poll(Side::Server).pop();
        assert!(matches!(back, Some(Event::Pushed { sent: true, .. })), "{back:?}");
        assert_eq!(world.net.net_stats().broken, u64::from(changes));
    }
    let none = FilePlace { file: 1, ..place };
    assert!(!world.server.lend(OpId(3), 0, 3, none), "there is no such file");
    drop(world.runtime);
}
