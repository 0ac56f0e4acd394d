//! `replay`: runs one seed again and prints every step.

use std::process::ExitCode;

use clap::Args;

use super::plan_args::PlanArgs;
use crate::explore::{ExplorePlan, explore, explore_with_trace, shrink};

#[derive(Args)]
pub struct ReplayArgs {
    /// The seed.
    #[arg(long)]
    seed: u64,
    #[command(flatten)]
    plan: PlanArgs,
    /// Run only these operations: indices and ranges, as in `3,17,20..25` (the end of a range is
    /// excluded).
    #[arg(long)]
    keep: Option<String>,
    /// A file with such a list.
    #[arg(long, conflicts_with = "keep")]
    plan_file: Option<std::path::PathBuf>,
    /// Shorten the plan before the replay, with at most this many runs.
    #[arg(long, default_value_t = 0)]
    shrink: usize,
    /// Print only the findings.
    #[arg(long)]
    quiet: bool,
}

/// Parses a list of indices and ranges.
fn parse_keep(text: &str) -> Result<Vec<(usize, usize)>, String> {
    let part = |part: &str| -> Result<(usize, usize), String> {
        let number =
            |s: &str| s.trim().parse::<usize>().map_err(|_| format!("not a number: {s:?}"));
        match part.split_once("..") {
            Some((from, to)) => Ok((number(from)?, number(to)?)),
            None => number(part).map(|at| (at, at + 1)),
        }
    };
    text.split(',').filter(|p| !p.trim().is_empty()).map(part).collect()
}

/// The operations of a plan as such a list.
pub fn keep_of(plan: &ExplorePlan) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (at, _) in &plan.ops {
        match ranges.last_mut() {
            Some((_, to)) if *to == *at => *to += 1,
            _ => ranges.push((*at, *at + 1)),
        }
    }
    let one = |(from, to): &(usize, usize)| match to - from {
        1 => from.to_string(),
        _ => format!("{from}..{to}"),
    };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

#[expect(clippy::disallowed_methods, reason = "reads a plan that a person names")]
fn kept(args: &ReplayArgs) -> Result<Option<Vec<(usize, usize)>>, String> {
    let text = match (&args.keep, &args.plan_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => {
            std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?
        }
        (None, None) => return Ok(None),
    };
    parse_keep(&text).map(Some)
}

pub fn replay(args: &ReplayArgs) -> ExitCode {
    let keep = match kept(args) {
        Ok(keep) => keep,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut plan = args.plan.plan(args.seed);
    if let Some(keep) = keep {
        plan = plan.keeping(|at| keep.iter().any(|(from, to)| (*from..*to).contains(&at)));
    }
    if args.shrink > 0 {
        let (_, findings) = explore(&plan);
        if let Some(finding) = findings.first() {
            let shrunk = shrink(&plan, finding, args.shrink);
            println!("shrunk to {} operations in {} runs", shrunk.plan.ops.len(), shrunk.runs);
            plan = shrunk.plan;
            println!("keep {}", keep_of(&plan));
        }
    }
    // The store's own log, filtered by `RUST_LOG`.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .without_time()
        .with_writer(std::io::stdout)
        .init();
    println!("{:?}\n{:?}", plan.setup, plan.faults);
    let trace_to: Option<Box<dyn FnMut(String)>> = match args.quiet {
        true => None,
        false => Some(Box::new(|line| println!("{line}"))),
    };
    let (sums, findings) = explore_with_trace(&plan, trace_to);
    println!("ops={} trace_hash={:016x}", sums.ops, sums.trace_hash);
    for finding in &findings {
        println!("FOUND {:?}: {}", finding.kind, finding.text);
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::FaultChoice;

    #[test]
    fn keep_list_round_trips() {
        let plan = ExplorePlan::of_seed(1, 50, FaultChoice::None, false)
            .keeping(|at| at % 7 < 3 || at > 40);
        let keep = parse_keep(&keep_of(&plan)).expect("its own text");
        let again = ExplorePlan::of_seed(1, 50, FaultChoice::None, false)
            .keeping(|at| keep.iter().any(|(from, to)| (*from..*to).contains(&at)));
        assert_eq!(plan.ops, again.ops);
        assert!(parse_keep("3,x").is_err());
    }
}
