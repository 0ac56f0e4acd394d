//! Plans: what is done to a store, step by step.

use pagelith_sim::entropy::SplitMix64;

/// One step. Pages are numbers; a page has the components `k` and `v`, put as a group, and `x`, put alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put `k` and `v` of a page as a group.
    Group(u32),
    /// Put `k` and `x` of a page as a group, which replaces what `k` was with.
    Other(u32),
    /// Put `x` of a page.
    Single(u32),
    /// Put groups of this many pages that no other step names, from this one on.
    Fill(u32, u32),
    /// Flush.
    Flush,
    /// Remove `k` of a page, and with it its group.
    Remove(u32),
    /// Remove `x` of a page.
    RemoveSingle(u32),
    /// Clear a namespace; page `p` is in namespace `p % 2`.
    Clear(u32),
    /// Clear a namespace and do not wait until that is durable.
    Hasty(u32),
    /// Get every component of a page.
    Get(u32),
    /// Get every component of this many pages, from this one on.
    Warm(u32, u32),
    /// Pin every component of a page.
    Pin(u32),
    /// Let go of all pins.
    Unpin,
    /// Let time pass, in microseconds.
    Idle(u64),
    /// End without goodbye and open again.
    Abandon,
    /// Close and open again.
    Close,
}

/// How the store is made, and what is done to it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For messages.
    pub name: &'static str,
    /// The configuration.
    pub shape: Shape,
    /// The steps.
    pub steps: Vec<Step>,
}

/// The configuration of a small store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Directories.
    pub dirs: usize,
    /// Capacity of the SSD tier in MiB; segments have 1 MiB.
    pub ssd_mib: u32,
    /// Whether reclaim goes by recency, not first in first out.
    pub recency: bool,
    /// Whether every key has the same fingerprint.
    pub constant: bool,
    /// Sealed segments between checkpoints; 0 for none but at close.
    pub checkpoint: u32,
    /// Whether what is read from SSD is kept in DRAM too.
    pub promote: bool,
    /// Whether the log may wrap, so that a miss is right unless it is pinned.
    pub evicts: bool,
}

impl Shape {
    /// A store in which nothing is evicted, without checkpoints.
    pub const ROOMY: Shape = Shape {
        dirs: 1,
        ssd_mib: 12,
        recency: false,
        constant: false,
        checkpoint: 0,
        promote: true,
        evicts: false,
    };
    /// A store of five segments that wraps.
    pub const TIGHT: Shape = Shape {
        dirs: 1,
        ssd_mib: 7,
        recency: false,
        constant: false,
        checkpoint: 0,
        promote: true,
        evicts: true,
    };
}

/// A random plan of `len` steps.
pub fn random(rng: &mut SplitMix64, len: usize) -> Plan {
    let shape = Shape {
        dirs: 1 + rng.below(2) as usize,
        ssd_mib: [7, 8, 40][rng.below(3) as usize],
        recency: rng.one_in(2),
        constant: rng.one_in(5),
        checkpoint: [0, 1, 2][rng.below(3) as usize],
        promote: !rng.one_in(3),
        evicts: false,
    };
    let shape = Shape { evicts: shape.ssd_mib < 40, ..shape };
    let mut fresh = 1000;
    let steps = (0..len).map(|_| match step(rng, &mut fresh, shape.evicts) {
        // With equal fingerprints a store cannot tell which of the entries on SSD a group replaces.
        Step::Other(page) if shape.constant => Step::Group(page),
        // And a pin of one object is one of all.
        Step::Pin(page) if shape.constant => Step::Get(page),
        step => step,
    });
    let steps = steps.collect();
    Plan { name: "random", shape, steps }
}

fn step(rng: &mut SplitMix64, fresh: &mut u32, evicts: bool) -> Step {
    let page = rng.below(6) as u32;
    match rng.below(32) {
        0..=6 => Step::Group(page),
        7..=8 => Step::Single(page),
        9..=12 => {
            let count = 1 + rng.below(if evicts { 5 } else { 2 }) as u32;
            *fresh += count;
            Step::Fill(*fresh - count, count)
        }
        13..=16 => Step::Flush,
        17..=18 => Step::Remove(page),
        19 => Step::RemoveSingle(page),
        20 if rng.one_in(3) => Step::Hasty(rng.below(2) as u32),
        20 => Step::Clear(rng.below(2) as u32),
        21..=22 => Step::Get(page),
        23 => Step::Warm(fresh.saturating_sub(4), 4),
        24..=25 => Step::Pin(page),
        26 => Step::Unpin,
        27..=28 => Step::Idle(rng.below(3000)),
        29 => Step::Other(page),
        30 => Step::Abandon,
        _ => Step::Close,
    }
}
