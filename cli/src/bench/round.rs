//! The results of one round of a measurement.

use std::time::{Duration, Instant};

use pagelith::io::syscall_count::calls;

use crate::latency::Latencies;
use crate::meter::process_cpu;

/// A completed round.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// Objects transferred or looked up.
    pub(super) objects: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Bytes of a concurrent writer.
    pub(super) written: u64,
    /// Duration of the round.
    pub(super) time: Duration,
    /// CPU time of the whole process in the round.
    pub(super) cpu: Duration,
    /// System calls that transferred bytes, waited for them, or made them durable.
    pub(super) calls: u64,
    /// Duration of each batch.
    pub(super) latencies: Latencies,
}

impl Round {
    /// Throughput in 10^9 bytes per second.
    pub(super) fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.time.as_secs_f64()
    }

    /// Throughput of the concurrent writer in 10^9 bytes per second.
    pub(super) fn written_gb_per_s(&self) -> f64 {
        self.written as f64 / 1e9 / self.time.as_secs_f64()
    }

    /// Objects per second.
    pub(super) fn ops_per_s(&self) -> f64 {
        self.objects as f64 / self.time.as_secs_f64()
    }

    /// CPU seconds per 10^9 bytes.
    pub(super) fn cpu_s_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
    }

    /// System calls per object.
    pub(super) fn calls_per_object(&self) -> f64 {
        self.calls as f64 / self.objects as f64
    }
}

/// A running round.
pub(super) struct Timer {
    start: Instant,
    cpu: Duration,
    calls: u64,
    length: Duration,
    latencies: Latencies,
}

impl Timer {
    /// Start a round of this length.
    pub(super) fn start(length: Duration) -> Timer {
        let latencies = Latencies::new();
        Timer { start: Instant::now(), cpu: process_cpu(), calls: calls(), length, latencies }
    }

    /// Whether the time has passed.
    pub(super) fn is_over(&self) -> bool {
        self.start.elapsed() >= self.length
    }

    /// Record the duration of a batch that started at `begun`.
    pub(super) fn record(&mut self, begun: Instant) {
        self.latencies.add(begun.elapsed());
    }

    /// End the round.
    pub(super) fn stop(self, objects: u64, bytes: u64) -> Round {
        let (time, cpu) = (self.start.elapsed(), process_cpu().saturating_sub(self.cpu));
        let calls = calls() - self.calls;
        Round { objects, bytes, written: 0, time, cpu, calls, latencies: self.latencies }
    }
}
