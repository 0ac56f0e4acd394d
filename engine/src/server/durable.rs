//! What the flusher answers: flush, remove, clear.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::{Ask, Verb};
use pagelith_mutants::{self as mutant, Mutant};

use super::Manner;
use super::answer::Answered;
use crate::api::error::{Error, Result};
use crate::rpc::removal_fence::Removing;
use crate::state::peer_queue::RemoteJob;
use crate::state::shared::{Pending, Shared};
use crate::store::remove::Begun;
use crate::store::session::Session;
use crate::write::put::Came;

/// Most objects of removals that wait for the device, or for peers to be told, as a client asks for more. Removals of the embedding process
/// are not bounded.
pub(crate) const REMOVING_MAX: usize = 65_536;

/// One of them under way.
pub(crate) struct AskedOp {
    pub verb: Verb,
    pending: Pending,
    /// What is said once all is durable.
    number: u64,
    /// Until then it is under way, if it removes something.
    _removing: Option<Removing>,
}

impl AskedOp {
    /// Begin it. A removal reads headers first, and waits for them.
    pub fn begin(session: &mut Session, ask: &Ask<'_>, manner: Manner) -> Result<AskedOp> {
        let shared = session.io.shared.clone();
        let verb = ask.verb();
        // What a store tells its peers they do not tell others.
        check_room(&shared, ask)?;
        let goes_on = session.io.desk.is_some() && !mutant::on(Mutant::ServedUntold);
        let _removing = (verb != Verb::Flush).then(|| shared.removals.begin());
        let (mut answers, number): (Vec<u64>, u64) = match ask {
            Ask::Flush => (crate::store::flush::begin(&shared)?, 0),
            Ask::Clear(namespace) => {
                let (generation, answer) = crate::store::remove::begin_clear(&shared, *namespace)?;
                let clear = |id| RemoteJob::Clear { id, namespace: *namespace };
                let told = goes_on.then(|| crate::store::remove::tell(&shared, clear)).flatten();
                (answer.into_iter().chain(told).collect(), generation.0)
            }
            Ask::Remove(_) if mutant::on(Mutant::ToldAndKept) && manner.came != Came::Put => (Vec::new(), 0),
            Ask::Remove(keys) => {
                let keys: Vec<ObjectKey> = keys.iter().collect();
                let Begun { mut answers, here, gone } =
                    crate::store::remove::begin(&shared, session, &keys, &manner.options, manner.deadline)?;
                let remove = |id| RemoteJob::Remove { id, keys: gone };
                answers.extend(goes_on.then(|| crate::store::remove::tell(&shared, remove)).flatten());
                (answers, here as u64)
            }
            ask => return Err(Error::invalid(format!("nothing to wait for verb={:?}", ask.verb()))),
        };
        if verb != Verb::Flush && manner.came != Came::Put && !mutant::on(Mutant::AnsweredBeforeOffers) {
            // One of them may have it stored by a peer that was told already.
            answers.extend(shared.lock().wait_for_offers());
        }
        Ok(AskedOp { verb, pending: Pending::new(answers, manner.deadline), number, _removing })
    }

    /// Whether one that its client gave up is over. Nobody is told anything by it: the client's next flush reports what it would have.
    pub fn is_over(&mut self, shared: &Shared) -> bool {
        self.poll(shared).is_some()
    }

    fn poll(&mut self, shared: &Shared) -> Option<Result<()>> {
        let what = match self.verb {
            Verb::Flush => "flush",
            Verb::Clear => "clear",
            _ => "remove",
        };
        self.pending.poll(shared, what)
    }

    /// The outcome, once it is there, for a client of this process.
    pub fn advance(&mut self, shared: &Shared, process: &str) -> Option<Answered> {
        let ended = self.poll(shared)?;
        Some(match (ended, self.verb) {
            (Err(error), verb) => Answered::failed(verb, error),
            (Ok(()), Verb::Flush) => Answered::flushed(shared.lock().flushes.report_to(process)),
            (Ok(()), verb) => Answered::number(verb, self.number),
        })
    }
}

/// An error if too many objects wait to be removed: a removal that is cancelled, or whose client is gone, goes on.
fn check_room(shared: &Shared, ask: &Ask<'_>) -> Result<()> {
    let Ask::Remove(keys) = ask else { return Ok(()) };
    let core = shared.lock();
    let waits = core.ssd.as_ref().map_or(0, |ssd| ssd.queued_removals)
        + core.remote.as_ref().map_or(0, |remote| remote.queued_removals);
    match waits == 0 || waits + keys.len() <= REMOVING_MAX {
        true => Ok(()),
        false => {
            let (objects, max) = (keys.len(), REMOVING_MAX);
            Err(Error::busy(format!(
                "too many removals wait, try again waiting={waits} objects={objects} max={max}"
            )))
        }
    }
}
