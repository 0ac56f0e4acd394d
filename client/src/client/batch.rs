//! Batches of gets and of puts. If a link ended during a batch, its requests are retried once: gets
//! by [`RemoteGet`], puts here. A call drives one batch to its end, a [`Session`](super::Session)
//! drives several.

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::put::RemotePut;
use super::unflushed_puts::Instance;
use super::{attempts, wake_store};
use crate::api::outcome::{CompletedGet, CompletedPut, GetOutcome, MissCause};
use crate::api::request::{Get, PutGroup};
use crate::rpc::connections::PeerConnections;
use crate::rpc::remote_get::{CallOptions, GetTarget, LinkFailures, MissedItem, RemoteGet};

/// Begin a batch of gets.
pub(crate) fn begin_get(
    connections: &mut PeerConnections,
    gets: Vec<Get>,
    options: CallOptions,
) -> RemoteGet {
    wake_store(connections);
    let missed =
        |(at, get): (usize, &Get)| MissedItem { index: at, key: get.key, range: get.range.clone() };
    let missed = gets.iter().enumerate().map(missed).collect();
    let unanswered = |get: Get| {
        let outcome = Ok(GetOutcome::Miss(MissCause::Late));
        CompletedGet { outcome, destination: get.destination, length: 0, meta: None }
    };
    let done = gets.into_iter().map(unanswered).collect();
    RemoteGet::begin(connections, done, missed, options, GetTarget::Store, None)
}

/// A batch of puts in flight.
pub(crate) struct RemotePutBatch {
    put: RemotePut,
    deadline: Mono,
    attempts: usize,
}

impl RemotePutBatch {
    /// Put groups, or parts of a group that consists of the objects `required` if that is not
    /// empty.
    pub fn begin(
        connections: &mut PeerConnections,
        groups: Vec<PutGroup>,
        required: &[ObjectKey],
        options: CallOptions,
    ) -> RemotePutBatch {
        wake_store(connections);
        let mut put = RemotePut::new(groups, required, options);
        put.build_offers(connections);
        RemotePutBatch { put, deadline: options.deadline, attempts: attempts(connections) }
    }

    /// Make progress without waiting; true once every object has its outcome.
    pub fn advance(
        &mut self,
        connections: &mut PeerConnections,
        now: Mono,
        failures: &mut LinkFailures,
    ) -> bool {
        while self.put.advance_batch(connections, now, failures) {
            self.attempts -= 1;
            if self.attempts == 0 || now >= self.deadline {
                return true;
            }
            self.put.build_offers(connections);
        }
        false
    }

    /// The processes that acknowledged puts since the last call.
    pub fn take_acknowledgements(&mut self) -> Vec<Instance> {
        self.put.take_acknowledgements()
    }

    /// The outcomes, with the memory.
    pub fn finish(self) -> Vec<CompletedPut> {
        self.put.finish()
    }
}
