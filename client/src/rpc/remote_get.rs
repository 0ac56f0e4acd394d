//! Gets at peers, for objects that a batch did not find in this store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, block_count};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::BaseRef;
use pagelith_layouts::wire::request::RequestOptions;

use super::Response;
use super::call::ItemRequest;
use super::connections::PeerConnections;
use super::pool::ConnState;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::group_info::GroupInfo;
use crate::api::outcome::{CompletedGet, GetOutcome, MissCause, ObjectMeta, Tier};
use crate::rpc::removal_fence::FenceVersion;

/// Maximum keys of one request.
const KEYS_MAX: usize = 4096;
/// Maximum bytes of one outcome: well below the limit of every receiver.
const OUTCOME_BYTES_MAX: u64 = 256 << 10;
/// Maximum bytes of one item of an outcome, without its checksums.
const ITEM_BYTES: u64 = 600;

/// An object that a batch of gets did not find in this store.
#[derive(Clone)]
pub struct MissedItem {
    /// Its index in the batch.
    pub index: usize,
    pub key: ObjectKey,
    pub range: Option<Range<u64>>,
}

/// Options of a call, as the wire protocol has them.
#[derive(Clone, Copy)]
pub struct CallOptions {
    /// Number of the request to which the call belongs.
    pub request: u64,
    /// Position of the first key's page in its prefix chain.
    pub depth: u32,
    pub deadline: Mono,
    /// How many tokens the caller recomputes in a second; 0 for the rate that the peer is set to.
    pub prefill_tokens_per_s: u64,
}

impl CallOptions {
    /// The options of a request whose first object is `depth` objects after the first of the batch.
    pub fn request_options(&self, now: Mono, depth: usize) -> RequestOptions {
        let left = self.deadline.since(now).max(Duration::from_millis(1));
        let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let depth = self.depth.saturating_add(u32::try_from(depth).unwrap_or(u32::MAX));
        let prefill_tokens_per_s = self.prefill_tokens_per_s;
        RequestOptions {
            deadline_ms,
            depth,
            request: self.request,
            from_store: false,
            prefill_tokens_per_s,
        }
    }
}

/// Where the gets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetTarget {
    /// To peers, after misses in this store: only their hits count.
    Peers,
    /// To the store that this process is attached to: its answer is the outcome.
    Store,
}

/// The peer from which an object is requested. A preferred peer is the first choice for all
/// objects; the second is the owner, for those that the preferred peer does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    First,
    Second,
}

pub(crate) enum RequestState<T> {
    /// To be sent.
    Queued(Vec<T>),
    /// Sent under this token, for these indices of the batch.
    Sent(u64, Vec<usize>),
    Done,
}

pub(crate) struct PeerRequest<T> {
    pub peer: usize,
    pub state: RequestState<T>,
    /// It was sent a second time, because its link ended.
    retried: bool,
}

impl<T> PeerRequest<T> {
    /// Whether to send it again: its link ended, for the first time.
    pub fn should_retry(
        &mut self,
        connections: &PeerConnections,
        deadline: Mono,
        now: Mono,
    ) -> bool {
        let retries = !self.retried && now < deadline && connections.pool.live(self.peer).is_none();
        self.retried |= retries;
        retries
    }
}

/// Split items into requests by peer; each request stays below the maximum keys and bytes.
pub(crate) fn split_by_peer<T>(
    connections: &PeerConnections,
    items: impl Iterator<Item = (ObjectKey, u64, T)>,
    choice: Choice,
) -> Vec<PeerRequest<T>> {
    let mut by_peer: BTreeMap<usize, Vec<(u64, Vec<T>)>> = BTreeMap::new();
    for (key, cost, item) in items {
        let remote = connections.pool.remote();
        let peer = match choice {
            Choice::First => remote.first_choice(&key),
            Choice::Second => remote.second_choice(&key),
        };
        let Some(peer) = peer else { continue };
        let batches = by_peer.entry(peer).or_default();
        match batches
            .last_mut()
            .filter(|(sum, q)| sum + cost <= OUTCOME_BYTES_MAX && q.len() < KEYS_MAX)
        {
            Some((sum, request)) => {
                *sum += cost;
                request.push(item);
            }
            None => batches.push((cost, vec![item])),
        }
    }
    let request = |(peer, batches): (usize, Vec<(u64, Vec<T>)>)| {
        batches.into_iter().map(move |(_, items)| PeerRequest {
            peer,
            state: RequestState::Queued(items),
            retried: false,
        })
    };
    by_peer.into_iter().flat_map(request).collect()
}

/// Whether each peer answered or failed. All calls that end with one link count as one failure.
#[derive(Default)]
pub(crate) struct LinkFailures(BTreeMap<usize, bool>);

impl LinkFailures {
    pub fn record(&mut self, peer: usize, failed: bool) {
        *self.0.entry(peer).or_default() |= failed;
    }

    /// As [`LinkFailures::record`], for a response: an error caused by the end of the link is no
    /// failure of the peer.
    pub fn record_response(&mut self, connections: &PeerConnections, peer: usize, failed: bool) {
        if !(failed && connections.pool.has_ended(peer)) {
            self.record(peer, failed);
        }
    }

    pub fn apply(self, connections: &PeerConnections, now: Mono) {
        self.0.into_iter().for_each(|(peer, failed)| connections.record_result(peer, failed, now));
    }
}

/// The gets of a batch that missed in this store.
pub struct RemoteGet {
    done: Vec<CompletedGet>,
    requests: Vec<PeerRequest<(usize, ItemRequest)>>,
    options: CallOptions,
    target: GetTarget,
    hits: u64,
    bytes: u64,
    /// The version of the removal fence before the requests; `None` if a removal was in progress.
    fence_version: Option<FenceVersion>,
    /// Objects that are requested whole, by index in the batch.
    whole: BTreeMap<usize, ObjectKey>,
    /// Whole objects that arrived.
    fetched: Vec<FetchedItem>,
    /// Objects to request from their owners, if the preferred peer does not have them.
    second_choice: Vec<MissedItem>,
}

/// A whole object that a peer sent.
pub struct FetchedItem {
    /// Its index in the batch.
    pub index: usize,
    pub key: ObjectKey,
    /// The checksums of its blocks.
    pub checksums: Checksums,
    /// Number of objects in its put, including itself; 0 if unknown.
    pub members: usize,
    /// If it is attached: the token of the request and the base. Other hits of that request with
    /// the same base number belong to the same group.
    pub attached: Option<(u64, BaseRef)>,
}

impl RemoteGet {
    /// Request the objects that a batch missed; `done` has the outcomes of the whole batch.
    pub fn begin(
        connections: &PeerConnections,
        done: Vec<CompletedGet>,
        missed: Vec<MissedItem>,
        options: CallOptions,
        target: GetTarget,
        fence_version: Option<FenceVersion>,
    ) -> RemoteGet {
        let whole =
            |missed: &MissedItem| missed.range.is_none().then_some((missed.index, missed.key));
        let whole =
            missed.iter().filter(|_| target == GetTarget::Peers).filter_map(whole).collect();
        let (requests, fetched) = (Vec::new(), Vec::new());
        let has_next =
            |missed: &&MissedItem| connections.pool.remote().second_choice(&missed.key).is_some();
        let second_choice = missed.iter().filter(has_next).cloned().collect();
        let (hits, bytes) = (0, 0);
        let mut get = RemoteGet {
            done,
            requests,
            options,
            target,
            hits,
            bytes,
            fence_version,
            whole,
            fetched,
            second_choice,
        };
        get.queue_requests(connections, missed, Choice::First);
        get
    }

    /// Ask the owners for objects that the preferred peer does not have; false if there are none.
    /// The preferred peer has all or none of a page's group: objects of that page at other peers
    /// are from another computation.
    fn ask_second_choice(&mut self, connections: &PeerConnections) -> bool {
        let mut next = std::mem::take(&mut self.second_choice);
        let page = |missed: &MissedItem| (missed.key.namespace(), missed.key.hash());
        let is_in_group = |missed: &&MissedItem| {
            let done = &self.done[missed.index];
            let members = done.meta.as_ref().map_or(0, |meta| meta.group.members);
            done.outcome.as_ref().is_ok_and(GetOutcome::is_hit) && members != 1
        };
        let whole: BTreeSet<_> = next.iter().filter(is_in_group).map(page).collect();
        next.retain(|missed| {
            let is_missed = matches!(self.done[missed.index].outcome, Ok(GetOutcome::Miss(_)));
            is_missed && !whole.contains(&page(missed))
        });
        let has_next = !next.is_empty();
        if has_next {
            self.queue_requests(connections, next, Choice::Second);
        }
        has_next
    }

    fn queue_requests(
        &mut self,
        connections: &PeerConnections,
        missed: Vec<MissedItem>,
        choice: Choice,
    ) {
        let target = self.target;
        let requests = missed.into_iter().filter_map(|missed| {
            let done = &mut self.done[missed.index];
            let parts = std::mem::take(&mut done.destination.0);
            let request =
                ItemRequest { key: missed.key, range: missed.range, parts, by_value: false };
            // An invalid item would end the link. A peer does not have to validate requests for
            // objects that this store does not have.
            if let Err(error) = request.check() {
                done.destination.0 = request.parts;
                if target == GetTarget::Store {
                    done.outcome = Err(error);
                }
                return None;
            }
            let cost = ITEM_BYTES + 16 * (block_count(request.length(), BLOCK_BYTES) + 1);
            Some((missed.key, cost, (missed.index, request)))
        });
        self.requests = split_by_peer(connections, requests, choice);
    }

    /// Make progress without waiting; true once every object has its outcome.
    pub fn advance(&mut self, connections: &mut PeerConnections, now: Mono) -> bool {
        let mut failures = LinkFailures::default();
        let all_done = self.advance_batch(connections, now, &mut failures);
        failures.apply(connections, now);
        all_done
    }

    /// As [`RemoteGet::advance`], for one of several batches that share one record of failures.
    pub(crate) fn advance_batch(
        &mut self,
        connections: &mut PeerConnections,
        now: Mono,
        failures: &mut LinkFailures,
    ) -> bool {
        let mut all_done = true;
        for i in 0..self.requests.len() {
            let peer = self.requests[i].peer;
            let state = std::mem::replace(&mut self.requests[i].state, RequestState::Done);
            self.requests[i].state = match state {
                RequestState::Queued(items) => {
                    self.send(connections, peer, items, (now, &mut *failures))
                }
                RequestState::Sent(token, indices) => match connections.take_response(token) {
                    Some(Response::Get(results)) => {
                        let (mut failed, mut retry) = (false, Vec::new());
                        let retries = results.iter().any(|result| is_unavailable(&result.outcome))
                            && self.requests[i].should_retry(
                                connections,
                                self.options.deadline,
                                now,
                            );
                        for (at, result) in indices.into_iter().zip(results) {
                            let unavailable = is_unavailable(&result.outcome);
                            failed |= unavailable
                                || result.outcome == Ok(GetOutcome::Miss(MissCause::Late));
                            if result.retry || unavailable && retries {
                                let (key, range, by_value) = result.request;
                                let by_value = by_value || result.retry;
                                retry.push((
                                    at,
                                    ItemRequest { key, range, parts: result.parts, by_value },
                                ));
                                continue;
                            }
                            let hit = result.outcome.as_ref().is_ok_and(GetOutcome::is_hit);
                            let (sums, members, base) = result.verified;
                            let known = if base.is_none() { members } else { 0 };
                            if let (true, Some(key)) = (hit, self.whole.remove(&at)) {
                                let (checksums, members) = (sums.clone(), members as usize);
                                let attached = base.map(|base| (token, *base));
                                self.fetched.push(FetchedItem {
                                    index: at,
                                    key,
                                    checksums,
                                    members,
                                    attached,
                                });
                            }
                            let group = GroupInfo { members: known, attached: None };
                            let meta = ObjectMeta { checksums: sums, group };
                            self.done[at].meta = Some(Box::new(meta));
                            self.record_outcome(at, result.outcome);
                            self.done[at].destination.0 = result.parts;
                        }
                        failures.record_response(connections, peer, failed);
                        if retry.is_empty() {
                            RequestState::Done
                        } else {
                            RequestState::Queued(retry)
                        }
                    }
                    Some(_) => RequestState::Done,
                    None => RequestState::Sent(token, indices),
                },
                RequestState::Done => RequestState::Done,
            };
            all_done &= is_done(&self.requests[i].state);
        }
        all_done
            && (!self.ask_second_choice(connections)
                || self.advance_batch(connections, now, failures))
    }

    fn send(
        &mut self,
        connections: &mut PeerConnections,
        peer: usize,
        items: Vec<(usize, ItemRequest)>,
        (now, failures): (Mono, &mut LinkFailures),
    ) -> RequestState<(usize, ItemRequest)> {
        let token = connections.next_token();
        let client = match connections.pool.connect(peer, now) {
            ConnState::Up(client) if now < self.options.deadline => client,
            ConnState::Connecting if now < self.options.deadline => {
                return RequestState::Queued(items);
            }
            ConnState::Connecting => {
                failures.record(peer, true);
                return self.fail_items(items, no_link());
            }
            ConnState::Up(_) | ConnState::Down => return self.fail_items(items, no_link()),
        };
        let (indices, requests): (Vec<usize>, Vec<ItemRequest>) = items.into_iter().unzip();
        let depth = indices.first().copied().unwrap_or(0);
        match client.get(
            token,
            requests,
            self.options.request_options(now, depth),
            self.options.deadline,
        ) {
            Ok(()) => RequestState::Sent(token, indices),
            // No outcome is expected that would free capacity.
            Err((error, requests)) if !client.expects_response() => {
                self.fail_items(indices.into_iter().zip(requests).collect(), error)
            }
            Err((_, requests)) => RequestState::Queued(indices.into_iter().zip(requests).collect()),
        }
    }

    /// Return the memory of items that were not sent, with an error.
    fn fail_items(
        &mut self,
        items: Vec<(usize, ItemRequest)>,
        why: Error,
    ) -> RequestState<(usize, ItemRequest)> {
        for (at, request) in items {
            self.done[at].destination.0 = request.parts;
            self.record_outcome(at, Err(why.clone()));
        }
        RequestState::Done
    }

    /// Misses and failures of a peer keep the local miss; an error in the request is reported.
    fn record_outcome(&mut self, at: usize, outcome: Result<GetOutcome>) {
        let done = &mut self.done[at].outcome;
        match (outcome, self.target) {
            (outcome, GetTarget::Store) => *done = outcome,
            (Ok(GetOutcome::Hit { bytes, .. }), GetTarget::Peers) => {
                self.hits += 1;
                self.bytes += bytes;
                *done = Ok(GetOutcome::Hit { tier: Tier::Remote, bytes });
            }
            (Err(error), GetTarget::Peers) if error.kind == ErrorKind::Invalid => {
                *done = Err(error)
            }
            (Ok(GetOutcome::Miss(_)) | Err(_), GetTarget::Peers) => {}
        }
    }

    /// Objects that peers sent, and their bytes.
    pub fn hits(&self) -> (u64, u64) {
        (self.hits, self.bytes)
    }

    /// The whole objects that arrived.
    pub fn take_fetched(&mut self) -> Vec<FetchedItem> {
        std::mem::take(&mut self.fetched)
    }

    /// All outcomes so far; finished gets have their memory.
    pub fn done(&self) -> &[CompletedGet] {
        &self.done
    }

    /// The version of the removal fence before the requests; `None` if a removal was in progress.
    pub fn fence_version(&self) -> Option<FenceVersion> {
        self.fence_version
    }

    /// The options of the requests.
    pub fn options(&self) -> CallOptions {
        self.options
    }

    /// The outcomes, once [`RemoteGet::advance`] returned true.
    pub fn finish(self) -> Vec<CompletedGet> {
        self.done
    }
}

/// Whether the peer did not report the outcome.
fn is_unavailable(outcome: &Result<GetOutcome>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

/// There is no link, or none was established in time.
pub(crate) fn no_link() -> Error {
    let message = "there is no link to the store; see whether its process runs";
    Error::new(ErrorKind::Unavailable, message)
}

pub(crate) fn is_done<T>(state: &RequestState<T>) -> bool {
    match state {
        RequestState::Done => true,
        RequestState::Queued(_) | RequestState::Sent(..) => false,
    }
}
