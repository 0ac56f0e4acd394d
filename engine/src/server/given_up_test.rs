//! Operations that their client gave up and that go on.

use std::sync::Arc;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::request::{Ask, Terms};
use pagelith_transport::rights::Rights;
use tempfile::TempDir;

use super::{OPS_MAX, Server};
use crate::api::error::{ErrorKind, Result};
use crate::api::outcome::FlushReport;
use crate::config::Config;
use crate::rpc::client::Caller;
use crate::rpc::{Reply, Told};
use crate::server::tests::{PATIENCE, Pair, key};
use crate::state::core::JobResult;
use crate::store::stepped::Stepped;
use crate::store::store::Store;

/// A store on a device that ends nothing, and clients of it.
struct World {
    store: Store,
    clients: Vec<(Server, Caller)>,
    clock: Arc<dyn Clock>,
    _dir: TempDir,
}

impl World {
    fn new(clients: usize) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config { deadline_ms: PATIENCE.as_millis() as u64, ..Config::default() };
        config.dram.bytes = crate::Size::mib(4);
        config.ssd.bytes = crate::Size::mib(32);
        config.ssd.dirs = vec![dir.path().to_owned()];
        config.index.max_objects = Some(1000);
        // Nobody waits, so nothing is written.
        let store = Stepped::default().open(&config);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let address = || "tcp:127.0.0.1:0".parse().expect("an address");
        let meet = |_| Pair::meet(&store, &clock, address(), Rights::all(), &[]);
        World { clients: (0..clients).map(meet).collect(), store, clock, _dir: dir }
    }

    /// A client asks for a flush; whether it gives that up at once.
    fn flush(&mut self, client: usize, gives_up: bool) {
        let (server, caller) = &mut self.clients[client];
        let (ops, leaving) = (server.ops.len(), server.leaving.len());
        let now = self.clock.now();
        let deadline = if gives_up { now } else { now.after(PATIENCE) };
        caller.tell(1, &Ask::Flush, Terms::default(), deadline).expect("room");
        caller.send_on();
        while server.ops.len() == ops {
            server.turn();
        }
        let mut replies = Vec::new();
        while gives_up && server.leaving.len() == leaving {
            caller.poll(self.clock.now(), &mut replies);
            server.turn();
        }
        assert_eq!((replies.len(), server.ops.len()), (usize::from(gives_up), ops + usize::from(!gives_up)));
    }

    /// The device ends what a flush waits for.
    fn end_a_flush(&self) {
        let mut core = self.store.shared.lock();
        let waits = core.job_results.iter().find(|(_, answer)| answer.is_none()).map(|(id, _)| *id);
        core.complete_job(waits.expect("a flush that waits"), JobResult::Done);
    }

    fn reply(&mut self, client: usize) -> Result<Told> {
        let (server, caller) = &mut self.clients[client];
        let mut replies = Vec::new();
        while replies.is_empty() {
            server.turn();
            caller.poll(self.clock.now(), &mut replies);
        }
        match replies.remove(0).1 {
            Reply::Told(told) => told,
            other => panic!("another reply {other:?}"),
        }
    }

    fn ping(&mut self, client: usize) -> Result<Told> {
        let deadline = self.clock.now().after(PATIENCE);
        self.clients[client].1.tell(2, &Ask::Ping, Terms::default(), deadline).expect("room");
        self.reply(client)
    }
}

/// All flushes but one are given up, and go on.
pub(crate) fn of_a_link() {
    let mut world = World::new(2);
    for client in 0..2 {
        world.flush(client, false);
        (1..OPS_MAX).for_each(|_| world.flush(client, true));
        let refused = world.ping(client).expect_err("one more");
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        (0..OPS_MAX).for_each(|_| world.end_a_flush());
        assert!(world.reply(client).is_ok(), "the flush that was not given up");
        assert!(world.ping(client).is_ok(), "room again");
        assert_eq!(world.clients[client].0.leaving.len(), 0);
    }
}

#[test]
fn flush_that_was_given_up_leaves_its_report_to_the_next() {
    let mut world = World::new(1);
    let namespace = key(1, "k").namespace();
    world.store.shared.lock().count_lost(namespace, 3);
    world.flush(0, true);
    world.store.shared.lock().count_lost(namespace, 4);
    world.end_a_flush();
    while !world.clients[0].0.leaving.is_empty() {
        world.clients[0].0.turn();
    }
    for lost_objects in [7, 0] {
        world.flush(0, false);
        world.end_a_flush();
        let report = FlushReport { lost_objects, ..FlushReport::default() };
        assert_eq!(world.reply(0), Ok(Told::Flushed(report)));
    }
}
