//! Outcomes of operations and their encoding.

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, key_hash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::outcome::{
    BaseRef, EventItem, Item, ItemOutcome as WireVerdict, OutcomeToSend, ViewItem, encode,
};
use pagelith_layouts::wire::request::Verb;

use crate::api::error::Error;
use crate::api::events::{Event, EventBatch};
use crate::api::outcome::{FlushReport, MissCause, PutOutcome, Tier};
use crate::rpc::encode::{cause_tag, failure, flushed, put_verdict, tier_tag, wire_event};

/// The result of one item.
#[derive(Debug)]
pub(crate) enum ItemVerdict {
    /// Sent: tier, length, checksums, number of objects put with it (or 0), and its base if it is
    /// attached.
    Hit(Tier, u64, Checksums, u32, Option<Box<BaseRef>>),
    Miss(MissCause),
    Put(PutOutcome),
    Failed(Error),
}

/// The outcome of an operation.
pub(crate) struct OpOutcome {
    pub verb: Verb,
    body: OutcomeBody,
}

enum OutcomeBody {
    Items(Vec<(ObjectKey, ItemVerdict)>),
    Bits(Vec<bool>),
    Number(u64),
    Flushed(FlushReport),
    Text(String),
    Events(Vec<EventItem>, u64, u64),
    Views(Vec<ViewItem>),
    Failed(Error),
}

impl OpOutcome {
    pub fn items(verb: Verb, items: Vec<(ObjectKey, ItemVerdict)>) -> OpOutcome {
        OpOutcome { verb, body: OutcomeBody::Items(items) }
    }

    pub fn bits(verb: Verb, bits: Vec<bool>) -> OpOutcome {
        OpOutcome { verb, body: OutcomeBody::Bits(bits) }
    }

    pub fn number(verb: Verb, number: u64) -> OpOutcome {
        OpOutcome { verb, body: OutcomeBody::Number(number) }
    }

    pub fn flushed(report: FlushReport) -> OpOutcome {
        OpOutcome { verb: Verb::Flush, body: OutcomeBody::Flushed(report) }
    }

    pub fn text(text: String) -> OpOutcome {
        OpOutcome { verb: Verb::Stats, body: OutcomeBody::Text(text) }
    }

    /// The events of `since` that the peer may receive.
    pub fn events(since: &EventBatch, may_receive_events: impl Fn(&Event) -> bool) -> OpOutcome {
        let visible = since.events.iter().filter(|event| may_receive_events(event));
        let items = visible.map(|event| EventItem::of(&wire_event(event))).collect();
        OpOutcome { verb: Verb::Events, body: OutcomeBody::Events(items, since.next, since.lost) }
    }

    pub fn views(items: Vec<ViewItem>) -> OpOutcome {
        OpOutcome { verb: Verb::View, body: OutcomeBody::Views(items) }
    }

    pub fn failed(verb: Verb, error: Error) -> OpOutcome {
        OpOutcome { verb, body: OutcomeBody::Failed(error) }
    }

    /// The body of the outcome frame.
    pub fn encode(&self) -> Vec<u8> {
        match &self.body {
            OutcomeBody::Items(items) => {
                let items: Vec<Item<'_>> =
                    items.iter().map(|(key, verdict)| item(key, verdict)).collect();
                encode(self.verb, &OutcomeToSend::Items(&items, BLOCK_BYTES))
            }
            OutcomeBody::Bits(bits) => encode(self.verb, &OutcomeToSend::Bits(bits)),
            OutcomeBody::Number(number) => encode(self.verb, &OutcomeToSend::Number(*number)),
            OutcomeBody::Flushed(report) => {
                encode(self.verb, &OutcomeToSend::Flushed(flushed(report)))
            }
            OutcomeBody::Text(text) => encode(self.verb, &OutcomeToSend::Text(text)),
            OutcomeBody::Events(items, next, lost) => {
                encode(self.verb, &OutcomeToSend::Events(items, *next, *lost))
            }
            OutcomeBody::Views(items) => encode(self.verb, &OutcomeToSend::Views(items)),
            OutcomeBody::Failed(error) => encode(self.verb, &OutcomeToSend::Failed(failure(error))),
        }
    }
}

fn item<'a>(key: &ObjectKey, verdict: &'a ItemVerdict) -> Item<'a> {
    let verdict = match verdict {
        ItemVerdict::Hit(tier, length, checksums, members, base) => WireVerdict::Hit {
            tier: tier_tag(*tier),
            length: *length,
            checksums: List::of(checksums),
            members: *members,
            base: base.as_deref().copied(),
        },
        ItemVerdict::Miss(cause) => WireVerdict::Miss(cause_tag(*cause)),
        ItemVerdict::Put(outcome) => put_verdict(*outcome),
        ItemVerdict::Failed(error) => WireVerdict::Failed(failure(error)),
    };
    Item { key_hash: key_hash(key), verdict }
}
