//! A child process that works on a store until it is killed, and the log by which it reports to its
//! parent. The child is the test program itself, selected by [`CHILD`].

pub mod content;
pub mod model;
pub mod points;
pub mod trap;
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
pub enum Word {
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

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = |f: &mut fmt::Formatter<'_>, tag: &str, p: Page, version: u64| {
            write!(f, "{tag} {} {} {version}", p.namespace, p.number)
        };
        match *self {
            Word::Opening => f.write_str("opening"),
            Word::Opened => f.write_str("opened"),
            Word::PutBegins(p, v) => page(f, "put?", p, v),
            Word::Stored(p, v) => page(f, "stored", p, v),
            Word::Present(p, v) => page(f, "present", p, v),
            Word::RemoveBegins(p) => page(f, "remove?", p, 0),
            Word::Removed(p) => page(f, "removed", p, 0),
            Word::ClearBegins(n) => write!(f, "clear? {n}"),
            Word::Cleared(n) => write!(f, "cleared {n}"),
            Word::FlushBegins(n) => write!(f, "flush? {n}"),
            Word::Flushed(n) => write!(f, "flushed {n}"),
            Word::Reclaimed => f.write_str("reclaimed"),
            Word::Failed => f.write_str("failed"),
        }
    }
}

impl FromStr for Word {
    type Err = String;

    fn from_str(line: &str) -> Result<Word, String> {
        let (tag, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers: Result<Vec<u64>, _> = rest.split_whitespace().map(str::parse).collect();
        let numbers = numbers.map_err(|e| format!("{line}: {e}"))?;
        let page = |n: &[u64]| Page { namespace: n[0] as u8, number: n[1] as u32 };
        Ok(match (tag, &*numbers) {
            ("opening", []) => Word::Opening,
            ("opened", []) => Word::Opened,
            ("put?", n @ [.., version]) if n.len() == 3 => Word::PutBegins(page(n), *version),
            ("stored", n @ [.., version]) if n.len() == 3 => Word::Stored(page(n), *version),
            ("present", n @ [.., version]) if n.len() == 3 => Word::Present(page(n), *version),
            ("remove?", n) if n.len() == 3 => Word::RemoveBegins(page(n)),
            ("removed", n) if n.len() == 3 => Word::Removed(page(n)),
            ("clear?", [n]) => Word::ClearBegins(*n as u8),
            ("cleared", [n]) => Word::Cleared(*n as u8),
            ("flush?", [n]) => Word::FlushBegins(*n),
            ("flushed", [n]) => Word::Flushed(*n),
            ("reclaimed", []) => Word::Reclaimed,
            ("failed", []) => Word::Failed,
            _ => return Err(format!("not a word: {line}")),
        })
    }
}

/// A child's log writer. Each entry is one write of a few bytes, which a pipe takes whole and keeps
/// in order across threads.
pub struct Mouth(File);

impl Mouth {
    /// Standard output itself, which the test harness does not capture.
    pub fn new() -> Mouth {
        let out = std::io::stdout().as_fd().try_clone_to_owned().expect("standard output");
        Mouth(File::from(out))
    }

    /// Write an entry. A child without a parent ends.
    pub fn say(&self, word: Word) {
        // The harness's own output may have left a line unfinished.
        let before = if word == Word::Opening { "\n" } else { "" };
        if (&self.0).write_all(format!("{before}@{word}\n").as_bytes()).is_err() {
            std::process::exit(1);
        }
    }
}

/// A child as its parent sees it. Killed when dropped.
pub struct Victim {
    child: Child,
    words: BufReader<ChildStdout>,
}

impl Victim {
    /// Start this test program as a child with `plan`. `command` runs it, if set: it has the
    /// program's path as an argument already.
    pub fn start(plan: &workload::Plan, command: Option<Command>) -> Victim {
        let program = std::env::current_exe().expect("own path");
        let mut command = command.unwrap_or_else(|| Command::new(program));
        let mut child = command
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, plan.to_text())
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let words = BufReader::new(child.stdout.take().expect("pipe"));
        Victim { child, words }
    }

    /// The next entry; `None` once the child is dead and its whole log was read.
    pub fn hear(&mut self) -> Option<Word> {
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

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
