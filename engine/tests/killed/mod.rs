//! A child process that works on a store until it is killed, and the log by which it reports to its
//! parent. The child is the test program itself, selected by [`CHILD`].

pub mod content;
pub mod kill_disk;
pub mod kill_points;
pub mod model;
pub mod workload;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;

/// The environment variable that makes the test program a child; its value is a [`Plan`].
///
/// [`Plan`]: workload::Plan
pub const CHILD: &str = "KILLED_CHILD";

/// A log entry of a child, one line each. "Begins" is logged before the call, the others after it
/// returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// `Store::open` begins.
    Opening,
    /// The store is open.
    Opened,
    /// A put of both objects of a page begins.
    PutBegins(Page, u64),
    /// It was acked as stored.
    Stored(Page, u64),
    /// It was acked as present.
    Present(Page, u64),
    /// A removal of a page begins.
    RemoveBegins(Page),
    /// It was acked.
    Removed(Page),
    /// A clear of the namespace with this number begins.
    ClearBegins(u8),
    /// It was acked.
    Cleared(u8),
    /// A flush begins; flushes are numbered.
    FlushBegins(u64),
    /// It has made everything durable.
    Flushed(u64),
    /// A segment was reclaimed.
    Reclaimed,
    /// Something went wrong; the text is on standard error.
    Failed,
}

/// A page: number of its namespace, number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page {
    pub namespace: u8,
    pub number: u32,
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = |f: &mut fmt::Formatter<'_>, tag: &str, p: Page, version: u64| {
            write!(f, "{tag} {} {} {version}", p.namespace, p.number)
        };
        match *self {
            LogEntry::Opening => f.write_str("opening"),
            LogEntry::Opened => f.write_str("opened"),
            LogEntry::PutBegins(p, v) => page(f, "put?", p, v),
            LogEntry::Stored(p, v) => page(f, "stored", p, v),
            LogEntry::Present(p, v) => page(f, "present", p, v),
            LogEntry::RemoveBegins(p) => page(f, "remove?", p, 0),
            LogEntry::Removed(p) => page(f, "removed", p, 0),
            LogEntry::ClearBegins(n) => write!(f, "clear? {n}"),
            LogEntry::Cleared(n) => write!(f, "cleared {n}"),
            LogEntry::FlushBegins(n) => write!(f, "flush? {n}"),
            LogEntry::Flushed(n) => write!(f, "flushed {n}"),
            LogEntry::Reclaimed => f.write_str("reclaimed"),
            LogEntry::Failed => f.write_str("failed"),
        }
    }
}

impl FromStr for LogEntry {
    type Err = String;

    fn from_str(line: &str) -> Result<LogEntry, String> {
        let (tag, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
        let numbers = numbers.map_err(|e| format!("{line}: {e}"))?;
        let page = |n: &[u64]| Page { namespace: n[0] as u8, number: n[1] as u32 };
        Ok(match (tag, &*numbers) {
            ("opening", []) => LogEntry::Opening,
            ("opened", []) => LogEntry::Opened,
            ("put?", n @ [.., version]) if n.len() == 3 => LogEntry::PutBegins(page(n), *version),
            ("stored", n @ [.., version]) if n.len() == 3 => LogEntry::Stored(page(n), *version),
            ("present", n @ [.., version]) if n.len() == 3 => LogEntry::Present(page(n), *version),
            ("remove?", n) if n.len() == 3 => LogEntry::RemoveBegins(page(n)),
            ("removed", n) if n.len() == 3 => LogEntry::Removed(page(n)),
            ("clear?", [n]) => LogEntry::ClearBegins(*n as u8),
            ("cleared", [n]) => LogEntry::Cleared(*n as u8),
            ("flush?", [n]) => LogEntry::FlushBegins(*n),
            ("flushed", [n]) => LogEntry::Flushed(*n),
            ("reclaimed", []) => LogEntry::Reclaimed,
            ("failed", []) => LogEntry::Failed,
            _ => return Err(format!("not a word: {line}")),
        })
    }
}

/// A child's log writer. Each entry is one write of a few bytes, which a pipe takes whole and keeps
/// in order across threads.
pub struct LogWriter(File);

impl LogWriter {
    /// Standard output itself, which the test harness does not capture.
    pub fn new() -> LogWriter {
        let out = std::io::stdout().as_fd().try_clone_to_owned().expect("standard output");
        LogWriter(File::from(out))
    }

    /// Write an entry. A child without a parent ends.
    pub fn write_entry(&self, word: LogEntry) {
        // The harness's own output may have left a line unfinished.
        let before = if word == LogEntry::Opening { "\n" } else { "" };
        if (&self.0).write_all(format!("{before}@{word}\n").as_bytes()).is_err() {
            std::process::exit(1);
        }
    }
}

/// A child as its parent sees it. Killed when dropped.
pub struct ChildProcess {
    child: Child,
    words: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Start this test program as a child with `plan`. `command` runs it, if set: it has the
    /// program's path as an argument already.
    pub fn start(plan: &workload::Plan, command: Option<Command>) -> ChildProcess {
        let program = std::env::current_exe().expect("own path");
        let mut command = command.unwrap_or_else(|| Command::new(program));
        let mut child = command
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, plan.to_text())
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let words = BufReader::new(child.stdout.take().expect("pipe"));
        ChildProcess { child, words }
    }

    /// The next entry; `None` once the child is dead and its whole log was read.
    pub fn read_entry(&mut self) -> Option<LogEntry> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.words.read_line(&mut line).expect("pipe") == 0 {
                return None;
            }
            if let Some(word) = line.trim_end().strip_prefix('@') {
                return Some(word.parse().expect("a word"));
            }
        }
    }

    /// Wait for a child that has stopped logging: true if it was killed, as it is at a point.
    pub fn was_killed(&mut self) -> bool {
        let status = self.child.wait().expect("wait");
        std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
    }

    /// Kill it, and wait until it is dead. The rest of its log can still be read.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        let status = self.child.wait().expect("wait");
        assert_eq!(status.code(), None, "the child ended by itself: {status}");
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
