//! One operation on its way to a peer and back.

use std::collections::VecDeque;
use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::fused::Stores;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, key_hash};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::{self, Answer, Base, Items, Lies, Verdict};
use pagelith_layouts::wire::pull::PullItem;
use pagelith_layouts::wire::request::{GetItem, Verb};
use pagelith_transport::link::Push;
use pagelith_transport::shown::Shown;

use super::decode::{error, miss, stored, tier_of, told_by};
use super::verify;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::events::Since;
use crate::api::outcome::{FlushReport, GetOutcome, MissCause, PutOutcome};
use crate::rpc::scatter;

/// An object that is wanted of a peer.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub key: ObjectKey,
    /// Which of its bytes; `None` for all.
    pub range: Option<Range<u64>>,
    /// Where they go: as long as what is wanted.
    pub parts: Vec<Part>,
    /// They are to be sent, and not shown.
    pub sent: bool,
}

impl Wanted {
    /// Bytes that there is room for.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// What is asked for it.
    pub fn item(&self) -> GetItem {
        let item = GetItem::new(self.key, self.range.clone(), self.bytes());
        if self.sent { item.sent() } else { item }
    }

    /// What is wrong with it, whatever the object is like.
    pub fn check(&self) -> Result<()> {
        let (key, bytes, item) = (self.key, self.bytes(), self.item());
        if item.check().is_ok() && item.length() == bytes {
            return Ok(());
        }
        let Range { start, end } = item.stretch();
        let detail = format!(
            "no object has such bytes, or the destination is not as long key={key} range={start}..{end} destination={bytes}"
        );
        Err(Error::invalid(detail))
    }
}

/// What became of it, and its memory back.
#[derive(Debug)]
pub(crate) struct Got {
    pub outcome: Result<GetOutcome>,
    pub parts: Vec<Part>,
    /// Of a hit: the checksums of its bytes where they landed, how many objects were put with it, or 0, and what they are attached to.
    pub proven: (Checksums, u32, Option<Box<Base>>),
    /// The object, which of its bytes, and whether they were to be sent.
    pub asked: (ObjectKey, Option<Range<u64>>, bool),
    /// It was not what the peer vouches for: what was shown may have been changed meanwhile, what was sent on its way, or it is damaged
    /// there. Whoever asks for the bytes to be sent once more finds out.
    pub again: bool,
}

/// What came of an operation.
#[derive(Debug)]
pub(crate) enum Reply {
    Exists(Result<Vec<bool>>),
    Get(Vec<Got>),
    /// One outcome an object.
    Put(Vec<Result<PutOutcome>>),
    Told(Result<Told>),
}

/// What is said to a request that has no items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Number(u64),
    Flushed(FlushReport),
    Text(String),
    Bits(Vec<bool>),
    Events(Since),
    /// Of each object the hash of its key, and where it lies if it is in memory.
    Views(Vec<(Checksum, Option<Lies>)>),
}

/// An object of a get.
pub(crate) struct Item {
    key: ObjectKey,
    stretch: Range<u64>,
    range: Option<Range<u64>>,
    /// It is asked for again.
    again: bool,
    /// What came is not what the peer vouches for.
    differs: bool,
    /// `None` while the link has it.
    parts: Option<Vec<Part>>,
    /// The checksums of what landed, made as it did: the bytes are warm then, and the next are on their way.
    landed: Option<Checksums>,
    /// How many objects were put with it, or 0, and what they are attached to.
    members: u32,
    base: Option<Box<Base>>,
    outcome: Option<Result<GetOutcome>>,
}

impl Item {
    fn bytes(&self) -> u64 {
        self.stretch.end - self.stretch.start
    }
}

/// Lends an object's bytes, to be sent.
pub(crate) type Lend = Box<dyn FnMut(u32) -> Vec<Part> + Send>;

/// The objects of a put.
pub(crate) struct Offer {
    keys: Vec<(ObjectKey, u64)>,
    lend: Lend,
    unsent: VecDeque<Push>,
    /// Pushes that the link has.
    sending: usize,
    /// None before there is an answer, or it is not waited for any more.
    outcomes: Vec<Result<PutOutcome>>,
}

pub(crate) enum Work {
    Exists(usize, Result<Vec<bool>>),
    /// The objects, and how those that are shown are copied.
    Get(Vec<Item>, Stores),
    Put(Offer),
    Told(Verb, Result<Told>),
}

/// An operation under way.
pub(crate) struct Call {
    pub token: u64,
    pub deadline: Mono,
    pub work: Work,
    /// Bytes of the request.
    pub asked: usize,
    /// The peer's outcome came, or is not waited for any more.
    pub over: bool,
}

pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, "the peer did not answer in time")
}

impl Call {
    fn new(token: u64, deadline: Mono, work: Work) -> Call {
        Call { token, deadline, work, asked: 0, over: false }
    }

    pub fn exists(token: u64, deadline: Mono, keys: usize) -> Call {
        Call::new(token, deadline, Work::Exists(keys, Err(no_answer())))
    }

    /// A get whose memory the link has.
    pub fn get(token: u64, deadline: Mono, items: impl Iterator<Item = GetItem>) -> Call {
        let item = |wanted: GetItem| Item {
            key: wanted.key,
            stretch: wanted.stretch(),
            range: wanted.range(),
            again: wanted.is_sent(),
            differs: false,
            parts: None,
            landed: None,
            members: 0,
            base: None,
            outcome: None,
        };
        let items: Vec<Item> = items.map(item).collect();
        let bytes = items.iter().map(Item::bytes).sum();
        Call::new(token, deadline, Work::Get(items, Stores::of(bytes)))
    }

    pub fn put(token: u64, deadline: Mono, keys: Vec<(ObjectKey, u64)>, lend: Lend) -> Call {
        let (unsent, outcomes) = (VecDeque::new(), Vec::new());
        let offer = Offer { keys, lend, unsent, sending: 0, outcomes };
        Call::new(token, deadline, Work::Put(offer))
    }

    pub fn told(token: u64, deadline: Mono, verb: Verb) -> Call {
        Call::new(token, deadline, Work::Told(verb, Err(no_answer())))
    }

    /// Whether it can be replied to: everything it lent is back.
    pub fn is_done(&self) -> bool {
        let back = match &self.work {
            Work::Exists(..) | Work::Told(..) => true,
            Work::Get(items, ..) => items.iter().all(|item| item.parts.is_some()),
            Work::Put(offer) => offer.sending == 0,
        };
        self.over && back
    }

    /// Whether it is a get, and done.
    pub fn is_got(&self) -> bool {
        matches!(self.work, Work::Get(..)) && self.is_done()
    }

    pub fn reply(self) -> (u64, Reply) {
        let got = |item: Item| Got {
            again: item.differs && !item.again,
            asked: (item.key, item.range, item.again),
            outcome: item.outcome.unwrap_or(Ok(GetOutcome::Miss(MissCause::Late))),
            parts: item.parts.unwrap_or_default(),
            proven: (item.landed.unwrap_or_default(), item.members, item.base),
        };
        let reply = match self.work {
            Work::Exists(_, found) => Reply::Exists(found),
            Work::Get(items, ..) => Reply::Get(items.into_iter().map(got).collect()),
            Work::Put(mut offer) => {
                offer.outcomes.resize_with(offer.keys.len(), || Err(no_answer()));
                Reply::Put(offer.outcomes)
            }
            Work::Told(_, told) => Reply::Told(told),
        };
        (self.token, reply)
    }

    /// An object's memory is back; with all of its bytes if it `landed`.
    pub fn take_back(&mut self, item: u32, parts: Vec<Part>, landed: bool) {
        if let Work::Get(items, _) = &mut self.work
            && let Some(item) = items.get_mut(item as usize)
        {
            item.landed = if landed && !self.over { verify::sums(&parts, &item.stretch) } else { None };
            item.parts = Some(parts);
        }
    }

    /// An object's memory is back, and its bytes are shown: copy and checksum them, block by block.
    pub fn take_shown(&mut self, item: u32, mut parts: Vec<Part>, shown: &Shown) {
        let Work::Get(items, stores) = &mut self.work else { return };
        if let Some(item) = items.get_mut(item as usize) {
            item.landed =
                if self.over { None } else { verify::copied(&mut parts, &item.stretch, shown, *stores) };
            item.parts = Some(parts);
        }
    }

    /// The link is done with a push.
    pub fn pushed(&mut self) {
        if let Work::Put(offer) = &mut self.work {
            offer.sending -= 1;
        }
    }

    /// The peer asks for bytes of a put.
    pub fn pull(
        &mut self,
        op: OpId,
        wanted: impl Iterator<Item = PullItem>,
    ) -> std::result::Result<(), FormatError> {
        let broken = |field, value: u64| {
            Err(FormatError::Field { structure: "pull", field, value: value.to_string() })
        };
        let Work::Put(offer) = &mut self.work else { return broken("op", op.0) };
        for pull in wanted {
            let Some((_, length)) = offer.keys.get(pull.item as usize) else {
                return broken("item", pull.item.into());
            };
            if pull.offset + pull.length > *length {
                return broken("length", pull.length);
            }
            let parts = cut((offer.lend)(pull.item), pull.offset, pull.length);
            offer.unsent.push_back(Push {
                op,
                item: pull.item,
                offset: pull.offset,
                parts,
                token: 0,
                may_show: true,
            });
        }
        Ok(())
    }

    /// The next bytes to be sent.
    pub fn next_push(&mut self) -> Option<Push> {
        let Work::Put(offer) = &mut self.work else { return None };
        let push = offer.unsent.pop_front();
        offer.sending += usize::from(push.is_some());
        push
    }

    /// The link had no room for them.
    pub fn push_later(&mut self, push: Push) {
        if let Work::Put(offer) = &mut self.work {
            offer.sending -= 1;
            offer.unsent.push_front(push);
        }
    }

    /// Nothing more is sent.
    pub fn forget_unsent(&mut self) {
        if let Work::Put(offer) = &mut self.work {
            offer.unsent.clear();
        }
    }

    /// What the peer says became of it. An error is an answer to something else.
    pub fn answer(&mut self, verb: Verb, answer: &Answer<'_>) -> std::result::Result<(), FormatError> {
        self.over = true;
        let other = |field, value: String| Err(FormatError::Field { structure: "outcome", field, value });
        match (&mut self.work, answer) {
            (_, Answer::Failed(failure)) => self.fail(&error(failure)),
            (Work::Exists(keys, found), Answer::Bits(bits)) if bits.len() == *keys => {
                *found = Ok(bits.iter().collect());
            }
            (Work::Get(items, ..), Answer::Items(said)) if said.len() == items.len() && blocks_fit(said) => {
                judge_all(items, said);
            }
            (Work::Put(offer), Answer::Items(said)) if said.len() == offer.keys.len() => {
                let outcome = |((key, _), said): (&(ObjectKey, u64), outcome::Item<'_>)| {
                    if said.key_hash == key_hash(key) { stored(&said.verdict) } else { Err(no_answer()) }
                };
                offer.outcomes = offer.keys.iter().zip(said.iter()).map(outcome).collect();
            }
            (Work::Told(asked, told), answer) if *asked == verb => match told_by(answer) {
                Some(said) => *told = Ok(said),
                None => return other("form", format!("{verb:?}")),
            },
            _ => return other("verb", format!("{verb:?}")),
        }
        Ok(())
    }

    /// The same error for all of it.
    pub fn fail(&mut self, error: &Error) {
        self.over = true;
        match &mut self.work {
            Work::Exists(_, found) => *found = Err(error.clone()),
            Work::Get(items, ..) => items.iter_mut().for_each(|item| item.outcome = Some(Err(error.clone()))),
            Work::Put(offer) => offer.outcomes = offer.keys.iter().map(|_| Err(error.clone())).collect(),
            Work::Told(_, told) => *told = Err(error.clone()),
        }
    }
}

/// The bytes `offset..offset + len` of `parts`.
fn cut(parts: Vec<Part>, offset: u64, len: u64) -> Vec<Part> {
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

/// Whether checksums are of the blocks that this build knows; 0 where there are none.
fn blocks_fit(said: &Items<'_>) -> bool {
    said.block_bytes() == 0 || said.block_bytes() == BLOCK_BYTES
}

fn judge_all(items: &mut [Item], said: &Items<'_>) {
    for (item, said) in items.iter_mut().zip(said.iter()) {
        let outcome = match said.verdict {
            // An answer about another object is no answer.
            _ if said.key_hash != key_hash(&item.key) => Err(no_answer()),
            Verdict::Hit { tier, length, checksums, members, base } => {
                (item.members, item.base) = (members, base.map(Box::new));
                let whole = length == item.stretch.end - item.stretch.start;
                let holds = |landed: &Checksums| checksums.iter().eq(landed.iter().copied());
                match whole && item.landed.as_ref().is_some_and(holds) {
                    true => Ok(GetOutcome::Hit { tier: tier_of(tier), bytes: length }),
                    false => {
                        item.differs = true;
                        Ok(GetOutcome::Miss(MissCause::Damaged))
                    }
                }
            }
            Verdict::Miss(cause) => Ok(GetOutcome::Miss(miss(cause))),
            Verdict::Failed(failure) => Err(error(&failure)),
            Verdict::Stored | Verdict::AlreadyPresent | Verdict::Waiting | Verdict::Refused => {
                Err(no_answer())
            }
        };
        if outcome == Ok(GetOutcome::Miss(MissCause::Damaged)) {
            match item.differs && !item.again {
                // It may have been moved while it was copied: it is asked for once more.
                true => tracing::debug!(key = %item.key, "a peer sent bytes that it does not vouch for"),
                false => tracing::warn!(key = %item.key, "a peer sent bytes that it does not vouch for"),
            }
            item.parts.iter_mut().for_each(|parts| scatter::zero(parts));
        }
        item.outcome = Some(outcome);
    }
}
