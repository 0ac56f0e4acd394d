//! Cost of store calls, without that of the harness.
//!
//! Wall time is the sum over the calls. CPU time is that of the process, which includes the store's
//! threads, minus the time of the harness's thread outside of calls: generating and checking
//! content, reading the trace, drawing.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Meters the calls of one thread.
#[derive(Debug)]
pub(crate) struct Meter {
    process_start: Duration,
    thread_start: Duration,
    thread_in_calls: Duration,
}

impl Meter {
    /// Start. Every call must be made on this thread.
    pub(crate) fn start() -> Meter {
        Meter {
            process_start: cpu(ClockId::ProcessCPUTime),
            thread_start: cpu(ClockId::ThreadCPUTime),
            thread_in_calls: Duration::ZERO,
        }
    }

    /// Run a store call; returns its result and its duration.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce() -> T) -> (T, Duration) {
        let cpu_before = cpu(ClockId::ThreadCPUTime);
        let before = Instant::now();
        let result = call();
        let took = before.elapsed();
        self.thread_in_calls += cpu(ClockId::ThreadCPUTime).saturating_sub(cpu_before);
        (result, took)
    }

    /// CPU time of the store so far: that of its calls and of its threads.
    pub(crate) fn store_cpu(&self) -> Duration {
        let process = cpu(ClockId::ProcessCPUTime).saturating_sub(self.process_start);
        let thread = cpu(ClockId::ThreadCPUTime).saturating_sub(self.thread_start);
        process.saturating_sub(thread.saturating_sub(self.thread_in_calls))
    }
}

/// CPU time of the whole process so far.
pub(crate) fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

/// CPU time of this thread so far.
pub(crate) fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

fn cpu(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Peak resident memory of this process in bytes, as the kernel counts it (VmHWM).
pub(crate) fn rss_peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that the optimiser cannot drop.
    fn work(rounds: u64) -> u64 {
        (0..rounds).fold(1, |x, i| std::hint::black_box(crate::rng::mix(x ^ i)))
    }

    #[test]
    fn cpu_time_outside_of_calls_is_not_counted() {
        let mut meter = Meter::start();
        let before = cpu(ClockId::ThreadCPUTime);
        work(20_000_000);
        let outside = cpu(ClockId::ThreadCPUTime) - before;
        let (sum, took) = meter.call(|| work(20_000));
        assert_ne!(sum, 0);
        assert!(took > Duration::ZERO);
        // CPU time of other tests in this process counts as the store's; that of this thread must
        // not.
        let thread = cpu(ClockId::ThreadCPUTime) - meter.thread_start;
        assert!(meter.thread_in_calls < outside, "{meter:?} outside={outside:?}");
        assert!(thread - meter.thread_in_calls >= outside, "{meter:?} outside={outside:?}");
    }

    #[test]
    fn peak_memory_is_read() {
        assert!(rss_peak_bytes() > 1 << 20);
    }
}
