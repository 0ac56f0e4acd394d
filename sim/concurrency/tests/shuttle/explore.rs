//! Runs a scenario under many schedules, in batches that can be replayed one by one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// Schedules of a batch: PCT learns the length of a run from the first.
const BATCH: usize = 25;
/// Priority changes of PCT: bugs that need up to this many orderings are found with a known
/// probability.
const DEPTH: usize = 4;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |t| {
        t.parse().unwrap_or_else(|_| panic!("{name} must be a number, got={t}"))
    })
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    config
}

fn batch(kind: &str, seed: u64, scenario: fn()) {
    match kind {
        "random" => {
            drop(Runner::new(RandomScheduler::new_from_seed(seed, BATCH), config()).run(scenario))
        }
        "pct" => drop(
            Runner::new(PctScheduler::new_from_seed(seed, DEPTH, BATCH), config()).run(scenario),
        ),
        other => panic!("no such scheduler kind={other}"),
    }
}

/// Runs `scenario` under `schedules` schedules, half of them random, half by PCT.
/// `TEST_PAGELITH_SCHEDULES` is a percentage of that, `TEST_PAGELITH_SEED` the first batch's seed,
/// and `TEST_PAGELITH_BATCH=random:SEED` or `pct:SEED` runs one batch.
pub fn explore(name: &str, schedules: usize, scenario: fn()) {
    if let Ok(one) = std::env::var("TEST_PAGELITH_BATCH") {
        let (kind, seed) = one.split_once(':').expect("TEST_PAGELITH_BATCH is KIND:SEED");
        return batch(kind, seed.parse().expect("a seed"), scenario);
    }
    let percent = number("TEST_PAGELITH_SCHEDULES", 100) as usize;
    let batches = (schedules * percent / 100).div_ceil(BATCH).max(2);
    let first = number("TEST_PAGELITH_SEED", 1);
    let began = Instant::now();
    for i in 0..batches {
        let (kind, seed) = (["random", "pct"][i % 2], first + i as u64);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| batch(kind, seed, scenario))) {
            println!(
                "FOUND scenario={name} after_schedules={} seconds={:.1}",
                (i + 1) * BATCH,
                began.elapsed().as_secs_f64()
            );
            println!("again: TEST_PAGELITH_BATCH={kind}:{seed} sim/concurrency.sh shuttle {name}");
            resume_unwind(panic);
        }
    }
    println!(
        "shuttle scenario={name} schedules={} first_seed={first} seconds={:.1}",
        batches * BATCH,
        began.elapsed().as_secs_f64()
    );
}
