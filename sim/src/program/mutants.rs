//! `hunt`: runs seeds until the first finding. `mutants`: a hunt for each planted bug, each in its
//! own process.

#![expect(
    clippy::disallowed_methods,
    reason = "a program's processes, clock and files; the store under test has none"
)]

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use pagelith_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::explore::{ExplorePlan, FaultChoice, FindingKind, explore};
use crate::link::PlantedBug;
use crate::links::Topology;

/// The environment variable that selects the mutant of a process; see `pagelith_mutants`.
const CHOICE: &str = "TEST_PAGELITH_MUTANT";
/// Seeds of stores over links; they are shorter than the explorer's.
const LINK_SEEDS: u64 = 1000;
/// A process that runs longer is killed, which is an error: the longest hunt takes a quarter of an
/// hour on a slow machine.
const HANGS: Duration = Duration::from_secs(3600);

#[derive(Args)]
pub struct HuntArgs {
    /// Number of seeds to try. Not a time: a slow machine finds the same as a fast one.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// Operations per seed.
    #[arg(long, default_value_t = 2000)]
    ops: usize,
}

/// The first finding.
#[derive(Serialize, Deserialize)]
pub struct FirstFinding {
    /// Its seed.
    pub seed: u64,
    /// Whether all keys had one fingerprint.
    pub constant_fingerprint: bool,
    /// The violated promise.
    pub kind: FindingKind,
    /// The observation.
    pub text: String,
}

/// Runs seeds from 0 until the first finding: every other one without faults, every fourth with one
/// fingerprint for all keys. Fails if there is a finding.
pub fn hunt(args: &HuntArgs) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    for seed in 0..args.seeds {
        let constant_fingerprint = seed % 4 == 3;
        // Without faults nothing excuses a miss: most violations that a crash may uncover show
        // there.
        let faults = if seed % 2 == 0 { FaultChoice::None } else { FaultChoice::Mixed };
        let plan = ExplorePlan::of_seed(seed, args.ops, faults, constant_fingerprint);
        if let Some(found) = explore(&plan).1.into_iter().next() {
            let caught =
                FirstFinding { seed, constant_fingerprint, kind: found.kind, text: found.text };
            println!("{}", serde_json::to_string(&caught).expect("plain data"));
            return ExitCode::FAILURE;
        }
    }
    println!("nothing found in {} seeds", args.seeds);
    ExitCode::SUCCESS
}

#[derive(Args)]
pub struct MutantsArgs {
    /// Only these, by their names in `pagelith_mutants` or in `link::PlantedBug`.
    #[arg(long)]
    only: Vec<String>,
    /// Number of processes at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// NAME=FILE, the test programs `io`, `groups`, `pins_and_clears`, `peers`, `tombstones` and
    /// `rdma` of the same build: they must catch the bugs that the explorer cannot show, or not
    /// soon.
    #[arg(long = "tests", value_parser = test_program)]
    tests: Vec<(String, PathBuf)>,
    /// File to which a line of JSON is appended for each mutant.
    #[arg(long)]
    results: Option<PathBuf>,
}

/// The result for one mutant.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Its name.
    pub mutant: String,
    /// Whether it was caught.
    pub caught: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// The checker that looked for it.
    pub by: String,
    /// The first observation.
    pub how: String,
}

/// Bugs planted in a process.
#[derive(Clone, Copy)]
enum Planted {
    Nothing,
    /// A bug of the shipped code.
    Mutant(Mutant),
    /// A bug of the ends of simulated links.
    InLinks(PlantedBug),
}

impl Planted {
    fn name(self) -> String {
        match self {
            Planted::Nothing => "none".to_owned(),
            Planted::Mutant(mutant) => mutant.name(),
            Planted::InLinks(bug) => bug.name(),
        }
    }

    /// Nothing, and then every bug.
    fn all() -> impl Iterator<Item = Planted> {
        let bugs = PlantedBug::ALL.into_iter().filter(|bug| *bug != PlantedBug::None);
        let mutants = Mutant::ALL.into_iter().map(Planted::Mutant);
        std::iter::once(Planted::Nothing).chain(mutants).chain(bugs.map(Planted::InLinks))
    }
}

/// The arrangement over simulated links that must catch it, if the bug is between a store and its
/// peers or clients.
fn shape_for(mutant: Mutant) -> Option<Topology> {
    match mutant {
        Mutant::PeersNotNotified | Mutant::CachedAfterRemoval => Some(Topology::Fronts),
        Mutant::SharedFrameReleasedEarly => Some(Topology::Shown),
        Mutant::ViewFrameNotPinned | Mutant::ViewPinLeaked => Some(Topology::Shown),
        Mutant::SharedPutUnverified => Some(Topology::Shown),
        Mutant::SessionDroppedWithLinks | Mutant::CancelledWithoutOutcome => {
            Some(Topology::Attached)
        }
        Mutant::PeerRequestForwarded
        | Mutant::NotifiedRemovalIgnored
        | Mutant::ServedRemovalNotNotified => Some(Topology::Mutual),
        Mutant::OnlyOwnerNotified => Some(Topology::Mutual),
        _ => None,
    }
}

/// Other lengths of seeds, where fewer of them show a planted bug.
fn seeds_of(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        // Groups must come and go on SSD while a checkpoint is taken, and a crash must follow: the
        // first 2,000 operations show it once in some 500 seeds.
        Mutant::WithdrawalsLost => &["--ops", "4000"],
        _ => &[],
    }
}

/// The tests that must catch a planted bug; the explorer for most.
fn tests_for(mutant: Mutant) -> Option<&'static str> {
    match mutant {
        // On the real backends of the disk interface.
        Mutant::ShortTransferAccepted | Mutant::StaleCompletion => Some("io"),
        // A read must last for a lap of the log.
        Mutant::ReadersIgnored => Some("pins_and_clears"),
        // It needs a crash at one moment: these tests try every one.
        Mutant::FreeBeforeMoved => Some("pins_and_clears"),
        Mutant::AttachedWithoutBase => Some("groups"),
        // A segment must outlive another with its tombstone, and the store must be reopened then.
        Mutant::TombstoneDropped => Some("tombstones"),
        // Over links it needs a message between two of three stores at one moment: one seed of
        // 1,333 showed it.
        Mutant::HoldDropped => Some("peers"),
        // A link must end between two other stores' removals.
        Mutant::HoldNotConfirmed => Some("peers"),
        // Over links it needs a frame that is late by several replies.
        Mutant::NotifiedBeforeOffers => Some("peers"),
        // Over links it needs an offer in transit to a third store that was notified already.
        Mutant::AcknowledgedBeforeOffers => Some("peers"),
        // Simulated links have these bugs of their own: here those of the real ones.
        Mutant::RdmaBackAtRetract
        | Mutant::RdmaBackAtEnd
        | Mutant::RdmaServerBelieved
        | Mutant::RdmaNoticeFirst
        | Mutant::RdmaCreditsIgnored
        | Mutant::RdmaWrongBase => Some("rdma"),
        // Over a driver whose copies do not begin.
        Mutant::DeviceCopyReleased => Some("devices"),
        _ => None,
    }
}

fn test_program(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("not NAME=FILE")?;
    Ok((name.to_owned(), PathBuf::from(file)))
}

/// Runs a command to its end, at most `limit`; returns whether it failed and the last line it
/// printed.
fn fails(command: &mut Command, limit: Duration) -> std::io::Result<(bool, String)> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    // Read while it runs: a process whose output does not fit into the pipe would not end.
    let out = child.stdout.take();
    let (send, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(out.map(std::io::read_to_string).transpose()));
    let began = Instant::now();
    let failed = loop {
        match child.try_wait()? {
            Some(status) => break !status.success(),
            None if began.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                return Err(std::io::Error::other(format!(
                    "process did not end within {} s",
                    limit.as_secs()
                )));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    // A process that the ended one has left may still hold the pipe.
    let read = read
        .recv_timeout(limit.saturating_sub(began.elapsed()))
        .map_err(|_| std::io::Error::other("a process that it started still holds its output"))?;
    let output = read?.unwrap_or_default();
    let last =
        output.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no output").to_owned();
    Ok((failed, last))
}

/// The command that must fail, and the name of the checker; `None` if its program is not given.
fn checker(args: &MutantsArgs, planted: Planted) -> std::io::Result<Option<(Command, String)>> {
    let mut hunt = Command::new(std::env::current_exe()?);
    hunt.env_remove(CHOICE);
    let links = |hunt: &mut Command, shape: Option<Topology>| {
        hunt.args(["links", "--seeds", &format!("0..{LINK_SEEDS}"), "--hunt"]);
        if let Some(shape) = shape {
            hunt.args(["--shape", &format!("{shape:?}")]);
        }
    };
    let over_links = "stores over links".to_owned();
    let mutant = match planted {
        Planted::Nothing => {
            hunt.arg("hunt");
            return Ok(Some((hunt, "the explorer".to_owned())));
        }
        Planted::InLinks(bug) => {
            links(&mut hunt, bug.is_of_rdma().then_some(Topology::Rdma));
            hunt.args(["--plant", &bug.name()]);
            return Ok(Some((hunt, over_links)));
        }
        Planted::Mutant(mutant) => mutant,
    };
    if let Some(wanted) = tests_for(mutant) {
        let Some((_, file)) = args.tests.iter().find(|(name, _)| name == wanted) else {
            return Ok(None);
        };
        let mut tests = Command::new(file);
        tests.env(CHOICE, mutant.name());
        return Ok(Some((tests, format!("the tests of {wanted}"))));
    }
    hunt.env(CHOICE, mutant.name());
    let by = match shape_for(mutant) {
        Some(shape) => {
            links(&mut hunt, Some(shape));
            over_links
        }
        None => {
            hunt.arg("hunt");
            "the explorer".to_owned()
        }
    };
    hunt.args(seeds_of(mutant));
    Ok(Some((hunt, by)))
}

fn try_one(args: &MutantsArgs, planted: Planted) -> std::io::Result<Option<Outcome>> {
    let Some((mut command, by)) = checker(args, planted)? else { return Ok(None) };
    let began = Instant::now();
    let (caught, how) = fails(&mut command, HANGS)?;
    // A test program's last line must not look like the result of this program's own tests.
    let how = match how.split_once("FAILED. ").filter(|_| by.starts_with("the tests of")) {
        Some((_, counts)) => counts.split("; 0 ignored").next().unwrap_or(counts).to_owned(),
        None => how,
    };
    let mutant = planted.name();
    Ok(Some(Outcome { mutant, caught, seconds: began.elapsed().as_secs_f64(), by, how }))
}

fn note(file: &Path, outcome: &Outcome) -> std::io::Result<()> {
    let line = serde_json::to_string(outcome).expect("plain data") + "\n";
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// Whether a planted bug is caught, and nothing is found without one.
fn is_right(args: &MutantsArgs, planted: Planted, skipped: &AtomicUsize) -> bool {
    let name = planted.name();
    match try_one(args, planted) {
        Ok(Some(outcome)) => {
            let Outcome { caught, seconds, by, how, .. } = &outcome;
            let word = if *caught { "caught" } else { "not caught" };
            println!("{name}: {word} by {by} in {seconds:.1} s: {how}");
            let noted = args.results.as_deref().map_or(Ok(()), |file| note(file, &outcome));
            noted.is_ok() && *caught != matches!(planted, Planted::Nothing)
        }
        Ok(None) => {
            println!("{name}: skipped: needs --tests");
            skipped.fetch_add(1, Ordering::SeqCst);
            true
        }
        Err(error) => {
            println!("{name}: {error}");
            false
        }
    }
}

/// Plants each bug and checks that it is caught; fails if one is missed, or if there is a finding
/// without any.
pub fn mutants(args: &MutantsArgs) -> ExitCode {
    let wanted = |planted: &Planted| {
        let named = args.only.is_empty() || args.only.contains(&planted.name());
        named || matches!(planted, Planted::Nothing)
    };
    let chosen: Vec<Planted> = Planted::all().filter(wanted).collect();
    let is_mutant = |planted: &Planted| matches!(planted, Planted::Mutant(_));
    if !pagelith_mutants::ARE_BUILT && chosen.iter().any(is_mutant) {
        eprintln!(
            "error: this build has no planted bugs; run sim/mutants.sh, which makes one that has"
        );
        return ExitCode::from(2);
    }
    let (next, wrong, skipped) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                while let Some(planted) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if !is_right(args, *planted, &skipped) {
                        wrong.lock().unwrap_or_else(PoisonError::into_inner).push(planted.name());
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    let skipped = skipped.into_inner();
    println!("planted={} skipped={skipped} missed={wrong:?}", chosen.len() - 1);
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_long_output_ends_and_its_last_line_is_reported() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100000; echo last; exit 1"]);
        let result = fails(&mut command, Duration::from_secs(60)).expect("ended");
        assert_eq!(result, (true, "last".to_owned()));
    }
}
