//! Starts runs, one process each, sums their results, and cleans up after runs that died.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::lanes::{LANES, Lane};
use crate::loop_device::run as tool;
use crate::report::LaneCounts;

/// The argument that makes the program one run of a lane.
pub const RUN: &str = "one-run";
/// A run that lasts longer counts as hanging.
const RUN_MAX: Duration = Duration::from_secs(120);
/// Prefixes of the line that a run prints at its end.
const SEEN: &str = "@seen ";
const SKIPPED: &str = "@skipped ";

/// The command line.
pub struct Args {
    /// No new run starts after this time, but each lane runs once.
    seconds: u64,
    /// Most runs of each lane.
    runs: u64,
    seed: u64,
    lane: Option<String>,
    results: Option<PathBuf>,
}

impl Args {
    /// Parses the command line.
    pub fn of(args: &[String]) -> Result<Args, String> {
        let mut parsed = Args { seconds: 60, runs: u64::MAX, seed: 1, lane: None, results: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|e| format!("{flag} {value}: {e}"));
            match flag.as_str() {
                "--seconds" => parsed.seconds = number()?,
                "--runs" => parsed.runs = number()?,
                "--seed" => parsed.seed = number()?,
                "--results" => parsed.results = Some(value.into()),
                "--lane" if LANES.iter().any(|lane| lane.name == value) => {
                    parsed.lane = Some(value.clone())
                }
                "--lane" => {
                    let names: Vec<_> = LANES.iter().map(|lane| lane.name).collect();
                    return Err(format!("no lane {value}; there are {}", names.join(" ")));
                }
                _ => return Err(format!("no such flag: {flag}")),
            }
        }
        Ok(parsed)
    }
}

/// The end of a run.
enum End {
    LaneCounts(LaneCounts),
    Skipped(String),
    Failed(String),
}

/// The sum of a lane's runs.
struct Sum {
    lane: &'static Lane,
    seen: LaneCounts,
    skipped: Option<String>,
}

/// Runs lanes in turn until the time is up; prints a line of JSON each.
pub fn run(args: &Args) -> ExitCode {
    let chosen =
        LANES.iter().filter(|lane| args.lane.as_deref().is_none_or(|name| name == lane.name));
    let mut sums: Vec<Sum> =
        chosen.map(|lane| Sum { lane, seen: LaneCounts::default(), skipped: None }).collect();
    let began = Instant::now();
    let mut failures = 0;
    for round in 0..args.runs {
        for sum in sums.iter_mut().filter(|sum| sum.skipped.is_none()) {
            if round > 0 && began.elapsed().as_secs() >= args.seconds {
                continue;
            }
            let seed = args.seed.wrapping_add(round) & 0xffff_ffff;
            match start(sum.lane, seed) {
                End::LaneCounts(seen) => sum.seen.add(seen),
                End::Skipped(why) => sum.skipped = Some(why),
                End::Failed(output) => {
                    failures += 1;
                    println!(
                        "{} FAILED: --lane {} --seed {seed} --runs 1",
                        sum.lane.name, sum.lane.name
                    );
                    println!("{output}");
                    sum.seen.add(counters_of_failure(&output));
                }
            }
        }
        if began.elapsed().as_secs() >= args.seconds {
            break;
        }
    }
    let mut lines = String::new();
    for sum in &sums {
        match &sum.skipped {
            None => {
                let line = sum.seen.to_json(sum.lane.name, sum.lane.row);
                println!("{line}");
                lines += &(line + "\n");
            }
            Some(why) => println!("{}: skipped: {why}", sum.lane.name),
        }
    }
    let skipped = sums.iter().filter(|sum| sum.skipped.is_some()).count();
    println!("lanes: run={} skipped={skipped} failures={failures}", sums.len() - skipped);
    if let Some(path) = &args.results
        && let Err(e) = append(path, &lines)
    {
        println!("{}: {e}", path.display());
        return ExitCode::FAILURE;
    }
    if failures > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn append(path: &Path, lines: &str) -> std::io::Result<()> {
    std::fs::File::options().append(true).create(true).open(path)?.write_all(lines.as_bytes())
}

/// The counters of a failed run, derived from its output.
fn counters_of_failure(output: &str) -> LaneCounts {
    let mut seen = LaneCounts { runs: 1, ..LaneCounts::default() };
    if output.contains(" is back") {
        seen.phantom = 1;
    } else if output.contains("durable pages are missing") {
        seen.synced_lost = 1;
    } else if output.contains("wrong bytes")
        || output.contains("stale bytes")
        || output.contains("group is not whole")
    {
        seen.wrong = 1;
    }
    seen
}

/// Executes one run in its own process and directory.
fn start(lane: &Lane, seed: u64) -> End {
    let home = match tempfile::tempdir() {
        Ok(home) => home,
        Err(e) => return End::Skipped(e.to_string()),
    };
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("own path: {e}"));
    let child = Command::new(program)
        .args([RUN, lane.name, &seed.to_string()])
        .arg(home.path())
        // Its temporary files go there too, so that they are found if it dies.
        .env("TMPDIR", home.path())
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let end = match child {
        Ok(child) => collect_output(child),
        Err(e) => End::Skipped(format!("starting a process: {e}")),
    };
    clean(home.path());
    end
}

/// Collects a run's output until it ends or is killed.
fn collect_output(mut child: Child) -> End {
    let began = Instant::now();
    let out = child.stdout.take().map(|pipe| std::thread::spawn(|| text(pipe)));
    let err = child.stderr.take().map(|pipe| std::thread::spawn(|| text(pipe)));
    let mut hangs = false;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.to_string(),
            Ok(None) if began.elapsed() > RUN_MAX => {
                hangs = true;
                let _ = child.kill();
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => break e.to_string(),
        }
    };
    let joined = |thread: Option<std::thread::JoinHandle<String>>| {
        thread.and_then(|t| t.join().ok()).unwrap_or_default()
    };
    let (out, err) = (joined(out), joined(err));
    let line = |mark: &str| out.lines().find_map(|line| line.strip_prefix(mark)).map(str::to_owned);
    if let Some(seen) = line(SEEN).and_then(|words| LaneCounts::decode(&words)) {
        return End::LaneCounts(seen);
    }
    match line(SKIPPED) {
        Some(why) => End::Skipped(why),
        None if hangs => End::Failed(format!("hang: killed after {RUN_MAX:?}\n{err}")),
        None => End::Failed(format!("{status}\n{err}")),
    }
}

fn text(mut pipe: impl Read) -> String {
    let mut text = Vec::new();
    let _ = pipe.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Removes mounts and loop devices that a dead run left.
fn clean(home: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let home = home.display().to_string();
    let left =
        mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|at| at.starts_with(&home));
    for at in left.collect::<Vec<_>>().into_iter().rev() {
        let _ = tool("umount", &["--lazy", at]);
    }
    for line in tool("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"])
        .unwrap_or_default()
        .lines()
    {
        if let Some((device, file)) = line.split_once(' ')
            && file.trim().starts_with(&home)
        {
            let _ = tool("losetup", &["--detach", device]);
        }
    }
}

/// Executes one run: `args` are lane, seed and directory.
pub fn execute_run(args: &[String]) -> ExitCode {
    let [name, seed, home] = args else { return ExitCode::from(2) };
    let (Some(lane), Ok(seed)) = (LANES.iter().find(|lane| lane.name == name), seed.parse()) else {
        return ExitCode::from(2);
    };
    match (lane.run)(Path::new(home), seed) {
        Ok(seen) => println!("{SEEN}{}", seen.encode()),
        Err(why) => println!("{SKIPPED}{why}"),
    }
    ExitCode::SUCCESS
}
