//! The batches of one thread. Several are in flight, so that the store works on the next one while
//! this side copies, and this side checksums the next one while the store works.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_mutants::{self as mutant, Mutant};

use super::batch::{RemotePutBatch, begin_get};
use super::{Client, STORE, WAIT_STEP};
use crate::api::outcome::{CompletedBatch, Ticket};
use crate::api::request::{Get, Options, PutGroup};
use crate::rpc::connections::PeerConnections;
use crate::rpc::remote_get::{LinkFailures, RemoteGet};

/// A session on the store of a [`Client`], as `pagelith::Session` is on a store of this process:
/// it submits batches, several at a time, and collects them as they finish, in any order. It has
/// exclusive use of one link until it is dropped. Batches make progress only while one of its
/// methods runs. A session belongs to one thread.
///
/// A batch has the semantics of a call of [`Client::get`] or [`Client::put`]. It has the timeout of
/// its [`Options`], it is retried once if the link ends, and a put without capacity at the store is
/// `Busy` at once. The store executes batches in any order: to get what it put, a caller waits for
/// the put first.
///
/// Regions must be [shared](Client::share) before the session is created: a link has the regions
/// that existed when it was established.
///
/// Dropping it abandons the batches in flight, as if their timeouts had passed: the store is
/// notified, and the drop returns when neither the link nor a read by the kernel holds memory of
/// the callers. Memory lent by [`crate::Destination::borrowed`] or [`crate::Source::borrowed`] is
/// then the caller's again, with or without a guard. A store that reads a put from shared memory
/// may read it a moment longer, through its own mapping, and stores only bytes that match the
/// checksums. Some objects of an abandoned put may have been stored.
pub struct Session {
    attached: Client,
    connections: PeerConnections,
    /// The share count when the connections were taken.
    share_count: u64,
    batches: Vec<PendingBatch>,
    finished: VecDeque<(Ticket, CompletedBatch)>,
    last_ticket: u64,
}

struct PendingBatch {
    ticket: Ticket,
    batch: Batch,
}

enum Batch {
    Get(Box<RemoteGet>),
    Put(Box<RemotePutBatch>),
}

impl Client {
    /// Create a session. It takes the link of an earlier call, or dials one for the first batch.
    pub fn session(&self) -> Session {
        let (mut connections, share_count) = self.checkout();
        // Discard late responses of earlier calls.
        connections.take_responses();
        Session {
            attached: self.clone(),
            connections,
            share_count,
            batches: Vec::new(),
            finished: VecDeque::new(),
            last_ticket: 0,
        }
    }
}

impl Session {
    /// Submit a batch of gets, as [`Client::get`]. Sends the request and does not wait: the results
    /// are copied in [`Session::poll`] or a wait.
    pub fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let call = self.attached.call_options(&options);
        let get = begin_get(&mut self.connections, gets, call);
        self.submit(Batch::Get(Box::new(get)))
    }

    /// Submit a batch of puts, as [`Client::put`]. The payload is checksummed now, in this thread,
    /// and sent to the store from then on.
    pub fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        let call = self.attached.call_options(&options);
        let puts = RemotePutBatch::begin(&mut self.connections, groups, &[], call);
        self.submit(Batch::Put(Box::new(puts)))
    }

    /// Send the request before any event is handled, so that the store starts early.
    fn submit(&mut self, batch: Batch) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.batches.push(PendingBatch { ticket, batch });
        self.advance(self.batches.len() - 1, self.attached.clock.now());
        self.connections.flush_queues();
        ticket
    }

    /// Make progress without waiting; returns a finished batch, if there is one.
    pub fn poll(&mut self) -> Option<(Ticket, CompletedBatch)> {
        self.drive();
        self.finished.pop_front()
    }

    /// Wait for a batch, at most `timeout`. `None` if it is still in flight then (call again), or
    /// if it was returned already.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Option<CompletedBatch> {
        self.wait_for(Some(ticket), timeout).map(|(_, done)| done)
    }

    /// Wait for the first batch to finish, at most `timeout`. `None` if none finishes by then, or
    /// none is in flight.
    pub fn wait_any(&mut self, timeout: Duration) -> Option<(Ticket, CompletedBatch)> {
        self.wait_for(None, timeout)
    }

    /// Whether a request is in flight, or its answer is not taken yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.connections.is_busy()
    }

    fn wait_for(
        &mut self,
        wanted: Option<Ticket>,
        timeout: Duration,
    ) -> Option<(Ticket, CompletedBatch)> {
        let matches = |ticket: Ticket| wanted.is_none_or(|wanted| wanted == ticket);
        let deadline = self.attached.clock.now().after(timeout);
        loop {
            if let Some(at) = self.finished.iter().position(|(ticket, _)| matches(*ticket)) {
                return self.finished.remove(at);
            }
            if !self.batches.iter().any(|batch| matches(batch.ticket)) {
                return None;
            }
            self.drive();
            if self.finished.iter().any(|(ticket, _)| matches(*ticket)) {
                continue;
            }
            let now = self.attached.clock.now();
            let left = deadline.since(now);
            if left.is_zero() {
                return None;
            }
            self.attached.keep_alive();
            self.connections.wait(now, left.min(WAIT_STEP));
        }
    }

    /// Make progress on all batches. Responses that arrived are consumed before more events are
    /// received.
    fn drive(&mut self) {
        let now = self.attached.clock.now();
        if !self.connections.has_responses() {
            self.connections.poll(now);
        }
        self.advance(0, now);
    }

    /// Make progress on the batches from index `at` on, and collect those that finished.
    fn advance(&mut self, mut at: usize, now: Mono) {
        // All calls that end with one link count as one failure, over all batches.
        let mut failures = LinkFailures::default();
        while let Some(PendingBatch { batch, .. }) = self.batches.get_mut(at) {
            let connections = &mut self.connections;
            let all_done = match batch {
                Batch::Get(get) => get.advance_batch(connections, now, &mut failures),
                Batch::Put(puts) => {
                    let all_done = puts.advance(connections, now, &mut failures);
                    self.attached.unflushed().note(puts.take_acknowledgements());
                    all_done
                }
            };
            if !all_done {
                at += 1;
                continue;
            }
            let PendingBatch { ticket, batch } = self.batches.remove(at);
            let done = match batch {
                Batch::Get(get) => CompletedBatch::Get(get.finish()),
                Batch::Put(puts) => CompletedBatch::Put(puts.finish()),
            };
            self.finished.push_back((ticket, done));
        }
        failures.apply(&self.connections, now);
    }
}

impl Drop for Session {
    /// Waits until the link has returned all memory, without a limit.
    fn drop(&mut self) {
        let replacement = PeerConnections::for_client(self.attached.remote.clone());
        let mut connections = std::mem::replace(&mut self.connections, replacement);
        let clock = &*self.attached.clock;
        connections.expire_calls(STORE, clock.now());
        while connections.has_pending_calls(STORE) && !mutant::on(Mutant::SessionDroppedWithLinks) {
            connections.wait(clock.now(), WAIT_STEP);
        }
        connections.take_responses();
        self.attached.checkin(connections, self.share_count);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("batches", &self.batches.len()).finish_non_exhaustive()
    }
}
