//! The results of runs over links.

use serde::{Deserialize, Serialize};

use crate::link::{FabricStats, NetStats};

/// Most findings kept as text.
const FINDINGS_MAX: usize = 5;

impl NetStats {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: NetStats) -> NetStats {
        NetStats {
            packets: self.packets + other.packets,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            flipped: self.flipped + other.flipped,
            late: self.late + other.late,
            cuts: self.cuts + other.cuts,
            shown: self.shown + other.shown,
            looked_late: self.looked_late + other.looked_late,
            questions: self.questions + other.questions,
            broken: self.broken + other.broken,
            unowed: self.unowed + other.unowed,
            fabric: self.fabric.and(other.fabric),
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
    /// Packets that never arrived.
    pub dropped: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub flipped: u64,
    /// Packets that arrived for a finished operation.
    pub late: u64,
    /// Ranges passed by reference to memory.
    #[serde(default)]
    pub shown: u64,
    /// Of `shown`, ranges read after the reference was withdrawn.
    #[serde(default)]
    pub looked_late: u64,
    /// Valid views of objects: every byte was compared, twice.
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
    /// Calls of clients.
    pub operations: u64,
    /// Objects in puts.
    pub puts: u64,
    /// Objects whose put was acked.
    pub stored: u64,
    /// Objects in gets.
    pub gets: u64,
    /// Objects that gets returned: every byte was compared.
    pub hits: u64,
    /// Bytes of the hits.
    pub bytes: u64,
    /// Objects that a lookup found.
    pub found_here: u64,
    /// Removals and clears that were acked.
    pub removals: u64,
    /// Hits with forbidden bytes, and objects found that must not exist.
    pub wrong: u64,
    /// Buffers written after their operation had ended.
    pub touched_late: u64,
    /// Buffers still owned by a link when their operation had ended.
    pub held_late: u64,
    /// Referenced ranges that changed or do not match the outcome's checksums; cancelled requests
    /// without an outcome.
    #[serde(default)]
    pub broken: u64,
    /// Stores that kept resources of clients after these were gone.
    #[serde(default)]
    pub left: u64,
    /// Seeds in which stores forwarded their peers' requests.
    #[serde(default)]
    pub circles: u64,
    /// One-sided transfers.
    #[serde(default)]
    pub fabric: FabricStats,
    /// Calls that ended too long after their deadlines.
    #[serde(default)]
    pub overdue: u64,
    /// The longest time in microseconds between a call's deadline and its end.
    #[serde(default)]
    pub longest_over_deadline_us: u64,
    /// Panics, and clients that did not end.
    pub panics: u64,
    /// A hash of all packets.
    pub trace: u64,
    /// The first findings.
    pub findings: Vec<String>,
}

impl Tally {
    /// Records a finding as text.
    pub fn add_finding(&mut self, what: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what);
        }
    }

    /// Whether there is no finding.
    pub fn is_clean(&self) -> bool {
        let held = self.touched_late + self.held_late + self.broken + self.left;
        self.wrong + held + self.circles + self.overdue + self.panics == 0
    }

    /// Adds the counters of packets.
    pub fn add_net_stats(&mut self, net_stats: NetStats) {
        self.packets += net_stats.packets;
        self.dropped += net_stats.dropped;
        self.duplicated += net_stats.duplicated;
        self.reordered += net_stats.reordered;
        self.flipped += net_stats.flipped;
        self.late += net_stats.late;
        self.cuts += net_stats.cuts;
        self.shown += net_stats.shown;
        self.looked_late += net_stats.looked_late;
        self.questions += net_stats.questions;
        self.broken += net_stats.broken + net_stats.unowed + net_stats.fabric.violations();
        self.fabric = self.fabric.and(net_stats.fabric);
        if net_stats.fabric.violations() > 0 {
            self.add_finding(format!("one-sided transfer broke a rule {:?}", net_stats.fabric));
        }
        if net_stats.unowed > 0 {
            self.add_finding("cancelled request has no outcome, or outcome has no request".into());
        }
        if net_stats.broken > 0 {
            self.add_finding(
                "referenced bytes changed or do not match the checksums of the outcome".into(),
            );
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        let Tally { packets, dropped, duplicated, reordered, flipped, late, cuts, .. } = *other;
        let Tally { shown, looked_late, questions, broken, .. } = *other;
        self.add_net_stats(NetStats {
            packets,
            dropped,
            duplicated,
            reordered,
            flipped,
            late,
            cuts,
            shown,
            looked_late,
            questions,
            broken,
            unowed: 0,
            fabric: FabricStats::default(),
        });
        self.fabric = self.fabric.and(other.fabric);
        self.overdue += other.overdue;
        self.longest_over_deadline_us =
            self.longest_over_deadline_us.max(other.longest_over_deadline_us);
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
        other.findings.iter().for_each(|what| self.add_finding(what.clone()));
    }
}
