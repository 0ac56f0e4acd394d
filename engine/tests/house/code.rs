//! Rules for Rust files.

use std::collections::BTreeMap;

use pagelith::config::fields;

use super::source::{cells, code, files, is_test_file, rust_files, text, words};

/// A file under `src` with more lines, its unit tests included, is listed in [`LONG_FILES`].
const LINES_MAX: usize = 500;
/// Files that are longer and hold one concept all the same. A file is not cut in two to be shorter.
const LONG_FILES: [(&str, &str); 10] = [
    ("engine/src/server/tests.rs", "one pair of stores, and what passes between them"),
    ("layouts/src/wire/request.rs", "one body for each verb"),
    ("client/src/client/mod.rs", "the calls of a client"),
    ("python/src/store.rs", "the calls of the Python class"),
    ("engine/src/state/pending_groups.rs", "one table"),
    ("sim/src/explore/oracle.rs", "one model of a store"),
    ("engine/src/server/put.rs", "the steps of one put"),
    ("sim/src/explore/reads.rs", "the reads of the explorer"),
    ("tiers/src/ssd/log.rs", "one writer"),
    ("engine/src/background/reclaim.rs", "the steps of one reclaim"),
];
/// Columns of a line of a comment, but for tables, links, commands and examples.
const COLUMNS_MAX: usize = 100;
/// Crates whose code takes time, threads and files from the interfaces of `io` only. `io` and
/// `transport` implement them; `cli`, `sim` and the benches are edges.
const SEALED: [&str; 4] = ["layouts", "tiers", "client", "engine"];
/// Names that they must not use. clippy.toml bans the calls; this also detects imports.
const SYSTEM: [&str; 10] = [
    "std::fs",
    "std::thread",
    "std::net",
    "fs::",
    "thread::",
    "std::time::Instant",
    "Instant::now",
    "SystemTime",
    // Messages are events of `tracing`.
    "println!",
    "eprintln!",
];

/// Macros that panic if the output cannot be written: its reader is gone, or its disk is full.
const PRINTS: [&str; 4] = ["println!", "eprintln!", "print!", "eprint!"];

fn too_long(files: &[(String, usize)]) -> Vec<String> {
    let listed = |path: &str| LONG_FILES.iter().any(|(long, _)| *long == path);
    let long = files.iter().filter(|(path, lines)| (*lines > LINES_MAX) != listed(path));
    long.map(|(path, lines)| format!("{path} has {lines} lines: list it, or list it no more"))
        .collect()
}

#[test]
fn file_above_the_line_limit_is_listed_with_its_reason() {
    let sources = rust_files().into_iter().filter(|path| path.contains("/src/"));
    let lines: Vec<_> = sources.map(|path| (path.clone(), text(&path).lines().count())).collect();
    assert!(lines.len() > 50, "files={}", lines.len());
    assert_eq!(too_long(&lines), Vec::<String>::new());
}

#[test]
fn long_file_is_detected() {
    assert_eq!(too_long(&[("io/src/a.rs".into(), 500)]), Vec::<String>::new());
    assert_eq!(too_long(&[("io/src/a.rs".into(), 501)]).len(), 1);
    assert_eq!(too_long(&[(LONG_FILES[0].0.into(), 500)]).len(), 1, "listed and short");
}

/// Lines of comments that are too wide, by number.
fn wide_comments(rust: &str) -> Vec<usize> {
    let mut example = false;
    let mut wide = Vec::new();
    for (number, line) in rust.lines().enumerate() {
        let text = line.trim_start();
        if !text.starts_with("//") {
            continue;
        }
        let text = text.trim_start_matches(['/', '!']).trim_start();
        example ^= text.starts_with("```");
        let unbroken = example || ["|", "`", "cargo "].iter().any(|start| text.starts_with(start));
        if line.chars().count() > COLUMNS_MAX && !unbroken {
            wide.push(number + 1);
        }
    }
    wide
}

#[test]
fn comments_fit_their_columns() {
    let sources = rust_files().into_iter().map(|path| (wide_comments(&text(&path)), path));
    let wide: Vec<_> = sources.filter(|(lines, _)| !lines.is_empty()).collect();
    assert_eq!(wide, Vec::<(Vec<usize>, String)>::new());
}

#[test]
fn wide_comment_is_detected() {
    let (wide, table) = (format!("// {}", "a ".repeat(60)), format!("/// | {} |", "a ".repeat(60)));
    assert_eq!(wide_comments(&format!("let a = 1;\n{wide}\n{table}")), [2]);
}

/// The shipped part of a file: without comments, strings and the module of unit tests at its end.
pub fn shipping(rust: &str) -> String {
    let code = code(rust);
    let tests = code.match_indices("#[cfg(test)]").find(|(at, attribute)| {
        let item = code[at + attribute.len()..].trim_start();
        item.starts_with("mod ")
            && item.split(['{', ';']).next().is_some_and(|m| item[m.len()..].starts_with('{'))
    });
    tests.map_or(code.clone(), |(at, _)| code[..at].to_owned())
}

fn names_the_system(path: &str, rust: &str) -> Vec<String> {
    names_any_of(&SYSTEM, path, rust)
}

fn names_any_of(names: &[&str], path: &str, rust: &str) -> Vec<String> {
    let code = shipping(rust);
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        for name in names {
            let whole = line.match_indices(name).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
            });
            if whole {
                found.push(format!("{path}:{}: {name}", number + 1));
            }
        }
    }
    found
}

#[test]
fn shipped_code_uses_the_io_seams() {
    let sealed = SEALED.iter().flat_map(|dir| files(&format!("{dir}/src"), ".rs"));
    let found: Vec<_> = sealed
        .filter(|path| !is_test_file(path))
        .flat_map(|path| names_the_system(&path, &text(&path)))
        .collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn call_around_the_seams_is_detected() {
    let planted = [
        "use std::time::{Duration, SystemTime};",
        "fn f() { std::fs::read(\"x\"); }",
        "use std::{fs, io};\nfn f() { fs::read(\"x\"); }",
        "fn f() { let t = Instant::now(); }",
        "use std::thread;\n",
        "fn f() { eprintln!(\"seen\"); }",
    ];
    for rust in planted {
        assert!(!names_the_system("tiers/src/x.rs", rust).is_empty(), "{rust}");
    }
    let harmless = [
        "// std::fs::read\nlet s = \"std::thread\";",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::thread;\n}",
        "#[cfg(test)]\nmod tests;\nmod offs { } use crate::offs::x;",
    ];
    for rust in harmless {
        assert_eq!(names_the_system("tiers/src/x.rs", rust), Vec::<String>::new(), "{rust}");
    }
    // A module declared for tests alone does not end the file.
    assert!(!names_the_system("x", "#[cfg(test)]\nmod tests;\nuse std::fs;").is_empty());
}

#[test]
fn shipped_code_prints_through_the_console_module() {
    let dirs = ["layouts", "io", "tiers", "transport", "client", "engine", "cli", "python"];
    let files = dirs.iter().flat_map(|dir| files(&format!("{dir}/src"), ".rs"));
    let found: Vec<_> = files
        .filter(|path| !is_test_file(path))
        .flat_map(|path| names_any_of(&PRINTS, &path, &text(&path)))
        .collect();
    assert_eq!(found, Vec::<String>::new(), "use out! and log! of cli/src/output.rs");
    assert!(!names_any_of(&PRINTS, "x", "fn f() { eprint!(\"seen\"); }").is_empty());
}

/// Rows of docs/unsafe.md: the number of uses of the keyword for each file. Those of code that
/// ships have a check; a test holds itself.
fn accounted(page: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for row in page.lines() {
        let cells = cells(row);
        let Some(file) = cells.first().and_then(|cell| cell.strip_prefix('`')) else { continue };
        let file = file.trim_end_matches('`').to_owned();
        let count: usize =
            cells[1].parse().unwrap_or_else(|_| panic!("second cell must be a number: {row}"));
        let is_tested = cells.len() >= 3 && cells[2..].iter().all(|cell| !cell.is_empty());
        let is_test =
            is_test_file(&file) || ["sim/", "benches/"].iter().any(|d| file.starts_with(d));
        assert!(is_tested || is_test, "a cell is empty: {row}");
        *counts.entry(file).or_default() += count;
    }
    counts
}

fn used(files: impl Iterator<Item = (String, String)>) -> BTreeMap<String, usize> {
    let count = |(path, rust): (String, String)| (path, words(&code(&rust), "unsafe"));
    files.map(count).filter(|(_, n)| *n > 0).collect()
}

#[test]
fn every_unsafe_block_has_its_row() {
    let used = used(rust_files().into_iter().map(|path| (path.clone(), text(&path))));
    assert!(used.len() >= 5, "{used:?}");
    assert_eq!(
        used,
        accounted(&text("docs/unsafe.md")),
        "left: in the code; right: in docs/unsafe.md"
    );
}

#[test]
fn unsafe_block_without_a_row_is_detected() {
    let page = "`io/src/a.rs` | 1 | `f`\n";
    let file = |rust: &str| used([("io/src/a.rs".to_owned(), rust.to_owned())].into_iter());
    assert_eq!(file("// unsafe\nfn f() { unsafe { g() } }"), accounted(page));
    assert_ne!(file("fn f() { unsafe { g() } }\nunsafe impl Send for X {}"), accounted(page));
    assert_ne!(file("#![deny(unsafe_code)]"), accounted(page));
}

/// Test files in `src` whose name is neither `tests.rs` nor ends with `_test.rs`.
fn misnamed_tests(paths: &[String]) -> Vec<String> {
    let misnamed = |path: &&String| {
        let name = path.rsplit('/').next().unwrap_or(path);
        path.contains("/src/")
            && !path.contains("_test/")
            && (name.starts_with("test") || name.ends_with("_tests.rs"))
            && name != "tests.rs"
    };
    paths.iter().filter(misnamed).cloned().collect()
}

#[test]
fn unit_test_files_have_one_form_of_name() {
    let found = misnamed_tests(&rust_files());
    assert_eq!(found, Vec::<String>::new(), "name them SUBJECT_test.rs");
    let planted =
        ["io/src/a/tests_b.rs", "io/src/a/b_tests.rs", "io/src/test_b.rs"].map(str::to_owned);
    assert_eq!(misnamed_tests(&planted), planted);
    let allowed =
        ["io/src/a/tests.rs", "io/src/b_test.rs", "io/tests/test_b.rs"].map(str::to_owned);
    assert_eq!(misnamed_tests(&allowed), Vec::<String>::new());
}

/// Environment variables with the settings' prefix that a text reads or sets, and that are no
/// settings.
fn strange_variables(text: &str) -> Vec<String> {
    let quoted = text.split(['"', '`', '{', ' ', '(']).filter(|word| word.starts_with("PAGELITH_"));
    let name = |word: &str| {
        word.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    let names = quoted.filter_map(name).filter(|name| !name.ends_with('_'));
    names.filter(|name| !fields().iter().any(|field| field.env_name() == *name)).collect()
}

/// Such a variable would make every store of a process with it fail to open, including those of the
/// tests.
#[test]
fn other_environment_variables_have_another_prefix() {
    let scripts = ["sim", "benches", "python"].into_iter().flat_map(|dir| files(dir, ".sh"));
    let all = rust_files()
        .into_iter()
        .chain(scripts)
        .chain([".ci/run", "README.md", "CONTRIBUTING.md"].map(str::to_owned));
    // The configuration's own tests contain refused variables.
    let exempt = ["tests/config", "tests/replay.rs", "src/config/", "tests/house/"];
    let all = all.filter(|path| !exempt.iter().any(|place| path.contains(place)));
    let strange: Vec<_> = all.flat_map(|path| strange_variables(&text(&path))).collect();
    assert_eq!(strange, Vec::<String>::new());
    assert_eq!(
        strange_variables("var(\"PAGELITH_TRACE\"), ${PAGELITH_CI_FUZZ:-1}"),
        ["PAGELITH_TRACE", "PAGELITH_CI_FUZZ"]
    );
    assert_eq!(
        strange_variables("`PAGELITH_DRAM__BYTES=1` TEST_PAGELITH_TRACE"),
        Vec::<String>::new()
    );
}
