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
        self.wrong + self.touched_late + self.held_late + self.panics == 0
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
    }

    /// Another's counts.
    pub fn add(&mut self, other: &Tally) {
        let Tally { packets, dropped, duplicated, reordered, flipped, late, cuts, .. } = *other;
        self.travelled(Fates { packets, dropped, duplicated, reordered, flipped, late, cuts });
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
