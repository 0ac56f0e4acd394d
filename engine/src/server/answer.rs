//! Outcomes, as the wire has them.

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, key_hash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::outcome::{
    Base, CauseTag, ErrorTag, EventItem, Failure, Flushed, Happened, Item, TierTag, Verdict as Wire,
    ViewItem, Written, encode,
};
use pagelith_layouts::wire::request::Verb;

use crate::api::error::{Error, ErrorKind};
use crate::api::events::{Event, Since};
use crate::api::outcome::{FlushReport, MissCause, PutOutcome, Tier};

/// What became of one item.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Sent, with these checksums; how many objects were put with it, or 0, and what they are attached to.
    Hit(Tier, u64, Checksums, u32, Option<Box<Base>>),
    Miss(MissCause),
    Put(PutOutcome),
    Failed(Error),
}

/// What becomes of an operation.
pub(crate) struct Answered {
    pub verb: Verb,
    what: What,
}

enum What {
    Items(Vec<(ObjectKey, Verdict)>),
    Bits(Vec<bool>),
    Number(u64),
    Flushed(FlushReport),
    Text(String),
    Events(Vec<EventItem>, u64, u64),
    Views(Vec<ViewItem>),
    Failed(Error),
}

impl Answered {
    pub fn items(verb: Verb, items: Vec<(ObjectKey, Verdict)>) -> Answered {
        Answered { verb, what: What::Items(items) }
    }

    pub fn bits(verb: Verb, bits: Vec<bool>) -> Answered {
        Answered { verb, what: What::Bits(bits) }
    }

    pub fn number(verb: Verb, number: u64) -> Answered {
        Answered { verb, what: What::Number(number) }
    }

    pub fn flushed(report: FlushReport) -> Answered {
        Answered { verb: Verb::Flush, what: What::Flushed(report) }
    }

    pub fn text(text: String) -> Answered {
        Answered { verb: Verb::Stats, what: What::Text(text) }
    }

    /// What a peer is told of `since`.
    pub fn events(since: &Since, may_hear: impl Fn(&Event) -> bool) -> Answered {
        let told = since.events.iter().filter(|event| may_hear(event));
        let items = told.map(|event| EventItem::of(&happened(event))).collect();
        Answered { verb: Verb::Events, what: What::Events(items, since.next, since.lost) }
    }

    pub fn views(items: Vec<ViewItem>) -> Answered {
        Answered { verb: Verb::View, what: What::Views(items) }
    }

    pub fn failed(verb: Verb, error: Error) -> Answered {
        Answered { verb, what: What::Failed(error) }
    }

    /// The body of its frame.
    pub fn encode(&self) -> Vec<u8> {
        match &self.what {
            What::Items(items) => {
                let items: Vec<Item<'_>> = items.iter().map(|(key, verdict)| item(key, verdict)).collect();
                encode(self.verb, &Written::Items(&items, BLOCK_BYTES))
            }
            What::Bits(bits) => encode(self.verb, &Written::Bits(bits)),
            What::Number(number) => encode(self.verb, &Written::Number(*number)),
            What::Flushed(report) => encode(self.verb, &Written::Flushed(flushed(report))),
            What::Text(text) => encode(self.verb, &Written::Text(text)),
            What::Events(items, next, lost) => encode(self.verb, &Written::Events(items, *next, *lost)),
            What::Views(items) => encode(self.verb, &Written::Views(items)),
            What::Failed(error) => encode(self.verb, &Written::Failed(failure(error))),
        }
    }
}

fn item<'a>(key: &ObjectKey, verdict: &'a Verdict) -> Item<'a> {
    let verdict = match verdict {
        Verdict::Hit(tier, length, checksums, members, base) => Wire::Hit {
            tier: tier_tag(*tier),
            length: *length,
            checksums: List::of(checksums),
            members: *members,
            base: base.as_deref().copied(),
        },
        Verdict::Miss(cause) => Wire::Miss(cause_tag(*cause)),
        Verdict::Put(PutOutcome::Stored) => Wire::Stored,
        Verdict::Put(PutOutcome::AlreadyPresent) => Wire::AlreadyPresent,
        Verdict::Put(PutOutcome::Waiting) => Wire::Waiting,
        Verdict::Put(PutOutcome::Refused) => Wire::Refused,
        Verdict::Failed(error) => Wire::Failed(failure(error)),
    };
    Item { key_hash: key_hash(key), verdict }
}

fn happened(event: &Event) -> Happened {
    match event {
        Event::Stored { tier, key, new } => Happened::Stored(tier_tag(*tier), *key, *new),
        Event::Removed { tier, key, gone } => Happened::Removed(tier_tag(*tier), *key, *gone),
        Event::Cleared { namespace } => Happened::Cleared(*namespace),
        Event::Forgot { tier } => Happened::Forgot(tier_tag(*tier)),
    }
}

fn flushed(report: &FlushReport) -> Flushed {
    let FlushReport { durable_objects, durable_bytes, refused_objects, lost_objects } = *report;
    Flushed { durable_objects, durable_bytes, refused_objects, lost_objects }
}

fn failure(error: &Error) -> Failure<'_> {
    Failure { error: error_tag(error.kind), errno: error.errno.unwrap_or(0), text: &error.message }
}

fn tier_tag(tier: Tier) -> TierTag {
    match tier {
        Tier::Memory => TierTag::Memory,
        Tier::Ssd => TierTag::Ssd,
        Tier::Remote => TierTag::Remote,
    }
}

fn cause_tag(cause: MissCause) -> CauseTag {
    match cause {
        MissCause::Absent => CauseTag::Absent,
        MissCause::Damaged => CauseTag::Damaged,
        MissCause::Unreadable => CauseTag::Unreadable,
        MissCause::Gone => CauseTag::Gone,
        MissCause::Late => CauseTag::Late,
    }
}

fn error_tag(kind: ErrorKind) -> ErrorTag {
    match kind {
        ErrorKind::Invalid => ErrorTag::Invalid,
        ErrorKind::Busy => ErrorTag::Busy,
        ErrorKind::NoSpace => ErrorTag::NoSpace,
        ErrorKind::Unavailable => ErrorTag::Unavailable,
        ErrorKind::Damaged => ErrorTag::Damaged,
        ErrorKind::Incompatible => ErrorTag::Incompatible,
        ErrorKind::Closed => ErrorTag::Closed,
        ErrorKind::Denied => ErrorTag::Denied,
        ErrorKind::Internal => ErrorTag::Internal,
    }
}
