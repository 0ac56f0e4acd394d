//! Plans: sequences of steps against a store.

use pagelith_sim::entropy::SplitMix64;

use super::objects::{ATTACHED, FORMS};

/// One step. Pages are numbers. A page has the components `k` and `v`, put as a group, and `x`, put
/// alone, or another of the [`FORMS`], and the attached groups [`ATTACHED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put `k` and `v` of a page as a group.
    Group(u32),
    /// Put a page in one of the [`FORMS`].
    Base(u32, usize),
    /// Attach one of [`ATTACHED`] to a page.
    Attach(u32, usize),
    /// Begin the group of a page in this form, or join it.
    Begin(u32, usize),
    /// Put one object into it.
    Member(u32, usize, usize),
    /// Put all missing objects into it.
    Members(u32, usize),
    /// Commit it.
    Commit(u32, usize),
    /// Abort it.
    Abort(u32, usize),
    /// Let the deadline of all waiting groups pass.
    Expire,
    /// Remove a component of a page, and with it its group.
    Take(u32, &'static str),
    /// Put `x` of a page.
    Single(u32),
    /// Put groups of this many pages that no other step uses, from this one on.
    Fill(u32, u32),
    /// Flush.
    Flush,
    /// Remove `k` of a page, and with it its group.
    Remove(u32),
    /// Remove `x` of a page.
    RemoveSingle(u32),
    /// Clear a namespace; page `p` is in namespace `p % 2`.
    Clear(u32),
    /// Clear a namespace without waiting until that is durable.
    HastyRemoval(u32),
    /// Get every component of a page.
    Get(u32),
    /// Get every component of this many pages, from this one on.
    Warm(u32, u32),
    /// Pin every component of a page.
    Pin(u32),
    /// Drop all pins.
    Unpin,
    /// Let time pass, in microseconds.
    Idle(u64),
    /// Drop the store without a close and reopen.
    Abandon,
    /// Close and reopen.
    Close,
}

/// The store's configuration and the steps.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For messages.
    pub name: &'static str,
    /// The configuration.
    pub shape: Shape,
    /// The steps.
    pub steps: Vec<Step>,
    /// Steps after each crash, once the store was checked.
    pub after: Vec<Step>,
}

/// The configuration of a small store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Directories.
    pub dirs: usize,
    /// Capacity of the SSD tier in MiB; segments have 1 MiB.
    pub ssd_mib: u32,
    /// Whether reclaim goes by recency instead of first in, first out.
    pub recency: bool,
    /// Whether every key has the same fingerprint.
    pub constant: bool,
    /// Sealed segments between checkpoints; 0 for none except at close.
    pub checkpoint: u32,
    /// Whether DRAM is only a write buffer.
    pub cold: bool,
    /// Whether reads from SSD are kept in DRAM too.
    pub promote: bool,
    /// Whether the log may wrap, so that a miss is allowed unless the object is pinned.
    pub evicts: bool,
}

impl Shape {
    /// A store without eviction and checkpoints.
    pub const ROOMY: Shape = Shape {
        dirs: 1,
        ssd_mib: 12,
        recency: false,
        constant: false,
        checkpoint: 0,
        cold: false,
        promote: true,
        evicts: false,
    };
    /// A store of five segments, whose log wraps.
    pub const TIGHT: Shape = Shape {
        dirs: 1,
        ssd_mib: 7,
        recency: false,
        constant: false,
        checkpoint: 0,
        cold: false,
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
        cold: rng.one_in(4),
        promote: !rng.one_in(3),
        evicts: false,
    };
    let shape = Shape { evicts: shape.ssd_mib < 40, ..shape };
    let mut fresh = 1000;
    let steps = (0..len).map(|_| match step(rng, &mut fresh, shape.evicts) {
        // With equal fingerprints a pin of one object is a pin of all.
        Step::Pin(page) if shape.constant => Step::Get(page),
        // And the base of one group is the base of all.
        Step::Attach(page, _) if shape.constant => Step::Group(page),
        step => step,
    });
    let steps = steps.collect();
    Plan { name: "random", shape, steps, after: Vec::new() }
}

fn step(rng: &mut SplitMix64, fresh: &mut u32, evicts: bool) -> Step {
    let page = rng.below(6) as u32;
    let form = rng.below(FORMS.len() as u64) as usize;
    match rng.below(48) {
        0..=4 => Step::Group(page),
        5..=6 => Step::Single(page),
        7..=10 => {
            let count = 1 + rng.below(if evicts { 5 } else { 2 }) as u32;
            *fresh += count;
            Step::Fill(*fresh - count, count)
        }
        11..=14 => Step::Flush,
        15..=16 => Step::Remove(page),
        17 => Step::RemoveSingle(page),
        18 if rng.one_in(3) => Step::HastyRemoval(rng.below(2) as u32),
        18 => Step::Clear(rng.below(2) as u32),
        19..=20 => Step::Get(page),
        21 => Step::Warm(fresh.saturating_sub(4), 4),
        22..=23 => Step::Pin(page),
        24 => Step::Unpin,
        25..=26 => Step::Idle(rng.below(3000)),
        27..=29 => Step::Base(page, form),
        30..=34 => Step::Attach(page, rng.below(ATTACHED.len() as u64) as usize),
        35 => Step::Begin(page, form),
        36..=38 => Step::Members(page, form),
        39 => Step::Member(page, form, rng.below(FORMS[form].len() as u64) as usize),
        40..=42 => Step::Commit(page, form),
        43 => Step::Abort(page, form),
        44 if rng.one_in(3) => Step::Expire,
        44..=45 => Step::Take(page, ["m", "w", "o", "a"][rng.below(4) as usize]),
        46 => Step::Abandon,
        _ => Step::Close,
    }
}
