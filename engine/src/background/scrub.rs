//! Scrub reads records on SSD before any get needs them, so that latent damage is found while DRAM
//! may still hold a copy.
//!
//! [`crate::Store::scrub`] makes one pass in the caller's thread, with its own disk queue. With
//! `ssd.scrub_bytes_per_s` set, the flusher makes one pass after another while it has nothing else
//! in flight.

mod pass;

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_io::signal::Signal;

use self::pass::ScrubPass;
pub use self::pass::ScrubReport;
use crate::api::error::{Error, ErrorKind, Result};
use crate::background::log_context::LogContext;
use crate::background::log_op::LogOp;
use crate::state::shared::Shared;

/// Longest single wait, so that a close of the store is noticed.
const STEP: Duration = Duration::from_millis(100);
/// Least time between the starts of two background passes.
const BETWEEN: Duration = Duration::from_secs(60);

/// Options of a scrub.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ScrubOptions {
    /// Bytes read per second, on average over the pass; 0 reads as fast as the device allows, one
    /// read at a time.
    pub bytes_per_s: u64,
    /// Longest duration of the pass, which then ends with a partial report. Each read has the
    /// configured `deadline_ms`.
    pub timeout: Option<Duration>,
}

impl ScrubOptions {
    /// With another rate.
    pub fn bytes_per_s(self, bytes_per_s: u64) -> ScrubOptions {
        ScrubOptions { bytes_per_s, ..self }
    }

    /// With another longest duration.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> ScrubOptions {
        ScrubOptions { timeout: timeout.into(), ..self }
    }
}

/// Limits reads to a rate.
#[derive(Clone, Copy, Debug)]
struct Budget {
    per_s: u64,
    began: Mono,
    spent: u64,
}

impl Budget {
    fn new(per_s: u64, began: Mono) -> Budget {
        Budget { per_s, began, spent: 0 }
    }

    /// Time to wait before the next read.
    fn wait(&self, now: Mono) -> Duration {
        if self.per_s == 0 {
            return Duration::ZERO;
        }
        let due = u128::from(self.spent) * 1_000_000_000 / u128::from(self.per_s);
        Duration::from_nanos(u64::try_from(due).unwrap_or(u64::MAX))
            .saturating_sub(now.since(self.began))
    }
}

/// See [`crate::Store::scrub`].
#[tracing::instrument(level = "info", skip_all)]
pub(crate) fn scrub(shared: &Shared, options: ScrubOptions) -> Result<ScrubReport> {
    shared.check_open()?;
    let Some(volume) = shared.ssd.volume.clone() else { return Ok(ScrubReport::default()) };
    let mut queue = volume.disk.queue(1)?;
    let mut pass = ScrubPass::new(shared);
    let mut budget = Budget::new(options.bytes_per_s, shared.now());
    let end = options.timeout.map(|timeout| shared.now().after(timeout));
    let never = Signal::default();
    loop {
        let left = end.map_or(STEP, |end| end.since(shared.now()).min(STEP));
        if left.is_zero() || shared.check_open().is_err() {
            return Ok(pass.report);
        }
        let wait = budget.wait(shared.now());
        if !wait.is_zero() {
            shared.env.runtime.pause(&never, never.value(), wait.min(left));
            continue;
        }
        let Some(op) = pass.next_op(shared) else { return Ok(pass.report) };
        budget.spent += op.bytes();
        let mut done = Vec::new();
        if queue.submit(0, op).is_ok() {
            queue.wait(&mut done, shared.config.deadline());
        }
        let completion = done.pop();
        let late = completion.is_none();
        if late {
            // The drop of the queue must not wait again. The buffer stays allocated until the
            // kernel has ended the read.
            queue.set_drop_timeout(Duration::ZERO);
            drop(queue);
            pass.ended(shared, None);
            let detail = "scrub: read exceeded deadline_ms";
            return Err(Error::new(ErrorKind::Unavailable, detail));
        }
        pass.ended(shared, completion);
    }
}

/// The flusher's background passes.
#[derive(Default)]
pub(crate) struct BackgroundScrub {
    pass: Option<(ScrubPass, Budget)>,
    began: Option<Mono>,
    reading: bool,
}

impl BackgroundScrub {
    /// Continue the pass while nothing else is in flight; true if anything was done.
    pub fn step(&mut self, cx: &mut LogContext) -> bool {
        let shared: &Shared = &cx.shared;
        let per_s = shared.config.scrub_bytes_per_s();
        let busy = self.reading || cx.log.in_flight() > 0 || cx.is_closing();
        if per_s == 0 || busy {
            return false;
        }
        let now = shared.now();
        if self.pass.is_none() {
            if self.began.is_some_and(|began| now.since(began) < BETWEEN) {
                return false;
            }
            self.began = Some(now);
            self.pass = Some((ScrubPass::new(shared), Budget::new(per_s, now)));
        }
        let Some((pass, budget)) = self.pass.as_mut() else { return false };
        if !budget.wait(now).is_zero() {
            return false;
        }
        let Some(op) = pass.next_op(shared) else {
            tracing::info!(report = ?pass.report, "scrub");
            self.pass = None;
            return false;
        };
        budget.spent += op.bytes();
        match cx.log.submit(LogOp::Scrub.encode(), op) {
            Ok(()) => self.reading = true,
            Err(_) => pass.ended(shared, None),
        }
        true
    }

    /// A read of the pass ended.
    pub fn ended(&mut self, cx: &LogContext, completion: Completion) {
        self.reading = false;
        if let Some((pass, _)) = self.pass.as_mut() {
            pass.ended(&cx.shared, Some(completion));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_delays_reads_to_the_rate() {
        let mut b = Budget::new(1 << 20, Mono(0));
        assert_eq!(b.wait(Mono(0)), Duration::ZERO);
        b.spent = 3 << 19;
        assert_eq!(b.wait(Mono(500_000_000)), Duration::from_secs(1));
        assert_eq!(b.wait(Mono(1_500_000_000)), Duration::ZERO);
        assert_eq!(Budget { per_s: 0, ..b }.wait(Mono(0)), Duration::ZERO);
    }
}
