//! The server's end of a link: receives requests, sends bytes and outcomes.
//!
//! Invariants:
//! - Bytes that are sent or passed by reference are in the arena, in a guarded frame, or in staging
//!   memory. A staging buffer belongs to one item of one operation; operations wait for staging
//!   memory in the order of their numbers. A link takes no more of it than it leaves to others.
//! - Bytes that arrive are in reserved arena memory, which the index does not name before the put
//!   is stored.
//! - Nothing that a peer sends decides how much is allocated or held.
//! - The server drives both directions: bytes of a put arrive only after it pulled them, into
//!   memory reserved for them.
//! - Memory pushed for a get is returned by its deadline, or when an RDMA device has finished.
//! - Each operation ends with one outcome, sent after all of its bytes. The outcome of a cancelled
//!   operation is sent at once, since a client counts its operations in flight by their outcomes.
//! - Pins, views, holds and open groups of a client are released with its link, however it ends.
//! - A request without the necessary right is refused before any lookup.

pub mod bounds;
#[cfg(test)]
mod bounds_test;
mod call_context;
#[cfg(test)]
pub(crate) mod cancel_test;
mod cancelled_batches;
#[cfg(test)]
mod cancelled_ops_test;
mod client_resources;
#[cfg(test)]
pub(crate) mod client_resources_test;
mod commit;
mod durable;
mod exists;
mod get;
mod immediate;
mod in_flight_sends;
mod invalidation_holds;
pub mod load;
#[cfg(test)]
mod load_test;
mod op_outcome;
mod outbox;
mod pending_pushes;
mod poll;
mod put;
#[cfg(test)]
pub(crate) mod removal_fence_test;
mod serving;
#[cfg(test)]
pub(crate) mod shared_memory_test;
#[cfg(test)]
mod tenants_test;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pagelith_io::staging::{StagingPool, StagingUser};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::request::{self, RequestBody, RequestOptions, Verb};
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;
use rustc_hash::FxHashMap;

use self::call_context::CallContext;
use self::cancelled_batches::CancelledBatches;
use self::client_resources::ClientResources;
use self::commit::CommitOp;
use self::durable::DurableOp;
use self::exists::ExistsOp;
use self::get::GetOp;
use self::immediate::outcome_from_memory;
use self::in_flight_sends::InFlightSends;
use self::invalidation_holds::InvalidationHolds;
use self::load::LinkLoad;
use self::op_outcome::OpOutcome;
pub use self::serving::{LogDecision, RefusalLimit, ServeBuilder, Serving, mapped_max_default};
use self::{pending_pushes::PendingPushes, put::PutOp};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::Ticket;
use crate::api::request::RequestEpoch;
use crate::memory::pins::ClientName;
use crate::state::shared::Shared;
use crate::store::{embedded::Store, prefetch, session::Session};

/// Maximum number of operations in progress per link, including cancelled ones that still run; a
/// request beyond it is answered `Busy`.
const OPS_MAX: usize = 1024;
/// Maximum number of bytes of an object that are staged at a time: whole blocks.
const CHUNK_BYTES: u64 = 128 * BLOCK_BYTES as u64;
/// Maximum time that the drop of a server waits for its link to hand back memory.
const DROP_MAX: Duration = Duration::from_secs(1);
/// How long to wait for the disk before the link is polled again, while completions of both are
/// pending.
const DISK_STEP: Duration = Duration::from_millis(1);

/// The server's end of one link, with a session on the store. Used by one thread.
pub struct Server {
    link: Box<dyn Link>,
    ops: BTreeMap<OpId, Op>,
    resources: ClientResources,
    invalidation_holds: InvalidationHolds,
    ctx: ServerCtx,
    load: LinkLoad,
    /// Identity of the client's process within its key; flush reports are kept by this identity.
    process: String,
    /// Cancelled removals and flushes, which still run to their end, with the bytes counted for
    /// each.
    cancelled: Vec<(DurableOp, u64)>,
    cancelled_batches: CancelledBatches,
    /// Outcomes that did not fit into the link's queue.
    outbox: VecDeque<Frame>,
    /// Capacity in bytes of the link's queue while it is empty.
    outcome_capacity: usize,
    /// Request numbers of the client and their recency epochs, oldest first.
    requests: VecDeque<(u64, RequestEpoch)>,
    /// The highest of these numbers so far.
    newest_request: u64,
    closed: Option<LinkError>,
    /// The link has handed back all memory.
    ended: bool,
}

/// State shared by all operations of a link.
struct ServerCtx {
    session: Session,
    staging: StagingUser,
    batches: FxHashMap<Ticket, OpId>,
    in_flight_sends: InFlightSends,
    pending_pushes: PendingPushes,
}

impl ServerCtx {
    fn shared(&self) -> &Shared {
        &self.session.io.shared
    }
}

/// An operation in progress.
enum Op {
    Get(GetOp),
    Put(PutOp),
    Durable(DurableOp),
    Commit(CommitOp),
    Exists(ExistsOp),
}

impl Server {
    /// Serves `store` to the peer of `link`. `staging` buffers bytes in both directions and may be
    /// shared with other servers.
    pub fn new(store: &Store, link: Box<dyn Link>, staging: StagingPool) -> Result<Server> {
        let min = 2 * CHUNK_BYTES;
        if (staging.capacity() as u64) < min {
            let bytes = staging.capacity();
            return Err(Error::invalid(format!(
                "staging memory is too small bytes={bytes} min={min}"
            )));
        }
        let mut session = store.session()?;
        session.io.wants_meta = true;
        let outcome_capacity = link.capacity().frame_bytes;
        let params = link.params();
        let instance: String =
            params.peer_instance.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = params.key_name.as_deref();
        let process = format!("{}/{instance}", key.unwrap_or_default());
        // Processes with the same key share one client name; without a key each process is its own
        // client.
        let client: ClientName =
            key.map_or_else(|| instance.as_str().into(), |key| format!("key/{key}").into());
        let load = LinkLoad::new(session.io.shared.bytes.served.client(&client));
        let resources = ClientResources::new(client);
        session.io.shared.lock().flushes.link(&process, params.rights.namespaces.these());
        Ok(Server {
            link,
            load,
            cancelled: Vec::new(),
            cancelled_batches: CancelledBatches::default(),
            outcome_capacity,
            ops: BTreeMap::new(),
            resources,
            process,
            invalidation_holds: InvalidationHolds::default(),
            ctx: ServerCtx {
                session,
                staging: staging.user(),
                batches: FxHashMap::default(),
                in_flight_sends: InFlightSends::default(),
                pending_pushes: PendingPushes::default(),
            },
            outbox: VecDeque::new(),
            requests: VecDeque::new(),
            newest_request: 0,
            closed: None,
            ended: false,
        })
    }

    /// The reason why the link ended, or `None` while it is open.
    pub fn closed(&self) -> Option<&LinkError> {
        self.closed.as_ref()
    }

    /// Number of operations in progress.
    pub fn ops(&self) -> usize {
        self.ops.len()
    }

    /// Advances all operations as far as possible now and returns whether anything changed. Does
    /// not block, except that a removal reads headers.
    pub fn poll(&mut self) -> bool {
        let mut events = Vec::new();
        self.link.poll(&mut events);
        self.handle_events(events)
    }

    /// As [`Server::poll`], but waits at most `timeout` for a change.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        if self.poll() || self.closed.is_some() {
            return true;
        }
        let mut events = Vec::new();
        match self.ctx.session.is_busy() || self.has_durable_op() {
            true => self.ctx.session.pause(timeout.min(DISK_STEP)),
            false => self.link.wait(&mut events, timeout),
        }
        self.handle_events(events) || self.poll()
    }

    /// Closes the link and drops the operations in progress.
    pub fn close(&mut self) {
        self.link.close();
        self.poll();
    }

    fn has_durable_op(&self) -> bool {
        self.ops.values().any(is_durable_op)
    }

    fn handle_events(&mut self, events: Vec<LinkEvent>) -> bool {
        let mut changed = !events.is_empty();
        let mut returned = Vec::new();
        for event in events {
            if let LinkEvent::Pushed { op, token, .. } = &event {
                returned.push(*token);
                self.ctx.pending_pushes.returned(*op);
            }
            if let Err(error) = self.handle_event(event) {
                let peer = &self.link.params().peer;
                tracing::warn!(%peer, %error, "protocol violation by the peer, closing the link");
                self.closed = Some(error.into());
                self.link.close();
            }
        }
        // The events are dropped, so that nothing refers to the pushed frames.
        let ServerCtx { in_flight_sends, session, .. } = &mut self.ctx;
        in_flight_sends.release(&session.io.shared, &returned);
        changed |= self.collect_completions();
        changed |= self.advance();
        if !self.invalidation_holds.is_empty() {
            self.invalidation_holds.expire(self.ctx.shared().now());
        }
        while let Some(overdue) = self.ctx.pending_pushes.overdue(self.ctx.shared().now()) {
            self.link.retract(overdue);
            changed = true;
        }
        self.send_outcomes();
        // Completions that are already available must be handled now: nothing would wake this
        // thread for them.
        changed | self.ctx.session.has_finished()
    }

    fn handle_event(&mut self, event: LinkEvent) -> std::result::Result<(), FormatError> {
        match event {
            LinkEvent::Frame(frame) => self.handle_frame(frame)?,
            LinkEvent::Received { op, item, parts, .. } => {
                if let Some(Op::Put(put)) = self.ops.get_mut(&op) {
                    put.receive(item, parts, None);
                }
            }
            LinkEvent::ReceivedRef { op, item, parts, shown, .. } => {
                if let Some(Op::Put(put)) = self.ops.get_mut(&op) {
                    put.receive(item, parts, Some(&shown));
                }
                self.link.release_ref(shown);
            }
            // The buffers were returned above, or by dropping the event.
            LinkEvent::Pushed { .. } | LinkEvent::Retracted { .. } => {}
            LinkEvent::Ended(why) => {
                tracing::info!(peer = %self.link.params().peer, %why, "link closed");
                self.closed.get_or_insert(why);
                self.ended = true;
                self.ops.clear();
                self.resources.release_all(self.ctx.shared());
                self.invalidation_holds.release_all();
                self.outbox.clear();
                self.cancelled.clear();
                self.cancelled_batches.clear();
                self.load.release_all(&self.ctx.session.io.shared.bytes.served);
            }
        }
        Ok(())
    }

    fn handle_frame(&mut self, frame: Frame) -> std::result::Result<(), FormatError> {
        match frame.kind {
            FrameKind::Request => {
                let (options, body) = request::decode(&frame.body)?;
                if self.ops.contains_key(&frame.op) || self.load.contains(frame.op) {
                    let value = format!("{:?}", frame.op);
                    return Err(FormatError::Field { structure: "frame", field: "op", value });
                }
                self.begin_op(frame.op, options, body, frame.body.len());
            }
            FrameKind::Cancel => self.cancel(frame.op),
            // The link delivers only kinds that a client sends, and handles greetings and pings
            // itself.
            _ => {}
        }
        Ok(())
    }

    fn begin_op(&mut self, id: OpId, options: RequestOptions, body: RequestBody<'_>, bytes: usize) {
        let verb = body.verb();
        if let Err(refused) = self.link.params().rights.check(&body) {
            self.respond(
                id,
                OpOutcome::failed(verb, Error::new(ErrorKind::Denied, refused.to_string())),
            );
            return;
        }
        let cancelled = self.cancelled.len() + self.cancelled_batches.len();
        if self.ops.len() + cancelled >= OPS_MAX {
            let detail = format!("too many operations in progress on this link max={OPS_MAX}");
            self.respond(id, OpOutcome::failed(verb, Error::busy(detail)));
            return;
        }
        if let Err(error) =
            self.load.begin(&self.ctx.shared().bytes.served, id, load::cost(&body, bytes))
        {
            self.respond(id, OpOutcome::failed(verb, error));
            return;
        }
        let call = self.call_context(options);
        let op = match body {
            RequestBody::Get(items) => Op::Get(GetOp::new(call, items.iter())),
            RequestBody::Put(puts) => {
                match puts.open().map(|name| self.resources.group(name)).transpose() {
                    Ok(open_group) => Op::Put(PutOp::new(call, puts, open_group, &*self.link, id)),
                    Err(error) => {
                        self.respond(id, OpOutcome::failed(verb, error));
                        return;
                    }
                }
            }
            RequestBody::Commit(name) => match self.resources.group(name) {
                Ok(joined) => Op::Commit(CommitOp::begin(&mut self.ctx, joined, call, id)),
                Err(error) => {
                    self.respond(id, OpOutcome::failed(verb, error));
                    return;
                }
            },
            RequestBody::Exists(keys) | RequestBody::ExistsPrefix(keys)
                if self.ctx.session.io.connections.is_some() =>
            {
                let keys: Vec<_> = keys.iter().collect();
                Op::Exists(ExistsOp::begin(&mut self.ctx, &keys, verb, &call, id))
            }
            RequestBody::Exists(_)
            | RequestBody::ExistsPrefix(_)
            | RequestBody::Stats
            | RequestBody::Ping => {
                let outcome = outcome_from_memory(self.ctx.shared(), &body, &call.options);
                self.respond(id, outcome);
                return;
            }
            RequestBody::Used(..) => {
                let detail =
                    "the verb is reserved: do not send it, the store counts uses itself verb=Used";
                let error = Error::new(ErrorKind::Incompatible, detail);
                self.respond(id, OpOutcome::failed(verb, error));
                return;
            }
            RequestBody::Events(from) => {
                let outcome = self.events(from);
                self.respond(id, outcome);
                return;
            }
            RequestBody::View(name, keys) => {
                let shared = &self.ctx.session.io.shared;
                let outcome = match self.resources.view(&*self.link, shared, name, keys.iter()) {
                    Ok(items) => OpOutcome::views(items),
                    Err(error) => OpOutcome::failed(verb, error),
                };
                self.respond(id, outcome);
                return;
            }
            RequestBody::Prefetch(keys) => {
                let shared = &self.ctx.session.io.shared;
                let queued = prefetch::prefetch(shared, keys.iter(), &call.options);
                self.respond(id, OpOutcome::number(verb, queued as u64));
                return;
            }
            RequestBody::Missing(name) => {
                let outcome = self.resources.missing(self.ctx.shared(), name);
                self.respond(id, outcome);
                return;
            }
            RequestBody::Pin(..)
            | RequestBody::Unpin(_)
            | RequestBody::Lease(..)
            | RequestBody::Hint(..)
            | RequestBody::Begin(..)
            | RequestBody::Abort(_)
            | RequestBody::Hold(_)
            | RequestBody::Release(_) => {
                let shared = &self.ctx.session.io.shared;
                let number = match body {
                    RequestBody::Begin(name, keys) => {
                        self.resources.begin(shared, name, keys.iter().collect(), &call.options)
                    }
                    RequestBody::Abort(name) => self.resources.abort(shared, name),
                    RequestBody::Hold(name) => {
                        self.invalidation_holds.begin(shared, id, name, call.deadline)
                    }
                    RequestBody::Release(name) => {
                        Ok(self.invalidation_holds.release(name, shared.now()))
                    }
                    body => self.resources.handle_pin(shared, &body),
                };
                let outcome = match number {
                    Ok(number) => OpOutcome::number(verb, number),
                    Err(error) => OpOutcome::failed(verb, error),
                };
                self.respond(id, outcome);
                return;
            }
            RequestBody::Remove(_) | RequestBody::Clear(_) | RequestBody::Flush => {
                if verb != Verb::Flush {
                    self.invalidation_holds.note_removal(id);
                }
                match DurableOp::begin(&mut self.ctx.session, &body, call) {
                    Ok(durable) => Op::Durable(durable),
                    Err(error) => {
                        self.respond(id, OpOutcome::failed(verb, error));
                        return;
                    }
                }
            }
        };
        self.ops.insert(id, op);
    }
}

impl Drop for Server {
    /// Releases the arena frames, pins, invalidation holds and groups of the link. A frame is
    /// released once the link has returned the push of it: a device may read it until then.
    fn drop(&mut self) {
        self.link.close();
        let until = self.ctx.shared().now().after(DROP_MAX);
        while !self.ended && self.ctx.shared().now() < until {
            let mut events = Vec::new();
            self.link.wait(&mut events, DISK_STEP);
            let mut returned = Vec::new();
            for event in &events {
                match event {
                    LinkEvent::Pushed { token, .. } => returned.push(*token),
                    LinkEvent::Ended(_) => self.ended = true,
                    _ => {}
                }
            }
            drop(events);
            self.ctx.in_flight_sends.release(&self.ctx.session.io.shared, &returned);
        }
        if !self.ended {
            let (peer, waited_ms) = (&self.link.params().peer, DROP_MAX.as_millis());
            tracing::warn!(%peer, waited_ms, "closed link has not released arena frames in time; they stay pinned until the store closes");
        }
        let ServerCtx { session, .. } = &mut self.ctx;
        self.resources.release_all(&session.io.shared);
        self.load.release_all(&session.io.shared.bytes.served);
        session.io.shared.lock().flushes.unlink(&self.process);
    }
}

fn is_durable_op(op: &Op) -> bool {
    match op {
        Op::Durable(_) => true,
        Op::Get(_) | Op::Put(_) | Op::Commit(_) | Op::Exists(_) => false,
    }
}
