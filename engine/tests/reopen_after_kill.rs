//! A process that works on a store is killed at any moment. The store is opened again and compared
//! with the process's log of completed calls, and the next process continues in the same directory.
//!
//! `TEST_PAGELITH_KILLS=1000` sets the number of kills of each test, `TEST_PAGELITH_KILL_SEED=n`
//! the first seed, and `TEST_PAGELITH_LANE_RESULTS=FILE` appends a line of JSON with the counts of
//! each test.
#![allow(clippy::disallowed_methods, reason = "tests start processes and measure time")]
#![allow(clippy::print_stdout, reason = "how long opening took is printed")]

#[allow(dead_code, reason = "other tests use the rest")]
mod killed;

use std::io::Write;
use std::time::{Duration, Instant};

use killed::ChildProcess;
use killed::content::Rng;
use killed::kill_disk::KillPoint;
use killed::kill_points::POINTS;
use killed::model::{Model, Tally};
use killed::workload::Plan;
use pagelith::{ErrorKind, Store};

/// An open that takes longer is broken, even on a busy machine.
const OPEN_MAX: Duration = Duration::from_secs(60);

#[test]
fn child() {
    killed::workload::child();
}

#[test]
fn flushed_objects_are_present_after_a_kill() {
    let kills = number("TEST_PAGELITH_KILLS", 30);
    // Five rounds fill less than the store holds, so nothing is evicted.
    let plan = |home: &std::path::Path| Plan {
        ssd_mib: 128,
        pages: 600,
        budget: 8 << 20,
        reinsert: false,
        ..overfilled(home)
    };
    let ended = Campaign::new("sparse", &plan, 5).run(kills);
    assert!(!ended.evicts, "a segment was reclaimed, the store is too small for this test");
    assert!(ended.tally.durable > 0 && ended.tally.gone > 0, "{:?}", ended.tally);
}

#[test]
fn kill_during_reclaim_leaves_a_consistent_store() {
    let kills = number("TEST_PAGELITH_KILLS", 30);
    let ended = Campaign::new("overfilled", &overfilled, u64::MAX).run(kills);
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
        aim: None,
    }
}

/// Of the points, those in a store's first seconds: the kill hits its creation.
const POINTS_OF_A_NEW_STORE: usize = 3;

/// Extra lives for a point at which no process has died yet.
const MORE_LIVES: u64 = 12;

#[test]
fn kill_at_each_named_point_leaves_a_consistent_store() {
    let kills = number("TEST_PAGELITH_KILLS", 2 * POINTS.len() as u64);
    // Small, so that the log wraps and moves used pages within a few rounds.
    let plan = |home: &std::path::Path| Plan { ssd_mib: 24, pages: 900, ..overfilled(home) };
    let mut campaign = Campaign::new("points", &plan, u64::MAX);
    let mut hit = vec![0u64; POINTS.len()];
    for round in 0..kills {
        let point = round as usize % POINTS.len();
        if point < POINTS_OF_A_NEW_STORE {
            campaign.new_store();
        }
        let mut rng = Rng(campaign.seed.wrapping_mul(7919) ^ round);
        // The first time that the point is reached in a child's life, later the second or third.
        // The creation mark is removed only once.
        let most = match (round < POINTS.len() as u64, point) {
            (true, _) | (_, 1 | 2) => 1,
            _ => 3,
        };
        let nth = 1 + rng.below(most);
        let died = campaign.round(round, Death::At(KillPoint { point, nth: nth as u32 }));
        hit[point] += u64::from(died);
    }
    // A child's progress depends on the machine too: points that were not reached get more lives.
    let mut round = kills;
    for (point, hit) in hit.iter_mut().enumerate() {
        let last = round + MORE_LIVES;
        while *hit == 0 && round < last {
            if point < POINTS_OF_A_NEW_STORE {
                campaign.new_store();
            }
            *hit += u64::from(campaign.round(round, Death::At(KillPoint { point, nth: 1 })));
            round += 1;
        }
    }
    let missed: Vec<_> =
        POINTS.iter().zip(&hit).filter(|(_, n)| **n == 0).map(|(p, _)| p.0).collect();
    for (point, n) in POINTS.iter().zip(&hit) {
        println!("points: {n} x {}", point.0);
    }
    campaign.report(round);
    assert!(missed.is_empty(), "points that no process died at: {missed:?}");
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// How a child ends.
enum Death {
    /// Killed after this number of log words, at any moment.
    Random,
    /// At a point, by itself; killed at any moment if it does not reach it.
    At(KillPoint),
}

/// Kills in one or several stores.
struct Campaign<'a> {
    name: &'a str,
    plan: &'a dyn Fn(&std::path::Path) -> Plan,
    /// Number of kills after which a new store is created.
    rounds_of_a_store: u64,
    seed: u64,
    home: tempfile::TempDir,
    model: Model,
    tally: Tally,
    evicts: bool,
    took: Vec<Duration>,
}

impl<'a> Campaign<'a> {
    fn new(
        name: &'a str,
        plan: &'a dyn Fn(&std::path::Path) -> Plan,
        rounds_of_a_store: u64,
    ) -> Campaign<'a> {
        Campaign {
            name,
            plan,
            rounds_of_a_store,
            seed: number("TEST_PAGELITH_KILL_SEED", 1),
            home: tempfile::tempdir().unwrap(),
            model: Model::of_a_store(rounds_of_a_store == u64::MAX),
            tally: Tally::default(),
            evicts: false,
            took: Vec::new(),
        }
    }

    fn new_store(&mut self) {
        self.home = tempfile::tempdir().unwrap();
        self.model = Model::of_a_store(self.rounds_of_a_store == u64::MAX);
    }

    fn run(mut self, kills: u64) -> Self {
        for round in 0..kills {
            if round > 0 && round % self.rounds_of_a_store == 0 {
                self.new_store();
            }
            self.round(round, Death::Random);
        }
        self.report(kills);
        self
    }

    fn report(&mut self, kills: u64) {
        self.took.sort();
        let (median, max) = (self.took[self.took.len() / 2], self.took[self.took.len() - 1]);
        println!(
            "{}: kills={kills} open median={median:?} max={max:?} {:?}",
            self.name, self.tally
        );
        // The checks panic, so a result here means that nothing was wrong. Kills appear in no
        // counter of the store.
        let Tally { here, durable, gone, .. } = self.tally;
        let line = format!(
            "{{\"lane\":\"kill-{}\",\"row\":\"12\",\"harmless\":{kills},\"runs\":{kills},\"injected\":{kills},\
             \"detected\":0,\"wrong\":0,\"phantom\":0,\"synced_lost\":0,\"removals_undone\":0,\"present\":{here},\
             \"worst_recovery_ms\":{},\"longest_over_deadline_ms\":0,\"flushed_present\":{durable},\"gone\":{gone}}}\n",
            self.name,
            max.as_millis(),
        );
        if let Some(path) = std::env::var_os("TEST_PAGELITH_LANE_RESULTS") {
            let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
            file.write_all(line.as_bytes()).unwrap();
        }
    }

    /// One life, one kill, one check. Returns whether the child died at the intended point.
    fn round(&mut self, round: u64, death: Death) -> bool {
        let guard = NameOnPanic(self.name, self.seed, round);
        let seed = (self.seed.wrapping_mul(1_000_003) + round) & 0xffff_ffff;
        let aim = if let Death::At(aim) = death { Some(aim) } else { None };
        let plan = Plan { seed, aim, ..(self.plan)(self.home.path()) };
        let mut rng = Rng(seed);
        let mut victim = ChildProcess::start(&plan, None);
        let mut left = if aim.is_some() { WORDS_MAX } else { words_to_live(&mut rng) };
        let mut ended = false;
        while left > 0 && !ended {
            match victim.read_entry() {
                Some(word) => self.model.apply(word),
                None => ended = true,
            }
            left -= 1;
        }
        if ended {
            assert!(aim.is_some() && victim.was_killed(), "the child ended by itself");
        } else {
            for _ in 0..rng.below(1 << 18) {
                std::hint::spin_loop();
            }
            victim.kill();
            while let Some(word) = victim.read_entry() {
                self.model.apply(word);
            }
        }
        let (store, open) = open(&plan);
        self.took.push(open);
        let tally = self.model.check(&store);
        match rng.below(3) {
            0 => drop(store.close().expect("close")),
            1 => store.abandon(),
            _ => drop(store),
        }
        std::mem::forget(guard);
        self.tally.here += tally.here;
        self.tally.durable += tally.durable;
        self.tally.gone += tally.gone;
        self.evicts |= self.model.evicts;
        ended
    }
}

/// Log words after which a child that has not reached its point is killed.
const WORDS_MAX: u64 = 12_000;

/// Log words of a child: sometimes it is killed while it opens, mostly while it works.
fn words_to_live(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => 1,
        1 => 2 + rng.below(20),
        _ => 2 + rng.below(2000),
    }
}

/// Open a store whose process was just killed. If that was before it wrote LOCK, its last write is
/// not waited for, and may hold the lock for a moment.
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

/// Prints the round if a check panics.
struct NameOnPanic<'a>(&'a str, u64, u64);

impl Drop for NameOnPanic<'_> {
    fn drop(&mut self) {
        println!("{}: failed with TEST_PAGELITH_KILL_SEED={} in round {}", self.0, self.1, self.2);
    }
}
