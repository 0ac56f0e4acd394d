//! A process that works on a store is killed at any moment; the store is opened again, compared with what
//! the process had said before it died, and the next process goes on in the same directory.
//!
//! `PAGELITH_KILLS=1000` kills more often, `PAGELITH_KILL_SEED=n` begins with another seed.
#![allow(clippy::disallowed_methods, reason = "tests start processes and measure time")]
#![allow(clippy::print_stdout, reason = "how long opening took is printed")]

#[allow(dead_code, reason = "other tests use the rest")]
mod killed;

use std::time::{Duration, Instant};

use killed::Victim;
use killed::content::Rng;
use killed::model::{Model, Tally};
use killed::workload::Plan;
use pagelith::{ErrorKind, Store};

/// Longer than this an open is broken, whatever the machine does besides.
const OPEN_MAX: Duration = Duration::from_secs(10);

#[test]
fn child() {
    killed::workload::child();
}

#[test]
fn everything_that_a_flush_covered_is_present_after_a_kill() {
    let kills = number("PAGELITH_KILLS", 50);
    // Five rounds of a store fill less than it holds, so nothing is evicted.
    let plan = |home: &std::path::Path| Plan {
        ssd_mib: 128,
        pages: 600,
        budget: 8 << 20,
        reinsert: false,
        ..overfilled(home)
    };
    let ended = Campaign { name: "sparse", kills, rounds_of_a_store: 5, plan: &plan }.run();
    assert!(!ended.evicts, "a segment was reclaimed, the store is too small for this test");
    assert!(ended.tally.durable > 0 && ended.tally.gone > 0, "{:?}", ended.tally);
}

#[test]
fn nothing_wrong_is_found_after_a_kill_while_segments_are_reclaimed() {
    let kills = number("PAGELITH_KILLS", 30);
    let ended = Campaign { name: "overfilled", kills, rounds_of_a_store: u64::MAX, plan: &overfilled }.run();
    assert!(ended.evicts, "no segment was reclaimed");
    assert!(ended.tally.here > 0 && ended.tally.gone > 0, "{:?}", ended.tally);
}

fn overfilled(home: &std::path::Path) -> Plan {
    Plan {
        dir: home.join("store"),
        ssd_mib: 64,
        write_kib: 512,
        write_depth: 8,
        seed: 0,
        pages: 3000,
        budget: u64::MAX,
        io: "auto",
        reinsert: true,
        only_put: false,
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Kills in one or several stores.
struct Campaign<'a> {
    name: &'a str,
    kills: u64,
    /// Then a new store is made.
    rounds_of_a_store: u64,
    plan: &'a dyn Fn(&std::path::Path) -> Plan,
}

struct Ended {
    tally: Tally,
    evicts: bool,
}

impl Campaign<'_> {
    fn run(&self) -> Ended {
        let seed = number("PAGELITH_KILL_SEED", 1);
        let mut home = tempfile::tempdir().unwrap();
        let wraps = self.rounds_of_a_store == u64::MAX;
        let mut model = Model::of_a_store(wraps);
        let mut ended = Ended { tally: Tally::default(), evicts: false };
        let mut took = Vec::new();
        for round in 0..self.kills {
            if round > 0 && round % self.rounds_of_a_store == 0 {
                home = tempfile::tempdir().unwrap();
                model = Model::of_a_store(wraps);
            }
            let seed_of_round = (seed.wrapping_mul(1_000_003) + round) & 0xffff_ffff;
            let plan = Plan { seed: seed_of_round, ..(self.plan)(home.path()) };
            let guard = NameOnPanic(self.name, seed, round);
            let tally = self.round(&plan, &mut model, &mut took);
            std::mem::forget(guard);
            ended.tally.here += tally.here;
            ended.tally.durable += tally.durable;
            ended.tally.gone += tally.gone;
            ended.evicts |= model.evicts;
        }
        took.sort();
        let (median, max) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{}: kills={} open median={median:?} max={max:?} {:?}", self.name, self.kills, ended.tally);
        ended
    }

    /// One life, one death, one look.
    fn round(&self, plan: &Plan, model: &mut Model, took: &mut Vec<Duration>) -> Tally {
        let mut rng = Rng(plan.seed);
        let mut victim = Victim::start(plan, None);
        let mut left = words_to_live(&mut rng);
        while left > 0 {
            model.hear(victim.hear().expect("a child that lives"));
            left -= 1;
        }
        for _ in 0..rng.below(1 << 18) {
            std::hint::spin_loop();
        }
        victim.kill();
        while let Some(word) = victim.hear() {
            model.hear(word);
        }
        let (store, open) = open(plan);
        took.push(open);
        let tally = model.check(&store);
        match rng.below(3) {
            0 => drop(store.close().expect("close")),
            1 => store.abandon(),
            _ => drop(store),
        }
        tally
    }
}

/// How many words a child may say: sometimes it dies while it opens, mostly while it works.
fn words_to_live(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => 1,
        1 => 2 + rng.below(20),
        _ => 2 + rng.below(2000),
    }
}

/// Open a store whose process was killed just now; a write that it left in flight may hold it for a moment.
fn open(plan: &Plan) -> (Store, Duration) {
    let began = Instant::now();
    loop {
        match plan.open() {
            Ok(store) => {
                let took = began.elapsed();
                assert!(took < OPEN_MAX, "open took {took:?}");
                return (store, took);
            }
            Err(e) if e.kind == ErrorKind::Denied && began.elapsed() < OPEN_MAX => {}
            Err(e) => panic!("open: {e}"),
        }
    }
}

/// Says which round it was, if it does not end well.
struct NameOnPanic<'a>(&'a str, u64, u64);

impl Drop for NameOnPanic<'_> {
    fn drop(&mut self) {
        println!("{}: failed with PAGELITH_KILL_SEED={} in round {}", self.0, self.1, self.2);
    }
}
