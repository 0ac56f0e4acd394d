//! The task that writes to peers: it offers them the frames put in this store, and forwards
//! removals and clears, in the order of the queue.
//!
//! Invariants:
//! - `bytes` is the sum of `bytes` of all offers in flight. No offer begins while it is
//!   `BYTES_MAX` or more.
//! - While a notification is in progress, no other job begins. A notification begins only when no
//!   offer is in flight.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::{Step, Task};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::RequestOptions;
use pagelith_mutants::{self as mutant, Mutant};
use rustc_hash::FxHashMap;

use super::peer_removals;
use super::peer_removals::{NotificationResult, PeerNotification};
use crate::api::error::ErrorKind;
use crate::api::outcome::PutOutcome;
use crate::memory::frames::{FrameData, FrameRef};
use crate::rpc::Response;
use crate::rpc::connections::PeerConnections;
use crate::rpc::pool::ConnState;
use crate::state::frame_access::FrameGuard;
use crate::state::peer_queue::PeerJob;
use crate::state::shared::Shared;

/// Limit of bytes of frames in flight to peers.
const BYTES_MAX: u64 = 64 << 20;
/// Longest wait for links.
const LINK_STEP: Duration = Duration::from_millis(5);
/// Longest sleep without work.
const IDLE: Duration = Duration::from_millis(200);

/// A frame that is being offered to a peer.
struct FrameOffer {
    guard: Arc<FrameGuard>,
    peer: usize,
    bytes: u64,
    objects: u64,
    /// Number of the offer, see [`Core::end_offer`](crate::state::core::Core::end_offer).
    number: u64,
    /// Retry if the link ends: the peer had responded over this link before.
    may_retry: bool,
    /// Frames attached to this one, and their numbers of objects; offered once the peer has this
    /// one.
    dependents: Vec<(FrameRef, u64)>,
}

/// The task.
pub(crate) struct PeerWriter {
    shared: Arc<Shared>,
    connections: PeerConnections,
    /// Offers in flight, by token.
    offers: FxHashMap<u64, FrameOffer>,
    bytes: u64,
    /// The removal or clear in progress.
    notification: Option<PeerNotification>,
    /// Deadline of the job that is repeated because a link ended; it is the next job.
    retry_deadline: Option<Mono>,
}

/// Result of starting a job.
enum JobStart {
    /// The job is done, or its notification is in progress.
    Taken,
    /// The frame is being offered.
    Offering,
    /// The job cannot start yet.
    Later(PeerJob),
}

impl PeerWriter {
    pub fn new(shared: Arc<Shared>, connections: PeerConnections) -> PeerWriter {
        let offers = FxHashMap::default();
        PeerWriter {
            shared,
            connections,
            offers,
            bytes: 0,
            notification: None,
            retry_deadline: None,
        }
    }

    /// Start queued jobs until one cannot start yet.
    fn begin(&mut self) {
        while self.notification.is_none() && self.bytes < BYTES_MAX {
            let popped = self.shared.lock().remote.as_mut().and_then(|queue| queue.pop());
            let (start, number) = match popped {
                Some((PeerJob::Frame(frame, objects), Some(number))) => {
                    (self.offer(frame, objects, number), Some(number))
                }
                Some((job, number)) => (self.notify(job), number),
                None => return,
            };
            let (later, is_over) = match start {
                JobStart::Taken => (None, true),
                JobStart::Offering => (None, false),
                JobStart::Later(job) => (Some(job), true),
            };
            let stops = later.is_some();
            let mut core = self.shared.lock();
            if let Some((job, queue)) = later.zip(core.remote.as_mut()) {
                queue.requeue_front(job);
            }
            let is_waited_for =
                number.filter(|_| is_over).is_some_and(|number| core.end_offer(number));
            drop(core);
            if is_waited_for {
                self.shared.signals.progress.raise();
            }
            if stops {
                return;
            }
        }
    }

    fn offer(&mut self, frame: FrameRef, objects: u64, number: u64) -> JobStart {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        // The frame may have been evicted or removed since it was queued.
        let Some(data) = core.dram.frames.get_live(frame).map(|f| f.data.clone()) else {
            core.counters.remote_skipped += objects;
            return JobStart::Taken;
        };
        drop(core);
        if let Some(base) = self.base_of(&data) {
            base.dependents.push((frame, objects));
            return JobStart::Taken;
        }
        let first = data.members[0].key;
        let Some(peer) = self.target_peer(&first, now) else { return JobStart::Taken };
        let token = self.connections.next_token();
        let shared = self.shared.clone();
        let skip = || shared.lock().counters.remote_skipped += objects;
        let client = match self.connections.pool.connect(peer, now) {
            // Without this feature the peer does not know attached objects, or would store them
            // without their base.
            ConnState::Up(client) if data.is_attached() && !client.has_feature(Feature::Bases) => {
                skip();
                return JobStart::Taken;
            }
            ConnState::Up(client) => client,
            ConnState::Connecting => return JobStart::Later(PeerJob::Frame(frame, objects)),
            ConnState::Down => {
                skip();
                return JobStart::Taken;
            }
        };
        let Some(guard) = FrameGuard::new(&mut shared.lock(), frame).map(Arc::new) else {
            return JobStart::Taken;
        };
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        draft.group(data.base.as_deref().copied());
        for m in &guard.data.members {
            draft.object(m.key, m.extent.bytes, &m.checksums);
        }
        let (source, memory) = (guard.clone(), shared.memory.clone());
        let payload = Box::new(move |item: u32| vec![source.part(&memory, item as usize)]);
        let terms = RequestOptions { depth: guard.data.depth, ..RequestOptions::default() };
        let may_retry = client.has_answered();
        match client.put(token, &draft, payload, terms, shared.deadline(None)) {
            Ok(()) => {
                let bytes = guard.data.bytes();
                self.bytes += bytes;
                let dependents = Vec::new();
                let offer =
                    FrameOffer { guard, peer, bytes, objects, number, may_retry, dependents };
                self.offers.insert(token, offer);
                JobStart::Offering
            }
            Err(error) => {
                let expects_response = client.expects_response();
                shared.lock().release_frame(frame);
                // If the link is idle and still has no capacity, a retry would fail too.
                if error.kind == ErrorKind::Busy && expects_response {
                    return JobStart::Later(PeerJob::Frame(frame, objects));
                }
                skip();
                JobStart::Taken
            }
        }
    }

    /// The peer to which the key's page is offered: the preferred peer while it is reachable, else
    /// the owner of the page.
    fn target_peer(&mut self, key: &ObjectKey, now: Mono) -> Option<usize> {
        let preferred = self.connections.pool.remote().preferred();
        let is_reachable =
            |peer: &usize| !matches!(self.connections.pool.connect(*peer, now), ConnState::Down);
        preferred.filter(is_reachable).or_else(|| self.connections.pool.remote().owner(key))
    }

    /// The offer in flight of the base to which `data` is attached.
    fn base_of(&mut self, data: &FrameData) -> Option<&mut FrameOffer> {
        let base = data.base.as_deref()?;
        let has_base =
            |offer: &&mut FrameOffer| offer.guard.data.members.iter().any(|m| m.key == *base);
        self.offers.values_mut().find(has_base)
    }

    /// Begin to send a removal or clear to the peers, once all earlier offers have their outcomes.
    fn notify(&mut self, job: PeerJob) -> JobStart {
        if !self.offers.is_empty() && !mutant::on(Mutant::NotifiedBeforeOffers) {
            return JobStart::Later(job);
        }
        let now = self.shared.now();
        if peer_removals::is_connecting(&mut self.connections, &job, now) {
            return JobStart::Later(job);
        }
        let (PeerJob::Remove { id, .. } | PeerJob::Clear { id, .. }) = job else {
            return JobStart::Taken;
        };
        let attempt = match self.retry_deadline.take() {
            Some(deadline) => (deadline, false),
            None => (self.shared.deadline(None), true),
        };
        self.notification =
            Some(PeerNotification::begin(&mut self.connections, job, id, now, attempt));
        self.advance_notification();
        JobStart::Taken
    }

    /// Advance the notification in progress. When it has ended, complete its job, or requeue the
    /// job as the next one.
    fn advance_notification(&mut self) {
        let connections = &mut self.connections;
        let Some(ended) =
            self.notification.take_if(|notification| notification.advance(connections))
        else {
            return;
        };
        let mut core = self.shared.lock();
        match ended.finish(self.shared.now()) {
            NotificationResult::Complete(id, result) => core.jobs.complete(id, result),
            NotificationResult::Retry(job, deadline) => {
                self.retry_deadline = Some(deadline);
                if let Some(queue) = core.remote.as_mut() {
                    queue.requeue_front(job);
                }
                return;
            }
        }
        drop(core);
        self.shared.signals.progress.raise();
    }

    fn process_responses(&mut self, now: Mono) {
        for (token, response) in self.connections.take_responses() {
            if let Some(offer) = self.offers.remove(&token) {
                self.finish_offer(offer, &response, now);
            }
            if let Some(notification) = &mut self.notification {
                notification.handle_response(&self.connections, token, response);
            }
        }
        self.advance_notification();
    }

    fn finish_offer(&mut self, offer: FrameOffer, response: &Response, now: Mono) {
        let FrameOffer { guard, peer, bytes, objects, number, may_retry, dependents } = offer;
        self.bytes -= bytes;
        let outcome = match response {
            Response::Put(outcomes) => outcomes.first().cloned(),
            Response::Exists(_) | Response::Get(_) | Response::Control(_) => None,
        };
        let failed = match &outcome {
            Some(Err(error)) => error.kind == ErrorKind::Unavailable,
            Some(Ok(_)) | None => false,
        };
        let retry = failed && may_retry && self.connections.pool.live(peer).is_none();
        let mut core = self.shared.lock();
        core.release_frame(guard.frame);
        match &outcome {
            Some(Ok(PutOutcome::Stored)) => {
                core.counters.remote_stored += objects;
                core.counters.bytes_remote_put += guard.data.object_bytes();
            }
            Some(Ok(PutOutcome::AlreadyPresent)) => {}
            _ if retry => {}
            _ => core.counters.remote_skipped += objects,
        }
        let is_present =
            matches!(outcome, Some(Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent)));
        let base = retry.then_some((guard.frame, objects));
        for (frame, objects) in base.into_iter().chain(dependents).rev() {
            match core.remote.as_mut().filter(|_| is_present || retry) {
                // Before all queued jobs, including removals.
                Some(queue) => queue.requeue_front(PeerJob::Frame(frame, objects)),
                None => core.counters.remote_skipped += objects,
            }
        }
        let is_waited_for = core.end_offer(number);
        drop(core);
        if is_waited_for {
            self.shared.signals.progress.raise();
        }
        self.connections.record_result(peer, failed, now);
    }
}

impl Task for PeerWriter {
    fn step(&mut self) -> Step {
        let now = self.shared.now();
        // Answers the peers' pings also without work, so that the links do not time out.
        self.connections.poll(now);
        self.process_responses(now);
        self.begin();
        if self.connections.is_busy() {
            self.connections.wait(now, LINK_STEP);
        }
        self.process_responses(self.shared.now());
        let core = self.shared.lock();
        let has_jobs = core.remote.as_ref().is_some_and(|queue| !queue.jobs.is_empty());
        // Offers in flight end first, since they use arena memory.
        if core.jobs.stopped && self.offers.is_empty() {
            return Step::Done;
        }
        drop(core);
        match self.connections.is_busy() || has_jobs {
            true => Step::Again,
            false => Step::Idle(IDLE),
        }
    }
}
