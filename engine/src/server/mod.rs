//! A store's end of a link: requests come in, bytes and outcomes go out.
//!
//! Invariants:
//! - What is sent, or shown, lies in the arena, in a frame that is held meanwhile, or in staging memory, which is lent to one item
//!   of one operation, and operations wait for it in the order of their numbers. What arrives lies in the arena, where nothing
//!   knows of it before it is put. Nothing that a peer sends decides how much is allocated or held.
//! - The server drives both directions: bytes of a put come only when they were pulled, into memory set aside for them.
//! - What was pushed for a get is back by the get's deadline.
//! - Each operation ends with one outcome, behind all bytes that it speaks of; a cancelled one at once: a client may have so many
//!   in flight, and counts them by their outcomes.
//! - What a peer pinned or holds, and groups that it began, are let go with its link, however that ends.
//! - What a peer has no right to is refused before anything is looked up.

mod op_outcome;
mod immediate;
pub mod bounds;
#[cfg(test)]
mod bounds_test;
mod call_context;
mod client_holds;
mod commit;
mod durable;
mod exists;
mod get;
#[cfg(test)]
mod cancelled_ops_test;
mod in_flight_sends;
pub mod load;
#[cfg(test)]
mod load_test;
pub(crate) mod load_totals;
mod outbox;
mod poll;
mod pending_pushes;
mod put;
mod invalidation_holds;
#[cfg(test)]
mod tenants_test;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod tests_client_holds;
#[cfg(test)]
pub(crate) mod tests_removal_fence;
#[cfg(test)]
pub(crate) mod tests_cancelled;
#[cfg(test)]
pub(crate) mod tests_shared_memory;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pagelith_io::staging::StagingPool;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::request::{self, Ask, Terms, Verb};
use pagelith_layouts::wire::{Frame, Kind};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_transport::closed::Closed;
use pagelith_transport::link::{Event, Link};
use rustc_hash::FxHashMap;

use self::op_outcome::OpOutcome;
use self::immediate::outcome_from_memory;
use self::call_context::CallContext;
use self::client_holds::ClientHolds;
use self::commit::CommitOp;
use self::durable::DurableOp;
use self::exists::ExistsOp;
use self::get::GetOp;
use self::in_flight_sends::InFlightSends;
use self::load::LinkLoad;
use self::pending_pushes::PendingPushes;
use self::put::PutOp;
use self::invalidation_holds::InvalidationHolds;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::Ticket;
use crate::api::request::Request;
use crate::memory::pins::ClientName;
use crate::state::shared::Shared;
use crate::store::prefetch;
use crate::store::session::Session;
use crate::store::store::Store;

/// Most operations of one link under way, those among them that were cancelled and go on; a client that asks for more is told `Busy`.
const OPS_MAX: usize = 1024;
/// Longest stretch of an object that is staged at a time, in bytes: whole blocks.
const CHUNK_BYTES: u64 = 128 * BLOCK_BYTES as u64;
/// How long to wait for the disk before looking at the link again, while there is something to wait for on both.
const DISK_STEP: Duration = Duration::from_millis(1);

/// One end of one link, and a session on the store for it. One thread's.
pub struct Server {
    link: Box<dyn Link>,
    ops: BTreeMap<OpId, Op>,
    client_holds: ClientHolds,
    invalidation_holds: InvalidationHolds,
    ctx: ServerCtx,
    load: LinkLoad,
    /// Names the client's process, of its key: whom a flush tells what was not told yet.
    process: String,
    /// Removals and flushes that were cancelled, which end all the same, and what they take.
    cancelled: Vec<(DurableOp, u64)>,
    /// Outcomes that the link had no room for.
    outbox: VecDeque<Frame>,
    /// Bytes of outcomes that the link takes while it has none.
    outcome_capacity: usize,
    /// Numbers that the client gave its requests, oldest first.
    requests: VecDeque<(u64, Request)>,
    /// The highest of them so far.
    newest_request: u64,
    closed: Option<Closed>,
}

/// What operations work with.
struct ServerCtx {
    session: Session,
    staging: StagingPool,
    batches: FxHashMap<Ticket, OpId>,
    in_flight_sends: InFlightSends,
    pending_pushes: PendingPushes,
}

impl ServerCtx {
    fn shared(&self) -> &Shared {
        &self.session.io.shared
    }
}

/// An operation under way.
enum Op {
    Get(GetOp),
    Put(PutOp),
    Durable(DurableOp),
    Commit(CommitOp),
    Exists(ExistsOp),
}

impl Server {
    /// Serve `store` to the peer of `link`, with `staging` for the bytes in both directions, which other servers may
    /// share.
    pub fn new(store: &Store, link: Box<dyn Link>, staging: StagingPool) -> Result<Server> {
        let least = 2 * CHUNK_BYTES;
        if (staging.capacity() as u64) < least {
            let bytes = staging.capacity();
            return Err(Error::invalid(format!("staging memory is too little bytes={bytes} least={least}")));
        }
        let mut session = store.session()?;
        session.io.proofs = true;
        let outcome_capacity = link.room().frame_bytes;
        let facts = link.facts();
        let instance: String = facts.peer_instance.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = facts.key_name.as_deref();
        let process = format!("{}/{instance}", key.unwrap_or_default());
        // Those of a key trust each other; without one each is by itself.
        let client: ClientName =
            key.map_or_else(|| instance.as_str().into(), |key| format!("key/{key}").into());
        let load = LinkLoad::new(session.io.shared.served.client(&client));
        let client_holds = ClientHolds::new(client);
        session.io.shared.lock().flushes.link(&process, facts.rights.namespaces.these());
        Ok(Server {
            link,
            load,
            cancelled: Vec::new(),
            outcome_capacity,
            ops: BTreeMap::new(),
            client_holds,
            process,
            invalidation_holds: InvalidationHolds::default(),
            ctx: ServerCtx {
                session,
                staging,
                batches: FxHashMap::default(),
                in_flight_sends: InFlightSends::default(),
                pending_pushes: PendingPushes::default(),
            },
            outbox: VecDeque::new(),
            requests: VecDeque::new(),
            newest_request: 0,
            closed: None,
        })
    }

    /// Why the link ended, once it has.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Operations under way.
    pub fn ops(&self) -> usize {
        self.ops.len()
    }

    /// Go on as far as it goes now; whether anything happened. Never waits, but for a removal, which reads headers.
    pub fn turn(&mut self) -> bool {
        let mut events = Vec::new();
        self.link.poll(&mut events);
        self.handle_events(events)
    }

    /// As [`Server::turn`], but wait until something happens, at most `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        if self.turn() || self.closed.is_some() {
            return true;
        }
        let mut events = Vec::new();
        match self.ctx.session.is_busy() || self.has_durable_op() {
            true => self.ctx.session.pause(timeout.min(DISK_STEP)),
            false => self.link.wait(&mut events, timeout),
        }
        self.handle_events(events) || self.turn()
    }

    /// Close the link. What was being done for it is given up.
    pub fn close(&mut self) {
        self.link.close();
        self.turn();
    }

    fn has_durable_op(&self) -> bool {
        self.ops.values().any(is_durable_op)
    }

    fn handle_events(&mut self, events: Vec<Event>) -> bool {
        let mut moved = !events.is_empty();
        let mut back = Vec::new();
        for event in events {
            if let Event::Pushed { op, token, .. } = &event {
                back.push(*token);
                self.ctx.pending_pushes.returned(*op);
            }
            if let Err(error) = self.handle_event(event) {
                tracing::warn!(peer = %self.link.facts().peer, %error, "a peer broke the protocol");
                self.closed = Some(Closed::Broken(error));
                self.link.close();
            }
        }
        // Their memory is free: the events are gone.
        let ServerCtx { in_flight_sends, session, .. } = &mut self.ctx;
        in_flight_sends.release(&session.io.shared, &back);
        moved |= self.collect_completions();
        moved |= self.advance();
        if !self.invalidation_holds.is_empty() {
            self.invalidation_holds.expire(self.ctx.shared().now());
        }
        while let Some(late) = self.ctx.pending_pushes.overdue(self.ctx.shared().now()) {
            self.link.retract(late);
            moved = true;
        }
        self.send_outcomes();
        // What is done at once is looked at now: nothing would wake this thread for it.
        moved | self.ctx.session.has_finished()
    }

    fn handle_event(&mut self, event: Event) -> std::result::Result<(), FormatError> {
        match event {
            Event::Frame(frame) => self.handle_frame(frame)?,
            Event::Landed { op, item, parts, .. } => {
                if let Some(Op::Put(put)) = self.ops.get_mut(&op) {
                    put.receive(item, parts, None);
                }
            }
            Event::Shown { op, item, parts, shown, .. } => {
                if let Some(Op::Put(put)) = self.ops.get_mut(&op) {
                    put.receive(item, parts, Some(&shown));
                }
                self.link.took(shown);
            }
            // Memory that is back is free again.
            Event::Pushed { .. } | Event::Retracted { .. } => {}
            Event::Closed(why) => {
                tracing::info!(peer = %self.link.facts().peer, %why, "link closed");
                self.closed.get_or_insert(why);
                self.ops.clear();
                self.client_holds.release_all(self.ctx.shared());
                self.invalidation_holds.release_all();
                self.outbox.clear();
                self.cancelled.clear();
                self.load.release_all(&self.ctx.session.io.shared.served);
            }
        }
        Ok(())
    }

    fn handle_frame(&mut self, frame: Frame) -> std::result::Result<(), FormatError> {
        match frame.kind {
            Kind::Request => {
                let (terms, ask) = request::decode(&frame.body)?;
                if self.ops.contains_key(&frame.op) || self.load.contains(frame.op) {
                    let value = format!("{:?}", frame.op);
                    return Err(FormatError::Field { structure: "frame", field: "op", value });
                }
                self.begin_op(frame.op, terms, ask, frame.body.len());
            }
            Kind::Cancel => {
                let op = self.ops.remove(&frame.op);
                self.link.retract(frame.op);
                // What was outcome already is on its way.
                if let Some(op) = op.filter(|_| !mutant::on(Mutant::CancelledUnanswered)) {
                    let outcome = op.cancelled_outcome();
                    if let Op::Durable(durable) = op {
                        self.cancelled.push((durable, self.load.detach_cancelled(frame.op)));
                    }
                    self.respond(frame.op, outcome);
                }
            }
            // The link passes on nothing that a client does not send, and greetings and pings are its own.
            _ => {}
        }
        Ok(())
    }

    fn begin_op(&mut self, id: OpId, terms: Terms, ask: Ask<'_>, body: usize) {
        let verb = ask.verb();
        if let Err(refused) = self.link.facts().rights.check(&ask) {
            self.respond(id, OpOutcome::failed(verb, Error::new(ErrorKind::Denied, refused.to_string())));
            return;
        }
        if self.ops.len() + self.cancelled.len() >= OPS_MAX {
            let detail = format!("too many operations on this link most={OPS_MAX}");
            self.respond(id, OpOutcome::failed(verb, Error::busy(detail)));
            return;
        }
        if let Err(error) = self.load.begin(&self.ctx.shared().served, id, load::cost(&ask, body)) {
            self.respond(id, OpOutcome::failed(verb, error));
            return;
        }
        let call = self.call_context(terms);
        let op = match ask {
            Ask::Get(items) => Op::Get(GetOp::new(call, items.iter())),
            Ask::Put(puts) => match puts.open().map(|name| self.client_holds.group(name)).transpose() {
                Ok(into) => Op::Put(PutOp::new(call, puts, into, &*self.link, id)),
                Err(error) => {
                    self.respond(id, OpOutcome::failed(verb, error));
                    return;
                }
            },
            Ask::Commit(name) => match self.client_holds.group(name) {
                Ok(joined) => Op::Commit(CommitOp::begin(&mut self.ctx, joined, call, id)),
                Err(error) => {
                    self.respond(id, OpOutcome::failed(verb, error));
                    return;
                }
            },
            Ask::Exists(keys) | Ask::ExistsPrefix(keys) if self.ctx.session.io.desk.is_some() => {
                let keys: Vec<_> = keys.iter().collect();
                Op::Exists(ExistsOp::begin(&mut self.ctx, &keys, verb, &call, id))
            }
            Ask::Exists(_) | Ask::ExistsPrefix(_) | Ask::Stats | Ask::Ping => {
                let outcome = outcome_from_memory(self.ctx.shared(), &ask, &call.options);
                self.respond(id, outcome);
                return;
            }
            Ask::Used(..) => {
                let detail = "the verb is reserved: leave it out, what is asked for is counted verb=Used";
                let error = Error::new(ErrorKind::Incompatible, detail);
                self.respond(id, OpOutcome::failed(verb, error));
                return;
            }
            Ask::Events(from) => {
                let outcome = self.events(from);
                self.respond(id, outcome);
                return;
            }
            Ask::View(name, keys) => {
                let shared = &self.ctx.session.io.shared;
                let outcome = match self.client_holds.view(&*self.link, shared, name, keys.iter()) {
                    Ok(items) => OpOutcome::views(items),
                    Err(error) => OpOutcome::failed(verb, error),
                };
                self.respond(id, outcome);
                return;
            }
            Ask::Prefetch(keys) => {
                let shared = &self.ctx.session.io.shared;
                let taken = prefetch::prefetch(shared, keys.iter(), &call.options);
                self.respond(id, OpOutcome::number(verb, taken as u64));
                return;
            }
            Ask::Missing(name) => {
                let outcome = self.client_holds.missing(self.ctx.shared(), name);
                self.respond(id, outcome);
                return;
            }
            Ask::Pin(..)
            | Ask::Unpin(_)
            | Ask::Lease(..)
            | Ask::Begin(..)
            | Ask::Abort(_)
            | Ask::Hold(_)
            | Ask::Release(_) => {
                let shared = &self.ctx.session.io.shared;
                let number = match ask {
                    Ask::Begin(name, keys) => {
                        self.client_holds.begin(shared, name, keys.iter().collect(), &call.options)
                    }
                    Ask::Abort(name) => self.client_holds.abort(shared, name),
                    Ask::Hold(name) => self.invalidation_holds.begin(shared, id, name, call.deadline),
                    Ask::Release(name) => Ok(self.invalidation_holds.release(name, shared.now())),
                    ask => self.client_holds.handle_pin(shared, &ask),
                };
                let outcome = match number {
                    Ok(number) => OpOutcome::number(verb, number),
                    Err(error) => OpOutcome::failed(verb, error),
                };
                self.respond(id, outcome);
                return;
            }
            Ask::Remove(_) | Ask::Clear(_) | Ask::Flush => {
                if verb != Verb::Flush {
                    self.invalidation_holds.note_removal(id);
                }
                match DurableOp::begin(&mut self.ctx.session, &ask, call) {
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
    /// What the link has of the arena is the store's again.
    fn drop(&mut self) {
        self.link.close();
        let mut events = Vec::new();
        self.link.poll(&mut events);
        drop(events);
        let ServerCtx { in_flight_sends, session, .. } = &mut self.ctx;
        in_flight_sends.release_all(&session.io.shared);
        self.client_holds.release_all(&session.io.shared);
        self.load.release_all(&session.io.shared.served);
        session.io.shared.lock().flushes.unlink(&self.process);
    }
}

fn is_durable_op(op: &Op) -> bool {
    match op {
        Op::Durable(_) => true,
        Op::Get(_) | Op::Put(_) | Op::Commit(_) | Op::Exists(_) => false,
    }
}
