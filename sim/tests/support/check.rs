//! Every crash point of a plan, every kind of crash, and the checks of the reopened store.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagelith_sim::disk::{CrashMode, DiskSnapshot};
use pagelith_sim::env::SimWorld;
use pagelith_sim::model::{Model, ModelEvent};

use super::objects::Contents;
use super::plan::{Plan, Shape, Step};
use super::run::Run;

/// Kinds of crash, with seeds.
pub const CRASHES: [(CrashMode, u64); 5] = [
    (CrashMode::DropAll, 0),
    (CrashMode::KeepAll, 0),
    (CrashMode::Random, 1),
    (CrashMode::Random, 2),
    (CrashMode::Random, 3),
];

/// A page that no plan puts: shows that a recovered store accepts new objects.
const NEW_PAGE: u32 = 999_983;

/// Changes after the reopening at which it crashes again: recovery itself makes fewer.
const RECOVERY_CHANGES_MAX: usize = 8;
/// Puts by a reopened store are numbered from here.
const PUTS_AFTER: u64 = 1 << 20;

/// One run of a plan: the disk after every change, and the events for the model.
pub struct Recorded {
    pub plan: Plan,
    pub points: Vec<DiskSnapshot>,
    pub events: Vec<(u64, ModelEvent)>,
    pub wrong: Vec<String>,
    pub log: Vec<String>,
}

/// Decides which syncs a disk acknowledges without making anything durable: by file name and
/// number.
pub type SyncFilter = Box<dyn Fn(&str, u64) -> bool + Send>;

/// Runs a plan to its end and keeps every crash point.
pub fn record(plan: &Plan, lie: Option<SyncFilter>) -> Recorded {
    let world = SimWorld::with_dirs(1, plan.shape.dirs);
    world.disk.keep_points();
    if let Some(lie) = lie {
        world.disk.ignore_syncs(lie);
    }
    let mut run = Run::new(&world, plan.shape);
    run.run(plan);
    run.check_all_keys();
    let points = world.disk.take_points();
    let (events, wrong) = (std::mem::take(&mut run.events), std::mem::take(&mut run.wrong));
    let log = world.disk.log().iter().map(ToString::to_string).collect();
    world.crash(CrashMode::KeepAll);
    drop(run);
    Recorded { plan: plan.clone(), points, events, wrong, log }
}

impl Recorded {
    /// The model after `n` changes.
    fn model_at(&self, n: u64) -> Model {
        let mut model = Model::new(self.plan.shape.evicts);
        self.events.iter().take_while(|(at, _)| *at <= n).for_each(|(_, e)| model.apply(e));
        model
    }

    /// The contents of every put.
    fn contents(&self) -> Contents {
        let contents = Contents::default();
        for (_, event) in &self.events {
            if let ModelEvent::PutBegun(put, _, keys) = event {
                keys.iter().for_each(|k| {
                    contents.of(k, *put);
                });
            }
        }
        contents
    }

    /// Whether change `n` (from 1) is of this kind.
    fn is(&self, n: u64, kind: &str) -> bool {
        let start = format!("n={n} {kind} ");
        self.log.iter().any(|line| line.starts_with(&start))
    }

    /// Whether crashes of this mode after `n` and after `n + 1` changes leave the same disk: then
    /// only the later one, at which the model knows more, is checked.
    fn is_same_next(&self, n: u64, mode: CrashMode) -> bool {
        match mode {
            CrashMode::DropAll => self.is(n + 1, "write"),
            CrashMode::KeepAll => self.is(n + 1, "sync"),
            CrashMode::Random => false,
        }
    }

    /// Crashes in each of `crashes` after each change, reopens, and checks; with `twice`, crashes
    /// also at each change of the recovery. Returns about `most` findings.
    pub fn findings(&self, crashes: &[(CrashMode, u64)], twice: bool, most: usize) -> Vec<String> {
        let mut found = self.wrong.clone();
        let contents = self.contents();
        for (n, point) in self.points.iter().enumerate() {
            let model = self.model_at(n as u64);
            for (i, &(mode, crash_seed)) in crashes.iter().enumerate() {
                if found.len() >= most {
                    return found;
                }
                if self.is_same_next(n as u64, mode) {
                    continue;
                }
                let crash = Crash {
                    recorded: self,
                    model: &model,
                    n: n as u64,
                    mode,
                    crash_seed,
                    contents: &contents,
                };
                // Recovery is checked for one kind of crash after the other.
                found.extend(crash.check(point, twice && (n + i) % 3 == 0 && i < 3));
            }
        }
        found
    }
}

#[derive(Clone, Copy)]
struct Crash<'a> {
    recorded: &'a Recorded,
    model: &'a Model,
    n: u64,
    mode: CrashMode,
    crash_seed: u64,
    contents: &'a Contents,
}

impl Crash<'_> {
    fn check(self, point: &DiskSnapshot, twice: bool) -> Vec<String> {
        let (mut wrong, recovery) = self.reopen(point, twice);
        let mut second = Vec::new();
        // The first point is the crash itself.
        for (m, again) in recovery.iter().enumerate().skip(1).take(RECOVERY_CHANGES_MAX) {
            for (mode, crash_seed) in
                [(CrashMode::DropAll, 0), (CrashMode::Random, self.n + m as u64)]
            {
                let deeper = Crash { mode, crash_seed, ..self };
                let (more, _) = deeper.reopen(again, false);
                second
                    .extend(more.into_iter().map(|w| format!("second crash m={m} {mode:?}: {w}")));
            }
        }
        wrong.extend(second);
        let Crash { recorded, n, mode, crash_seed, .. } = self;
        let log = &recorded.log;
        let line = |w: String| {
            let end = log
                .iter()
                .position(|l| l.starts_with(&format!("n={} ", n + 1)))
                .unwrap_or(log.len());
            let tail = log[end.saturating_sub(12)..end].join("\n    ");
            format!(
                "plan={} n={n} mode={mode:?} crash_seed={crash_seed}: {w}\n    {tail}",
                recorded.plan.name
            )
        };
        wrong.into_iter().map(line).collect()
    }

    /// Crashes, reopens and checks; with `keep`, returns every point of the reopening.
    fn reopen(&self, point: &DiskSnapshot, keep: bool) -> (Vec<String>, Vec<DiskSnapshot>) {
        // No object is read twice here, and promotion costs time.
        let shape = Shape { promote: false, ..self.recorded.plan.shape };
        let world = SimWorld::with_dirs(2, shape.dirs);
        world.disk.restore(point);
        world.disk.crash(self.mode, self.crash_seed);
        let mut run = Run::new(&world, shape);
        run.model = self.model.clone();
        run.contents = self.contents.clone();
        run.puts = PUTS_AFTER;
        let mut points = Vec::new();
        // A panic is a finding like any other, and its message needs the place.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if keep {
                world.disk.keep_points();
            }
            run.reopened();
            points = world.disk.take_points();
            // It accepts new objects, and answers the same after a checkpoint.
            for step in &self.recorded.plan.after {
                run.step(*step);
            }
            run.step(Step::Group(NEW_PAGE));
            run.step(Step::Close);
        }));
        if outcome.is_err() {
            run.wrong.push("panicked".to_string());
        }
        world.crash(CrashMode::KeepAll);
        (std::mem::take(&mut run.wrong), points)
    }
}
