//! The output of the program: results on stdout, everything else on stderr.
//!
//! A failed write never panics. A closed stdout drops the remaining results; a log that cannot be
//! written drops its lines.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::tcgetwinsize;

/// Bytes that a writable pipe takes without blocking (PIPE_BUF).
const READY_BYTES: usize = 4096;

static BLOCKS: AtomicBool = AtomicBool::new(true);
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Print a line of results on stdout. An error if it cannot be written, except to a closed pipe.
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
    write_line(&mut stdout().lock(), text).context("cannot write the result to stdout")
}

/// Write a line to `results`. A closed pipe is no error.
fn write_line(results: &mut dyn Write, text: Arguments<'_>) -> std::io::Result<()> {
    match writeln!(results, "{text}").and_then(|()| results.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Columns of stdout; `None` if it is no terminal, or one that does not report its size.
pub(crate) fn columns() -> Option<usize> {
    let size = tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// See [`log`].
pub(crate) fn line(text: Arguments<'_>) {
    write_log(format!("{text}\n").as_bytes());
}

/// From now on, drop log lines for which the pipe has no room, so that a service never blocks on
/// the reader of its log.
pub(crate) fn never_block_on_the_log() {
    BLOCKS.store(false, Ordering::Relaxed);
}

fn write_log(line: &[u8]) {
    // The lock keeps lines whole. Stderr has no buffer.
    let mut log = stderr().lock();
    let dropped = DROPPED.load(Ordering::Relaxed);
    if dropped > 0 && is_ready(&log) {
        DROPPED.fetch_sub(dropped, Ordering::Relaxed);
        let _ = writeln!(log, "the log's reader was too slow, lines were dropped lines={dropped}");
    }
    for part in line.chunks(READY_BYTES) {
        if !is_ready(&log) || log.write_all(part).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// Whether a write to the log does not block, or is allowed to.
fn is_ready(log: &impl std::os::fd::AsFd) -> bool {
    let mut log = [PollFd::new(log, PollFlags::OUT)];
    BLOCKS.load(Ordering::Relaxed)
        || poll(&mut log, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The writer of `tracing` events: the log.
pub(crate) struct EventWriter;

impl Write for EventWriter {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        write_log(event);
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
    fn result_for_a_closed_pipe_is_dropped_and_another_failure_is_an_error() {
        let of =
            |kind| write_line(&mut Fails(kind), format_args!("x")).map_err(|error| error.kind());
        assert_eq!(of(ErrorKind::BrokenPipe), Ok(()));
        assert_eq!(of(ErrorKind::StorageFull), Err(ErrorKind::StorageFull));
    }
}
