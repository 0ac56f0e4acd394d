//! Cancelled operations that still run.

use std::sync::Arc;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::rights::Rights;
use tempfile::TempDir;

use super::{OPS_MAX, Server};
use crate::api::error::{ErrorKind, Result};
use crate::api::outcome::FlushReport;
use crate::config::Config;
use crate::rpc::client::RpcClient;
use crate::rpc::{ControlReply, Response};
use crate::server::tests::{Pair, TIMEOUT, key};
use crate::state::jobs::JobResult;
use crate::store::embedded::Store;
use crate::store::stepped_runtime::SteppedRuntime;

/// A store on a device that completes nothing by itself, and its clients.
struct FlushEnv {
    store: Store,
    clients: Vec<(Server, RpcClient)>,
    clock: Arc<dyn Clock>,
    _dir: TempDir,
}

impl FlushEnv {
    fn new(clients: usize) -> FlushEnv {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config { deadline_ms: TIMEOUT.as_millis() as u64, ..Config::default() };
        config.dram.bytes = crate::Size::mib(4);
        config.ssd.bytes = crate::Size::mib(32);
        config.ssd.dirs = vec![dir.path().to_owned()];
        config.index.max_objects = Some(1000);
        // No background task runs, so nothing is written.
        let store = SteppedRuntime::default().open(&config);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let address = || "tcp:127.0.0.1:0".parse().expect("an address");
        let connect = |_| Pair::connect(&store, &clock, address(), Rights::all(), &[]);
        FlushEnv { clients: (0..clients).map(connect).collect(), store, clock, _dir: dir }
    }

    /// A client requests a flush; `cancel` cancels it at once.
    fn flush(&mut self, client: usize, cancel: bool) {
        let (server, caller) = &mut self.clients[client];
        let (ops, cancelled) = (server.ops.len(), server.cancelled.len());
        let now = self.clock.now();
        let deadline = if cancel { now } else { now.after(TIMEOUT) };
        caller
            .send_control(1, &RequestBody::Flush, RequestOptions::default(), deadline)
            .expect("link capacity");
        caller.flush_queue();
        while server.ops.len() == ops {
            server.poll();
        }
        let mut replies = Vec::new();
        while cancel && server.cancelled.len() == cancelled {
            caller.poll(self.clock.now(), &mut replies);
            server.poll();
        }
        assert_eq!(
            (replies.len(), server.ops.len()),
            (usize::from(cancel), ops + usize::from(!cancel))
        );
    }

    /// The device completes one pending flush.
    fn complete_a_flush(&self) {
        let mut core = self.store.shared.lock();
        let waits = core.jobs.unfinished();
        core.jobs.complete(waits.expect("a flush that waits"), JobResult::Done);
    }

    fn reply(&mut self, client: usize) -> Result<ControlReply> {
        let (server, caller) = &mut self.clients[client];
        let mut replies = Vec::new();
        while replies.is_empty() {
            server.poll();
            caller.poll(self.clock.now(), &mut replies);
        }
        match replies.remove(0).1 {
            Response::Control(reply) => reply,
            other => panic!("unexpected reply {other:?}"),
        }
    }

    fn ping(&mut self, client: usize) -> Result<ControlReply> {
        let deadline = self.clock.now().after(TIMEOUT);
        self.clients[client]
            .1
            .send_control(2, &RequestBody::Ping, RequestOptions::default(), deadline)
            .expect("link capacity");
        self.reply(client)
    }
}

/// All flushes except the first are cancelled and still run.
pub(crate) fn operations_per_link() {
    let mut env = FlushEnv::new(2);
    for client in 0..2 {
        env.flush(client, false);
        (1..OPS_MAX).for_each(|_| env.flush(client, true));
        let refused = env.ping(client).expect_err("one more");
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        (0..OPS_MAX).for_each(|_| env.complete_a_flush());
        assert!(env.reply(client).is_ok(), "the flush that was not cancelled");
        assert!(env.ping(client).is_ok(), "capacity is free again");
        assert_eq!(env.clients[client].0.cancelled.len(), 0);
    }
}

#[test]
fn cancelled_flush_leaves_its_report_to_the_next() {
    let mut env = FlushEnv::new(1);
    let namespace = key(1, "k").namespace();
    env.store.shared.lock().count_lost(namespace, 3);
    env.flush(0, true);
    env.store.shared.lock().count_lost(namespace, 4);
    env.complete_a_flush();
    while !env.clients[0].0.cancelled.is_empty() {
        env.clients[0].0.poll();
    }
    for lost_objects in [7, 0] {
        env.flush(0, false);
        env.complete_a_flush();
        let report = FlushReport::lost(lost_objects);
        assert_eq!(env.reply(0), Ok(ControlReply::Flushed(report)));
    }
}

#[test]
fn link_that_ends_leaves_no_results_of_its_operations() {
    let mut env = FlushEnv::new(1);
    env.flush(0, false);
    env.flush(0, true);
    let (mut server, caller) = env.clients.remove(0);
    drop(caller);
    while !server.ended {
        server.poll();
    }
    let mut core = env.store.shared.lock();
    while let Some(id) = core.jobs.unfinished() {
        core.jobs.complete(id, JobResult::Done);
    }
    assert!(core.jobs.is_empty());
}

#[test]
fn job_of_a_stopped_store_is_answered_as_closed() {
    let mut env = FlushEnv::new(1);
    env.flush(0, false);
    while env.store.shared.lock().jobs.unfinished().is_none() {
        env.clients[0].0.poll();
    }
    let shared = &env.store.shared;
    let mut core = shared.lock();
    core.jobs.stopped = true;
    let id = core.jobs.unfinished().expect("a job");
    drop(core);
    let answer = shared.poll_job(id, shared.now().after(TIMEOUT), "flush").expect("an answer");
    assert_eq!(answer.expect_err("no task completes it").kind, ErrorKind::Closed);
}
