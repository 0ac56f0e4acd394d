//! NIXL's POSIX plugin, driven by `nixl.py` in its own process: one input line per phase, one
//! output line back.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cost::Phase;
use crate::engine::{drop_page_cache, empty};
use crate::peer::{Round, Side, SideProperties};
use crate::work::Work;

/// With a pass of xxh3 over every value.
pub(super) const VERIFIED: &str = "nixl posix";
/// Without it: the upper bound.
pub(super) const BARE: &str = "nixl posix, bare";

const DRIVER: &str = include_str!("../../nixl.py");

pub(super) struct Nixl {
    name: &'static str,
    work: Work,
    dir: PathBuf,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(flatten)]
    phase: Phase,
    wrong: u64,
}

impl Nixl {
    pub(super) fn start(
        name: &'static str,
        work: &Work,
        dir: &Path,
        python: &Path,
    ) -> anyhow::Result<Box<dyn Side>> {
        let dir = dir.join(name.replace([' ', ','], "-"));
        empty(&dir)?;
        let mut command = Command::new(python);
        command.args(["-c", DRIVER]).arg(&dir).arg(if name == VERIFIED {
            "verify"
        } else {
            "bare"
        });
        let numbers = [
            work.object_bytes as u64,
            work.objects,
            work.batch as u64,
            work.depth as u64,
            work.seed,
        ];
        command.args(numbers.map(|n| n.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("no such Python")?;
        let to = child.stdin.take().context("no pipe")?;
        let mut from = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut ready = String::new();
        from.read_line(&mut ready)?;
        if ready.trim() != "ready" {
            let stderr = child.wait_with_output()?;
            let stderr = String::from_utf8_lossy(&stderr.stderr);
            bail!("{}", stderr.lines().last().unwrap_or("it exited without output"));
        }
        // Drain warnings, so that the pipe does not fill up.
        let errors = child.stderr.take();
        std::thread::spawn(move || errors.map(|mut e| std::io::copy(&mut e, &mut std::io::sink())));
        Ok(Box::new(Nixl { name, work: *work, dir, child, to, from }))
    }

    fn ask(&mut self, what: &str) -> anyhow::Result<Answer> {
        writeln!(self.to, "{what}")?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("the driver of NIXL has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Side for Nixl {
    fn name(&self) -> &'static str {
        self.name
    }

    fn manner(&self) -> SideProperties {
        let in_flight = format!("{} batches of {}", self.work.depth, self.work.batch);
        let verified_by = if self.name == VERIFIED {
            "the harness, xxh3"
        } else {
            "not verified; three positions compared"
        };
        SideProperties { in_flight, verified_by: verified_by.to_owned(), page_cache: false }
    }

    fn round(&mut self, number: u32) -> anyhow::Result<Round> {
        empty(&self.dir)?;
        let put = self.ask("put")?.phase;
        drop_page_cache()?;
        let got = self.ask(&format!("get {number}"))?;
        empty(&self.dir)?;
        Ok(Round {
            put,
            get: got.phase,
            reopen_s: 0.0,
            values: self.work.objects,
            wrong: got.wrong,
            absent: 0,
        })
    }
}

impl Drop for Nixl {
    fn drop(&mut self) {
        // Best effort: it exits by itself when its input ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
