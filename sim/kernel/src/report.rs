//! What a lane saw, as the line of JSON that the report is made of.

use std::fmt::Write;

/// Numbers of one or many runs of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Runs.
    pub runs: u64,
    /// Faults that operations of the store met, or that were made at rest.
    pub injected: u64,
    /// Of those, how many the store counted in one of its counters; never more than were injected.
    pub detected: u64,
    /// Answers with bytes that were never put under that key, and groups that were not whole.
    pub wrong: u64,
    /// Answers with what had been removed or cleared.
    pub phantom: u64,
    /// Objects' pages that a flush had covered and that were not there after reopening.
    pub synced_lost: u64,
    /// Pages that were removed or cleared and came back because the device lied about the write that said so.
    pub removals_undone: u64,
    /// Pages that were there after reopening, with the right bytes.
    pub present: u64,
    /// The longest open.
    pub worst_recovery_ms: u64,
    /// The longest that a call went on after its time was up.
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

impl Seen {
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

    /// Together with another's.
    pub fn add(&mut self, mut other: Seen) {
        for (name, (mine, its)) in NAMES.iter().zip(self.fields().into_iter().zip(other.fields())) {
            *mine = if name.ends_with("_ms") { (*mine).max(*its) } else { *mine + *its };
        }
    }

    /// For the pipe between a run and who started it.
    pub fn to_words(mut self) -> String {
        self.fields().map(|n| n.to_string()).join(" ")
    }

    /// The other end of the pipe.
    pub fn from_words(words: &str) -> Option<Seen> {
        let mut seen = Seen::default();
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
