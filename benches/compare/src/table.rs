//! Renders the table from the raw results. Figures are medians over rounds. Ratios are medians of
//! the ratios within each round, so that short-term changes of the machine affect both sides of a
//! ratio.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::cost::Phase;
use crate::peer::{Round, SideProperties};
use crate::result::Line;
use crate::work::shown_size;

const PAGELITH: &str = "pagelith";
const LIMIT: &str = "fio";

/// Rounds of one size, by side in file order, then by number.
#[derive(Default)]
struct Size {
    sides: Vec<(String, SideProperties, BTreeMap<u32, Round>)>,
    skipped: Vec<(String, String)>,
}

/// The table of these lines, in Markdown.
pub(crate) fn of_lines(lines: &str) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut sizes: BTreeMap<usize, Size> = BTreeMap::new();
    for line in lines.lines() {
        match serde_json::from_str(line)? {
            Line::Header(h) => {
                writeln!(out, "`{}` on {} CPUs ({}), Linux {}\n", h.flags, h.cpus, h.cpu, h.kernel)?
            }
            Line::Skipped { object_bytes, side, why } => {
                sizes.entry(object_bytes).or_default().skipped.push((side, why));
            }
            Line::Round { object_bytes, round, side, manner, of } => {
                let sides = &mut sizes.entry(object_bytes).or_default().sides;
                let at = sides.iter().position(|(name, ..)| *name == side).unwrap_or_else(|| {
                    sides.push((side, manner, BTreeMap::new()));
                    sides.len() - 1
                });
                sides[at].2.insert(round, of);
            }
        }
    }
    for size in sizes.values_mut() {
        size.sides.sort_by_key(|(name, ..)| (name != PAGELITH, name != LIMIT));
    }
    write_phase(&mut out, "Gets", &sizes, |r| &r.get)?;
    write_phase(&mut out, "Puts", &sizes, |r| &r.put)?;
    write_sides(&mut out, &sizes)?;
    Ok(out)
}

/// A row for each size and side.
fn write_phase(
    out: &mut String,
    what: &str,
    sizes: &BTreeMap<usize, Size>,
    phase: fn(&Round) -> &Phase,
) -> anyhow::Result<()> {
    writeln!(out, "### {what}\n")?;
    writeln!(
        out,
        "| object | side | GB/s | of fio's | Pagelith's to it | CPU-s/GB | Pagelith's to it | p50 us | p99 us |"
    )?;
    writeln!(out, "| ---: | --- |{}", " ---: |".repeat(7))?;
    for (bytes, size) in sizes {
        let of = |name: &str| {
            size.sides.iter().find(|(side, ..)| side == name).map(|(_, _, rounds)| rounds)
        };
        for (name, _, rounds) in &size.sides {
            let figure = |f: fn(&Phase) -> f64| median(rounds.values().map(|r| f(phase(r))));
            let to = |top, bottom, f: fn(&Phase) -> f64| shown(ratio(top, bottom, |r| f(phase(r))));
            writeln!(
                out,
                "| {} | {name} | {:.2} | {} | {} | {:.3} | {} | {:.0} | {:.0} |",
                shown_size(*bytes),
                figure(|p| p.gb_per_s),
                to(Some(rounds), of(LIMIT), |p| p.gb_per_s),
                to(of(PAGELITH), Some(rounds), |p| p.gb_per_s),
                figure(|p| p.cpu_s_per_gb),
                to(of(PAGELITH), Some(rounds), |p| p.cpu_s_per_gb),
                figure(|p| p.p50_us),
                figure(|p| p.p99_us),
            )?;
        }
    }
    writeln!(out)?;
    Ok(())
}

/// Rows that do not depend on the size: how each side works, its longest reopening, and its wrong
/// values.
fn write_sides(out: &mut String, sizes: &BTreeMap<usize, Size>) -> anyhow::Result<()> {
    writeln!(
        out,
        "| side | in flight | verified by | values | wrong | absent | open again, ms at most |"
    )?;
    writeln!(out, "| --- | --- | --- | ---: | ---: | ---: | ---: |")?;
    let mut names: Vec<&str> = Vec::new();
    for (name, ..) in sizes.values().flat_map(|size| &size.sides) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    for name in names {
        let all = || sizes.values().flat_map(|size| &size.sides).filter(|(side, ..)| side == name);
        let rounds = || all().flat_map(|(_, _, rounds)| rounds.values());
        let count = |f: fn(&Round) -> u64| rounds().map(f).sum::<u64>();
        let Some((_, manner, _)) = all().next() else { continue };
        let cache = if manner.page_cache { ", through the page cache" } else { "" };
        writeln!(
            out,
            "| {name} | {}{cache} | {} | {} | {} | {} | {:.0} |",
            manner.in_flight,
            manner.verified_by,
            count(|r| r.values),
            count(|r| r.wrong),
            count(|r| r.absent),
            rounds().map(|r| r.reopen_s * 1e3).fold(0.0, f64::max),
        )?;
    }
    let mut skipped: Vec<&(String, String)> =
        sizes.values().flat_map(|size| &size.skipped).collect();
    skipped.dedup();
    for (side, why) in skipped {
        writeln!(out, "| {side} | skipped: {why} |{}", " |".repeat(5))?;
    }
    Ok(())
}

/// The median of the ratios of rounds with the same number.
fn ratio(
    top: Option<&BTreeMap<u32, Round>>,
    bottom: Option<&BTreeMap<u32, Round>>,
    f: impl Fn(&Round) -> f64,
) -> Option<f64> {
    let (top, bottom) = (top?, bottom?);
    let ratios = top.iter().filter_map(|(round, of)| Some(f(of) / f(bottom.get(round)?)));
    Some(median(ratios)).filter(|ratio| *ratio > 0.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    match (values.len() / 2, values.len() % 2) {
        (0, 0) => 0.0,
        (at, 1) => values[at],
        (at, _) => (values[at] + values[at - 1]) / 2.0,
    }
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |r| format!("{r:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(gb: &[f64]) -> BTreeMap<u32, Round> {
        let round = |gb_per_s: f64| {
            let get = Phase { gb_per_s, ..Phase::default() };
            Round { put: Phase::default(), get, reopen_s: 0.0, values: 1, wrong: 0, absent: 0 }
        };
        (0..).zip(gb.iter().map(|gb| round(*gb))).collect()
    }

    #[test]
    fn ratio_is_median_of_round_ratios() {
        let (fast, slow) = (rounds(&[4.0, 1.0, 2.0]), rounds(&[2.0, 2.0, 2.0]));
        let gb = |r: &Round| r.get.gb_per_s;
        assert_eq!(ratio(Some(&fast), Some(&slow), gb), Some(1.0));
        assert_eq!(ratio(Some(&fast), Some(&rounds(&[1.0])), gb), Some(4.0));
        assert_eq!(ratio(Some(&fast), None, gb), None);
        assert_eq!(ratio(Some(&fast), Some(&rounds(&[])), gb), None);
    }

    #[test]
    fn medians_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }

    #[test]
    fn table_has_row_per_side_and_skipped_side() {
        let manner = SideProperties {
            in_flight: "1".into(),
            verified_by: "not verified".into(),
            page_cache: false,
        };
        let line = |side: &str| {
            let of = rounds(&[1.0]).remove(&0).unwrap();
            let line = Line::Round {
                object_bytes: 65536,
                round: 0,
                side: side.into(),
                manner: manner.clone(),
                of,
            };
            serde_json::to_string(&line).unwrap()
        };
        let skipped =
            Line::Skipped { object_bytes: 65536, side: "nixl".into(), why: "not installed".into() };
        let lines = [
            line("foyer"),
            line("fio"),
            line("pagelith"),
            serde_json::to_string(&skipped).unwrap(),
        ];
        let table = of_lines(&lines.join("\n")).unwrap();
        let at = |what: &str| table.find(what).unwrap();
        let first = at("| 64 KiB | pagelith | 1.00 | 1.00 |");
        assert!(
            first < at("| 64 KiB | fio |") && at("| 64 KiB | fio |") < at("| 64 KiB | foyer |"),
            "{table}"
        );
        assert!(table.contains("| nixl | skipped: not installed |"), "{table}");
    }
}
