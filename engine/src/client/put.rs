//! Puts over a link: groups are offered, and the store pulls the bytes of those that it has not.

use std::collections::VecDeque;

use pagelith_io::buffer::Readers;
use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::{BLOCK_BYTES, block_count};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::wire::CONTROL_BODY_LEAST;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutDraft;

use super::STORE;
use super::instances::Instance;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{PutDone, PutOutcome};
use crate::api::request::{Put, PutGroup, Source};
use crate::rpc::client::Caller;
use crate::rpc::connections::Desk;
use crate::rpc::pool::Standing;
use crate::rpc::remote_get::{Heard, Manner, no_link};
use crate::rpc::{Lend, Reply, verify};

/// Most bytes of one offer, where the store takes so many: few enough that it pulls while the next is hashed.
const OFFER_BYTES_MAX: u64 = 64 << 10;
/// Most bytes of objects in a batch's first offer, for which the store waits, from the second object on. Each other may have twice as many as the one
/// before: while the store copies that, it is checksummed, which takes half as long.
const FIRST_PAYLOAD_MAX: u64 = 128 << 10;
/// How often they are doubled: to 2 MiB, where what an offer takes beside its bytes is no longer seen.
const DOUBLINGS: usize = 4;
/// Bytes of an offer before its first object, and most that an object takes beside its checksums, its base with it.
const HEAD_BYTES: u64 = 64;
const OBJECT_BYTES: u64 = 320;

/// One object of a batch.
struct Object {
    key: ObjectKey,
    length: u64,
    readers: Readers,
    /// `None` as long as nobody was asked.
    outcome: Option<Result<PutOutcome>>,
}

/// A group of a batch: objects that lie next to each other in it.
struct Group {
    base: Option<ObjectKey>,
    objects: std::ops::Range<usize>,
}

enum State {
    /// To be asked.
    New,
    /// Asked under this token, of this process.
    Asked(u64, Instance),
}

/// Groups of one kind that are offered together, by their numbers.
struct Offer {
    groups: std::ops::Range<usize>,
    /// Made when it is first asked, and kept while the link has no room for it.
    draft: Option<PutDraft>,
    state: State,
}

/// A batch of puts on its way.
pub(crate) struct RemotePut {
    objects: Vec<Object>,
    groups: Vec<Group>,
    /// What the groups consist of that these are parts of, as keys of any page; empty if they are whole.
    required: Vec<ObjectKey>,
    /// The open group that the objects are put into, each by itself, by its name.
    into: Option<u64>,
    offers: VecDeque<Offer>,
    manner: Manner,
    acked: Vec<Instance>,
}

impl RemotePut {
    pub fn new(groups: Vec<PutGroup>, required: &[ObjectKey], manner: Manner) -> RemotePut {
        let mut objects = Vec::with_capacity(groups.iter().map(|group| group.objects.len()).sum());
        let grouped = |group: PutGroup| {
            let first = objects.len();
            objects.extend(group.objects.into_iter().map(|put| {
                let Put { key, source } = put;
                let length = source.len();
                Object { key, length, readers: Readers::new(source.parts), outcome: None }
            }));
            Group { base: group.base, objects: first..objects.len() }
        };
        let groups: Vec<Group> =
            groups.into_iter().map(grouped).filter(|group| !group.objects.is_empty()).collect();
        let required = required.to_vec();
        let (offers, acked) = (VecDeque::new(), Vec::new());
        let mut put = RemotePut { objects, groups, required, into: None, offers, manner, acked };
        put.refuse();
        put
    }

    /// Into the group that was begun under this name on the link of the desk.
    pub fn into_open(self, name: u64) -> RemotePut {
        RemotePut { into: Some(name), ..self }
    }

    /// What no store takes is not sent: it would end the link.
    fn refuse(&mut self) {
        for group in &self.groups {
            let objects = &mut self.objects[group.objects.clone()];
            let fits = |object: &Object| (1..=OBJECT_BYTES_MAX).contains(&object.length);
            let Some(wrong) = objects.iter().find(|object| !fits(object)) else { continue };
            let (key, length, max) = (wrong.key, wrong.length, OBJECT_BYTES_MAX);
            let detail = match length {
                0 => format!("object has no bytes key={key} length=0"),
                _ => format!("object is too large key={key} length={length} max={max}"),
            };
            objects.iter_mut().for_each(|object| object.outcome = Some(Err(Error::invalid(detail.clone()))));
        }
    }

    /// Whether it has no outcome, or one that another try may better.
    fn is_open(&self, group: &Group) -> bool {
        self.objects[group.objects.start].outcome.as_ref().is_none_or(super::is_unavailable)
    }

    /// Offer what has no outcome, or one that another try may better.
    pub fn offer(&mut self, desk: &Desk) {
        let caller = desk.lines.stands(STORE);
        let taken = caller.map_or(CONTROL_BODY_LEAST as usize, Caller::request_bytes_max);
        let most = OFFER_BYTES_MAX.min(taken as u64);
        // A store that has something else to do for this client waits for no first offer: half of the
        // longest is first then.
        let doubled = if desk.is_asked(STORE) { DOUBLINGS - 1 } else { 0 };
        self.offers.clear();
        let (mut bytes, mut payload) = (0, 0);
        for (at, group) in self.groups.iter().enumerate() {
            if !self.is_open(group) {
                continue;
            }
            let cost = self.objects[group.objects.clone()].iter().map(cost).sum::<u64>();
            let own = self.objects[group.objects.clone()].iter().map(|object| object.length).sum::<u64>();
            let attached = group.base.is_some();
            let most_payload =
                FIRST_PAYLOAD_MAX << (doubled + self.offers.len().saturating_sub(1)).min(DOUBLINGS);
            let joins = |offer: &&mut Offer| {
                offer.groups.end == at
                    && self.groups[offer.groups.start].base.is_some() == attached
                    && bytes + cost <= most
                    && payload + own <= most_payload
            };
            match self.offers.back_mut().filter(joins) {
                Some(offer) => {
                    offer.groups.end = at + 1;
                    bytes += cost;
                    payload += own;
                }
                None => {
                    self.offers.push_back(Offer { groups: at..at + 1, draft: None, state: State::New });
                    bytes = HEAD_BYTES + (self.required.len() * ObjectKey::BYTES) as u64 + cost;
                    payload = own;
                }
            }
        }
    }

    /// Go on as far as it goes now; true once every object has its outcome.
    pub fn advance(&mut self, desk: &mut Desk, now: Mono) -> bool {
        let mut heard = Heard::default();
        let over = self.advance_heard(desk, now, &mut heard);
        heard.tell(desk, now);
        over
    }

    /// The same of one batch of several: what all of them have heard is told together.
    pub fn advance_heard(&mut self, desk: &mut Desk, now: Mono, heard: &mut Heard) -> bool {
        for _ in 0..self.offers.len() {
            let Some(offer) = self.offers.pop_front() else { break };
            let left = match offer.state {
                State::New => {
                    let left = self.ask(desk, offer, (now, &mut *heard));
                    // The store copies what it was offered while the next is checksummed here.
                    desk.poll(now);
                    left
                }
                State::Asked(token, by) => match desk.take(token) {
                    Some(Reply::Put(outcomes)) => {
                        self.settle((desk, &mut *heard), &offer, outcomes, by);
                        None
                    }
                    Some(Reply::Exists(_) | Reply::Get(_) | Reply::Told(_)) => None,
                    None => Some(offer),
                },
            };
            self.offers.extend(left);
        }
        self.offers.is_empty()
    }

    fn ask(&mut self, desk: &mut Desk, mut offer: Offer, (now, heard): (Mono, &mut Heard)) -> Option<Offer> {
        let token = desk.token();
        let caller = match desk.lines.standing(STORE, now) {
            standing @ (Standing::Up(_) | Standing::Soon) if now >= self.manner.deadline => {
                if matches!(standing, Standing::Soon) {
                    heard.note(STORE, true);
                }
                let late = Error::busy("the time was up before the store was asked");
                self.of(&offer).iter_mut().for_each(|object| object.outcome = Some(Err(late.clone())));
                return None;
            }
            Standing::Up(caller) if !self.required.is_empty() && !caller.has(Feature::Parts) => {
                let old = Error::new(ErrorKind::Incompatible, "the store takes no parts of groups");
                self.of(&offer).iter_mut().for_each(|object| object.outcome = Some(Err(old.clone())));
                return None;
            }
            // It would be checksummed in vain.
            Standing::Up(caller) if caller.is_owed() && !caller.has_room(OFFER_BYTES_MAX as usize) => {
                return Some(offer);
            }
            Standing::Up(caller) => caller,
            Standing::Soon => return Some(offer),
            Standing::Down => return None,
        };
        let lend = self.lend(&offer);
        let draft = offer.draft.take().unwrap_or_else(|| self.draft(&offer, caller));
        let terms = self.manner.terms(now, offer.groups.start);
        match caller.put(token, &draft, lend, terms, self.manner.deadline) {
            Ok(()) => Some(Offer { state: State::Asked(token, caller.peer_instance()), ..offer }),
            Err(error) if error.kind == ErrorKind::Busy && caller.is_owed() => {
                Some(Offer { draft: Some(draft).filter(|draft| !draft.shows()), ..offer })
            }
            Err(error) => {
                let objects = self.of(&offer);
                objects.iter_mut().for_each(|object| object.outcome = Some(Err(error.clone())));
                None
            }
        }
    }

    /// What an offer says, over the link of `caller`.
    fn draft(&self, offer: &Offer, caller: &Caller) -> PutDraft {
        let mut draft = match self.into {
            Some(name) => PutDraft::into_open(BLOCK_BYTES, name),
            None => PutDraft::of_parts(BLOCK_BYTES, &self.required),
        };
        let groups = &self.groups[offer.groups.clone()];
        draft.reserve(groups.iter().map(|group| group.objects.len()).sum());
        for group in groups {
            draft.group(group.base);
            for object in &self.objects[group.objects.clone()] {
                object.readers.look(|parts| {
                    // As long as its parts are.
                    let sums = verify::sums(parts, &(0..object.length)).unwrap_or_default();
                    draft.object(object.key, object.length, &sums);
                    if let Some((region, at)) = caller.place(parts) {
                        draft.shown(region, at);
                    }
                });
            }
        }
        draft
    }

    fn of(&mut self, offer: &Offer) -> &mut [Object] {
        let groups = &self.groups[offer.groups.clone()];
        let (first, last) =
            (groups.first().map_or(0, |g| g.objects.start), groups.last().map_or(0, |g| g.objects.end));
        &mut self.objects[first..last]
    }

    /// Gives the bytes of an offer's objects.
    fn lend(&mut self, offer: &Offer) -> Lend {
        let readers: Vec<Readers> = self.of(offer).iter().map(|object| object.readers.clone()).collect();
        Box::new(move |item| readers.get(item as usize).map(Readers::parts).unwrap_or_default())
    }

    fn settle(
        &mut self,
        (desk, heard): (&Desk, &mut Heard),
        offer: &Offer,
        outcomes: Vec<Result<PutOutcome>>,
        by: Instance,
    ) {
        let failed = |outcome: &Result<PutOutcome>| super::is_unavailable(outcome);
        heard.note_reply(desk, STORE, outcomes.iter().any(failed));
        self.acked.extend(outcomes.iter().any(Result::is_ok).then_some(by));
        for (object, outcome) in self.of(offer).iter_mut().zip(outcomes) {
            object.outcome = Some(outcome);
        }
    }

    /// Who acknowledged something since this was last asked.
    pub fn acked(&mut self) -> Vec<Instance> {
        std::mem::take(&mut self.acked)
    }

    /// The outcomes, and the memory.
    pub fn finish(self) -> Vec<PutDone> {
        let done = |object: Object| {
            let parts = object.readers.into_parts().unwrap_or_default();
            let outcome = object.outcome.unwrap_or_else(|| Err(no_link()));
            PutDone { outcome, source: Source::of(parts) }
        };
        self.objects.into_iter().map(done).collect()
    }
}

/// Bytes that an object takes in an offer, at most.
fn cost(object: &Object) -> u64 {
    OBJECT_BYTES + 16 * block_count(object.length, BLOCK_BYTES)
}
