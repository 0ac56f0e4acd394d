//! One frame of `top`: the lines that it shows, from two samples of the counters.

use std::time::Duration;

use pagelith::layouts::wire::printable::Printable;
use serde_json::Value;

use crate::attached_stats::Sample;
use crate::quantity::{bytes, count};

/// Columns of a namespace: an identifier has 32 characters.
const NAME_COLUMNS: usize = 32;

/// What is shown of a store process.
pub(super) struct Frame<'a> {
    pub(super) address: &'a str,
    pub(super) before: &'a Sample,
    pub(super) now: &'a Sample,
    /// Why the store process did not answer last.
    pub(super) error: Option<&'a str>,
}

impl Frame<'_> {
    /// The lines, cut to `columns`. If there are more than `rows`, the namespaces with the least
    /// traffic are left out.
    pub(super) fn lines(&self, columns: Option<usize>, rows: Option<usize>) -> Vec<String> {
        let mut lines = vec![self.head(), String::new()];
        lines.extend(self.tiers());
        lines.push(String::new());
        lines.extend(self.activity());
        lines.push(String::new());
        let limits = self.limits();
        // A table of limits has an empty line and a head.
        let below = if limits.is_empty() { 0 } else { limits.len() + 2 };
        let room = rows.map(|rows| rows.saturating_sub(lines.len() + below));
        lines.extend(self.namespaces(room));
        if !limits.is_empty() {
            lines.extend([String::new(), limits_row("LIMITED NAMESPACE", LIMIT_COLUMNS)]);
            lines.extend(limits);
        }
        lines.truncate(rows.unwrap_or(usize::MAX));
        let cut = columns.unwrap_or(usize::MAX);
        lines.into_iter().map(|line| line.chars().take(cut).collect()).collect()
    }

    fn head(&self) -> String {
        let state = self.now.counters.get("ssd_state").and_then(Value::as_str).unwrap_or("?");
        match self.error {
            Some(error) => format!("{}  {}", self.address, Printable(error)),
            None => format!(
                "{}  objects {}  ssd {}  rates {}",
                self.address,
                count(self.now.number("objects")),
                Printable(state),
                match self.passed() {
                    Duration::ZERO => "from the next frame on".to_owned(),
                    passed => format!("over {:.1} s", passed.as_secs_f64()),
                },
            ),
        }
    }

    fn passed(&self) -> Duration {
        self.now.taken.saturating_duration_since(self.before.taken)
    }

    /// Growth a second. A counter that shrank is of a new process: it has counted from 0.
    fn per_second(&self, before: u64, now: u64) -> u64 {
        let grown = if now < before { now } else { now - before };
        match self.passed() {
            // The first frame: both samples are the same.
            Duration::ZERO => 0,
            passed => (grown as f64 / passed.as_secs_f64()).round() as u64,
        }
    }

    fn rate(&self, name: &str) -> u64 {
        self.per_second(self.before.number(name), self.now.number(name))
    }

    fn tiers(&self) -> Vec<String> {
        let row = |tier: &str, of: [String; 6]| {
            let cells = of.map(|cell| format!("{cell:>11}")).concat();
            format!("{tier:<10}{cells}")
        };
        let counts = |name| count(self.rate(name));
        let amounts = |name| bytes(self.rate(name));
        let none = || "-".to_owned();
        vec![
            row("TIER", TIER_COLUMNS.map(str::to_owned)),
            row(
                "memory",
                [
                    counts("hits_memory"),
                    amounts("bytes_memory"),
                    counts("puts_stored"),
                    amounts("bytes_put"),
                    count(self.now.number("dram_objects")),
                    bytes(self.now.number("dram_bytes")),
                ],
            ),
            row(
                "ssd",
                [
                    counts("hits_ssd"),
                    amounts("bytes_ssd"),
                    none(),
                    amounts("bytes_to_device"),
                    none(),
                    none(),
                ],
            ),
            row(
                "peers",
                [
                    counts("hits_remote"),
                    amounts("bytes_remote"),
                    counts("remote_stored"),
                    amounts("bytes_remote_put"),
                    none(),
                    none(),
                ],
            ),
        ]
    }

    /// Hit ratio, misses, and what waits or went wrong.
    fn activity(&self) -> Vec<String> {
        let hits = ["hits_memory", "hits_ssd", "hits_remote"].map(|name| self.rate(name));
        let hits = hits.into_iter().fold(0, u64::saturating_add);
        let total = |name| self.per_second(self.before.sum(name), self.now.sum(name));
        let misses = total("misses");
        let ratio = match hits.saturating_add(misses) {
            0 => "-".to_owned(),
            gets => format!("{:.1} %", 100.0 * hits as f64 / gets as f64),
        };
        let causes = self.now.rows("misses").filter_map(|(cause, now)| {
            let before = self.before.counters.get("misses").and_then(|causes| causes.get(cause));
            let before = before.and_then(Value::as_u64).unwrap_or(0);
            let rate = self.per_second(before, now.as_u64().unwrap_or(0));
            (rate > 0).then(|| format!("{} {}", Printable(cause), count(rate)))
        });
        let now = |name| count(self.now.number(name));
        let size = |name| bytes(self.now.number(name));
        vec![
            join(
                [format!("get hits   {ratio}  misses/s {}", count(misses))]
                    .into_iter()
                    .chain(causes),
            ),
            format!(
                "lookups    found/s {}  absent/s {}",
                count(self.rate("exists_found")),
                count(total("exists_absent"))
            ),
            format!(
                "now        unflushed {}  waiting groups {}  pinned {}  leased {}",
                size("unflushed_bytes"),
                now("groups_waiting"),
                now("objects_pinned"),
                now("objects_leased")
            ),
            format!(
                "problems   damaged {}  read errors {}  write errors {}  quarantined {}",
                now("damaged"),
                now("read_errors"),
                now("flush_errors"),
                now("segments_quarantined")
            ),
            format!("refused    puts {}  busy {}", now("puts_refused"), now("puts_busy")),
        ]
    }

    /// The namespaces that are counted, those with the most bytes a second first, in at most `room`
    /// lines.
    fn namespaces(&self, room: Option<usize>) -> Vec<String> {
        let mut rows: Vec<_> = self.now.rows("namespaces").map(|row| self.namespace(row)).collect();
        if rows.is_empty() {
            return vec![NOT_COUNTED.to_owned()];
        }
        rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let mut lines = vec![namespace_row("NAMESPACE", NAMESPACE_COLUMNS)];
        let room = room.unwrap_or(usize::MAX).saturating_sub(1);
        // The last line says how many rows do not fit.
        let shown = if rows.len() > room { room.saturating_sub(1) } else { rows.len() };
        lines.extend(rows.iter().take(shown).map(|(_, line)| line.clone()));
        if shown < rows.len() {
            lines.push(format!("and {} more", rows.len() - shown));
        }
        lines
    }

    /// Its bytes a second, and its line.
    fn namespace(&self, (name, row): (&String, &Value)) -> (u64, String) {
        let before = self.before.counters.get("namespaces").and_then(|rows| rows.get(name));
        let rate = |column: &str| {
            let of = |row: Option<&Value>| row.and_then(|row| row[column].as_u64()).unwrap_or(0);
            self.per_second(of(before), of(Some(row)))
        };
        let (got, put) = (rate("bytes_got"), rate("bytes_put"));
        let cells = [
            count(rate("hits")),
            count(rate("misses")),
            bytes(got),
            bytes(put),
            bytes(row["dram_bytes"].as_u64().unwrap_or(0)),
        ];
        (
            got.saturating_add(put),
            namespace_row(&Printable(name).to_string(), cells.each_ref().map(|c| &**c)),
        )
    }

    /// The namespaces with limits, and what they use.
    fn limits(&self) -> Vec<String> {
        let line = |(name, row): (&String, &Value)| {
            let of = |column: &str| row[column].as_u64().unwrap_or(0);
            let refused = of("puts_refused").saturating_add(of("writes_refused"));
            let cells = [
                bytes(of("dram_bytes")),
                bytes(of("ssd_bytes")),
                count(refused),
                count(of("evicted")),
            ];
            limits_row(&Printable(name).to_string(), cells.each_ref().map(|cell| &**cell))
        };
        self.now.rows("limits").map(line).collect()
    }
}

const TIER_COLUMNS: [&str; 6] = ["HITS/S", "READ/S", "PUTS/S", "WRITTEN/S", "OBJECTS", "BYTES"];
const NAMESPACE_COLUMNS: [&str; 5] = ["HITS/S", "MISSES/S", "READ/S", "PUT/S", "MEMORY"];
const LIMIT_COLUMNS: [&str; 4] = ["MEMORY", "SSD", "REFUSED", "EVICTED"];
const NOT_COUNTED: &str =
    "namespaces are not counted: set namespaces.counted of the store process to see them";

fn namespace_row(name: &str, of: [&str; 5]) -> String {
    let [hits, misses, got, put, memory] = of;
    format!("{name:<NAME_COLUMNS$}{hits:>8}{misses:>9}{got:>11}{put:>10}{memory:>10}")
}

fn limits_row(name: &str, of: [&str; 4]) -> String {
    let [memory, ssd, refused, evicted] = of;
    format!("{name:<NAME_COLUMNS$}{memory:>12}{ssd:>12}{refused:>12}{evicted:>12}")
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::{Map, json};

    use super::*;

    fn sample(counters: &Value, taken: Instant) -> Sample {
        Sample { counters: counters.as_object().cloned().unwrap_or_else(Map::new), taken }
    }

    /// The lines of a frame over two seconds.
    fn lines(before: &Value, now: &Value, columns: usize, rows: usize) -> Vec<String> {
        let began = Instant::now();
        let (before, now) = (sample(before, began), sample(now, began + Duration::from_secs(2)));
        let frame =
            Frame { address: "tcp:127.0.0.1:7411", before: &before, now: &now, error: None };
        frame.lines(Some(columns), Some(rows))
    }

    #[test]
    fn tiers_and_causes_have_their_growth_a_second() {
        let before = json!({"hits_memory": 100, "hits_ssd": 5, "misses": {"absent": 7, "late": 1}});
        let now = json!({
            "hits_memory": 160, "hits_ssd": 15, "bytes_ssd": 4096, "dram_bytes": 3 << 20, "objects": 12,
            "misses": {"absent": 17, "late": 1}, "ssd_state": "on", "dram_objects": 4,
        });
        let lines = lines(&before, &now, 80, 24);
        let cells = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(cells(3), ["memory", "30", "0B", "0", "0B", "4", "3.0MiB"]);
        assert_eq!(cells(4), ["ssd", "5", "2.0KiB", "-", "0B", "-", "-"]);
        assert_eq!(lines[7], "get hits   87.5 %  misses/s 5  absent 5");
        assert!(lines[0].contains("objects 12  ssd on  rates over 2.0 s"), "{}", lines[0]);
    }

    #[test]
    fn counters_of_a_restarted_process_count_from_zero() {
        let lines = lines(&json!({"hits_memory": 100}), &json!({"hits_memory": 8}), 80, 24);
        assert_eq!(lines[3].split_whitespace().nth(1), Some("4"), "{lines:?}");
    }

    #[test]
    fn namespaces_with_least_traffic_are_left_out_and_every_line_fits() {
        let row = |bytes: u64| json!({"hits": 1, "bytes_got": bytes, "dram_bytes": u64::MAX});
        let name = |n: u64| format!("{n:032x}");
        let of = |growth: u64| (0..40).map(|n| (name(n), row(n * growth))).collect::<Map<_, _>>();
        let limit = json!({"dram_bytes": u64::MAX, "ssd_bytes": u64::MAX, "evicted": u64::MAX});
        let before = json!({"namespaces": of(0)});
        let now =
            json!({"namespaces": of(1 << 30), "limits": {name(1): limit}, "bytes_put": u64::MAX});
        for (columns, rows) in [(80, 24), (120, 30)] {
            let lines = lines(&before, &now, columns, rows);
            assert_eq!(lines.len(), rows, "{lines:#?}");
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:#?}");
            let first =
                lines.iter().position(|line| line.starts_with("NAMESPACE")).expect("a table");
            assert!(lines[first + 1].starts_with(&name(39)), "{lines:#?}");
            assert!(lines.iter().any(|line| line.starts_with("and ")), "{lines:#?}");
            assert!(lines[rows - 1].starts_with(&name(1)), "{lines:#?}");
        }
        // A terminal that is too small shows the head.
        assert_eq!(lines(&before, &now, 20, 3).len(), 3);
    }

    #[test]
    fn text_of_the_store_cannot_control_the_terminal() {
        let name = "\u{1b}[2J";
        let now = json!({"ssd_state": name, "namespaces": {name: {"hits": 1}}, "limits": {name: {}},
            "misses": {name: 10}});
        let lines = lines(&json!({}), &now, 200, 50);
        assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
    }
}
