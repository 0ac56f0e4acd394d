//! All that the program prints: results on stdout, everything else on stderr. Output that cannot be written never panics:
//! a closed stdout drops the results that are left, and a log that cannot be written drops its lines.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Bytes that a pipe which is ready takes without making the writer wait (PIPE_BUF).
const READY_BYTES: usize = 4096;

static WAITS: AtomicBool = AtomicBool::new(true);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Print a line of results on stdout. An error if it cannot be written, unless the reader has gone.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::result(format_args!($($text)*)) };
}

/// Print a line on stderr. Never fails.
macro_rules! log {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

pub(crate) use {log, out};

/// See [`out`].
pub(crate) fn result(text: Arguments<'_>) -> anyhow::Result<()> {
    written_to(&mut stdout().lock(), text).context("cannot write the result to stdout")
}

/// Write a line to `results`. A closed pipe is no error.
fn written_to(results: &mut dyn Write, text: Arguments<'_>) -> std::io::Result<()> {
    match writeln!(results, "{text}").and_then(|()| results.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// See [`log`].
pub(crate) fn line(text: Arguments<'_>) {
    logged(format!("{text}\n").as_bytes());
}

/// From now on, drop lines of the log that its reader has no room for: a service does not wait for the reader of its log.
pub(crate) fn never_wait_for_the_log() {
    WAITS.store(false, Ordering::Relaxed);
}

fn logged(line: &[u8]) {
    // The lock keeps lines whole. Stderr has no buffer.
    let mut log = stderr().lock();
    let dropped = DROPPED.load(Ordering::Relaxed);
    if dropped > 0 && is_ready(&log) {
        DROPPED.fetch_sub(dropped, Ordering::Relaxed);
        let _ = writeln!(log, "the log was not read in time, lines were dropped lines={dropped}");
    }
    for part in line.chunks(READY_BYTES) {
        if !is_ready(&log) || log.write_all(part).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Whether a write to the log would not wait, or may.
fn is_ready(log: &impl std::os::fd::AsFd) -> bool {
    let mut log = [PollFd::new(log, PollFlags::OUT)];
    WAITS.load(Ordering::Relaxed) || poll(&mut log, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Where events of `tracing` are written: to the log.
pub(crate) struct Events;

impl Write for Events {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        logged(event);
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_result_for_a_reader_that_has_gone_is_dropped_and_another_failure_is_an_error() {
        let of = |kind| written_to(&mut Fails(kind), format_args!("x")).map_err(|error| error.kind());
        assert_eq!(of(ErrorKind::BrokenPipe), Ok(()));
        assert_eq!(of(ErrorKind::StorageFull), Err(ErrorKind::StorageFull));
    }
}
