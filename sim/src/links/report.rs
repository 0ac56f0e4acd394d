//! What runs over links came to.

use serde::{Deserialize, Serialize};

use crate::link::Fates;

/// Findings that are kept in words.
const TOLD_MAX: usize = 5;

impl Fates {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Fates) -> Fates {
        Fates {
            packets: self.packets + other.packets,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            flipped: self.flipped + other.flipped,
            late: self.late + other.late,
            cuts: self.cuts + other.cuts,
            shown: self.shown + other.shown,
            unasked: self.unasked + other.unasked,
            looked_late: self.looked_late + other.looked_late,
            questions: self.questions + other.questions,
            broken: self.broken + other.broken,
            unowed: self.unowed + other.unowed,
        }
    }
}

/// Counts of one seed or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Seeds.
    pub seeds: u64,
    /// Packets sent.
    pub packets: u64,
    /// Of those, that never arrived.
    pub dropped: u64,
    /// That came twice.
    pub duplicated: u64,
    /// That were overtaken.
    pub reordered: u64,
    /// That had a bit changed.
    pub flipped: u64,
    /// That arrived for an operation which was over.
    pub late: u64,
    /// Stretches that were shown where they lie in memory.
    #[serde(default)]
    pub shown: u64,
    /// Batches that a client copied without asking.
    #[serde(default)]
    pub unasked: u64,
    /// Of both, those that were looked at when they were shown no more.
    #[serde(default)]
    pub looked_late: u64,
    /// Objects that were looked at where they lie, and said to be held all the while: every byte was compared, twice.
    #[serde(default)]
    pub viewed: u64,
    /// Requests of stores to their peers.
    #[serde(default)]
    pub questions: u64,
    /// Links made.
    pub links: u64,
    /// Links that broke.
    pub cuts: u64,
    /// Store processes that were killed.
    pub kills: u64,
    /// Calls.
    pub operations: u64,
    /// Objects that were to be put.
    pub puts: u64,
    /// Of those, that were acked.
    pub stored: u64,
    /// Objects that were asked for.
    pub gets: u64,
    /// Of those, that were brought: every byte was compared.
    pub hits: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that a look-up found.
    pub found_here: u64,
    /// Removals and clears that were acked.
    pub removals: u64,
    /// Hits with bytes that they may not have, and objects found that are not there.
    pub wrong: u64,
    /// Memory that was written after its operation had ended.
    pub touched_late: u64,
    /// Memory that a link had still when its operation had ended.
    pub held_late: u64,
    /// What was shown and changed meanwhile, or is not what its outcome vouches for; what was cancelled and has no outcome.
    #[serde(default)]
    pub broken: u64,
    /// Stores that held something for clients when these were gone.
    #[serde(default)]
    pub left: u64,
    /// Seeds in which stores asked each other what they were asked.
    #[serde(default)]
    pub circles: u64,
    /// Panics, and clients that did not come to their end.
    pub panics: u64,
    /// A hash of everything that travelled.
    pub trace: u64,
    /// The first findings.
    pub findings: Vec<String>,
}

impl Tally {
    /// Note what is wrong, in words.
    pub fn found(&mut self, what: String) {
        if self.findings.len() < TOLD_MAX {
            self.findings.push(what);
        }
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        let held = self.touched_late + self.held_late + self.broken + self.left;
        self.wrong + held + self.circles + self.panics == 0
    }

    /// What became of packets.
    pub fn travelled(&mut self, fates: Fates) {
        self.packets += fates.packets;
        self.dropped += fates.dropped;
        self.duplicated += fates.duplicated;
        self.reordered += fates.reordered;
        self.flipped += fates.flipped;
        self.late += fates.late;
        self.cuts += fates.cuts;
        self.shown += fates.shown;
        self.unasked += fates.unasked;
        self.looked_late += fates.looked_late;
        self.questions += fates.questions;
        self.broken += fates.broken + fates.unowed;
        if fates.unowed > 0 {
            self.found(
                "what was cancelled has no outcome, or something has one that nobody asked for".into(),
            );
        }
        if fates.broken > 0 {
            self.found("what was shown changed meanwhile, or is not what was vouched for".into());
        }
    }

    /// Another's counts.
    pub fn add(&mut self, other: &Tally) {
        let Tally { packets, dropped, duplicated, reordered, flipped, late, cuts, .. } = *other;
        let Tally { shown, unasked, looked_late, questions, broken, .. } = *other;
        self.travelled(Fates {
            packets,
            dropped,
            duplicated,
            reordered,
            flipped,
            late,
            cuts,
            shown,
            unasked,
            looked_late,
            questions,
            broken,
            unowed: 0,
        });
        self.viewed += other.viewed;
        self.left += other.left;
        self.circles += other.circles;
        self.seeds += other.seeds;
        self.links += other.links;
        self.kills += other.kills;
        self.operations += other.operations;
        self.puts += other.puts;
        self.stored += other.stored;
        self.gets += other.gets;
        self.hits += other.hits;
        self.bytes += other.bytes;
        self.found_here += other.found_here;
        self.removals += other.removals;
        self.wrong += other.wrong;
        self.touched_late += other.touched_late;
        self.held_late += other.held_late;
        self.panics += other.panics;
        self.trace ^= other.trace;
        other.findings.iter().for_each(|what| self.found(what.clone()));
    }
}
