//! The task that tells peers: offers them the pages that were put here, and passes removals and clears on, in order.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::{Step, Task};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutDraft;
use pagelith_layouts::wire::request::Terms;
use pagelith_mutants::{self as mutant, Mutant};
use rustc_hash::FxHashMap;

use super::peer_removals;
use super::peer_removals::{Ended, Telling};
use crate::api::error::ErrorKind;
use crate::api::outcome::PutOutcome;
use crate::memory::frames::{FrameData, FrameRef};
use crate::rpc::Response;
use crate::rpc::connections::PeerConnections;
use crate::rpc::pool::ConnState;
use crate::state::frame_access::FrameGuard;
use crate::state::peer_queue::RemoteJob;
use crate::state::shared::Shared;

/// Most bytes of pages on their way to peers.
const BYTES_MAX: u64 = 64 << 20;
/// How long to wait for links at a time, and for work.
const LINK_STEP: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_millis(200);

/// A page on its way.
struct Sending {
    held: Arc<FrameGuard>,
    peer: usize,
    bytes: u64,
    objects: u64,
    turn: u64,
    /// The peer had answered over the link before: if that ends, the page is offered once more.
    repeats: bool,
    /// What is attached to it, and is offered once it is there.
    behind: Vec<(FrameRef, u64)>,
}

/// The task.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    connections: PeerConnections,
    sending: FxHashMap<u64, Sending>,
    bytes: u64,
    /// What is being told to all that it concerns, nothing else meanwhile.
    told: Option<Telling>,
    /// By when the job whose telling a link ended under is done once more.
    again_by: Option<Mono>,
}

/// Whether a job was taken.
enum Taken {
    /// It is over, or peers are being told.
    Yes,
    /// It is on its way.
    Sent,
    /// Not yet: here it is.
    Later(RemoteJob),
}

impl Writer {
    pub fn new(shared: Arc<Shared>, connections: PeerConnections) -> Writer {
        Writer { shared, connections, sending: FxHashMap::default(), bytes: 0, told: None, again_by: None }
    }

    /// Take up jobs as far as it goes.
    fn begin(&mut self) {
        while self.told.is_none() && self.bytes < BYTES_MAX {
            let popped = self.shared.lock().remote.as_mut().and_then(|queue| queue.pop());
            let (taken, turn) = match popped {
                Some((RemoteJob::Frame(frame, objects), Some(turn))) => {
                    (self.offer(frame, objects, turn), Some(turn))
                }
                Some((job, turn)) => (self.tell(job), turn),
                None => return,
            };
            let (later, is_over) = match taken {
                Taken::Yes => (None, true),
                Taken::Sent => (None, false),
                Taken::Later(job) => (Some(job), true),
            };
            let stops = later.is_some();
            let mut core = self.shared.lock();
            if let Some((job, queue)) = later.zip(core.remote.as_mut()) {
                queue.requeue_front(job);
            }
            let is_waited_for = turn.filter(|_| is_over).is_some_and(|turn| core.end_offer(turn));
            drop(core);
            if is_waited_for {
                self.shared.progress.raise();
            }
            if stops {
                return;
            }
        }
    }

    fn offer(&mut self, frame: FrameRef, objects: u64, turn: u64) -> Taken {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        // What was evicted or removed since is not offered.
        let Some(data) = core.frames.get_ref(frame).filter(|f| !f.dead).map(|f| f.data.clone()) else {
            core.counters.remote_skipped += objects;
            return Taken::Yes;
        };
        drop(core);
        if let Some(base) = self.base_of(&data) {
            base.behind.push((frame, objects));
            return Taken::Yes;
        }
        let first = data.members[0].key;
        let Some(peer) = self.offered(&first, now) else { return Taken::Yes };
        let token = self.connections.next_token();
        let shared = self.shared.clone();
        let skip = || shared.lock().counters.remote_skipped += objects;
        let caller = match self.connections.pool.connect(peer, now) {
            // It would keep what is attached to a base that it has not, or has not heard of attached objects at all.
            ConnState::Up(caller) if data.is_attached() && !caller.has_feature(Feature::Bases) => {
                skip();
                return Taken::Yes;
            }
            ConnState::Up(caller) => caller,
            ConnState::Connecting => return Taken::Later(RemoteJob::Frame(frame, objects)),
            ConnState::Down => {
                skip();
                return Taken::Yes;
            }
        };
        let Some(held) = FrameGuard::new(&mut shared.lock(), frame).map(Arc::new) else { return Taken::Yes };
        let mut draft = PutDraft::new(BLOCK_BYTES);
        draft.group(data.base.as_deref().copied());
        for m in &held.data.members {
            draft.object(m.key, m.extent.bytes, &m.checksums);
        }
        let (lent, memory) = (held.clone(), shared.memory.clone());
        let lend = Box::new(move |item: u32| vec![lent.part(&memory, item as usize)]);
        let terms = Terms { depth: held.data.depth, ..Terms::default() };
        let repeats = caller.has_answered();
        match caller.put(token, &draft, lend, terms, shared.deadline(None)) {
            Ok(()) => {
                let bytes = held.data.bytes();
                self.bytes += bytes;
                let behind = Vec::new();
                self.sending.insert(token, Sending { held, peer, bytes, objects, turn, repeats, behind });
                Taken::Sent
            }
            Err(error) => {
                let is_owed = caller.expects_response();
                shared.lock().release_frame(frame);
                // What finds no room though nothing is on its way never does.
                if error.kind == ErrorKind::Busy && is_owed {
                    return Taken::Later(RemoteJob::Frame(frame, objects));
                }
                skip();
                Taken::Yes
            }
        }
    }

    /// Who is offered what lies on the key's page: the preferred peer while it is there, else whoever owns the page.
    fn offered(&mut self, key: &ObjectKey, now: Mono) -> Option<usize> {
        let preferred = self.connections.pool.remote().preferred();
        let is_there = |peer: &usize| !matches!(self.connections.pool.connect(*peer, now), ConnState::Down);
        preferred.filter(is_there).or_else(|| self.connections.pool.remote().owner(key))
    }

    /// The base of what is attached, if that is on its way.
    fn base_of(&mut self, data: &FrameData) -> Option<&mut Sending> {
        let base = data.base.as_deref()?;
        let is_of = |sending: &&mut Sending| sending.held.data.members.iter().any(|m| m.key == *base);
        self.sending.values_mut().find(is_of)
    }

    /// Tell peers of a removal or a clear, once everything before it has its outcome.
    fn tell(&mut self, job: RemoteJob) -> Taken {
        if !self.sending.is_empty() && !mutant::on(Mutant::ToldBeforeOffers) {
            return Taken::Later(job);
        }
        let now = self.shared.now();
        if peer_removals::is_soon(&mut self.connections, &job, now) {
            return Taken::Later(job);
        }
        let (RemoteJob::Remove { id, .. } | RemoteJob::Clear { id, .. }) = job else { return Taken::Yes };
        let how = match self.again_by.take() {
            Some(deadline) => (deadline, false),
            None => (self.shared.deadline(None), true),
        };
        self.told = Some(Telling::begin(&mut self.connections, job, id, now, how));
        self.answer();
        Taken::Yes
    }

    /// Answer whoever waits for what was told to all, or have it told once more: it is the next job then.
    fn answer(&mut self) {
        let Some(told) = self.told.take_if(|told| told.advance(&mut self.connections)) else { return };
        let mut core = self.shared.lock();
        match told.finish(self.shared.now()) {
            Ended::Over(id, answer) => core.complete_job(id, answer),
            Ended::Again(job, deadline) => {
                self.again_by = Some(deadline);
                if let Some(queue) = core.remote.as_mut() {
                    queue.requeue_front(job);
                }
                return;
            }
        }
        drop(core);
        self.shared.progress.raise();
    }

    fn ended(&mut self, now: Mono) {
        for (token, reply) in self.connections.take_responses() {
            if let Some(sending) = self.sending.remove(&token) {
                self.sent(sending, &reply, now);
            }
            if let Some(told) = &mut self.told {
                told.heard(&self.connections, token, reply);
            }
        }
        self.answer();
    }

    fn sent(&mut self, sending: Sending, reply: &Response, now: Mono) {
        let Sending { held, peer, bytes, objects, turn, repeats, behind } = sending;
        self.bytes -= bytes;
        let outcome = match reply {
            Response::Put(outcomes) => outcomes.first().cloned(),
            Response::Exists(_) | Response::Get(_) | Response::Control(_) => None,
        };
        let failed = match &outcome {
            Some(Err(error)) => error.kind == ErrorKind::Unavailable,
            Some(Ok(_)) | None => false,
        };
        let again = failed && repeats && self.connections.pool.live(peer).is_none();
        let mut core = self.shared.lock();
        core.release_frame(held.frame);
        match &outcome {
            Some(Ok(PutOutcome::Stored)) => {
                core.counters.remote_stored += objects;
                core.counters.bytes_remote_put += held.data.object_bytes();
            }
            Some(Ok(PutOutcome::AlreadyPresent)) => {}
            _ if again => {}
            _ => core.counters.remote_skipped += objects,
        }
        let is_there = matches!(outcome, Some(Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent)));
        let base = again.then_some((held.frame, objects));
        for (frame, objects) in base.into_iter().chain(behind).rev() {
            match core.remote.as_mut().filter(|_| is_there || again) {
                // Before whatever else waits, removals among it.
                Some(queue) => queue.requeue_front(RemoteJob::Frame(frame, objects)),
                None => core.counters.remote_skipped += objects,
            }
        }
        let is_waited_for = core.end_offer(turn);
        drop(core);
        if is_waited_for {
            self.shared.progress.raise();
        }
        self.connections.record_result(peer, failed, now);
    }
}

impl Task for Writer {
    fn step(&mut self) -> Step {
        let now = self.shared.now();
        // The peers' pings are answered while there is nothing to do, so that the links last.
        self.connections.poll(now);
        self.ended(now);
        self.begin();
        if self.connections.is_busy() {
            self.connections.wait(now, LINK_STEP);
        }
        self.ended(self.shared.now());
        let core = self.shared.lock();
        let waits = core.remote.as_ref().is_some_and(|queue| !queue.jobs.is_empty());
        // What is under way ends first: it has memory of the arena.
        if core.stopping && self.sending.is_empty() {
            return Step::Done;
        }
        drop(core);
        match self.connections.is_busy() || waits {
            true => Step::Again,
            false => Step::Idle(IDLE),
        }
    }
}
