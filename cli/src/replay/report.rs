//! The report of a replay: one JSON object, or a table and a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use textplots::{Chart, LabelBuilder, LabelFormat, Plot, Shape, TickDisplay, TickDisplayBuilder};

use super::counters::{GroupCounts, PoolCounts, PrefixHits, ReplayCounters, StopCounts};
use super::pages::Pages;
use super::series::{Series, Window};

/// The results of a replay. The order of the fields is the order of the JSON keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) requests: u64,
    pub(crate) pages_requested: u64,
    pub(crate) prefix_hits: PrefixHits,
    pub(crate) prefix_hit_ratio: f64,
    pub(crate) misses: BTreeMap<String, u64>,
    pub(crate) absent_objects: BTreeMap<String, u64>,
    pub(crate) bytes_put: u64,
    pub(crate) bytes_to_device: u64,
    pub(crate) write_amplification: f64,
    pub(crate) wrong_bytes: u64,
    pub(crate) partial_groups: u64,
    pub(crate) busy_waits: u64,
    pub(crate) get_gb_per_s: f64,
    pub(crate) put_gb_per_s: f64,
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) get_batch_ms: BatchMs,
    pub(crate) dram_peak_bytes: u64,
    pub(crate) rss_peak_bytes: u64,
    pub(crate) reopen_ms: Option<f64>,
    pub(crate) io: String,
    #[serde(flatten)]
    pub(crate) model_report: Option<ModelReport>,
}

/// The additional results of a replay with a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ModelReport {
    pub(crate) model: String,
    pub(crate) page_bytes: u64,
    pub(crate) pools: BTreeMap<String, PoolCounts>,
    pub(crate) groups: GroupCounts,
    pub(crate) stops: StopCounts,
}

/// Duration of get calls of up to 128 pages, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct BatchMs {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Costs of a replay, as measured by the store and the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    /// All bytes written to the device.
    pub(crate) bytes_to_device: u64,
    /// CPU time of the store.
    pub(crate) cpu: Duration,
    /// Peak bytes of objects in the arena.
    pub(crate) dram_peak_bytes: u64,
    /// Peak resident memory of the process in bytes.
    pub(crate) rss_peak_bytes: u64,
    /// Duration of the reopen, if there was one.
    pub(crate) reopen: Option<Duration>,
    /// The I/O backend of the SSD tier.
    pub(crate) io: String,
    /// Objects that lookups and gets did not find, by cause.
    pub(crate) absent: BTreeMap<String, u64>,
}

impl Report {
    pub(crate) fn new(tally: &ReplayCounters, pages: &Pages, costs: Costs) -> Report {
        let hits = tally.hits.dram + tally.hits.ssd + tally.hits.remote;
        let moved = tally.bytes_put + tally.bytes_got;
        let percentile = |share| millis(tally.get_batches.percentile(share));
        Report {
            requests: tally.requests,
            pages_requested: tally.pages_requested,
            prefix_hits: tally.hits,
            prefix_hit_ratio: ratio(hits as f64, tally.pages_requested as f64),
            misses: tally.misses.clone(),
            absent_objects: costs.absent,
            bytes_put: tally.bytes_put,
            bytes_to_device: costs.bytes_to_device,
            write_amplification: ratio(costs.bytes_to_device as f64, tally.bytes_put as f64),
            wrong_bytes: tally.wrong_bytes,
            partial_groups: tally.partial_groups,
            busy_waits: tally.busy_waits,
            get_gb_per_s: gb_per_s(tally.bytes_got, tally.get_time),
            put_gb_per_s: gb_per_s(tally.bytes_put, tally.put_time),
            cpu_s_per_gb: ratio(costs.cpu.as_secs_f64(), moved as f64 / 1e9),
            get_batch_ms: BatchMs {
                p50: percentile(0.5),
                p99: percentile(0.99),
                max: millis(tally.get_batches.max()),
            },
            dram_peak_bytes: costs.dram_peak_bytes,
            rss_peak_bytes: costs.rss_peak_bytes,
            reopen_ms: costs.reopen.map(millis),
            io: costs.io,
            model_report: pages.model.as_ref().map(|model| ModelReport::new(model, tally, pages)),
        }
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for (name, value) in self.rows() {
            table.add_row([name, value]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }

    fn rows(&self) -> Vec<(String, String)> {
        let mib = |bytes: u64| format!("{:.1} MiB", mib(bytes));
        let percent = |pages: u64| 100.0 * ratio(pages as f64, self.pages_requested as f64);
        let pages = |pages: u64| format!("{pages} ({:.1} %)", percent(pages));
        let ms = &self.get_batch_ms;
        let mut rows = vec![
            ("requests", self.requests.to_string()),
            ("pages requested", self.pages_requested.to_string()),
            ("prefix hits in DRAM", pages(self.prefix_hits.dram)),
            ("prefix hits on SSD", pages(self.prefix_hits.ssd)),
            ("prefix hits at peers", pages(self.prefix_hits.remote)),
            ("prefix hit ratio", format!("{:.4}", self.prefix_hit_ratio)),
        ];
        let causes = self.misses.iter().map(|(cause, n)| (format!("misses: {cause}"), pages(*n)));
        let causes: Vec<_> = causes.collect();
        rows.extend(causes.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let absent: Vec<_> = self.absent_objects.iter().collect();
        let absent =
            absent.into_iter().map(|(cause, n)| (format!("objects: {cause}"), n.to_string()));
        let absent: Vec<_> = absent.collect();
        rows.extend(absent.iter().map(|(name, value)| (name.as_str(), value.clone())));
        rows.extend([
            ("bytes put", mib(self.bytes_put)),
            ("bytes to device", mib(self.bytes_to_device)),
            ("write amplification", format!("{:.3}", self.write_amplification)),
            ("wrong bytes", self.wrong_bytes.to_string()),
            ("partial groups", self.partial_groups.to_string()),
            ("busy waits", self.busy_waits.to_string()),
            ("get", format!("{:.2} GB/s", self.get_gb_per_s)),
            ("put", format!("{:.2} GB/s", self.put_gb_per_s)),
            ("CPU", format!("{:.3} s/GB", self.cpu_s_per_gb)),
            ("get batch p50, p99, max", format!("{:.2}, {:.2}, {:.2} ms", ms.p50, ms.p99, ms.max)),
            ("DRAM peak", mib(self.dram_peak_bytes)),
            ("RSS peak", mib(self.rss_peak_bytes)),
        ]);
        if let Some(ms) = self.reopen_ms {
            rows.push(("reopen", format!("{ms:.1} ms")));
        }
        rows.push(("io", self.io.clone()));
        let rows = rows.into_iter().map(|(name, value)| (name.to_owned(), value));
        rows.chain(self.model_report.iter().flat_map(ModelReport::rows)).collect()
    }
}

impl ModelReport {
    fn new(model: &str, tally: &ReplayCounters, pages: &Pages) -> ModelReport {
        let pools = pages.pools().iter().zip(&tally.pools);
        ModelReport {
            model: model.to_owned(),
            page_bytes: pages.page_bytes(),
            pools: pools.map(|(pool, counts)| (pool.name.clone(), *counts)).collect(),
            groups: tally.groups,
            stops: tally.stops,
        }
    }

    fn rows(&self) -> Vec<(String, String)> {
        let (groups, stops) = (&self.groups, &self.stops);
        let mut rows = vec![
            ("model".to_owned(), self.model.clone()),
            ("page".to_owned(), format!("{} bytes", self.page_bytes)),
        ];
        for (name, pool) in &self.pools {
            let found = format!("{} objects, {} missed", pool.hits, pool.misses);
            rows.push((format!("pool {name}"), format!("{found}, {:.1} MiB", mib(pool.bytes))));
        }
        let attached = groups.attached + groups.attached_waiting;
        rows.push((
            "groups".to_owned(),
            format!("{} committed, {attached} attached", groups.committed),
        ));
        rows.push(("groups dropped".to_owned(), groups.waiting_dropped.to_string()));
        rows.push((
            "hits cut short, dropped".to_owned(),
            format!("{}, {}", stops.cut_short, stops.dropped),
        ));
        rows
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Plots of the hit ratio over time, one for each tier with hits. Empty if there are fewer than two
/// windows.
pub(crate) fn plot(series: &Series) -> String {
    if series.windows().len() < 2 {
        return String::new();
    }
    let mut out = String::new();
    let hits = |w: &Window, name: &str| match name {
        "memory" => w.dram,
        "ssd" => w.ssd,
        _ => w.remote,
    };
    // A tier without a hit, perhaps without a device, has no plot.
    let has_hits = |name: &&str| series.windows().iter().any(|w| hits(w, name) > 0);
    let tiers = ["ssd", "peers"].into_iter().filter(has_hits);
    for name in std::iter::once("memory").chain(tiers) {
        let share = |w: &Window| ratio(hits(w, name) as f64, w.pages as f64) as f32;
        let x = |i: usize| (i as u64 * series.width()) as f32;
        let points: Vec<(f32, f32)> =
            series.windows().iter().enumerate().map(|(i, w)| (x(i), share(w))).collect();
        let lines = Shape::Lines(&points);
        let mut chart =
            Chart::new_with_y_range(120, 32, 0.0, x(series.windows().len() - 1), 0.0, 1.0);
        let chart = chart
            .x_label_format(LabelFormat::Custom(Box::new(|at| format!("{at:.0}"))))
            .y_label_format(LabelFormat::Custom(Box::new(|at| format!("{at:.2}"))))
            .y_tick_display(TickDisplay::Sparse)
            .lineplot(&lines);
        chart.axis();
        chart.figures();
        // Writing to a string cannot fail.
        let _ = write!(out, "\nprefix hit ratio by request: {name}\n{chart}");
    }
    out
}

fn millis(d: Duration) -> f64 {
    rounded(d.as_secs_f64() * 1e3)
}

fn gb_per_s(bytes: u64, time: Duration) -> f64 {
    ratio(bytes as f64 / 1e9, time.as_secs_f64())
}

/// `a / b`, or 0 if `b` is 0, since JSON has no infinity.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { rounded(a / b) } else { 0.0 }
}

/// Rounded to six decimals, which exceeds the precision of any of these values.
fn rounded(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Pages {
        Pages::plain("chat", 1, 4096).expect("pages")
    }

    fn report() -> (Report, ReplayCounters) {
        let mut tally = ReplayCounters::new(1);
        tally.request(10, PrefixHits { dram: 4, ssd: 1, remote: 0 });
        tally.request(10, PrefixHits { dram: 2, ..PrefixHits::default() });
        for cause in ["absent", "absent", "damaged"] {
            tally.miss(cause);
        }
        (tally.bytes_put, tally.bytes_got) = (3_000_000, 1_000_000);
        (tally.put_time, tally.get_time) = (Duration::from_millis(3), Duration::from_millis(2));
        tally.get_batches.add(Duration::from_millis(2));
        let costs = Costs {
            bytes_to_device: 3_300_000,
            cpu: Duration::from_millis(1),
            dram_peak_bytes: 5,
            rss_peak_bytes: 6,
            reopen: Some(Duration::from_micros(1500)),
            io: "uring".into(),
            absent: [("refused".to_owned(), 2)].into(),
        };
        (Report::new(&tally, &plain(), costs), tally)
    }

    #[test]
    fn json_has_the_documented_keys_in_order() {
        let expected = concat!(
            r#"{"requests":2,"pages_requested":20,"prefix_hits":{"dram":6,"ssd":1,"remote":0},"prefix_hit_ratio":0.35,"#,
            r#""misses":{"absent":2,"damaged":1},"absent_objects":{"refused":2},"bytes_put":3000000,"bytes_to_device":3300000,"#,
            r#""write_amplification":1.1,"wrong_bytes":0,"partial_groups":0,"busy_waits":0,"get_gb_per_s":0.5,"#,
            r#""put_gb_per_s":1.0,"cpu_s_per_gb":0.25,"get_batch_ms":{"p50":2.0,"p99":2.0,"max":2.0},"#,
            r#""dram_peak_bytes":5,"rss_peak_bytes":6,"reopen_ms":1.5,"io":"uring"}"#
        );
        assert_eq!(serde_json::to_string(&report().0).unwrap(), expected);
    }

    #[test]
    fn empty_replay_has_finite_ratios() {
        let json =
            serde_json::to_value(Report::new(&ReplayCounters::new(1), &plain(), Costs::default()))
                .unwrap();
        assert_eq!(json["prefix_hit_ratio"], 0.0);
        assert_eq!(json["cpu_s_per_gb"], 0.0);
        assert!(json["reopen_ms"].is_null());
    }

    #[test]
    fn table_and_plot_show_both_tiers() {
        let (report, tally) = report();
        let table = report.table();
        for row in [
            "prefix hits in DRAM",
            "6 (30.0 %)",
            "misses: damaged",
            "objects: refused",
            "0.3500",
            "1.5 ms",
        ] {
            assert!(table.contains(row), "{row}\n{table}");
        }
        let plot = plot(&tally.series);
        assert!(
            plot.contains("by request: memory\n") && plot.contains("by request: ssd\n"),
            "{plot}"
        );
        assert!(plot.contains("1.00") && plot.contains("0.00"), "{plot}");
    }

    #[test]
    fn one_request_gives_no_plot() {
        let mut tally = ReplayCounters::new(1);
        tally.request(1, PrefixHits::default());
        assert_eq!(plot(&tally.series), "");
    }
}
