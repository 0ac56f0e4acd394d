//! Puts over a link: the client offers groups, and the store pulls the payload of those that it
//! does not have.

use std::collections::VecDeque;

use pagelith_io::buffer::SharedParts;
use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::{BLOCK_BYTES, block_count};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::wire::CONTROL_BODY_LEAST;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutBuilder;

use super::STORE;
use super::unflushed_puts::Instance;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CompletedPut, PutOutcome};
use crate::api::request::{Put, PutGroup, Source};
use crate::rpc::client::RpcClient;
use crate::rpc::connections::PeerConnections;
use crate::rpc::pool::ConnState;
use crate::rpc::remote_get::{CallOptions, LinkFailures, no_link};
use crate::rpc::{PayloadFn, Response, verify};

/// Maximum bytes of one offer, if the store accepts as many: few enough that the store pulls one
/// offer while the next is checksummed.
const OFFER_BYTES_MAX: u64 = 64 << 10;
/// Maximum payload of the first offer of a batch, beyond its first object; the store waits for that
/// offer. Each later offer may have twice the payload of the one before, since checksumming takes
/// half as long as the store's copy.
const FIRST_PAYLOAD_MAX: u64 = 128 << 10;
/// How often the payload is doubled: up to 2 MiB, where the cost of an offer itself is negligible.
const DOUBLINGS: usize = 4;
/// Bytes of an offer before its first object; and maximum bytes of an object without its checksums,
/// including its base.
const HEAD_BYTES: u64 = 64;
const OBJECT_BYTES: u64 = 320;

/// One object of a batch.
struct PutObject {
    key: ObjectKey,
    length: u64,
    readers: SharedParts,
    /// `None` until it was offered and answered.
    outcome: Option<Result<PutOutcome>>,
}

/// A group of a batch: consecutive objects.
struct OfferedGroup {
    base: Option<ObjectKey>,
    objects: std::ops::Range<usize>,
}

enum OfferState {
    /// To be sent.
    New,
    /// Sent under this token, to this process.
    Sent(u64, Instance),
}

/// Groups of one kind that are offered together, by index.
struct PutOffer {
    groups: std::ops::Range<usize>,
    /// Encoded with the first attempt, and kept while the link has no capacity for it.
    draft: Option<PutBuilder>,
    state: OfferState,
}

/// A batch of puts in flight.
pub(crate) struct RemotePut {
    objects: Vec<PutObject>,
    groups: Vec<OfferedGroup>,
    /// The objects of the group, as keys of any page, if the objects of the batch are parts of one;
    /// empty for whole groups.
    required: Vec<ObjectKey>,
    /// The name of the open group that receives the objects, each separately.
    open_group: Option<u64>,
    offers: VecDeque<PutOffer>,
    options: CallOptions,
    acknowledged_by: Vec<Instance>,
}

impl RemotePut {
    pub fn new(groups: Vec<PutGroup>, required: &[ObjectKey], options: CallOptions) -> RemotePut {
        let mut objects = Vec::with_capacity(groups.iter().map(|group| group.objects.len()).sum());
        let group_of = |group: PutGroup| {
            let first = objects.len();
            objects.extend(group.objects.into_iter().map(|put| {
                let Put { key, source } = put;
                let length = source.len();
                PutObject { key, length, readers: SharedParts::new(source.parts), outcome: None }
            }));
            OfferedGroup { base: group.base, objects: first..objects.len() }
        };
        let groups: Vec<OfferedGroup> =
            groups.into_iter().map(group_of).filter(|group| !group.objects.is_empty()).collect();
        let required = required.to_vec();
        let (offers, acknowledged_by) = (VecDeque::new(), Vec::new());
        let mut put = RemotePut {
            objects,
            groups,
            required,
            open_group: None,
            offers,
            options,
            acknowledged_by,
        };
        put.reject_invalid();
        put
    }

    /// Puts into the open group `name`, which was begun on the link of the connections.
    pub fn for_open_group(self, name: u64) -> RemotePut {
        RemotePut { open_group: Some(name), ..self }
    }

    /// Fail objects that no store accepts: sending them would end the link.
    fn reject_invalid(&mut self) {
        for group in &self.groups {
            let objects = &mut self.objects[group.objects.clone()];
            let fits = |object: &PutObject| (1..=OBJECT_BYTES_MAX).contains(&object.length);
            let Some(invalid) = objects.iter().find(|object| !fits(object)) else { continue };
            let (key, length, max) = (invalid.key, invalid.length, OBJECT_BYTES_MAX);
            let detail = match length {
                0 => format!("object has no bytes key={key} length=0"),
                _ => format!("object is too large; split it key={key} length={length} max={max}"),
            };
            objects
                .iter_mut()
                .for_each(|object| object.outcome = Some(Err(Error::invalid(detail.clone()))));
        }
    }

    /// Whether the group has no outcome, or one that a retry may improve.
    fn needs_attempt(&self, group: &OfferedGroup) -> bool {
        self.objects[group.objects.start].outcome.as_ref().is_none_or(super::is_unavailable)
    }

    /// Build offers of the groups that need an attempt.
    pub fn build_offers(&mut self, connections: &PeerConnections) {
        let client = connections.pool.live(STORE);
        let accepted = client.map_or(CONTROL_BODY_LEAST as usize, RpcClient::request_bytes_max);
        let max_bytes = OFFER_BYTES_MAX.min(accepted as u64);
        // A store that is busy with other requests of this client does not wait for the first
        // offer. So that offer may have half of the maximum payload.
        let start_doublings = if connections.has_pending_calls(STORE) { DOUBLINGS - 1 } else { 0 };
        self.offers.clear();
        let (mut bytes, mut payload) = (0, 0);
        for (at, group) in self.groups.iter().enumerate() {
            if !self.needs_attempt(group) {
                continue;
            }
            let cost = self.objects[group.objects.clone()].iter().map(cost).sum::<u64>();
            let object_bytes =
                self.objects[group.objects.clone()].iter().map(|object| object.length).sum::<u64>();
            let attached = group.base.is_some();
            let max_payload = FIRST_PAYLOAD_MAX
                << (start_doublings + self.offers.len().saturating_sub(1)).min(DOUBLINGS);
            let fits_offer = |offer: &&mut PutOffer| {
                offer.groups.end == at
                    && self.groups[offer.groups.start].base.is_some() == attached
                    && bytes + cost <= max_bytes
                    && payload + object_bytes <= max_payload
            };
            match self.offers.back_mut().filter(fits_offer) {
                Some(offer) => {
                    offer.groups.end = at + 1;
                    bytes += cost;
                    payload += object_bytes;
                }
                None => {
                    self.offers.push_back(PutOffer {
                        groups: at..at + 1,
                        draft: None,
                        state: OfferState::New,
                    });
                    bytes = HEAD_BYTES + (self.required.len() * ObjectKey::BYTES) as u64 + cost;
                    payload = object_bytes;
                }
            }
        }
    }

    /// Make progress without waiting; true once every object has its outcome.
    pub fn advance(&mut self, connections: &mut PeerConnections, now: Mono) -> bool {
        let mut failures = LinkFailures::default();
        let all_done = self.advance_batch(connections, now, &mut failures);
        failures.apply(connections, now);
        all_done
    }

    /// As [`RemotePut::advance`], for one of several batches that share one record of failures.
    pub fn advance_batch(
        &mut self,
        connections: &mut PeerConnections,
        now: Mono,
        failures: &mut LinkFailures,
    ) -> bool {
        // A link that comes up meanwhile carries no offer before an earlier one.
        let mut is_waiting = false;
        for _ in 0..self.offers.len() {
            let Some(offer) = self.offers.pop_front() else { break };
            let pending = match offer.state {
                OfferState::New if is_waiting => Some(offer),
                OfferState::New => {
                    let pending = self.send(connections, offer, (now, &mut *failures));
                    let is_new = |offer: &PutOffer| matches!(offer.state, OfferState::New);
                    is_waiting = pending.as_ref().is_some_and(is_new);
                    // The store copies one offer while this side checksums the next.
                    connections.poll(now);
                    pending
                }
                OfferState::Sent(token, by) => match connections.take_response(token) {
                    Some(Response::Put(outcomes)) => {
                        self.record_outcomes((connections, &mut *failures), &offer, outcomes, by);
                        None
                    }
                    Some(Response::Exists(_) | Response::Get(_) | Response::Control(_)) => None,
                    None => Some(offer),
                },
            };
            self.offers.extend(pending);
        }
        self.offers.is_empty()
    }

    fn send(
        &mut self,
        connections: &mut PeerConnections,
        mut offer: PutOffer,
        (now, failures): (Mono, &mut LinkFailures),
    ) -> Option<PutOffer> {
        let token = connections.next_token();
        let client = match connections.pool.connect(STORE, now) {
            state @ (ConnState::Up(_) | ConnState::Connecting) if now >= self.options.deadline => {
                if matches!(state, ConnState::Connecting) {
                    failures.record(STORE, true);
                }
                let late = Error::busy("deadline passed before the put was sent to the store");
                self.objects_of(&offer)
                    .iter_mut()
                    .for_each(|object| object.outcome = Some(Err(late.clone())));
                return None;
            }
            ConnState::Up(client)
                if !self.required.is_empty() && !client.has_feature(Feature::Parts) =>
            {
                let incompatible = Error::new(
                    ErrorKind::Incompatible,
                    "the store does not support puts of parts of a group",
                );
                self.objects_of(&offer)
                    .iter_mut()
                    .for_each(|object| object.outcome = Some(Err(incompatible.clone())));
                return None;
            }
            // Do not checksum an offer that cannot be sent yet.
            ConnState::Up(client)
                if client.expects_response() && !client.has_capacity(OFFER_BYTES_MAX as usize) =>
            {
                return Some(offer);
            }
            ConnState::Up(client) => client,
            ConnState::Connecting => return Some(offer),
            ConnState::Down => return None,
        };
        let payload = self.payload_fn(&offer);
        let draft = offer.draft.take().unwrap_or_else(|| self.draft(&offer, client));
        let terms = self.options.request_options(now, offer.groups.start);
        match client.put(token, &draft, payload, terms, self.options.deadline) {
            Ok(()) => {
                Some(PutOffer { state: OfferState::Sent(token, client.peer_instance()), ..offer })
            }
            Err(error) if error.kind == ErrorKind::Busy && client.expects_response() => {
                Some(PutOffer { draft: Some(draft).filter(|draft| !draft.has_refs()), ..offer })
            }
            Err(error) => {
                let objects = self.objects_of(&offer);
                objects.iter_mut().for_each(|object| object.outcome = Some(Err(error.clone())));
                None
            }
        }
    }

    /// Encode an offer for the link of `client`.
    fn draft(&self, offer: &PutOffer, client: &RpcClient) -> PutBuilder {
        let mut draft = match self.open_group {
            Some(name) => PutBuilder::for_open_group(BLOCK_BYTES, name),
            None => PutBuilder::of_parts(BLOCK_BYTES, &self.required),
        };
        let groups = &self.groups[offer.groups.clone()];
        draft.reserve(groups.iter().map(|group| group.objects.len()).sum());
        for group in groups {
            draft.group(group.base);
            for object in &self.objects[group.objects.clone()] {
                object.readers.with_parts(|parts| {
                    // The length of the object is that of its parts.
                    let checksums =
                        verify::block_checksums(parts, &(0..object.length)).unwrap_or_default();
                    draft.object(object.key, object.length, &checksums);
                    if let Some((region, at)) = client.region_offset(parts) {
                        draft.shown(region, at);
                    }
                });
            }
        }
        draft
    }

    fn objects_of(&mut self, offer: &PutOffer) -> &mut [PutObject] {
        let groups = &self.groups[offer.groups.clone()];
        let (first, last) = (
            groups.first().map_or(0, |g| g.objects.start),
            groups.last().map_or(0, |g| g.objects.end),
        );
        &mut self.objects[first..last]
    }

    /// Returns the payload of the offer's objects.
    fn payload_fn(&mut self, offer: &PutOffer) -> PayloadFn {
        let readers: Vec<SharedParts> =
            self.objects_of(offer).iter().map(|object| object.readers.clone()).collect();
        Box::new(move |item| readers.get(item as usize).map(SharedParts::parts).unwrap_or_default())
    }

    fn record_outcomes(
        &mut self,
        (connections, failures): (&PeerConnections, &mut LinkFailures),
        offer: &PutOffer,
        outcomes: Vec<Result<PutOutcome>>,
        by: Instance,
    ) {
        let failed = |outcome: &Result<PutOutcome>| super::is_unavailable(outcome);
        failures.record_response(connections, STORE, outcomes.iter().any(failed));
        self.acknowledged_by.extend(outcomes.iter().any(Result::is_ok).then_some(by));
        for (object, outcome) in self.objects_of(offer).iter_mut().zip(outcomes) {
            object.outcome = Some(outcome);
        }
    }

    /// The processes that acknowledged puts since the last call.
    pub fn take_acknowledgements(&mut self) -> Vec<Instance> {
        std::mem::take(&mut self.acknowledged_by)
    }

    /// The outcomes, with the memory.
    pub fn finish(self) -> Vec<CompletedPut> {
        let done = |object: PutObject| {
            let parts = object.readers.into_parts().unwrap_or_default();
            let outcome = object.outcome.unwrap_or_else(|| Err(no_link()));
            CompletedPut { outcome, source: Source::of(parts) }
        };
        self.objects.into_iter().map(done).collect()
    }
}

/// Maximum bytes of an object in an offer.
fn cost(object: &PutObject) -> u64 {
    OBJECT_BYTES + 16 * block_count(object.length, BLOCK_BYTES)
}
