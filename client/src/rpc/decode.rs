//! Converts outcomes of the wire protocol into types of the API; [`super::encode`] has the reverse.

use pagelith_layouts::wire::outcome::{
    CauseTag, DecodedOutcome, ErrorTag, Failure, Flushed, ItemOutcome, TierTag, WireEvent,
};
use pagelith_layouts::wire::printable::Printable;

use super::call::{ControlReply, no_answer};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::events::{Event, EventBatch};
use crate::api::outcome::{FlushReport, MissCause, PutOutcome, Tier};

pub(crate) fn decode_put_outcome(verdict: &ItemOutcome<'_>) -> Result<PutOutcome> {
    match verdict {
        ItemOutcome::Stored => Ok(PutOutcome::Stored),
        ItemOutcome::AlreadyPresent => Ok(PutOutcome::AlreadyPresent),
        ItemOutcome::Waiting => Ok(PutOutcome::Waiting),
        ItemOutcome::Refused => Ok(PutOutcome::Refused),
        ItemOutcome::Failed(failure) => Err(decode_error(failure)),
        ItemOutcome::Hit { .. } | ItemOutcome::Miss(_) => Err(no_answer()),
    }
}

pub(crate) fn decode_control(answer: &DecodedOutcome<'_>) -> Option<ControlReply> {
    match answer {
        DecodedOutcome::Number(number) => Some(ControlReply::Number(*number)),
        DecodedOutcome::Flushed(said) => {
            let Flushed { durable_objects, durable_bytes, refused_objects, lost_objects } = *said;
            let report =
                FlushReport { durable_objects, durable_bytes, refused_objects, lost_objects };
            Some(ControlReply::Flushed(report))
        }
        DecodedOutcome::Text(text) => Some(ControlReply::Text((*text).to_owned())),
        DecodedOutcome::Bits(bits) => Some(ControlReply::Bits(bits.iter().collect())),
        DecodedOutcome::Events(said) => {
            let events = said.iter().map(decode_event).collect();
            Some(ControlReply::Events(EventBatch { events, next: said.next, lost: said.lost }))
        }
        DecodedOutcome::Views(views) => Some(ControlReply::Views(
            views.iter().map(|view| (view.key_hash(), view.location())).collect(),
        )),
        DecodedOutcome::Items(_) | DecodedOutcome::Failed(_) => None,
    }
}

fn decode_event(said: WireEvent) -> Event {
    match said {
        WireEvent::Stored(tier, key, new) => Event::Stored { tier: decode_tier(tier), key, new },
        WireEvent::Removed(tier, key, gone) => {
            Event::Removed { tier: decode_tier(tier), key, gone }
        }
        WireEvent::Cleared(namespace) => Event::Cleared { namespace },
        WireEvent::Forgot(tier) => Event::Forgot { tier: decode_tier(tier) },
    }
}

pub(crate) fn decode_tier(tier: TierTag) -> Tier {
    match tier {
        TierTag::Memory => Tier::Memory,
        TierTag::Ssd => Tier::Ssd,
        TierTag::Remote => Tier::Remote,
    }
}

pub(crate) fn decode_miss(cause: CauseTag) -> MissCause {
    match cause {
        CauseTag::Absent => MissCause::Absent,
        CauseTag::Damaged => MissCause::Damaged,
        CauseTag::Unreadable => MissCause::Unreadable,
        CauseTag::Gone => MissCause::Gone,
        CauseTag::Late => MissCause::Late,
    }
}

pub(crate) fn decode_error(failure: &Failure<'_>) -> Error {
    let kind = match failure.error {
        ErrorTag::Invalid => ErrorKind::Invalid,
        ErrorTag::Busy => ErrorKind::Busy,
        ErrorTag::NoSpace => ErrorKind::NoSpace,
        ErrorTag::Unavailable => ErrorKind::Unavailable,
        ErrorTag::Damaged => ErrorKind::Damaged,
        ErrorTag::Incompatible => ErrorKind::Incompatible,
        ErrorTag::Closed => ErrorKind::Closed,
        ErrorTag::Denied => ErrorKind::Denied,
        ErrorTag::Internal => ErrorKind::Internal,
    };
    let errno = (failure.errno != 0).then_some(failure.errno);
    Error { errno, ..Error::new(kind, Printable(failure.text).to_string()) }
}
