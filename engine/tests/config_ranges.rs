//! Every value in a setting's documented range opens a store, or is refused by validation with the
//! setting's name.
#![allow(clippy::disallowed_methods, reason = "a test removes the files of its stores")]

use std::collections::BTreeMap;
use std::path::Path;

use pagelith::Store;
use pagelith::config::{Config, ConfigFormat, Field, MachineLimits, Size, fields};

/// Largest file that a test creates. Larger tiers are validated the same way.
const FILES_MAX: u64 = 100_000_000;

/// Values at the ends of the documented range and odd ones inside it, as TOML; none for a setting
/// that is not a number.
fn odd_values(field: &Field) -> Vec<String> {
    let documented = field.expects();
    let words: Vec<&str> = documented.split_whitespace().collect();
    let Some([least, "and", most]) =
        words.iter().position(|word| *word == "between").and_then(|at| words.get(at + 1..))
    else {
        return if documented.starts_with("a number above 0") {
            vec!["1e-9".into(), "1".into()]
        } else {
            Vec::new()
        };
    };
    if documented.starts_with("a number") {
        return vec![least.to_string(), most.to_string(), "0.123".into()];
    }
    let [min, max] = [least, most].map(|text| text.parse::<Size>().unwrap().bytes());
    let odd = [
        min,
        min + 1,
        min + 2,
        min + 4095,
        1_000_003,
        3_333_333,
        1 << 22,
        10_000_000,
        1_000_000_000,
        max - 1,
        max,
    ];
    let allowed = |value: &u64| match () {
        () if documented.starts_with("a power of two") => value.is_power_of_two(),
        () if documented.starts_with("a multiple of") => {
            value.is_multiple_of(words[3].parse().unwrap())
        }
        () => true,
    };
    let zero = documented.starts_with("0 or").then_some(0);
    let within =
        odd.into_iter().filter(|value| (min..=max).contains(value) && allowed(value)).chain(zero);
    let feasible = within.filter(|value| field.path() != "ssd.bytes" || *value <= FILES_MAX);
    let mut values: Vec<u64> = feasible.collect();
    values.sort_unstable();
    values.dedup();
    values.into_iter().map(|value| value.to_string()).collect()
}

/// Open a store with these settings and one more; only validation may refuse it, and must name the
/// setting.
fn opens_or_names(base: &[(&str, &str)], dir: &Path, field: &Field, value: &str) {
    let mut settings: BTreeMap<&str, &str> = base.iter().copied().collect();
    settings.insert(field.path(), value);
    let mut text: String =
        settings.iter().map(|(path, value)| format!("{path} = {value}\n")).collect();
    let has_ssd = base.iter().any(|(path, _)| *path == "ssd.bytes");
    if has_ssd && settings["ssd.bytes"] != "0" {
        text += &format!("ssd.dirs = [{dir:?}]\n");
    }
    let builder = Config::builder().file(ConfigFormat::Toml, &text);
    match builder.validate(&MachineLimits::of_this_machine().unwrap()) {
        Err(error) => {
            let text = error.to_string();
            // The value is within its documented range, so the message must not quote the range.
            assert!(
                text.contains(field.path()) && !text.contains(&field.expects()),
                "{}={value}: {text}",
                field.path()
            );
        }
        Ok(valid) => match Store::open(valid) {
            Ok(store) => store.abandon(),
            Err(error) => {
                panic!("{}={value} is valid and does not open: {error}\n{text}", field.path())
            }
        },
    }
}

const DRAM_ONLY: &[(&str, &str)] = &[("dram.bytes", "\"2MiB\""), ("staging.bytes", "\"2MiB\"")];
const SHARED: &[(&str, &str)] = &[("dram.bytes", "\"2MiB\""), ("dram.shared", "true")];
const BOTH: &[(&str, &str)] = &[
    ("dram.bytes", "\"4MiB\""),
    ("staging.bytes", "\"2MiB\""),
    ("ssd.bytes", "\"24MiB\""),
    ("ssd.segment_bytes", "\"1MiB\""),
    ("ssd.headers_bytes", "\"64KiB\""),
];

#[test]
fn documented_values_open_or_are_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let mut tried = 0;
    for field in fields() {
        let values = odd_values(field);
        tried += usize::from(!values.is_empty());
        for (at, value) in values.iter().enumerate() {
            if !field.path().starts_with("ssd.") {
                opens_or_names(DRAM_ONLY, Path::new(""), field, value);
            }
            if field.path().starts_with("dram.") {
                opens_or_names(SHARED, Path::new(""), field, value);
            }
            // Files take time, and most settings do not affect them.
            if !field.path().starts_with("ssd.") && at > 2 && at + 1 < values.len() {
                continue;
            }
            let dir = home.path().join(format!("{}-{at}", field.path()));
            opens_or_names(BOTH, &dir, field, value);
            if dir.exists() {
                std::fs::remove_dir_all(&dir).unwrap();
            }
        }
    }
    // All settings except flags, names, directories, peers, limits and a file.
    assert_eq!(tried, 34);
}

#[test]
fn sizes_are_used_in_whole_pages() {
    let text = "dram.bytes = \"1GB\"\nstaging.bytes = 2_000_001";
    let facts = MachineLimits::new(8 << 30, "test".into());
    let valid = Config::builder().file(ConfigFormat::Toml, text).validate(&facts).unwrap();
    assert_eq!((valid.arena_bytes(), valid.staging_bytes()), (999_997_440, 1_998_848));
    let store = Store::open(valid).unwrap();
    assert_eq!(
        (store.opened().memory.arena, store.opened().memory.staging),
        (999_997_440, 1_998_848)
    );
}
