//! What a caller knows of the future use of objects.

use std::time::Duration;

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::hint::WireHint;

use super::error::{Error, Result};

/// A hint. It changes which objects leave first, never what a get returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The session that used these objects, given from the head of its prompt, has ended: they
    /// leave first, until their next request. It is followed while few such hints of the namespace
    /// turn out wrong (setting `hints.trust`).
    SessionEnded,
    /// The objects leave DRAM first, until their next request. SSD keeps them. Without an SSD tier
    /// it is as [`Hint::SessionEnded`].
    Demote,
    /// The objects stay for this duration, like leased ones. Those that are absent stay from their
    /// put on, until the same time. The retained objects of this process, or of one client, take at
    /// most a quarter of the arena's bytes and of the index's objects; beyond it the hint is
    /// refused as `Busy`, and objects that are put later are not retained.
    Retain(Duration),
    /// The session that used these objects, given from the head of its prompt, goes on within this
    /// duration: the present objects stay until then, within the bounds of [`Hint::Retain`]. It is
    /// followed while few such hints of the namespace turn out wrong (setting `hints.trust`).
    ExpectedBack(Duration),
    /// The objects leave DRAM before or after others that are requested as often.
    Priority(Priority),
}

/// A priority in DRAM. Without one, it is between the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Leave before all others, until the next request.
    Low,
    /// As if requested three times since the put, until they leave DRAM. It has no effect with
    /// `dram.policy` "lru" and "fifo".
    High,
}

impl Hint {
    /// The hint in a request; durations are rounded up to whole milliseconds.
    pub fn wire(self) -> WireHint {
        match self {
            Hint::SessionEnded => WireHint::SessionEnded,
            Hint::Demote => WireHint::Demote,
            Hint::Retain(duration) => WireHint::Retain { ms: whole_ms(duration) },
            Hint::ExpectedBack(duration) => WireHint::ExpectedBack { ms: whole_ms(duration) },
            Hint::Priority(Priority::Low) => WireHint::LowPriority,
            Hint::Priority(Priority::High) => WireHint::HighPriority,
        }
    }

    /// The hint of a request.
    pub fn of_wire(hint: WireHint) -> Hint {
        match hint {
            WireHint::SessionEnded => Hint::SessionEnded,
            WireHint::Demote => Hint::Demote,
            WireHint::Retain { ms } => Hint::Retain(Duration::from_millis(ms)),
            WireHint::ExpectedBack { ms } => Hint::ExpectedBack(Duration::from_millis(ms)),
            WireHint::LowPriority => Hint::Priority(Priority::Low),
            WireHint::HighPriority => Hint::Priority(Priority::High),
        }
    }

    /// How long it has an effect; `None` for hints without a duration.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Hint::SessionEnded | Hint::Demote | Hint::Priority(_) => None,
            Hint::Retain(duration) | Hint::ExpectedBack(duration) => Some(duration),
        }
    }
}

/// Check that the objects of a hint are of one namespace.
pub fn check_namespace(keys: &[ObjectKey]) -> Result<()> {
    let Some(first) = keys.first() else { return Ok(()) };
    match keys.iter().find(|key| key.namespace() != first.namespace()) {
        Some(other) => Err(Error::invalid(format!(
            "a hint is for objects of one namespace: give one hint for each key={other}"
        ))),
        None => Ok(()),
    }
}

/// A duration in whole milliseconds, rounded up, at least 1.
pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}
