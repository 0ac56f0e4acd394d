//! The figures of a measurement: medians over its rounds.

use std::fmt;

use serde::Serialize;

use super::round::Round;
use super::{BenchTier, Op, Shape};

/// Collects rounds.
pub(super) struct Report {
    shape: Shape,
    io: String,
    store: Vec<Round>,
    limit: Vec<Round>,
}

/// The result. The order of the fields is the order of the JSON keys.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    tier: BenchTier,
    op: Op,
    object_bytes: usize,
    batch: usize,
    in_flight: usize,
    rounds: u32,
    io: String,
    store: Figures,
    limit_name: Option<&'static str>,
    limit: Option<Figures>,
    /// Store over limit, medians of bandwidth.
    ratio: Option<f64>,
}

/// Medians of one side.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    gb_per_s: f64,
    objects_per_s: f64,
    cpu_s_per_gb: f64,
}

impl Report {
    pub(super) fn new(shape: Shape, io: String) -> Report {
        Report { shape, io, store: Vec::new(), limit: Vec::new() }
    }

    pub(super) fn store(&mut self, round: Round) {
        self.store.push(round);
    }

    pub(super) fn limit(&mut self, round: Round) {
        self.limit.push(round);
    }

    pub(super) fn summary(&self, limit_name: Option<&'static str>) -> Summary {
        let store = figures(&self.store);
        let limit = (!self.limit.is_empty()).then(|| figures(&self.limit));
        Summary {
            tier: self.shape.tier,
            op: self.shape.op,
            object_bytes: self.shape.object_bytes,
            batch: self.shape.batch,
            in_flight: self.shape.in_flight,
            rounds: self.shape.rounds,
            io: self.io.clone(),
            store,
            limit_name,
            limit,
            ratio: limit.map(|l| rounded(store.gb_per_s / l.gb_per_s)),
        }
    }
}

fn figures(rounds: &[Round]) -> Figures {
    Figures {
        gb_per_s: median(rounds.iter().map(Round::gb_per_s)),
        objects_per_s: median(rounds.iter().map(Round::objects_per_s)),
        cpu_s_per_gb: median(rounds.iter().map(Round::cpu_s_per_gb)),
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
        let line = |f: &mut fmt::Formatter<'_>, name: &str, x: &Figures| {
            let (gb, n, cpu) = (x.gb_per_s, x.objects_per_s, x.cpu_s_per_gb);
            if self.op == Op::Exists {
                writeln!(f, "{name:<24} {:>8.2} M keys/s", n / 1e6)
            } else {
                writeln!(f, "{name:<24} {gb:>8.3} GB/s {n:>12.0} objects/s {cpu:>8.4} CPU-s/GB")
            }
        };
        let (tier, op) = (format!("{:?}", self.tier).to_lowercase(), format!("{:?}", self.op).to_lowercase());
        writeln!(
            f,
            "{tier} {op} object_bytes={} batch={} in_flight={} rounds={} io={}",
            self.object_bytes, self.batch, self.in_flight, self.rounds, self.io
        )?;
        line(f, "store", &self.store)?;
        if let (Some(name), Some(limit), Some(ratio)) = (self.limit_name, &self.limit, self.ratio) {
            line(f, name, limit)?;
            write!(f, "{:<24} {ratio:>8.3}", "ratio")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median([1.0, f64::NAN].into_iter()), 1.0);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
