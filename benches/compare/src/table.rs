//! The table, from the raw results. Figures are medians over rounds; ratios are medians of the ratios within each round,
//! so that what the machine did in a minute meets both sides of a ratio.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::peer::{Manner, Round};
use crate::result::Line;
use crate::work::shown_size;

const OURS: &str = "pagelith";
const LIMIT: &str = "fio";

/// Rounds of one size, by side in the order of the file, then by their numbers.
#[derive(Default)]
struct Size {
    sides: Vec<(String, Manner, BTreeMap<u32, Round>)>,
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
    for (bytes, mut size) in sizes {
        size.sides.sort_by_key(|(name, ..)| (name != OURS, name != LIMIT));
        write_size(&mut out, bytes, &size)?;
    }
    Ok(out)
}

fn write_size(out: &mut String, bytes: usize, size: &Size) -> anyhow::Result<()> {
    writeln!(out, "### {}\n", shown_size(bytes))?;
    writeln!(
        out,
        "| side | get GB/s | of fio | Pagelith's to it | CPU-s/GB | to Pagelith's | p50 us | p99 us | put GB/s | \
         Pagelith's to it | CPU-s/GB | open s | wrong, absent | in flight | verified by |"
    )?;
    writeln!(out, "| --- |{}--- | --- |", " ---: |".repeat(12))?;
    let of = |name: &str| size.sides.iter().find(|(side, ..)| side == name).map(|(_, _, rounds)| rounds);
    let (ours, limit) = (of(OURS), of(LIMIT));
    for (name, manner, rounds) in &size.sides {
        let figure = |f: fn(&Round) -> f64| median(rounds.values().map(f));
        let to_limit = ratio(Some(rounds), limit, |r| r.get.gb_per_s);
        let get = ratio(ours, Some(rounds), |r| r.get.gb_per_s);
        let cpu = ratio(Some(rounds), ours, |r| r.get.cpu_s_per_gb);
        let put = ratio(ours, Some(rounds), |r| r.put.gb_per_s);
        let count = |f: fn(&Round) -> u64| rounds.values().map(f).sum::<u64>();
        let (wrong, absent) = (count(|r| r.wrong), count(|r| r.absent));
        let cache = if manner.page_cache { ", page cache" } else { "" };
        writeln!(
            out,
            "| {name} | {:.2} | {} | {} | {:.3} | {} | {:.0} | {:.0} | {:.2} | {} | {:.3} | {:.2} | {wrong}, {absent} \
             | {}{cache} | {} |",
            figure(|r| r.get.gb_per_s),
            shown(to_limit),
            shown(get),
            figure(|r| r.get.cpu_s_per_gb),
            shown(cpu),
            figure(|r| r.get.p50_us),
            figure(|r| r.get.p99_us),
            figure(|r| r.put.gb_per_s),
            shown(put),
            figure(|r| r.put.cpu_s_per_gb),
            figure(|r| r.reopen_s),
            manner.in_flight,
            manner.verified_by,
        )?;
    }
    for (side, why) in &size.skipped {
        writeln!(out, "| {side} | skipped: {why} |{}", " |".repeat(13))?;
    }
    writeln!(out)?;
    Ok(())
}

/// The median of the ratios of rounds with the same number.
fn ratio(
    top: Option<&BTreeMap<u32, Round>>,
    bottom: Option<&BTreeMap<u32, Round>>,
    f: fn(&Round) -> f64,
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
    use crate::cost::Phase;

    fn rounds(gb: &[f64]) -> BTreeMap<u32, Round> {
        let round = |gb_per_s: f64| {
            let get = Phase { gb_per_s, ..Phase::default() };
            Round { put: Phase::default(), get, reopen_s: 0.0, wrong: 0, absent: 0 }
        };
        (0..).zip(gb.iter().map(|gb| round(*gb))).collect()
    }

    #[test]
    fn ratios_are_of_rounds_and_not_of_medians() {
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
    fn a_table_has_a_row_for_each_side_and_for_what_was_skipped() {
        let manner = Manner { in_flight: "1".into(), verified_by: "nobody".into(), page_cache: false };
        let line = |side: &str| {
            let of = rounds(&[1.0]).remove(&0).unwrap();
            let line =
                Line::Round { object_bytes: 65536, round: 0, side: side.into(), manner: manner.clone(), of };
            serde_json::to_string(&line).unwrap()
        };
        let skipped =
            Line::Skipped { object_bytes: 65536, side: "nixl".into(), why: "it is not here".into() };
        let lines = [line("foyer"), line("fio"), line("pagelith"), serde_json::to_string(&skipped).unwrap()];
        let table = of_lines(&lines.join("\n")).unwrap();
        let at = |what: &str| table.find(what).unwrap();
        assert!(at("### 64 KiB") < at("| pagelith |"), "{table}");
        assert!(at("| pagelith |") < at("| fio |") && at("| fio |") < at("| foyer |"), "{table}");
        assert!(table.contains("| nixl | skipped: it is not here |"), "{table}");
    }
}
