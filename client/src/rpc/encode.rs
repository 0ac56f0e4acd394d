//! Converts types of the API into those of the wire protocol, for servers; [`super::decode`] has
//! the reverse. Here and not in the engine, so that the compiler finds a variant that is forgotten.

use pagelith_layouts::wire::outcome::{
    CauseTag, ErrorTag, Failure, Flushed, GroupState, ItemOutcome, TierTag, WireEvent,
};

use crate::api::error::{Error, ErrorKind};
use crate::api::events::Event;
use crate::api::outcome::{FlushReport, MissCause, PutOutcome, Tier};

/// The outcome of a put.
pub fn put_verdict(outcome: PutOutcome) -> ItemOutcome<'static> {
    match outcome {
        PutOutcome::Stored => ItemOutcome::Stored,
        PutOutcome::AlreadyPresent => ItemOutcome::AlreadyPresent,
        PutOutcome::Waiting => ItemOutcome::Waiting,
        PutOutcome::Refused => ItemOutcome::Refused,
    }
}

/// The outcome of a commit.
pub fn group_state(outcome: PutOutcome) -> GroupState {
    match outcome {
        PutOutcome::Stored => GroupState::Stored,
        PutOutcome::AlreadyPresent => GroupState::AlreadyPresent,
        PutOutcome::Waiting => GroupState::Waiting,
        PutOutcome::Refused => GroupState::Refused,
    }
}

/// An event.
pub fn wire_event(event: &Event) -> WireEvent {
    match event {
        Event::Stored { tier, key, new } => WireEvent::Stored(tier_tag(*tier), *key, *new),
        Event::Removed { tier, key, gone } => WireEvent::Removed(tier_tag(*tier), *key, *gone),
        Event::Cleared { namespace } => WireEvent::Cleared(*namespace),
        Event::Forgot { tier } => WireEvent::Forgot(tier_tag(*tier)),
    }
}

/// The report of a flush.
pub fn flushed(report: &FlushReport) -> Flushed {
    let FlushReport { durable_objects, durable_bytes, refused_objects, lost_objects } = *report;
    Flushed { durable_objects, durable_bytes, refused_objects, lost_objects }
}

/// An error.
pub fn failure(error: &Error) -> Failure<'_> {
    Failure { error: error_tag(error.kind), errno: error.errno.unwrap_or(0), text: &error.message }
}

/// A tier.
pub fn tier_tag(tier: Tier) -> TierTag {
    match tier {
        Tier::Memory => TierTag::Memory,
        Tier::Ssd => TierTag::Ssd,
        Tier::Remote => TierTag::Remote,
    }
}

/// The cause of a miss.
pub fn cause_tag(cause: MissCause) -> CauseTag {
    match cause {
        // The object is present, and the client should act as if it were not.
        MissCause::Absent | MissCause::Slow => CauseTag::Absent,
        MissCause::Damaged => CauseTag::Damaged,
        MissCause::Unreadable => CauseTag::Unreadable,
        MissCause::Gone => CauseTag::Gone,
        MissCause::Late => CauseTag::Late,
    }
}

/// The kind of an error.
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
