//! Operations against a store on the simulated machine, checked by the explorer's oracle. The
//! explorer draws them from a seed; here the input encodes them.
//!
//! The first two bytes select the store's setup, the third the faults (bit 0: some) and whether all
//! keys have one fingerprint (bit 1). Each further three bytes are an operation and a number that
//! decides everything else about it.

use pagelith_sim::entropy::SplitMix64;
use pagelith_sim::explore::ops::{OpKind, PlannedOp};
use pagelith_sim::explore::{ExplorePlan, FaultChoice, Finding, RunTotals, explore};

/// Most operations executed: an input must not take minutes.
const OPS_MAX: usize = 300;

const VERBS: [OpKind; 33] = [
    OpKind::Get,
    OpKind::GetPage,
    OpKind::GetRange,
    OpKind::GetBorrowed,
    OpKind::Put,
    OpKind::PutMany,
    OpKind::PutBorrowed,
    OpKind::PutOther,
    OpKind::Attach,
    OpKind::Fill,
    OpKind::Commit,
    OpKind::Abort,
    OpKind::Exists,
    OpKind::ExistsGroups,
    OpKind::View,
    OpKind::Remove,
    OpKind::Clear,
    OpKind::HastyRemoval,
    OpKind::Pin,
    OpKind::Unpin,
    OpKind::Lease,
    OpKind::Flush,
    OpKind::Poll,
    OpKind::Drain,
    OpKind::Idle,
    OpKind::Jump,
    OpKind::NewSession,
    OpKind::Audit,
    OpKind::Close,
    OpKind::Abandon,
    OpKind::Crash,
    OpKind::CrashSoon,
    OpKind::CrashTwice,
];

/// The plan of an input; `None` if it is too short.
pub fn plan(input: &[u8]) -> Option<ExplorePlan> {
    let ([a, b, flags], rest) = input.split_first_chunk::<3>()?;
    let seed = u64::from(u16::from_le_bytes([*a, *b]));
    let faults = if flags & 1 == 1 { FaultChoice::Mixed } else { FaultChoice::None };
    let mut plan = ExplorePlan::of_seed(seed, 0, faults, flags & 2 == 2);
    let op = |bytes: &[u8; 3]| PlannedOp {
        verb: VERBS[usize::from(bytes[0]) % VERBS.len()],
        r: SplitMix64::new(u64::from(u16::from_le_bytes([bytes[1], bytes[2]]))).next_u64(),
    };
    let (ops, _) = rest.as_chunks::<3>();
    plan.ops = ops.iter().take(OPS_MAX).map(op).enumerate().collect();
    Some(plan)
}

/// Executes an input; returns the findings.
pub fn run(input: &[u8]) -> (RunTotals, Vec<Finding>) {
    plan(input).map(|plan| explore(&plan)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_input_gives_same_run() {
        // Puts, a flush, gets, a crash, gets.
        let ops: Vec<u8> = [4, 21, 0, 30, 0]
            .iter()
            .flat_map(|verb| (0..20u8).flat_map(move |r| [*verb, r, 0]))
            .collect();
        let input = [&[7, 0, 0][..], &ops].concat();
        let (sums, findings) = run(&input);
        assert!(findings.is_empty(), "{findings:?}");
        assert!(sums.puts_stored > 0 && sums.reads_checked > 0 && sums.crashes > 0, "{sums:?}");
        assert_eq!(run(&input).0.trace_hash, sums.trace_hash);
        assert!(plan(&[1, 2]).is_none());
    }
}
