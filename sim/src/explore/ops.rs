//! What a run does, operation by operation. Each has a number of its own that everything else about it follows
//! from, so that it stays what it is when others are left out.

use super::faults::{FaultChoice, FaultMix};
use super::setup::Setup;
use crate::entropy::SplitMix64;

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// A batch of gets, on a session.
    Get,
    /// All objects of a page in one batch.
    GetPage,
    /// Ranges of objects.
    GetRange,
    /// Gets into memory that is lent for the call.
    GetLent,
    /// Put what a page is put as.
    Put,
    /// Several pages, in one batch.
    PutMany,
    /// Puts from memory that is lent for the call.
    PutLent,
    /// A put with another length, or of a group that may not be.
    PutOther,
    /// Put what is attached to a page, on a session.
    Attach,
    /// Begin a page's group, or join it, and put some of its objects.
    Fill,
    /// Commit it.
    Commit,
    /// Give it up.
    Abort,
    /// Which of these are here, and how many before the first that is not.
    Exists,
    /// How long a prefix can be restored.
    ExistsGroups,
    /// Look at an object in place.
    View,
    /// Remove objects.
    Remove,
    /// Clear a namespace.
    Clear,
    /// Remove or clear without time to wait for the disk.
    Hasty,
    /// Pin objects.
    Pin,
    /// Let a pin go.
    Unpin,
    /// Lease objects.
    Lease,
    /// Have objects read into memory that may be asked for soon.
    Prefetch,
    /// Flush.
    Flush,
    /// Take what is done from a session.
    Poll,
    /// Wait for everything in flight.
    Drain,
    /// Let time pass.
    Idle,
    /// The clock jumps forward.
    Jump,
    /// A session ends, perhaps with batches in flight, and another begins.
    NewSession,
    /// Verify everything that is sealed.
    Scrub,
    /// Look at the counters at a quiet moment.
    Audit,
    /// Close and open again.
    Close,
    /// End without goodbye and open again.
    Abandon,
    /// The machine goes down, now.
    Crash,
    /// It goes down in the middle of one of the next operations.
    CrashSoon,
    /// It goes down, and again while the store is opened.
    CrashTwice,
}

/// How often each is drawn.
const WEIGHTS: [(Verb, u32); 35] = [
    (Verb::Get, 220),
    (Verb::GetPage, 70),
    (Verb::GetRange, 60),
    (Verb::GetLent, 40),
    (Verb::Put, 170),
    (Verb::PutMany, 40),
    (Verb::PutLent, 30),
    (Verb::PutOther, 6),
    (Verb::Attach, 30),
    (Verb::Fill, 24),
    (Verb::Commit, 16),
    (Verb::Abort, 3),
    (Verb::Exists, 50),
    (Verb::ExistsGroups, 20),
    (Verb::View, 10),
    (Verb::Remove, 12),
    (Verb::Clear, 2),
    (Verb::Hasty, 2),
    (Verb::Pin, 8),
    (Verb::Unpin, 9),
    (Verb::Lease, 3),
    (Verb::Prefetch, 16),
    (Verb::Flush, 10),
    (Verb::Poll, 60),
    (Verb::Drain, 12),
    (Verb::Idle, 24),
    (Verb::Jump, 1),
    (Verb::NewSession, 2),
    (Verb::Scrub, 1),
    (Verb::Audit, 2),
    (Verb::Close, 1),
    (Verb::Abandon, 1),
    (Verb::Crash, 1),
    (Verb::CrashSoon, 1),
    (Verb::CrashTwice, 1),
];

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it is.
    pub verb: Verb,
    /// Everything else about it.
    pub r: u64,
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The store.
    pub setup: Setup,
    /// The faults.
    pub faults: FaultMix,
    /// What is done, each with its place in the whole plan.
    pub ops: Vec<(usize, Op)>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64, ops: usize, faults: FaultChoice, constant: bool) -> Plan {
        let mut rng = SplitMix64::new(seed);
        let mut rng = SplitMix64::new(rng.next_u64() ^ 0x5eed);
        let faults = FaultMix::draw(&mut rng, faults);
        let setup = Setup::draw(&mut rng, constant);
        let total: u32 = WEIGHTS.iter().map(|(_, w)| w).sum();
        let ops = (0..ops).map(|at| {
            let mut left = rng.below(u64::from(total)) as u32;
            let heavier = |(_, w): &&(Verb, u32)| {
                let here = left < *w;
                left = left.saturating_sub(*w);
                here
            };
            let verb = WEIGHTS.iter().find(heavier).map_or(Verb::Get, |(verb, _)| *verb);
            (at, Op { verb, r: rng.next_u64() })
        });
        let ops = ops.collect();
        Plan { seed, setup, faults, ops }
    }

    /// The same with only these of its operations, by place in the whole plan.
    pub fn keeping(&self, keep: impl Fn(usize) -> bool) -> Plan {
        let ops = self.ops.iter().copied().filter(|(at, _)| keep(*at)).collect();
        Plan { ops, ..self.clone() }
    }
}
