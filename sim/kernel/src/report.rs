//! The results of a lane, as the line of JSON that the report is made from.

use std::fmt::Write;

/// Counters of one or many runs of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Runs.
    pub runs: u64,
    /// Faults that struck operations of the store, or that were made at rest.
    pub injected: u64,
    /// Faults that the store counted in one of its counters; never more than `injected`.
    pub detected: u64,
    /// Answers with bytes that were never put under their key, and incomplete groups.
    pub wrong: u64,
    /// Answers with removed or cleared objects.
    pub phantom: u64,
    /// Pages that a flush had covered and that were missing after reopening.
    pub synced_lost: u64,
    /// Pages that were removed or cleared and came back because the device lied about the write of
    /// the tombstone.
    pub removals_undone: u64,
    /// Pages present after reopening, with the right bytes.
    pub present: u64,
    /// The longest duration of an open.
    pub worst_recovery_ms: u64,
    /// The longest time that a call took beyond its deadline.
    pub longest_over_deadline_ms: u64,
}

const NAMES: [&str; 10] = [
    "runs",
    "injected",
    "detected",
    "wrong",
    "phantom",
    "synced_lost",
    "removals_undone",
    "present",
    "worst_recovery_ms",
    "longest_over_deadline_ms",
];

impl LaneCounts {
    fn fields(&mut self) -> [&mut u64; 10] {
        [
            &mut self.runs,
            &mut self.injected,
            &mut self.detected,
            &mut self.wrong,
            &mut self.phantom,
            &mut self.synced_lost,
            &mut self.removals_undone,
            &mut self.present,
            &mut self.worst_recovery_ms,
            &mut self.longest_over_deadline_ms,
        ]
    }

    /// Adds another's counters.
    pub fn add(&mut self, mut other: LaneCounts) {
        for (name, (mine, its)) in NAMES.iter().zip(self.fields().into_iter().zip(other.fields())) {
            *mine = if name.ends_with("_ms") { (*mine).max(*its) } else { *mine + *its };
        }
    }

    /// Encodes the counters for the pipe from a run to its parent.
    pub fn encode(mut self) -> String {
        self.fields().map(|n| n.to_string()).join(" ")
    }

    /// Decodes the counters.
    pub fn decode(words: &str) -> Option<LaneCounts> {
        let mut seen = LaneCounts::default();
        let mut words = words.split_whitespace();
        for field in seen.fields() {
            *field = words.next()?.parse().ok()?;
        }
        Some(seen)
    }

    /// One line of JSON.
    pub fn to_json(mut self, lane: &str, row: &str) -> String {
        let harmless = self.injected - self.detected.min(self.injected);
        let mut line = format!("{{\"lane\":\"{lane}\",\"row\":\"{row}\",\"harmless\":{harmless}");
        for (name, value) in NAMES.iter().zip(self.fields()) {
            let _ = write!(line, ",\"{name}\":{value}");
        }
        line + "}"
    }
}
