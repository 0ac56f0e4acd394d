//! A session: one thread's handle of a store. It submits batches, drives its own disk queue, and
//! collects finished batches.

mod teardown;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_io::limits;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashMap;

use crate::api::error::{Error, Result};
use crate::api::hits::PagesQuery;
use crate::api::outcome::{CompletedBatch, Ticket};
use crate::api::request::{Get, Options, PutGroup};
use crate::read::get::{Finished, GetBatch, GetPart, ProbedObject};
use crate::read::recompute::Recompute;
use crate::rpc::connections::PeerConnections;
use crate::rpc::exists::RemoteExists;
use crate::rpc::remote_get::{CallOptions, GetTarget, RemoteGet};
use crate::state::put_spec::PutOrigin;
use crate::state::read_latency::PollTimes;
use crate::state::reserve::ArenaReservation;
use crate::state::scratch::Scratch;
use crate::state::session_io::{SessionIo, recency, release_segment};
use crate::state::shared::Shared;
use crate::state::verify_sampler::VerifySampler;
use crate::store::remote_counts;
use crate::write::cache_remote;
use crate::write::open_group::OpenGroupId;
use crate::write::put::payload::PayloadGroup;
use crate::write::put_batch::PutBatch;

/// Longest wait for the disk while responses of peers are pending too.
const DISK_AND_PEER_STEP: Duration = Duration::from_millis(1);
/// Longest single wait, so that a wait for several conditions checks each of them.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// One thread's handle of a store. It is not shared: each thread needs its own.
pub struct Session {
    pub(crate) io: SessionIo,
    batches: Vec<(Ticket, Batch)>,
    /// Completions that are not processed yet, with their arrival times. Before the next one is
    /// verified, finished batches are returned and waiting reads are submitted.
    completions: VecDeque<(Mono, Completion)>,
    poll_times: PollTimes,
    /// Deadline of its drop; by default the configured deadline.
    drop_deadline: Option<Mono>,
    finished: VecDeque<(Ticket, CompletedBatch)>,
    next_ticket: u64,
}

enum Batch {
    Get(Box<GetBatch>),
    Put(Box<PutBatch>),
    /// The objects are those that this store missed, by index in the batch.
    Remote(Box<RemoteGet>, Vec<(usize, ObjectKey)>),
    Exists(Box<RemoteExists>),
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Session> {
        shared.check_open()?;
        let depth = shared.config.read_depth() as usize;
        let (queue, facts) = match &shared.ssd.volume {
            Some(volume) => (Some(volume.disk.queue(depth)?), Some(volume.disk.facts())),
            None => (None, None),
        };
        let scratch = Scratch::new().map_err(|e| {
            Error::busy(format!("no memory for a session: {e}{}", limits::mapping_limit_text()))
        })?;
        let seed =
            || u64::from_le_bytes(*shared.env.entropy.bytes16().first_chunk().unwrap_or(&[0; 8]));
        let sampler = VerifySampler::new(shared.config.verify_ratio(), seed);
        let connections = shared.remote.peers.clone().map(PeerConnections::new);
        let counter_stripe = shared.reads.counters.assign_stripe();
        let io = SessionIo {
            shared,
            queue,
            facts,
            scratch,
            orphans: FxHashMap::default(),
            completed_at: Mono::default(),
            counter_stripe,
            last_token: 0,
            sampler,
            connections,
            wants_meta: false,
        };
        Ok(Session {
            io,
            batches: Vec::new(),
            completions: VecDeque::new(),
            poll_times: PollTimes::default(),
            drop_deadline: None,
            finished: VecDeque::new(),
            next_ticket: 0,
        })
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Submit gets. Never waits for the disk. Objects in DRAM are copied now, in this thread;
    /// objects on SSD are read during calls of [`Session::poll`] and [`Session::wait`].
    pub fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let ticket = self.begin_get(gets, options);
        self.drive();
        self.start();
        ticket
    }

    /// As [`Session::submit_get`], for part of a client's request. Returns also what was decided
    /// for its other parts.
    pub(crate) fn submit_get_part(
        &mut self,
        part: GetPart,
        options: Options,
    ) -> (Ticket, Recompute) {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let (batch, decided) = GetBatch::begin_part(&mut self.io, part, at, deadline);
        self.batches.push((ticket, Batch::Get(Box::new(batch))));
        self.drive();
        self.start();
        (ticket, decided)
    }

    /// As [`Session::submit_get`], for callers that wait at once: the reads are submitted by the
    /// wait, with one system call.
    pub(crate) fn begin_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let undecided = Recompute::asking(options.prefill_tokens_per_s);
        let batch = GetBatch::begin(&mut self.io, gets, at, deadline, undecided);
        self.batches.push((ticket, Batch::Get(Box::new(batch))));
        ticket
    }

    /// Begin to read objects into arena memory, to be kept there; see [`crate::store::prefetch`].
    pub(crate) fn begin_prefetch(
        &mut self,
        objects: Vec<(ObjectKey, (ArenaReservation, Part))>,
        at: Recency,
        deadline: Mono,
    ) -> Ticket {
        let ticket = self.ticket();
        let batch = GetBatch::prefetch(&mut self.io, objects, at, deadline);
        self.batches.push((ticket, Batch::Get(Box::new(batch))));
        ticket
    }

    /// Submit groups to be put; each becomes visible as a whole. Never waits: if the arena is full,
    /// the outcome is `Busy`. New objects are copied now, in this thread. A put reads from SSD
    /// first only if the same object may be there.
    pub fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        let groups = groups.into_iter().map(PayloadGroup::from).collect();
        self.submit_put_as(groups, options, PutOrigin::Put)
    }

    /// As [`Session::submit_put`], for groups of this origin.
    pub(crate) fn submit_put_as(
        &mut self,
        groups: Vec<PayloadGroup>,
        options: Options,
        origin: PutOrigin,
    ) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let batch = PutBatch::begin(&mut self.io, groups, at, deadline, origin);
        self.batches.push((ticket, Batch::Put(Box::new(batch))));
        self.drive();
        self.start();
        ticket
    }

    /// Make a group visible that [`crate::Store::begin_group`] opened. Never waits. Outcomes as for
    /// [`crate::Group::commit`], one for each of [`crate::Group::required`]; none if the group is
    /// not open any more.
    pub fn submit_commit(&mut self, group: OpenGroupId, options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let batch = PutBatch::commit(&mut self.io, group.0, at, deadline);
        self.batches.push((ticket, Batch::Put(Box::new(batch))));
        self.drive();
        self.start();
        ticket
    }

    /// Look up which objects are present; see [`crate::Store::exists_batch`]. The lookup is in
    /// memory and finishes at once, unless absent objects are looked up at peers.
    pub fn submit_exists(&mut self, keys: &[ObjectKey], options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let found = crate::read::exists::exists(&self.io.shared, keys.iter(), at);
        let Some(connections) =
            self.io.connections.as_ref().filter(|_| !found.iter().all(|present| *present))
        else {
            self.finished.push_back((ticket, CompletedBatch::Exists(found)));
            return ticket;
        };
        let deadline = self.io.shared.deadline(options.timeout);
        let (request, depth) = (at.request, at.depth);
        let call = CallOptions { request, depth, deadline, prefill_tokens_per_s: 0 };
        let exists = RemoteExists::begin(connections, keys, found, call);
        self.batches.push((ticket, Batch::Exists(Box::new(exists))));
        self.drive();
        self.start();
        ticket
    }

    /// Look up how long a prefix can be restored; see [`crate::Store::exists_groups`]. The lookup
    /// is in memory, finishes at once, and does not include peers.
    pub fn submit_exists_groups(&mut self, query: &PagesQuery<'_>, options: Options) -> Ticket {
        let ticket = self.ticket();
        let found = crate::read::exists_groups::exists_groups(
            &self.io.shared,
            query,
            recency(&self.io.shared, &options),
        );
        self.finished.push_back((ticket, CompletedBatch::ExistsGroups(found)));
        ticket
    }

    /// Determine from record headers whether each key's object is present, and wait for the result.
    pub(crate) fn probe(
        &mut self,
        keys: &[ObjectKey],
        at: Recency,
        deadline: Mono,
    ) -> Vec<Option<ProbedObject>> {
        let ticket = self.ticket();
        let mut batch = GetBatch::probe(&mut self.io, keys, at, deadline);
        while !batch.advance(&mut self.io, ticket) {
            let mut done = Vec::new();
            match self.io.queue.as_mut().filter(|q| q.in_flight() > 0) {
                Some(queue) => queue.wait(&mut done, WAIT_STEP),
                None => {
                    let progress = &self.io.shared.signals.progress;
                    self.io.shared.env.runtime.pause(progress, progress.value(), WAIT_STEP);
                }
            }
            for completion in done {
                // The session itself releases the segments of abandoned reads.
                let abandoned = self.io.orphans.contains_key(&completion.token);
                if !abandoned && is_token_of(completion.token, ticket) {
                    self.io.completed_at = self.io.shared.now();
                    batch.completed(&mut self.io, completion);
                } else {
                    self.completions.push_back((self.io.shared.now(), completion));
                }
            }
        }
        batch.into_probed()
    }

    /// Make progress without waiting. Returns a finished batch, if there is one.
    pub fn poll(&mut self) -> Option<(Ticket, CompletedBatch)> {
        self.drive();
        self.start();
        self.finished.pop_front()
    }

    /// Wait for a batch, at most `timeout`. `None` if it is not finished by then (it continues, and
    /// may be waited for again), or if it was returned already.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Option<CompletedBatch> {
        self.wait_for(Some(ticket), timeout).map(|(_, done)| done)
    }

    /// Wait for the first batch that finishes, at most `timeout`. `None` if none finishes by then,
    /// or none is in flight. A caller with several batches in flight can thus submit the next one
    /// without waiting for the oldest.
    pub fn wait_any(&mut self, timeout: Duration) -> Option<(Ticket, CompletedBatch)> {
        self.wait_for(None, timeout)
    }

    fn wait_for(
        &mut self,
        wanted: Option<Ticket>,
        timeout: Duration,
    ) -> Option<(Ticket, CompletedBatch)> {
        let is_wanted = |ticket: Ticket| wanted.is_none_or(|wanted| wanted == ticket);
        let deadline = self.io.shared.now().after(timeout);
        loop {
            self.drive();
            if let Some(at) = self.finished.iter().position(|(t, _)| is_wanted(*t)) {
                self.start();
                return self.finished.remove(at);
            }
            if !self.completions.is_empty() {
                continue;
            }
            let left = deadline.since(self.io.shared.now());
            if left.is_zero() || !self.batches.iter().any(|(t, _)| is_wanted(*t)) {
                self.start();
                return None;
            }
            self.pause(left.min(WAIT_STEP));
        }
    }

    /// Whether a finished batch was not returned yet.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Whether disk operations or peer requests are in flight, or completions are not processed
    /// yet.
    pub(crate) fn is_busy(&self) -> bool {
        !self.completions.is_empty()
            || self.io.queue.as_ref().is_some_and(|q| q.in_flight() > 0)
            || self.io.connections.as_ref().is_some_and(PeerConnections::is_busy)
    }

    /// Wait for the disk, for peers, or for staging memory that other sessions hold.
    pub(crate) fn pause(&mut self, timeout: Duration) {
        if !self.completions.is_empty() {
            return;
        }
        let mut done = Vec::new();
        self.poll_times.record(self.io.shared.now());
        let connections = self.io.connections.as_mut().filter(|connections| connections.is_busy());
        match (self.io.queue.as_mut().filter(|q| q.in_flight() > 0), connections) {
            (Some(queue), None) => queue.wait(&mut done, timeout),
            // The links are polled between two waits.
            (Some(queue), Some(_)) => queue.wait(&mut done, timeout.min(DISK_AND_PEER_STEP)),
            (None, Some(connections)) => connections.wait(self.io.shared.now(), timeout),
            (None, None) => {
                let released = self.io.shared.ssd.staging.released();
                self.io.shared.env.runtime.pause(released, released.value(), timeout);
            }
        }
        self.queue_completions(done);
    }

    /// Queue the completions of this poll, with their arrival time.
    fn queue_completions(&mut self, done: Vec<Completion>) {
        let arrived_at = self.poll_times.record(self.io.shared.now());
        self.completions.extend(done.into_iter().map(|completion| (arrived_at, completion)));
    }

    /// Process completions until one finishes a batch, advance every batch, and collect the
    /// finished ones. [`Session::start`] or a wait passes the operations that they submit to the
    /// kernel.
    fn drive(&mut self) {
        self.submit_waiting_reads();
        while let Some((arrived_at, completion)) = self.completions.pop_front() {
            self.io.completed_at = arrived_at;
            if self.completed(completion) {
                break;
            }
        }
        let now = self.io.connections.as_ref().map_or(Mono::default(), |_| self.io.shared.now());
        if let Some(connections) = self.io.connections.as_mut() {
            connections.poll(now);
        }
        let mut i = 0;
        while i < self.batches.len() {
            let (ticket, batch) = &mut self.batches[i];
            let finished = match batch {
                Batch::Get(b) => b.advance(&mut self.io, *ticket),
                Batch::Put(b) => b.advance(&mut self.io, *ticket),
                Batch::Remote(b, _) => self
                    .io
                    .connections
                    .as_mut()
                    .is_none_or(|connections| b.advance(connections, now)),
                Batch::Exists(b) => self
                    .io
                    .connections
                    .as_mut()
                    .is_none_or(|connections| b.advance(connections, now)),
            };
            if !finished {
                i += 1;
                continue;
            }
            let (ticket, batch) = self.batches.remove(i);
            let done = match batch {
                Batch::Get(b) => {
                    let Finished { done, missed, options } = b.finish(&mut self.io);
                    if let Some(connections) =
                        self.io.connections.as_ref().filter(|_| !missed.is_empty())
                    {
                        let keys = missed.iter().map(|item| (item.index, item.key)).collect();
                        let since = self.io.shared.remote.removal_fence.version_without_removal();
                        let remote = RemoteGet::begin(
                            connections,
                            done,
                            missed,
                            options,
                            GetTarget::Peers,
                            since,
                        );
                        self.batches.push((ticket, Batch::Remote(Box::new(remote), keys)));
                        continue;
                    }
                    CompletedBatch::Get(done)
                }
                Batch::Put(b) => CompletedBatch::Put(b.finish(&mut self.io)),
                Batch::Remote(mut b, missed) => {
                    cache_remote::cache_fetched(&self.io.shared, &mut b);
                    remote_counts::count(&self.io.shared, &b, &missed);
                    CompletedBatch::Get(b.finish())
                }
                Batch::Exists(b) => CompletedBatch::Exists(b.finish()),
            };
            self.finished.push_back((ticket, done));
        }
    }

    /// Poll the disk. If completions arrived, submit waiting reads, of new batches or for the slots
    /// that became free, so that the device works while the completions are verified.
    fn submit_waiting_reads(&mut self) {
        self.start();
        if self.completions.is_empty() {
            return;
        }
        let (now, mut submitted) = (self.io.shared.now(), false);
        for (ticket, batch) in &mut self.batches {
            if let Batch::Get(b) = batch
                && b.has_waiting(now)
            {
                b.submit(&mut self.io, *ticket);
                submitted = true;
            }
        }
        if submitted {
            self.start();
        }
    }

    /// Pass the submitted operations to the kernel, before the caller does other work.
    fn start(&mut self) {
        if let Some(queue) = self.io.queue.as_mut() {
            let (busy, mut done) = (queue.in_flight() > 0, Vec::new());
            queue.poll(&mut done);
            if busy {
                self.queue_completions(done);
            }
        }
    }

    /// Pass a completion to its batch; true if the batch waits for no other one.
    fn completed(&mut self, completion: Completion) -> bool {
        let token = completion.token;
        if let Some((segment, submitted_at)) = self.io.orphans.remove(&token) {
            self.io
                .shared
                .reads
                .latency
                .note(self.io.completed_at.since(submitted_at), self.io.completed_at);
            release_segment(&self.io.shared, segment);
            return false;
        }
        match self.batches.iter_mut().find(|(ticket, _)| is_token_of(token, *ticket)) {
            Some((_, Batch::Get(b))) => {
                b.completed(&mut self.io, completion);
                b.is_over()
            }
            Some((_, Batch::Put(b))) => {
                b.completed(&mut self.io, completion);
                false
            }
            Some((_, Batch::Remote(..) | Batch::Exists(_))) | None => false,
        }
    }
}

/// Whether the token belongs to an operation of this ticket's batch.
fn is_token_of(token: u64, ticket: Ticket) -> bool {
    token >> 32 == ticket.0 & u64::from(u32::MAX)
}
