//! Why an object is absent: the causes of the misses `absent`, and of absent keys of `exists`.

use crate::memory::departed::Departure;

/// Why an object is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It was never stored, or that it left is forgotten: since the last open, or by a full table.
    Unknown,
    /// It left, or was not taken.
    Departed(Departure),
    /// Its base is absent, or it comes after an absent key of a prefix.
    Stranded,
    /// Its group is not committed, or waits for its base.
    Uncommitted,
    /// Nothing was ever put in its namespace, and the store has objects of other namespaces.
    OtherNamespace,
}

impl Absence {
    /// All causes, for tables.
    pub const ALL: [Absence; 12] = [
        Absence::Unknown,
        Absence::Departed(Departure::EvictedMemory),
        Absence::Departed(Departure::EvictedSsd),
        Absence::Departed(Departure::Refused),
        Absence::Departed(Departure::NotTaken),
        Absence::Departed(Departure::Incomplete),
        Absence::Departed(Departure::Removed),
        Absence::Departed(Departure::Damaged),
        Absence::Departed(Departure::Lost),
        Absence::Stranded,
        Absence::Uncommitted,
        Absence::OtherNamespace,
    ];

    /// Its place in [`Absence::ALL`].
    pub fn number(self) -> usize {
        match self {
            Absence::Unknown => 0,
            Absence::Departed(departure) => departure as usize,
            Absence::Stranded => 9,
            Absence::Uncommitted => 10,
            Absence::OtherNamespace => 11,
        }
    }

    /// Its name in counters.
    pub fn name(self) -> &'static str {
        match self {
            Absence::Unknown => "unknown",
            Absence::Departed(Departure::EvictedMemory) => "evicted_memory",
            Absence::Departed(Departure::EvictedSsd) => "evicted_ssd",
            Absence::Departed(Departure::Refused) => "refused",
            Absence::Departed(Departure::NotTaken) => "not_taken",
            Absence::Departed(Departure::Incomplete) => "incomplete",
            Absence::Departed(Departure::Removed) => "removed",
            Absence::Departed(Departure::Damaged) => "damaged",
            Absence::Departed(Departure::Lost) => "lost",
            Absence::Stranded => "stranded",
            Absence::Uncommitted => "uncommitted",
            Absence::OtherNamespace => "other_namespace",
        }
    }
}

/// Absent objects, by cause.
pub(crate) type AbsenceCounts = [u64; Absence::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_number_and_its_own_name() {
        for (at, cause) in Absence::ALL.into_iter().enumerate() {
            assert_eq!(cause.number(), at, "{cause:?}");
        }
        let names: std::collections::BTreeSet<_> = Absence::ALL.map(Absence::name).into();
        assert_eq!(names.len(), Absence::ALL.len());
    }
}
