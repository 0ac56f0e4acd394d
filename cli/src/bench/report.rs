//! The figures of a measurement: medians of its rounds, and percentiles over all rounds.

use std::fmt;

use serde::Serialize;

use super::round::Round;
use super::shape::{BenchOp, BenchShape, BenchTier};
use crate::latency::Latencies;

/// The collected rounds.
pub(super) struct Report {
    shape: BenchShape,
    io: String,
    store: Vec<Round>,
    /// The limit and the other baselines, each with its description.
    limits: Vec<(&'static str, Vec<Round>)>,
    checksums: Vec<f64>,
}

/// The result. The order of the fields is the order of the JSON keys.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    tier: BenchTier,
    op: BenchOp,
    object_bytes: usize,
    batch: usize,
    depth: usize,
    rounds: u32,
    io: String,
    #[serde(flatten)]
    store: Figures,
    /// Throughput of the concurrent writer.
    #[serde(skip_serializing_if = "Option::is_none")]
    written_gb_per_s: Option<f64>,
    limit: Limit,
    /// Store divided by limit, as medians of throughput in bytes, or in keys for `exists`.
    ratio: f64,
    /// The other baselines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<BaselineSummary>,
}

/// The result of a baseline.
#[derive(Debug, Serialize)]
struct BaselineSummary {
    what: &'static str,
    #[serde(flatten)]
    figures: Figures,
    /// Store divided by this baseline, like [`Summary::ratio`].
    ratio: f64,
}

/// The result of the limit.
#[derive(Debug, Serialize)]
struct Limit {
    what: &'static str,
    #[serde(flatten)]
    figures: Figures,
    /// Cost of a checksum pass over cold memory, if the store verifies bytes and the limit does
    /// not.
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum_cpu_s_per_gb: Option<f64>,
}

/// Medians of the store or of one baseline. Percentiles are those of batches, or of single
/// transfers in a baseline.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    /// `None` if no bytes are transferred.
    gb_per_s: Option<f64>,
    ops_per_s: f64,
    cpu_s_per_gb: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    syscalls_per_object: f64,
}

impl Report {
    pub(super) fn new(shape: BenchShape, io: String) -> Report {
        Report { shape, io, store: Vec::new(), limits: Vec::new(), checksums: Vec::new() }
    }

    pub(super) fn store(&mut self, round: Round) {
        self.store.push(round);
    }

    /// Add a round of the limit, which is number 0, or of another baseline.
    pub(super) fn limit(&mut self, at: usize, what: &'static str, round: Round) {
        if self.limits.len() <= at {
            self.limits.resize_with(at + 1, Default::default);
        }
        self.limits[at].0 = what;
        self.limits[at].1.push(round);
    }

    /// Add the cost of a checksum pass in CPU seconds per 10^9 bytes.
    pub(super) fn checksum(&mut self, cost: Option<f64>) {
        self.checksums.extend(cost);
    }

    pub(super) fn summary(&self) -> Summary {
        let store = figures(&self.store);
        let mut compared = self.limits.iter().map(|(what, rounds)| {
            let figures = figures(rounds);
            BaselineSummary { what, figures, ratio: rounded(store.over(&figures)) }
        });
        let BaselineSummary { what, figures, ratio } = compared.next().unwrap_or_else(|| {
            let figures = figures(&[]);
            BaselineSummary { what: "", figures, ratio: 0.0 }
        });
        Summary {
            tier: self.shape.tier,
            op: self.shape.op,
            object_bytes: self.shape.object_bytes,
            batch: self.shape.batch,
            depth: self.shape.depth,
            rounds: self.shape.rounds,
            io: self.io.clone(),
            store,
            written_gb_per_s: self
                .shape
                .write_rate
                .map(|_| median(self.store.iter().map(Round::written_gb_per_s))),
            limit: Limit {
                what,
                figures,
                checksum_cpu_s_per_gb: (!self.checksums.is_empty())
                    .then(|| median(self.checksums.iter().copied())),
            },
            ratio,
            beside: compared.collect(),
        }
    }
}

impl Figures {
    /// The ratio of these figures to the other ones.
    fn over(&self, other: &Figures) -> f64 {
        match (self.gb_per_s, other.gb_per_s) {
            (Some(own), Some(other)) => own / other,
            _ => self.ops_per_s / other.ops_per_s,
        }
    }
}

fn figures(rounds: &[Round]) -> Figures {
    let moves = rounds.iter().any(|round| round.bytes > 0);
    let mut latencies = Latencies::new();
    rounds.iter().for_each(|round| latencies.join(&round.latencies));
    let micros = |share: f64| rounded(latencies.percentile(share).as_secs_f64() * 1e6);
    Figures {
        gb_per_s: moves.then(|| median(rounds.iter().map(Round::gb_per_s))),
        ops_per_s: median(rounds.iter().map(Round::ops_per_s)),
        cpu_s_per_gb: moves.then(|| median(rounds.iter().map(Round::cpu_s_per_gb))),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        syscalls_per_object: median(rounds.iter().map(Round::calls_per_object)),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let at = values.len() / 2;
    match (values.get(at), values.len() % 2) {
        (None, _) => 0.0,
        (Some(v), 1) => rounded(*v),
        (Some(v), _) => rounded((v + values[at - 1]) / 2.0),
    }
}

fn rounded(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tier, op) =
            (format!("{:?}", self.tier).to_lowercase(), format!("{:?}", self.op).to_lowercase());
        writeln!(
            f,
            "{tier} {op} object_bytes={} batch={} depth={} rounds={} io={}",
            self.object_bytes, self.batch, self.depth, self.rounds, self.io
        )?;
        let baselines = self.beside.iter().map(|baseline| (baseline.what, &baseline.figures));
        for (name, x) in [("store", &self.store), (self.limit.what, &self.limit.figures)]
            .into_iter()
            .chain(baselines)
        {
            write!(f, "{name:<40}")?;
            match (x.gb_per_s, x.cpu_s_per_gb) {
                (Some(gb), Some(cpu)) => write!(
                    f,
                    " {gb:>8.3} GB/s {:>10.0} objects/s {cpu:>8.4} CPU-s/GB",
                    x.ops_per_s
                )?,
                _ => write!(f, " {:>8.2} M objects/s", x.ops_per_s / 1e6)?,
            }
            let calls = x.syscalls_per_object;
            writeln!(
                f,
                "  p50 {:.0} p99 {:.0} p999 {:.0} us, {calls:.3} calls/object",
                x.p50_us, x.p99_us, x.p999_us
            )?;
        }
        if let Some(written) = self.written_gb_per_s {
            writeln!(f, "{:<40} {written:>8.3} GB/s", "concurrent writer")?;
        }
        if let Some(cost) = self.limit.checksum_cpu_s_per_gb {
            writeln!(f, "{:<40} {cost:>8.4} CPU-s/GB", "checksum pass")?;
        }
        for baseline in &self.beside {
            writeln!(f, "{:<40} {:>8.3}", format!("to {}", baseline.what), baseline.ratio)?;
        }
        write!(f, "{:<40} {:>8.3}", "ratio", self.ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_empty_lists() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median([1.0, f64::NAN].into_iter()), 1.0);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
