//! The number by which a request names its hint: the kind in the lowest eight bits, above them a
//! duration in milliseconds, or zero.

/// A hint about the future use of objects. Zero is no number of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireHint {
    /// The session that used the objects has ended.
    SessionEnded,
    /// The objects leave memory first.
    Demote,
    /// The objects stay for this many milliseconds.
    Retain {
        /// At least 1.
        ms: u64,
    },
    /// The session goes on within this many milliseconds.
    ExpectedBack {
        /// At least 1.
        ms: u64,
    },
    /// The objects leave memory before others.
    LowPriority,
    /// The objects leave memory after others.
    HighPriority,
}

const KIND_BITS: u32 = 8;
const SESSION_ENDED: u64 = 1;
const DEMOTE: u64 = 2;
const RETAIN: u64 = 3;
const EXPECTED_BACK: u64 = 4;
const LOW_PRIORITY: u64 = 5;
const HIGH_PRIORITY: u64 = 6;

impl WireHint {
    /// Longest duration in milliseconds.
    pub const MS_MAX: u64 = u64::MAX >> KIND_BITS;

    /// Its number. A longer duration than [`WireHint::MS_MAX`] is taken as that.
    pub const fn number(self) -> u64 {
        match self {
            WireHint::SessionEnded => SESSION_ENDED,
            WireHint::Demote => DEMOTE,
            WireHint::Retain { ms } => with_duration(RETAIN, ms),
            WireHint::ExpectedBack { ms } => with_duration(EXPECTED_BACK, ms),
            WireHint::LowPriority => LOW_PRIORITY,
            WireHint::HighPriority => HIGH_PRIORITY,
        }
    }

    /// The hint with this number; `None` if this build does not know it.
    pub const fn from_number(number: u64) -> Option<WireHint> {
        let ms = number >> KIND_BITS;
        match (number & (u64::MAX >> (u64::BITS - KIND_BITS)), ms) {
            (SESSION_ENDED, 0) => Some(WireHint::SessionEnded),
            (DEMOTE, 0) => Some(WireHint::Demote),
            (RETAIN, 1..) => Some(WireHint::Retain { ms }),
            (EXPECTED_BACK, 1..) => Some(WireHint::ExpectedBack { ms }),
            (LOW_PRIORITY, 0) => Some(WireHint::LowPriority),
            (HIGH_PRIORITY, 0) => Some(WireHint::HighPriority),
            _ => None,
        }
    }
}

const fn with_duration(kind: u64, ms: u64) -> u64 {
    let ms = if ms > WireHint::MS_MAX { WireHint::MS_MAX } else { ms };
    kind | ms << KIND_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_have_numbers_and_other_numbers_are_no_hints() {
        let long = WireHint::Retain { ms: WireHint::MS_MAX };
        for hint in [
            WireHint::SessionEnded,
            WireHint::Demote,
            WireHint::Retain { ms: 1 },
            WireHint::ExpectedBack { ms: 1 },
            WireHint::LowPriority,
            WireHint::HighPriority,
            long,
        ] {
            assert_eq!(WireHint::from_number(hint.number()), Some(hint));
        }
        assert_eq!(WireHint::Retain { ms: u64::MAX }.number(), long.number());
        for number in [0, 1 | 1 << 8, 2 | 5 << 8, 3, 4, 5 | 1 << 8, 200, u64::MAX] {
            assert_eq!(WireHint::from_number(number), None, "{number}");
        }
    }
}
