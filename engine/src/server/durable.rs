//! Operations that the flusher completes: flush, remove, clear.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::{RequestBody, Verb};
use pagelith_mutants::{self as mutant, Mutant};

use super::CallContext;
use super::op_outcome::OpOutcome;
use crate::api::error::{Error, Result};
use crate::rpc::removal_fence::RemovalGuard;
use crate::state::peer_queue::PeerJob;
use crate::state::put_spec::PutOrigin;
use crate::state::shared::{PendingJobs, Shared};
use crate::store::remove::PendingRemoval;
use crate::store::session::Session;

/// Maximum number of objects in pending removals (those that wait for the device or for the peers)
/// at which a client's removal is accepted. Removals of the embedding process are not bounded.
pub(crate) const REMOVING_MAX: usize = 65_536;

/// A flush, removal or clear in progress.
pub(crate) struct DurableOp {
    pub verb: Verb,
    pending: PendingJobs,
    /// The number in the outcome, sent once everything is durable.
    number: u64,
    /// Counts as a removal in progress in the `RemovalFence`, until this is dropped.
    _removal: Option<RemovalGuard>,
}

impl DurableOp {
    /// Begins the operation. A removal reads headers first, and waits for them.
    pub fn begin(
        session: &mut Session,
        body: &RequestBody<'_>,
        call: CallContext,
    ) -> Result<DurableOp> {
        let shared = session.io.shared.clone();
        let verb = body.verb();
        check_capacity(&shared, body)?;
        // A removal that a store forwards is not forwarded again.
        let notifies_peers =
            session.io.connections.is_some() && !mutant::on(Mutant::ServedRemovalNotNotified);
        let _removal = (verb != Verb::Flush).then(|| shared.remote.removal_fence.begin());
        let (mut answers, number): (Vec<u64>, u64) = match body {
            RequestBody::Flush => (crate::store::flush::begin(&shared)?, 0),
            RequestBody::Clear(namespace) => {
                let (generation, answer) = crate::store::remove::begin_clear(&shared, *namespace)?;
                let clear = |id| PeerJob::Clear { id, namespace: *namespace };
                let peers = notifies_peers
                    .then(|| crate::store::remove::notify_peers(&shared, clear))
                    .flatten();
                (answer.into_iter().chain(peers).collect(), generation.0)
            }
            RequestBody::Remove(_)
                if mutant::on(Mutant::NotifiedRemovalIgnored) && call.origin != PutOrigin::Put =>
            {
                (Vec::new(), 0)
            }
            RequestBody::Remove(keys) => {
                let keys: Vec<ObjectKey> = keys.iter().collect();
                let PendingRemoval { mut answers, here, gone } = crate::store::remove::begin(
                    &shared,
                    session,
                    &keys,
                    &call.options,
                    call.deadline,
                )?;
                let remove = |id| PeerJob::Remove { id, keys: gone };
                answers.extend(
                    notifies_peers
                        .then(|| crate::store::remove::notify_peers(&shared, remove))
                        .flatten(),
                );
                (answers, here as u64)
            }
            body => {
                return Err(Error::invalid(format!(
                    "verb is not a flush, remove or clear verb={:?}",
                    body.verb()
                )));
            }
        };
        if verb != Verb::Flush
            && call.origin != PutOrigin::Put
            && !mutant::on(Mutant::AcknowledgedBeforeOffers)
        {
            // A pending offer may store a removed object at a peer that was notified already.
            answers.extend(shared.lock().wait_for_offers());
        }
        let pending = PendingJobs::new(shared, answers, call.deadline);
        Ok(DurableOp { verb, pending, number, _removal })
    }

    /// Whether a cancelled operation has ended. Its report is not consumed: the client's next flush
    /// returns it.
    pub fn is_done(&mut self) -> bool {
        self.poll().is_some()
    }

    fn poll(&mut self) -> Option<Result<()>> {
        let name = match self.verb {
            Verb::Flush => "flush",
            Verb::Clear => "clear",
            _ => "remove",
        };
        self.pending.poll(name)
    }

    /// The outcome, if complete, for the client process `process`.
    pub fn advance(&mut self, shared: &Shared, process: &str) -> Option<OpOutcome> {
        let result = self.poll()?;
        Some(match (result, self.verb) {
            (Err(error), verb) => OpOutcome::failed(verb, error),
            (Ok(()), Verb::Flush) => OpOutcome::flushed(shared.lock().flushes.report_to(process)),
            (Ok(()), verb) => OpOutcome::number(verb, self.number),
        })
    }
}

/// An error if too many removals are pending. A removal continues after it is cancelled or its
/// client disconnects.
fn check_capacity(shared: &Shared, body: &RequestBody<'_>) -> Result<()> {
    let RequestBody::Remove(keys) = body else { return Ok(()) };
    let core = shared.lock();
    let pending = core.ssd.as_ref().map_or(0, |ssd| ssd.queue.removals())
        + core.remote.as_ref().map_or(0, |remote| remote.queued_removals);
    match pending == 0 || pending + keys.len() <= REMOVING_MAX {
        true => Ok(()),
        false => {
            let (objects, max) = (keys.len(), REMOVING_MAX);
            Err(Error::busy(format!(
                "too many removals are pending, retry later pending={pending} objects={objects} max={max}"
            )))
        }
    }
}
