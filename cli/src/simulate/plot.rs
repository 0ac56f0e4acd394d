//! The plot: hit ratio and writes over the capacity of the SSD, a line for each trace, policy and
//! capacity of DRAM, as SVG.

use std::collections::BTreeMap;

use svg::Document;
use svg::node::element::{Line, Polyline, Rectangle, Text};

use super::cell::CellReport;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 60.0;
const LEGEND_ROW: f64 = 18.0;
/// Colours that can be distinguished with common colour blindness (Okabe and Ito, 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A line of a panel: its name, and points of (SSD blocks, value).
type Series<'a> = (&'a str, Vec<(f64, f64)>);

/// A panel of the plot.
struct Panel<'a> {
    title: &'a str,
    top: f64,
    x_max: f64,
    y_max: f64,
}

/// The plot of these results.
pub(super) fn plot(reports: &[CellReport]) -> String {
    let hits = lines(reports, |report| report.hit_ratio);
    let writes = lines(reports, CellReport::writes_per_block);
    let most = |lines: &BTreeMap<String, Vec<(f64, f64)>>, of: fn(&(f64, f64)) -> f64| {
        lines.values().flatten().map(of).fold(1e-9, f64::max)
    };
    let x_max = most(&hits, |point| point.0);
    let legend = hits.len() as f64 * LEGEND_ROW;
    let panel = HEIGHT + MARGIN;
    let mut document = Document::new()
        .set("width", WIDTH + 2.0 * MARGIN)
        .set("height", 2.0 * panel + MARGIN + legend)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "white"));
    let panels = [
        ("hit ratio over blocks of SSD", MARGIN, &hits),
        ("blocks written for each requested block", MARGIN + panel, &writes),
    ];
    for (title, top, lines) in panels {
        let y_max = most(lines, |point| point.1) * 1.05;
        let series: Vec<Series<'_>> =
            lines.iter().map(|(name, points)| (name.as_str(), points.clone())).collect();
        document = Panel { title, top, x_max, y_max }.draw(document, &series);
    }
    for (at, name) in hits.keys().enumerate() {
        let y = 2.0 * panel + MARGIN + at as f64 * LEGEND_ROW;
        let text = Text::new(name.as_str()).set("x", MARGIN + 30.0).set("y", y);
        let line =
            stroke(MARGIN, y - 4.0, MARGIN + 24.0, y - 4.0, colour(at)).set("stroke-width", 2);
        document = document.add(line).add(text);
    }
    format!("{document}\n")
}

/// The values of each line, in the order of the capacity.
fn lines(
    reports: &[CellReport],
    value: impl Fn(&CellReport) -> f64,
) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for report in reports {
        let CellReport { trace, policy, dram_blocks, ssd_blocks, .. } = report;
        let name = format!("{trace}, {policy}, DRAM {dram_blocks}");
        lines.entry(name).or_default().push((*ssd_blocks as f64, value(report)));
    }
    lines.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    lines
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

fn stroke(x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) -> Line {
    Line::new().set("x1", x1).set("y1", y1).set("x2", x2).set("y2", y2).set("stroke", colour)
}

impl Panel<'_> {
    fn point(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (MARGIN + WIDTH * x / self.x_max, self.top + HEIGHT * (1.0 - y / self.y_max))
    }

    fn draw(&self, document: Document, series: &[Series<'_>]) -> Document {
        let title = Text::new(self.title).set("x", MARGIN).set("y", self.top - 12.0);
        let (bottom, right) = (self.top + HEIGHT, MARGIN + WIDTH);
        let mut document = document
            .add(title)
            .add(stroke(MARGIN, bottom, right, bottom, "black"))
            .add(stroke(MARGIN, self.top, MARGIN, bottom, "black"));
        for step in 1..=4 {
            let share = f64::from(step) / 4.0;
            let (x, y) = self.point((share * self.x_max, share * self.y_max));
            let x_label = format!("{:.0}", share * self.x_max);
            let y_label = format!("{:.3}", share * self.y_max);
            document = document
                .add(stroke(MARGIN, y, right, y, "#ddd"))
                .add(Text::new(x_label).set("x", x - 16.0).set("y", bottom + 16.0))
                .add(Text::new(y_label).set("x", MARGIN - 44.0).set("y", y + 4.0));
        }
        for (at, (_, points)) in series.iter().enumerate() {
            let text = |point: &(f64, f64)| {
                let (x, y) = self.point(*point);
                format!("{x:.1},{y:.1}")
            };
            let line = Polyline::new()
                .set("points", points.iter().map(text).collect::<Vec<_>>().join(" "))
                .set("fill", "none")
                .set("stroke", colour(at))
                .set("stroke-width", 2);
            document = document.add(line);
        }
        document
    }
}
