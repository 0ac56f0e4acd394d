//! One thread's way into a store: it submits batches, drives its own disk queue, and collects what is done.

mod ending;

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
use crate::api::outcome::{Done, Ticket};
use crate::api::request::{Get, Options, PutGroup};
use crate::read::get::{Finished, GetBatch, Probed};
use crate::rpc::connections::PeerConnections;
use crate::rpc::exists::RemoteExists;
use crate::rpc::remote_get::{CallOptions, GetTarget, RemoteGet};
use crate::state::put_types::PutOrigin;
use crate::state::read_latency::PollTimes;
use crate::state::reserve::ArenaReservation;
use crate::state::sampler::Sampler;
use crate::state::scratch::Scratch;
use crate::state::session_io::{SessionIo, recency, release_segment};
use crate::state::shared::Shared;
use crate::write::cache_remote;
use crate::write::groups::GroupId;
use crate::write::put_batch::PutBatch;

/// Longest wait for the disk while a peer, too, may bring something.
const BOTH_STEP: Duration = Duration::from_millis(1);
/// Longest single wait, so that a wait for several things notices each.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// One thread's way into a store. Not shared between threads: make one a thread.
pub struct Session {
    pub(crate) io: SessionIo,
    batches: Vec<(Ticket, Batch)>,
    /// What the disk brought and nobody has looked at yet: who is done is handed out, and reads that wait are begun, before the
    /// rest is verified.
    arrived: VecDeque<(Mono, Completion)>,
    poll_times: PollTimes,
    /// When dropping it ends, if that is not for it to say.
    drop_deadline: Option<Mono>,
    finished: VecDeque<(Ticket, Done)>,
    next_ticket: u64,
}

enum Batch {
    Get(Box<GetBatch>),
    Put(Box<PutBatch>),
    Remote(Box<RemoteGet>),
    Exists(Box<RemoteExists>),
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Session> {
        shared.check_open()?;
        let depth = shared.config.read_depth() as usize;
        let (queue, facts) = match &shared.volume {
            Some(volume) => (Some(volume.disk.queue(depth)?), Some(volume.disk.facts())),
            None => (None, None),
        };
        let scratch = Scratch::new()
            .map_err(|e| Error::busy(format!("no memory for a session: {e}{}", limits::of_mappings())))?;
        let seed = || u64::from_le_bytes(*shared.env.entropy.bytes16().first_chunk().unwrap_or(&[0; 8]));
        let sampler = Sampler::new(shared.config.verify_ratio(), seed);
        let connections = shared.remote.clone().map(PeerConnections::new);
        let counter_stripe = shared.get_counters.assign_stripe();
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
            arrived: VecDeque::new(),
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

    /// Submit objects to be got. Never waits for the disk. What is in DRAM is copied now, in this thread;
    /// what is on SSD is read while [`Session::poll`] or [`Session::wait`] is called.
    pub fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let ticket = self.begin_get(gets, options);
        self.drive();
        self.start();
        ticket
    }

    /// As [`Session::submit_get`], of what is here: peers are not asked.
    pub(crate) fn submit_get_local(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let batch = GetBatch::begin(&mut self.io, gets, at, deadline).local_only();
        self.batches.push((ticket, Batch::Get(Box::new(batch))));
        self.drive();
        self.start();
        ticket
    }

    /// As [`Session::submit_get`], for who waits next: the wait enters the kernel, once.
    pub(crate) fn begin_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let batch = GetBatch::begin(&mut self.io, gets, at, deadline);
        self.batches.push((ticket, Batch::Get(Box::new(batch))));
        ticket
    }

    /// Begin to read objects into memory of the arena, to be kept there; see [`crate::store::prefetch`].
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

    /// Submit groups to be put; each becomes visible as a whole. Never waits: a full arena is `Busy` at once.
    /// New objects are copied now, in this thread; only a put that meets what may be the same object on SSD
    /// has to look there first.
    pub fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        self.submit_put_as(groups, options, PutOrigin::Put)
    }

    /// The same of groups that came this way.
    pub(crate) fn submit_put_as(&mut self, groups: Vec<PutGroup>, options: Options, came: PutOrigin) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let batch = PutBatch::begin(&mut self.io, groups, at, deadline, came);
        self.batches.push((ticket, Batch::Put(Box::new(batch))));
        self.drive();
        self.start();
        ticket
    }

    /// Make a group visible that [`crate::Store::begin_group`] opened. Never waits; see [`crate::Group::commit`]
    /// for the outcomes, one for each of [`crate::Group::required`], and none if the group is open no more.
    pub fn submit_commit(&mut self, group: GroupId, options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let deadline = self.io.shared.deadline(options.timeout);
        let batch = PutBatch::commit(&mut self.io, group.0, at, deadline);
        self.batches.push((ticket, Batch::Put(Box::new(batch))));
        self.drive();
        self.start();
        ticket
    }

    /// Ask which objects are here; memory only, done at once, unless there are peers to be asked. See [`crate::Store::exists_batch`].
    pub fn submit_exists(&mut self, keys: &[ObjectKey], options: Options) -> Ticket {
        let ticket = self.ticket();
        let at = recency(&self.io.shared, &options);
        let found = crate::read::exists::exists(&self.io.shared, keys.iter(), at);
        let Some(connections) = self.io.connections.as_ref().filter(|_| !found.iter().all(|here| *here))
        else {
            self.finished.push_back((ticket, Done::Exists(found)));
            return ticket;
        };
        let call = CallOptions { recency: at, deadline: self.io.shared.deadline(options.timeout) };
        let exists = RemoteExists::begin(connections, keys, found, call);
        self.batches.push((ticket, Batch::Exists(Box::new(exists))));
        self.drive();
        self.start();
        ticket
    }

    /// Ask how long a prefix can be restored; memory only, done at once: peers are not asked. See [`crate::Store::exists_groups`].
    pub fn submit_exists_groups(&mut self, query: &PagesQuery<'_>, options: Options) -> Ticket {
        let ticket = self.ticket();
        let found = crate::read::exists_groups::exists_groups(
            &self.io.shared,
            query,
            recency(&self.io.shared, &options),
        );
        self.finished.push_back((ticket, Done::ExistsGroups(found)));
        ticket
    }

    /// Ask of each key whether its object is here by the header, and wait for the answers.
    pub(crate) fn probe(&mut self, keys: &[ObjectKey], at: Recency, deadline: Mono) -> Vec<Option<Probed>> {
        let ticket = self.ticket();
        let mut batch = GetBatch::probe(&mut self.io, keys, at, deadline);
        while !batch.advance(&mut self.io, ticket) {
            let mut done = Vec::new();
            match self.io.queue.as_mut().filter(|q| q.in_flight() > 0) {
                Some(queue) => queue.wait(&mut done, WAIT_STEP),
                None => {
                    let progress = &self.io.shared.progress;
                    self.io.shared.env.runtime.pause(progress, progress.value(), WAIT_STEP);
                }
            }
            for completion in done {
                // What it gave up is the session's, to let go of its segment.
                let given_up = self.io.orphans.contains_key(&completion.token);
                if !given_up && is_of(completion.token, ticket) {
                    self.io.completed_at = self.io.shared.now();
                    batch.completed(&mut self.io, completion);
                } else {
                    self.arrived.push_back((self.io.shared.now(), completion));
                }
            }
        }
        batch.into_probed()
    }

    /// Do what can be done without waiting; a finished batch, if there is one.
    pub fn poll(&mut self) -> Option<(Ticket, Done)> {
        self.drive();
        self.start();
        self.finished.pop_front()
    }

    /// Wait for a batch, at most `timeout`. `None` if it is not done by then (it goes on, ask again), or if
    /// it was handed out already.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Option<Done> {
        self.wait_for(Some(ticket), timeout).map(|(_, done)| done)
    }

    /// Wait for whichever batch is done first, at most `timeout`. `None` if none is by then, or none is under way: who keeps
    /// several going begins the next here, and not behind the oldest.
    pub fn wait_any(&mut self, timeout: Duration) -> Option<(Ticket, Done)> {
        self.wait_for(None, timeout)
    }

    fn wait_for(&mut self, wanted: Option<Ticket>, timeout: Duration) -> Option<(Ticket, Done)> {
        let is_it = |ticket: Ticket| wanted.is_none_or(|wanted| wanted == ticket);
        let deadline = self.io.shared.now().after(timeout);
        loop {
            self.drive();
            if let Some(at) = self.finished.iter().position(|(t, _)| is_it(*t)) {
                self.start();
                return self.finished.remove(at);
            }
            if !self.arrived.is_empty() {
                continue;
            }
            let left = deadline.since(self.io.shared.now());
            if left.is_zero() || !self.batches.iter().any(|(t, _)| is_it(*t)) {
                self.start();
                return None;
            }
            self.pause(left.min(WAIT_STEP));
        }
    }

    /// Whether a batch is done that was not handed out yet.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Whether the disk or a peer is asked for something, or the disk has brought it.
    pub(crate) fn is_busy(&self) -> bool {
        !self.arrived.is_empty()
            || self.io.queue.as_ref().is_some_and(|q| q.in_flight() > 0)
            || self.io.connections.as_ref().is_some_and(PeerConnections::is_busy)
    }

    /// Wait for the disk, or for staging that others hold.
    pub(crate) fn pause(&mut self, timeout: Duration) {
        if !self.arrived.is_empty() {
            return;
        }
        let mut done = Vec::new();
        self.poll_times.record(self.io.shared.now());
        let connections = self.io.connections.as_mut().filter(|connections| connections.is_busy());
        match (self.io.queue.as_mut().filter(|q| q.in_flight() > 0), connections) {
            (Some(queue), None) => queue.wait(&mut done, timeout),
            // The links are looked at between two waits.
            (Some(queue), Some(_)) => queue.wait(&mut done, timeout.min(BOTH_STEP)),
            (None, Some(connections)) => connections.wait(self.io.shared.now(), timeout),
            (None, None) => {
                let released = self.io.shared.staging.released();
                self.io.shared.env.runtime.pause(released, released.value(), timeout);
            }
        }
        self.take(done);
    }

    /// What the disk brought at this look.
    fn take(&mut self, done: Vec<Completion>) {
        let came = self.poll_times.record(self.io.shared.now());
        self.arrived.extend(done.into_iter().map(|completion| (came, completion)));
    }

    /// Take completions, as many as bring a batch to its end, let every batch go on, and collect those that are done. What they
    /// submit waits for [`Session::start`] or a wait.
    fn drive(&mut self) {
        self.take_arrived();
        while let Some((came, completion)) = self.arrived.pop_front() {
            self.io.completed_at = came;
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
            let over = match batch {
                Batch::Get(b) => b.advance(&mut self.io, *ticket),
                Batch::Put(b) => b.advance(&mut self.io, *ticket),
                Batch::Remote(b) => {
                    self.io.connections.as_mut().is_none_or(|connections| b.advance(connections, now))
                }
                Batch::Exists(b) => {
                    self.io.connections.as_mut().is_none_or(|connections| b.advance(connections, now))
                }
            };
            if !over {
                i += 1;
                continue;
            }
            let (ticket, batch) = self.batches.remove(i);
            let done = match batch {
                Batch::Get(b) => {
                    let Finished { done, missed, options } = b.finish(&mut self.io);
                    if let Some(connections) = self.io.connections.as_ref().filter(|_| !missed.is_empty()) {
                        let since = self.io.shared.removal_fence.epoch_without_removal();
                        let remote =
                            RemoteGet::begin(connections, done, missed, options, GetTarget::Peers, since);
                        self.batches.push((ticket, Batch::Remote(Box::new(remote))));
                        continue;
                    }
                    Done::Get(done)
                }
                Batch::Put(b) => Done::Put(b.finish(&mut self.io)),
                Batch::Remote(mut b) => {
                    cache_remote::cache_fetched(&self.io.shared, &mut b);
                    b.add_to_counters(&mut self.io.shared.lock().counters);
                    Done::Get(b.finish())
                }
                Batch::Exists(b) => Done::Exists(b.finish()),
            };
            self.finished.push_back((ticket, done));
        }
    }

    /// What the disk has brought. Reads that wait, of a new batch or for the places that this had, are begun first, so that they
    /// are on their way while it is verified.
    fn take_arrived(&mut self) {
        self.start();
        if self.arrived.is_empty() {
            return;
        }
        let (now, mut began) = (self.io.shared.now(), false);
        for (ticket, batch) in &mut self.batches {
            if let Batch::Get(b) = batch
                && b.has_waiting(now)
            {
                b.submit(&mut self.io, *ticket);
                began = true;
            }
        }
        if began {
            self.start();
        }
    }

    /// See to it that what the batches submitted is on its way before the caller goes on with other things.
    fn start(&mut self) {
        if let Some(queue) = self.io.queue.as_mut() {
            let (busy, mut done) = (queue.in_flight() > 0, Vec::new());
            queue.poll(&mut done);
            if busy {
                self.take(done);
            }
        }
    }

    /// Hand a completion to its batch; true if that was all the batch waited for.
    fn completed(&mut self, completion: Completion) -> bool {
        let token = completion.token;
        if let Some((segment, began)) = self.io.orphans.remove(&token) {
            self.io.shared.slow_reads.note(self.io.completed_at.since(began), self.io.completed_at);
            release_segment(&self.io.shared, segment);
            return false;
        }
        match self.batches.iter_mut().find(|(ticket, _)| is_of(token, *ticket)) {
            Some((_, Batch::Get(b))) => {
                b.completed(&mut self.io, completion);
                b.is_over()
            }
            Some((_, Batch::Put(b))) => {
                b.completed(&mut self.io, completion);
                false
            }
            Some((_, Batch::Remote(_) | Batch::Exists(_))) | None => false,
        }
    }
}

/// Whether a token is of an operation of this ticket.
fn is_of(token: u64, ticket: Ticket) -> bool {
    token >> 32 == ticket.0 & u64::from(u32::MAX)
}
