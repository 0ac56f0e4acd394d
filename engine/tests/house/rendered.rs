//! Tables of the documents that are rendered from the code. `TEST_PAGELITH_BLESS=1 cargo test -p
//! pagelith --test house` rewrites the settings; everything around the markers is written by hand.

use pagelith::Stats;
use pagelith::config::{Config, Field, fields};

use super::source::{cells, root, text};

const PAGE: &str = "docs/operations.md";
const BEGIN: &str =
    "<!-- settings: rendered from config::fields(), see engine/tests/house/rendered.rs -->\n";
const END: &str = "<!-- end of settings -->\n";

fn settings() -> String {
    let config = Config::default();
    let mut page = "\nsetting | default | must be\n---|---|---\n".to_owned();
    let row = |f: &Field| {
        let (value, range) = (f.format_value(&config), range(&f.expects()));
        format!("`{}` | {value} | {range}\n", f.path())
    };
    page.extend(fields().iter().map(row));
    page.push('\n');
    page
}

/// What a setting must be, without words that its default shows: "1 to 64" for an integer.
fn range(expects: &str) -> String {
    let short = expects.split_once(" between ").and_then(|(kind, range)| {
        let range = range.replace(" and ", " to ");
        match kind {
            "an integer" | "a size" => Some(range),
            "0 or a size" => Some(format!("0, {range}")),
            _ => None,
        }
    });
    short.unwrap_or_else(|| expects.trim_start_matches("one of ").to_owned())
}

#[test]
fn settings_table_matches_the_code() {
    let page = text(PAGE);
    let (before, rest) = page.split_once(BEGIN).expect("the begin marker");
    let (shown, after) = rest.split_once(END).expect("the end marker");
    let rendered = settings();
    if std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(root().join(PAGE), format!("{before}{BEGIN}{rendered}{END}{after}"))
            .expect("the page can be written");
        return;
    }
    let differs = shown.lines().zip(rendered.lines()).find(|(a, b)| a != b);
    assert!(shown == rendered, "{PAGE} differs from the code; first difference: {differs:?}");
}

/// Counters without a row in the page, and rows without a counter.
fn uncounted(page: &str, names: &[String]) -> Vec<String> {
    let (_, section) = page.split_once("## Counters\n").expect("the section on counters");
    let section = section.split("\n## ").next().unwrap_or(section);
    let rows: Vec<&str> = section
        .lines()
        .filter_map(|line| cells(line).first().copied().filter(|cell| cell.starts_with('`')))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let missing = names.iter().filter(|name| !rows.contains(&name.as_str())).cloned();
    let strange =
        rows.iter().filter(|row| !names.iter().any(|name| name == *row)).map(|r| (*r).to_owned());
    missing.chain(strange).collect()
}

#[test]
fn every_counter_is_explained() {
    let stats = serde_json::to_value(Stats::default()).expect("stats are data");
    let names: Vec<String> = stats.as_object().expect("an object").keys().cloned().collect();
    assert!(names.len() > 20, "{names:?}");
    assert_eq!(uncounted(&text(PAGE), &names), Vec::<String>::new());
    let planted = "## Counters\n`a`, `b` | x\n| `c` | y |\n## Next\n`d` | z\n";
    assert_eq!(uncounted(planted, &["a".into(), "c".into(), "d".into()]), ["d", "b"]);
}
