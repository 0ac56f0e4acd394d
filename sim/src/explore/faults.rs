//! Which faults strike a run, and the result of each.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::ops::OpKind;
use super::oracle;
use super::report::FaultCount;
use crate::disk::{DiskFault, FaultRates, StrikeRecord};
use crate::entropy::SplitMix64;

/// Which faults strike the runs of a range of seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultChoice {
    /// Chosen by seed: all of them, a single one, or none.
    #[default]
    Mixed,
    /// None.
    None,
    /// This one.
    One(DiskFault),
}

impl FromStr for FaultChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultChoice, String> {
        match text {
            "mixed" => Ok(FaultChoice::Mixed),
            "none" => Ok(FaultChoice::None),
            name => {
                let found = DiskFault::ALL.into_iter().find(|f| f.name() == name);
                let names = || DiskFault::ALL.map(DiskFault::name).join(", ");
                found
                    .map(FaultChoice::One)
                    .ok_or_else(|| format!("not one of mixed, none, {}", names()))
            }
        }
    }
}

impl fmt::Display for FaultChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultChoice::Mixed => f.write_str("mixed"),
            FaultChoice::None => f.write_str("none"),
            FaultChoice::One(fault) => f.write_str(fault.name()),
        }
    }
}

/// The faults of one run, with rates in millionths of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultMix {
    rates: Vec<(DiskFault, u32)>,
    seed: u64,
    stuck_ms: u64,
}

impl FaultMix {
    /// A random mix by the seed's generator.
    pub fn draw(rng: &mut SplitMix64, choice: FaultChoice) -> FaultMix {
        let all = DiskFault::ALL.len() as u64;
        let rate = [1_000, 8_000, 40_000][rng.below(3) as usize];
        let drawn = rng.below(10);
        let one = DiskFault::ALL[rng.below(all) as usize];
        let kinds: Vec<DiskFault> = match choice {
            FaultChoice::None => Vec::new(),
            FaultChoice::One(fault) => vec![fault],
            FaultChoice::Mixed if drawn < 2 => Vec::new(),
            FaultChoice::Mixed if drawn < 6 => vec![one],
            FaultChoice::Mixed => DiskFault::ALL.to_vec(),
        };
        let share = if kinds.len() > 1 { 6 } else { 1 };
        // A stuck operation stops most of a run while it lasts.
        let of = |fault: DiskFault| if fault == DiskFault::Stuck { rate / 8 } else { rate };
        let rates = kinds.into_iter().map(|fault| (fault, (of(fault) / share).max(1))).collect();
        FaultMix {
            rates,
            seed: rng.next_u64(),
            stuck_ms: [200, 3_000, 30_000][rng.below(3) as usize],
        }
    }

    /// Whether there is no fault.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// Whether one of them delays operations.
    pub fn delays(&self) -> bool {
        self.rates.iter().any(|(fault, _)| fault.delays())
    }

    /// The rates for the `round`-th time that they are set.
    pub fn rates(&self, round: u64) -> FaultRates {
        let rates = FaultRates::new(self.seed.wrapping_add(round)).stuck_for(self.stuck_for());
        self.rates.iter().fold(rates, |rates, (fault, rate)| rates.with(*fault, *rate))
    }

    /// How long a stuck operation takes.
    pub fn stuck_for(&self) -> Duration {
        Duration::from_millis(self.stuck_ms)
    }
}

/// Whether a read silently returns other bytes.
pub fn returns_wrong_bytes(fault: DiskFault) -> bool {
    matches!(fault, DiskFault::MisdirectedRead | DiskFault::StaleRead | DiskFault::BitFlipRead)
}

/// The effect that a fault may have on objects.
pub fn effect(fault: DiskFault) -> Option<oracle::FaultEffect> {
    use DiskFault::*;
    match fault {
        BadBlock => Some(oracle::FaultEffect::Rot),
        ReadError | ShortRead | MisdirectedRead | StaleRead | BitFlipRead => {
            Some(oracle::FaultEffect::Read)
        }
        WriteError | ShortWrite | SyncError => Some(oracle::FaultEffect::Write),
        LostWrite | TornWrite | MisdirectedWrite | BitFlipAtRest => Some(oracle::FaultEffect::Lie),
        NoSpace => None,
        // A late read is a miss; a late write may be given up.
        Slow | Stuck => Some(oracle::FaultEffect::Write),
    }
}

/// The faults that struck, and their results.
///
/// A fault that failed its operation was *detected*: the store got the error. One that changed no
/// byte was *harmless*. The others changed bytes silently. They stay in `silent` until the store
/// reports a failed verification: a damaged miss, a torn record, a repaired manifest block, a
/// refused checkpoint. Each report is matched with the oldest silent fault. Silent faults that
/// remain at the end were never read, or were overwritten, reclaimed, or in bytes that no call
/// requested: harmless too. That no fault led to a wrong answer (`wrong`) is checked by the oracle,
/// which compares every byte.
#[derive(Debug, Default)]
pub struct FaultLedger {
    silent: Vec<DiskFault>,
    counts: BTreeMap<DiskFault, FaultCount>,
    pairs: BTreeMap<(DiskFault, OpKind), u64>,
}

impl FaultLedger {
    /// Records a fault that struck during an operation.
    pub fn struck(&mut self, struck: &StrikeRecord, during: OpKind) {
        let fault = struck.fault;
        let count = self.counts.entry(fault).or_default();
        count.injected += 1;
        *self.pairs.entry((fault, during)).or_default() += 1;
        if fault.failure().is_some() {
            count.detected += 1;
        } else if !struck.effective || fault.delays() {
            count.harmless += 1;
        } else {
            self.silent.push(fault);
        }
    }

    /// Number of faults that struck.
    pub fn injected(&self) -> u64 {
        self.counts.values().map(|count| count.injected).sum()
    }

    /// The store reported this many failed verifications.
    pub fn detected(&mut self, times: u64) {
        for fault in self.silent.drain(..(times as usize).min(self.silent.len())) {
            self.counts.entry(fault).or_default().detected += 1;
        }
    }

    /// Ends the run: the results by kind of fault, and how often each struck during each operation.
    pub fn end(mut self) -> (BTreeMap<String, FaultCount>, BTreeMap<String, u64>) {
        for fault in std::mem::take(&mut self.silent) {
            self.counts.entry(fault).or_default().harmless += 1;
        }
        let name = |fault: DiskFault| fault.name().to_string();
        let counts = self.counts.into_iter().map(|(fault, count)| (name(fault), count)).collect();
        let pairs =
            self.pairs.into_iter().map(|((f, verb), n)| (format!("{} {verb:?}", f.name()), n));
        (counts, pairs.collect())
    }
}
