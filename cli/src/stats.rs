//! `pagelith stats`: the counters of a store process, once.

use clap::Args;
use pagelith::layouts::wire::printable::Printable;
use serde_json::Value;

use crate::attached_stats::StoreAddress;
use crate::exit::RunStatus;
use crate::output::out;

/// Print the counters of a store process, one a line.
///
/// Counters count from the open of the store. Some are values of this moment: the table in
/// docs/operations.md describes each, and marks those with "now". Exit status: 0; 2 if the store
/// process does not answer or refuses this one.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith stats unix:/run/pagelith/socket | grep misses")]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    store: StoreAddress,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<RunStatus> {
    let counters = Value::Object(args.store.attach()?.take()?.counters);
    if args.json {
        out!("{counters}")?;
    } else {
        out!("{}", lines(&counters).join("\n"))?;
    }
    Ok(RunStatus::Clean)
}

/// A line with name and value for each counter; the parts of a name are joined by dots.
fn lines(counters: &Value) -> Vec<String> {
    let mut values = Vec::new();
    flatten("", counters, &mut values);
    let width = values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    values.iter().map(|(name, value)| format!("{name:<width$}  {value}")).collect()
}

fn flatten(name: &str, value: &Value, values: &mut Vec<(String, String)>) {
    match value {
        Value::Object(parts) => {
            for (part, value) in parts {
                let part = Printable(part);
                let name =
                    if name.is_empty() { part.to_string() } else { format!("{name}.{part}") };
                flatten(&name, value, values);
            }
        }
        Value::String(text) => values.push((name.to_owned(), Printable(text).to_string())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            values.push((name.to_owned(), value.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_counter_has_a_line_without_control_characters_of_the_store() {
        let counters = json!({
            "objects": 3, "misses": {"absent": 1}, "namespaces": {"a\u{1b}[2J": {"hits": 2}}, "ssd_state": "on\u{7}",
        });
        let lines = lines(&counters);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].starts_with("misses.absent ") && lines[0].ends_with("  1"), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
    }
}
