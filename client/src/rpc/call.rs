//! State of one operation that a peer executes, from its request to its response.

use std::collections::VecDeque;
use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::hashed_copy::CopyMode;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, key_hash};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::{
    self, BaseRef, DecodedOutcome, ItemOutcome, Items, RegionExtent,
};
use pagelith_layouts::wire::pull::PullItem;
use pagelith_layouts::wire::request::{GetItem, Verb};
use pagelith_transport::link::Push;
use pagelith_transport::shown::ShmRef;

use super::decode::{decode_control, decode_error, decode_miss, decode_put_outcome, decode_tier};
use super::verify;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::events::EventBatch;
use crate::api::outcome::{FlushReport, GetOutcome, MissCause, PutOutcome};
use crate::rpc::scatter;

/// An object requested from a peer, and its destination.
#[derive(Debug)]
pub struct ItemRequest {
    pub key: ObjectKey,
    /// The requested bytes; `None` for the whole object.
    pub range: Option<Range<u64>>,
    /// The destination, as long as the requested range.
    pub parts: Vec<Part>,
    /// The peer must send the bytes, and not a reference to shared memory.
    pub by_value: bool,
}

impl ItemRequest {
    /// Length of the destination in bytes.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// The item of the wire request.
    pub fn wire_item(&self) -> GetItem {
        let item = GetItem::new(self.key, self.range.clone(), self.length());
        if self.by_value { item.sent() } else { item }
    }

    /// Checks that do not depend on the stored object.
    pub fn check(&self) -> Result<()> {
        let (key, bytes, item) = (self.key, self.length(), self.wire_item());
        if item.check().is_ok() && item.length() == bytes {
            return Ok(());
        }
        let Range { start, end } = item.byte_range();
        let detail = format!(
            "range is empty, exceeds the object size limit or differs in length from the destination key={key} range={start}..{end} destination={bytes}"
        );
        Err(Error::invalid(detail))
    }
}

/// The outcome of an [`ItemRequest`], with its memory.
#[derive(Debug)]
pub struct ItemResult {
    pub outcome: Result<GetOutcome>,
    pub parts: Vec<Part>,
    /// For a hit: the checksums of the received bytes, the number of objects in its put (0 if
    /// unknown), and the base that they are attached to.
    pub verified: (Checksums, u32, Option<Box<BaseRef>>),
    /// The key, the range, and whether the request was by value.
    pub request: (ObjectKey, Option<Range<u64>>, bool),
    /// The bytes did not match the peer's checksums: shared memory may have changed during the
    /// copy, the bytes may have changed in transit, or the object is damaged at the peer. A second
    /// request, by value, tells these apart.
    pub retry: bool,
}

/// The result of an operation.
#[derive(Debug)]
pub enum Response {
    Exists(Result<Vec<bool>>),
    Get(Vec<ItemResult>),
    /// One outcome for each object.
    Put(Vec<Result<PutOutcome>>),
    Control(Result<ControlReply>),
}

/// The reply to a request without items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlReply {
    Number(u64),
    Flushed(FlushReport),
    Text(String),
    Bits(Vec<bool>),
    Events(EventBatch),
    /// For each object the hash of its key, and its location if it is in shared memory.
    Views(Vec<(Checksum, Option<RegionExtent>)>),
}

/// An object of a get.
pub(crate) struct PendingItem {
    key: ObjectKey,
    bytes: Range<u64>,
    range: Option<Range<u64>>,
    /// This is the second request, by value.
    by_value: bool,
    /// The received bytes do not match the peer's checksums.
    mismatch: bool,
    /// `None` while the link holds the memory.
    parts: Option<Vec<Part>>,
    /// Checksums of the received bytes. They are computed on receipt, while the bytes are in the
    /// CPU cache and the next are in transit.
    checksums: Option<Checksums>,
    /// The number of objects in its put (0 if unknown), and the base that they are attached to.
    members: u32,
    base: Option<Box<BaseRef>>,
    outcome: Option<Result<GetOutcome>>,
}

impl PendingItem {
    fn length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// Returns the payload of an object of a put, to be sent.
pub type PayloadFn = Box<dyn FnMut(u32) -> Vec<Part> + Send>;

/// An object of a put.
struct OfferedObject {
    key: ObjectKey,
    length: u64,
    /// Bytes that the peer may still pull. Without this bound a peer that pulls a range repeatedly
    /// would let the queue of pushes grow.
    unpulled: u64,
}

/// A put in flight.
pub(crate) struct PendingPut {
    objects: Vec<OfferedObject>,
    payload: PayloadFn,
    unsent: VecDeque<Push>,
    /// Number of pushes that the link holds.
    sending: usize,
    /// Empty until the peer answers or the call is abandoned.
    outcomes: Vec<Result<PutOutcome>>,
}

pub(crate) enum CallKind {
    Exists(usize, Result<Vec<bool>>),
    /// The objects, and how bytes in shared memory are copied.
    Get(Vec<PendingItem>, CopyMode),
    Put(PendingPut),
    Control(Verb, Result<ControlReply>),
}

/// An operation in flight.
pub(crate) struct PendingCall {
    pub token: u64,
    pub deadline: Mono,
    pub kind: CallKind,
    /// Length of the request.
    pub request_bytes: usize,
    /// The outcome arrived, or the call was abandoned.
    pub finished: bool,
}

pub(crate) fn no_answer() -> Error {
    let message =
        "the peer did not answer in time; raise the call's timeout, or see what delays it";
    Error::new(ErrorKind::Unavailable, message)
}

impl PendingCall {
    fn new(token: u64, deadline: Mono, kind: CallKind) -> PendingCall {
        PendingCall { token, deadline, kind, request_bytes: 0, finished: false }
    }

    pub fn exists(token: u64, deadline: Mono, keys: usize) -> PendingCall {
        PendingCall::new(token, deadline, CallKind::Exists(keys, Err(no_answer())))
    }

    /// A get; the link holds its memory.
    pub fn get(token: u64, deadline: Mono, items: impl Iterator<Item = GetItem>) -> PendingCall {
        let item = |wanted: GetItem| PendingItem {
            key: wanted.key,
            bytes: wanted.byte_range(),
            range: wanted.range(),
            by_value: wanted.is_sent(),
            mismatch: false,
            parts: None,
            checksums: None,
            members: 0,
            base: None,
            outcome: None,
        };
        let items: Vec<PendingItem> = items.map(item).collect();
        let bytes = items.iter().map(PendingItem::length).sum();
        PendingCall::new(token, deadline, CallKind::Get(items, CopyMode::of(bytes)))
    }

    pub fn put(
        token: u64,
        deadline: Mono,
        objects: impl Iterator<Item = (ObjectKey, u64)>,
        payload: PayloadFn,
    ) -> PendingCall {
        let (unsent, outcomes) = (VecDeque::new(), Vec::new());
        let objects =
            objects.map(|(key, length)| OfferedObject { key, length, unpulled: length }).collect();
        let put = PendingPut { objects, payload, unsent, sending: 0, outcomes };
        PendingCall::new(token, deadline, CallKind::Put(put))
    }

    pub fn control(token: u64, deadline: Mono, verb: Verb) -> PendingCall {
        PendingCall::new(token, deadline, CallKind::Control(verb, Err(no_answer())))
    }

    /// Whether it has a response: it is finished and the link has returned its memory.
    pub fn is_done(&self) -> bool {
        let returned = match &self.kind {
            CallKind::Exists(..) | CallKind::Control(..) => true,
            CallKind::Get(items, ..) => items.iter().all(|item| item.parts.is_some()),
            CallKind::Put(put) => put.sending == 0,
        };
        self.finished && returned
    }

    /// Whether it is a get that is done.
    pub fn is_done_get(&self) -> bool {
        matches!(self.kind, CallKind::Get(..)) && self.is_done()
    }

    pub fn into_response(self) -> (u64, Response) {
        let result = |item: PendingItem| ItemResult {
            retry: item.mismatch && !item.by_value,
            request: (item.key, item.range, item.by_value),
            outcome: item.outcome.unwrap_or(Ok(GetOutcome::Miss(MissCause::Late))),
            parts: item.parts.unwrap_or_default(),
            verified: (item.checksums.unwrap_or_default(), item.members, item.base),
        };
        let response = match self.kind {
            CallKind::Exists(_, found) => Response::Exists(found),
            CallKind::Get(items, ..) => Response::Get(items.into_iter().map(result).collect()),
            CallKind::Put(mut put) => {
                put.outcomes.resize_with(put.objects.len(), || Err(no_answer()));
                Response::Put(put.outcomes)
            }
            CallKind::Control(_, reply) => Response::Control(reply),
        };
        (self.token, response)
    }

    /// The link returns an object's memory; `received` if all of its bytes arrived.
    pub fn return_memory(&mut self, item: u32, parts: Vec<Part>, received: bool) {
        if let CallKind::Get(items, _) = &mut self.kind
            && let Some(item) = items.get_mut(item as usize)
        {
            item.checksums = if received && !self.finished {
                verify::block_checksums(&parts, &item.bytes)
            } else {
                None
            };
            item.parts = Some(parts);
        }
    }

    /// The link returns an object's memory with a reference to the bytes: copy and checksum them
    /// block by block.
    pub fn copy_from_ref(&mut self, item: u32, mut parts: Vec<Part>, shown: &ShmRef) {
        let CallKind::Get(items, stores) = &mut self.kind else { return };
        if let Some(item) = items.get_mut(item as usize) {
            item.checksums = if self.finished {
                None
            } else {
                verify::copy_and_checksum(&mut parts, &item.bytes, shown, *stores)
            };
            item.parts = Some(parts);
        }
    }

    /// The link has sent a push.
    pub fn push_done(&mut self) {
        if let CallKind::Put(put) = &mut self.kind {
            put.sending -= 1;
        }
    }

    /// Handle the peer's request for payload of a put.
    pub fn handle_pull(
        &mut self,
        op: OpId,
        wanted: impl Iterator<Item = PullItem>,
    ) -> std::result::Result<(), FormatError> {
        let violation = |field, value: u64| {
            Err(FormatError::Field { structure: "pull", field, value: value.to_string() })
        };
        let CallKind::Put(put) = &mut self.kind else { return violation("op", op.0) };
        for pull in wanted {
            let Some(object) = put.objects.get_mut(pull.item as usize) else {
                return violation("item", pull.item.into());
            };
            if pull.offset + pull.length > object.length || pull.length > object.unpulled {
                return violation("length", pull.length);
            }
            object.unpulled -= pull.length;
            let parts = slice_parts((put.payload)(pull.item), pull.offset, pull.length);
            put.unsent.push_back(Push {
                op,
                item: pull.item,
                offset: pull.offset,
                parts,
                token: 0,
                allow_ref: true,
            });
        }
        Ok(())
    }

    /// The next payload to be sent.
    pub fn next_push(&mut self) -> Option<Push> {
        let CallKind::Put(put) = &mut self.kind else { return None };
        let push = put.unsent.pop_front();
        put.sending += usize::from(push.is_some());
        push
    }

    /// Put back a push that the link had no capacity for.
    pub fn requeue_push(&mut self, push: Push) {
        if let CallKind::Put(put) = &mut self.kind {
            put.sending -= 1;
            put.unsent.push_front(push);
        }
    }

    /// Drop the payload that is not sent yet.
    pub fn drop_unsent(&mut self) {
        if let CallKind::Put(put) = &mut self.kind {
            put.unsent.clear();
        }
    }

    /// Handle the peer's outcome. It is an error if the outcome does not match the request.
    pub fn handle_outcome(
        &mut self,
        verb: Verb,
        answer: &DecodedOutcome<'_>,
        peer: &str,
    ) -> std::result::Result<(), FormatError> {
        self.finished = true;
        let unexpected =
            |field, value: String| Err(FormatError::Field { structure: "outcome", field, value });
        match (&mut self.kind, answer) {
            (_, DecodedOutcome::Failed(failure)) => self.fail(&decode_error(failure)),
            (CallKind::Exists(keys, found), DecodedOutcome::Bits(bits)) if bits.len() == *keys => {
                *found = Ok(bits.iter().collect());
            }
            (CallKind::Get(items, ..), DecodedOutcome::Items(outcomes))
                if outcomes.len() == items.len() && block_size_matches(outcomes) =>
            {
                verify_items(items, outcomes, peer);
            }
            (CallKind::Put(put), DecodedOutcome::Items(outcomes))
                if outcomes.len() == put.objects.len() =>
            {
                let outcome = |(object, item): (&OfferedObject, outcome::Item<'_>)| {
                    if item.key_hash == key_hash(&object.key) {
                        decode_put_outcome(&item.verdict)
                    } else {
                        Err(no_answer())
                    }
                };
                put.outcomes = put.objects.iter().zip(outcomes.iter()).map(outcome).collect();
            }
            (CallKind::Control(expected, reply), answer) if *expected == verb => {
                match decode_control(answer) {
                    Some(decoded) => *reply = Ok(decoded),
                    None => return unexpected("form", format!("{verb:?}")),
                }
            }
            _ => return unexpected("verb", format!("{verb:?}")),
        }
        Ok(())
    }

    /// Fail the whole call with one error.
    pub fn fail(&mut self, error: &Error) {
        self.finished = true;
        match &mut self.kind {
            CallKind::Exists(_, found) => *found = Err(error.clone()),
            CallKind::Get(items, ..) => {
                items.iter_mut().for_each(|item| item.outcome = Some(Err(error.clone())))
            }
            CallKind::Put(put) => {
                put.outcomes = put.objects.iter().map(|_| Err(error.clone())).collect()
            }
            CallKind::Control(_, reply) => *reply = Err(error.clone()),
        }
    }
}

/// The bytes `offset..offset + len` of `parts`.
fn slice_parts(parts: Vec<Part>, offset: u64, len: u64) -> Vec<Part> {
    let (mut skip, mut left) = (offset as usize, len as usize);
    let mut taken = Vec::with_capacity(parts.len());
    for part in parts {
        let part = if skip > 0 {
            let skipped = skip.min(part.len());
            skip -= skipped;
            part.split(skipped).1
        } else {
            part
        };
        let part = if part.len() > left { part.split(left).0 } else { part };
        left -= part.len();
        taken.extend(Some(part).filter(|part| !part.is_empty()));
    }
    taken
}

/// Whether the block size of the checksums is the one of this build; 0 if there are none.
fn block_size_matches(outcomes: &Items<'_>) -> bool {
    outcomes.block_bytes() == 0 || outcomes.block_bytes() == BLOCK_BYTES
}

fn note_damage(item: &PendingItem, peer: &str) {
    let key = &item.key;
    match (item.mismatch, item.by_value) {
        // The object may have been moved during the copy.
        (true, false) => tracing::debug!(
            %key,
            peer,
            "bytes from a peer do not match its checksums, they are requested once more"
        ),
        (true, true) => tracing::warn!(
            %key,
            peer,
            "bytes from a peer do not match its checksums; check the network and both memories"
        ),
        (false, _) => {
            tracing::warn!(%key, peer, "a peer found its object damaged; see the peer's log");
        }
    }
}

fn verify_items(items: &mut [PendingItem], outcomes: &Items<'_>, peer: &str) {
    for (item, answer) in items.iter_mut().zip(outcomes.iter()) {
        let outcome = match answer.verdict {
            // An outcome for another object does not count.
            _ if answer.key_hash != key_hash(&item.key) => Err(no_answer()),
            ItemOutcome::Hit { tier, length, checksums, members, base } => {
                (item.members, item.base) = (members, base.map(Box::new));
                let whole = length == item.length();
                let matches = |received: &Checksums| checksums.iter().eq(received.iter().copied());
                match whole && item.checksums.as_ref().is_some_and(matches) {
                    true => Ok(GetOutcome::Hit { tier: decode_tier(tier), bytes: length }),
                    false => {
                        item.mismatch = true;
                        Ok(GetOutcome::Miss(MissCause::Damaged))
                    }
                }
            }
            ItemOutcome::Miss(cause) => Ok(GetOutcome::Miss(decode_miss(cause))),
            ItemOutcome::Failed(failure) => Err(decode_error(&failure)),
            ItemOutcome::Stored
            | ItemOutcome::AlreadyPresent
            | ItemOutcome::Waiting
            | ItemOutcome::Refused => Err(no_answer()),
        };
        if outcome == Ok(GetOutcome::Miss(MissCause::Damaged)) {
            note_damage(item, peer);
            item.parts.iter_mut().for_each(|parts| scatter::zero(parts));
        }
        item.outcome = Some(outcome);
    }
}
