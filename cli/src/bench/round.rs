//! What one round of a measurement did, and what it cost.

use std::time::{Duration, Instant};

use pagelith::io::calls::calls;

use crate::latency::Latencies;
use crate::meter::process_cpu;

/// A round that is over.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// Objects moved, or asked for.
    pub(super) objects: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Bytes that a writer beside wrote.
    pub(super) written: u64,
    /// How long it took.
    pub(super) time: Duration,
    /// CPU time of the whole process meanwhile.
    pub(super) cpu: Duration,
    /// System calls that moved bytes, waited for them, or made them durable.
    pub(super) calls: u64,
    /// How long each batch took.
    pub(super) latencies: Latencies,
}

impl Round {
    /// Bytes a second, in 10^9.
    pub(super) fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.time.as_secs_f64()
    }

    /// Bytes a second of the writer beside, in 10^9.
    pub(super) fn written_gb_per_s(&self) -> f64 {
        self.written as f64 / 1e9 / self.time.as_secs_f64()
    }

    /// Objects a second.
    pub(super) fn ops_per_s(&self) -> f64 {
        self.objects as f64 / self.time.as_secs_f64()
    }

    /// CPU seconds for 10^9 bytes.
    pub(super) fn cpu_s_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
    }

    /// System calls for an object.
    pub(super) fn calls_per_object(&self) -> f64 {
        self.calls as f64 / self.objects as f64
    }
}

/// A round under way.
pub(super) struct Timer {
    start: Instant,
    cpu: Duration,
    calls: u64,
    length: Duration,
    latencies: Latencies,
}

impl Timer {
    /// Begin a round of this length.
    pub(super) fn start(length: Duration) -> Timer {
        let latencies = Latencies::new();
        Timer { start: Instant::now(), cpu: process_cpu(), calls: calls(), length, latencies }
    }

    /// Whether the time is up.
    pub(super) fn is_over(&self) -> bool {
        self.start.elapsed() >= self.length
    }

    /// A batch ended that was begun then.
    pub(super) fn ended(&mut self, begun: Instant) {
        self.latencies.add(begun.elapsed());
    }

    /// End the round.
    pub(super) fn stop(self, objects: u64, bytes: u64) -> Round {
        let (time, cpu) = (self.start.elapsed(), process_cpu().saturating_sub(self.cpu));
        let calls = calls() - self.calls;
        Round { objects, bytes, written: 0, time, cpu, calls, latencies: self.latencies }
    }
}
