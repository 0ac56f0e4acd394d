//! The repository's files, and Rust text without its comments and strings.

use std::path::{Path, PathBuf};

/// Crates in directories of these names contain code that ships, or tests it.
pub const CRATES: [&str; 10] =
    ["layouts", "io", "tiers", "transport", "client", "engine", "cli", "python", "sim", "benches"];

/// The workspace's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file's text by its path from the root.
pub fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Whether a file exists.
pub fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// Files below `dir` whose name ends with `end`, by path from the root, sorted; build outputs left
/// out.
pub fn files(dir: &str, end: &str) -> Vec<String> {
    let mut found = Vec::new();
    walk(&root().join(dir), dir, end, &mut found);
    found.sort();
    found
}

fn walk(dir: &Path, shown: &str, end: &str, found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if shown == "." { name.clone() } else { format!("{shown}/{name}") };
        if entry.path().is_dir() {
            if name != "target" && !name.starts_with('.') {
                walk(&entry.path(), &path, end, found);
            }
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

/// The cells of a table's row, which may have bars at its ends; nothing for any other line.
pub fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    if !line.starts_with('|') && !line.contains(" | ") {
        return Vec::new();
    }
    let row = line.strip_prefix('|').unwrap_or(line);
    row.strip_suffix('|').unwrap_or(row).split('|').map(str::trim).collect()
}

/// Every Rust file of the workspace's crates.
pub fn rust_files() -> Vec<String> {
    CRATES.iter().flat_map(|dir| files(dir, ".rs")).collect()
}

/// Whether a file is test code, by its place in its crate.
pub fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.contains("/tests/")
        || path.contains("_test/")
        || name == "tests.rs"
        || name.ends_with("_test.rs")
}

/// `rust` with the inside of comments, strings and character literals blanked; lines stay lines.
pub fn code(rust: &str) -> String {
    let bytes = rust.as_bytes();
    let mut out = String::with_capacity(rust.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(rust, at);
        if end > at {
            out.extend(rust[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
            continue;
        }
        let next = rust[at..].chars().next().map_or(1, char::len_utf8);
        out.push_str(&rust[at..at + next]);
        at += next;
    }
    out
}

/// The end of the comment or literal that begins at `at`; `at` if none does.
fn literal_end(rust: &str, at: usize) -> usize {
    let rest = &rust[at..];
    let named = |c: char| c.is_alphanumeric() || c == '_';
    if rest.starts_with("//") {
        return at + rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return at + block_comment_length(rest);
    }
    if rest.starts_with('r') && !rust[..at].ends_with(|c: char| named(c) && c != 'b') {
        let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
        if rest[1 + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let from = hashes + 2;
            return at + rest[from..].find(&close).map_or(rest.len(), |n| from + n + close.len());
        }
    }
    if rest.starts_with('"') {
        return at + quoted_length(rest, '"');
    }
    // A quote that closes after one character, plain or escaped, is a literal; else it is a
    // lifetime.
    let escaped = rest.starts_with("'\\");
    let one = rest.chars().nth(1).map_or(0, char::len_utf8);
    if escaped || (rest.starts_with('\'') && one > 0 && rest[1 + one..].starts_with('\'')) {
        return at + quoted_length(rest, '\'');
    }
    at
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// How often `word` stands in `code` as a word of its own.
pub fn words(code: &str, word: &str) -> usize {
    let named = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c: char| !named(c)).filter(|w| *w == word).count()
}

#[test]
fn comments_and_literals_are_stripped() {
    let rust = r###"
        // unsafe
        /* unsafe /* unsafe */ unsafe */
        let a = "unsafe \" unsafe"; let b = r#"unsafe " unsafe"#; let c = b"unsafe";
        fn f<'unsafe_>(x: &'unsafe_ str) -> char { '"' } unsafe { g('\'') } unsafe_op();
    "###;
    assert_eq!(words(&code(rust), "unsafe"), 1, "{}", code(rust));
    assert_eq!(code(rust).lines().count(), rust.lines().count());
}
