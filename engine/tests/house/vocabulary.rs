//! The words of comments, documents and texts that users see: those of the field.

use super::docs::pages;
use super::source::{code, files, rust_files, text};

/// Words of an old dialect, and their replacements.
const BANNED: [(&str, &str); 14] = [
    ("nobody", "no thread, no caller, no client"),
    ("somebody", "a thread, a caller, a client"),
    ("everybody", "all threads, callers, clients"),
    ("anybody", "any thread, caller, client"),
    ("whoever", "the thread, caller or client that"),
    ("whomever", "the thread, caller or client that"),
    ("who", "a thread, a caller, a client that"),
    ("in vain", "without success"),
    ("afar", "remote"),
    ("beside", "next to, concurrently, as well as"),
    ("told", "notified, reported, distinguished"),
    ("lets go", "releases"),
    ("let go", "released"),
    ("look-up", "lookup"),
];
/// Words that code and its messages do not use either.
const BANNED_IN_RUST: [(&str, &str); 2] =
    [("asked for", "requested, configured"), ("going without", "is not used")];
/// Texts that hold a banned word for a reason.
const ALLOWED: [(&str, &str); 4] = [
    // The user's name.
    ("io/src/regular_file.rs", "to the user nobody"),
    // The name of a flag, and of a key in the report of a bench, which scripts read.
    ("cli/src/bench/mod.rs", "--beside="),
    ("cli/tests/bench.rs", "beside"),
    ("cli/tests/soak.rs", "\"beside\""),
];
/// A page rendered from kept results, which quote messages of earlier builds.
const RENDERED: &str = "docs/faults.md";

/// The comments and texts of a file: everything but its code.
fn rust_prose(rust: &str) -> String {
    let code = code(rust);
    let masked = |(c, seen): (char, char)| if c == seen && !c.is_whitespace() { ' ' } else { c };
    rust.chars().zip(code.chars()).map(masked).collect()
}

/// A page without its fenced blocks and code spans, line by line.
fn page_prose(page: &str) -> String {
    let (mut prose, mut is_fenced, mut is_span) = (String::new(), false, false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            // A span does not continue after a blank line.
            is_span &= !line.trim().is_empty();
            for c in line.chars() {
                is_span ^= c == '`';
                prose.push(if is_span || c == '`' { ' ' } else { c });
            }
        }
        prose.push('\n');
    }
    prose
}

/// The comments of a script, line by line.
fn script_prose(script: &str) -> String {
    let comment = |line: &str| {
        if line.trim_start().starts_with('#') { format!("{line}\n") } else { "\n".to_owned() }
    };
    script.lines().map(comment).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let line = line.to_lowercase();
    let named = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(named) && !line[at + word.len()..].starts_with(named))
}

/// Banned words of a file's prose, by line.
fn banned(path: &str, prose: &str, words: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in prose.lines().enumerate() {
        for (word, instead) in words {
            let allowed = ALLOWED.iter().any(|(of, text)| *of == path && line.contains(text));
            if has_word(line, word) && !allowed {
                found.push(format!("{path}:{}: {word}: say {instead}", number + 1));
            }
        }
    }
    found
}

#[test]
fn comments_and_texts_use_the_words_of_the_field() {
    let words = [&BANNED[..], &BANNED_IN_RUST].concat();
    // This file lists the words.
    let sources = rust_files().into_iter().filter(|path| !path.ends_with("house/vocabulary.rs"));
    let found: Vec<_> =
        sources.flat_map(|path| banned(&path, &rust_prose(&text(&path)), &words)).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn documents_and_scripts_use_the_words_of_the_field() {
    let pages = pages().into_iter().filter(|path| path != RENDERED);
    let pages = pages.map(|path| (page_prose(&text(&path)), path));
    let scripts = ["sim", "benches", "fuzz", "python"].iter().flat_map(|dir| files(dir, ".sh"));
    let scripts = scripts.chain([".ci/run".to_owned(), "docs/pagelith.service".to_owned()]);
    let scripts = scripts.map(|path| (script_prose(&text(&path)), path));
    let python = files("python/pagelith", ".py").into_iter().map(|path| (text(&path), path));
    let all = pages.chain(scripts).chain(python);
    let found: Vec<_> = all.flat_map(|(prose, path)| banned(&path, &prose, &BANNED)).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn banned_word_is_detected_in_comments_and_texts_only() {
    let found = |rust: &str| banned("a.rs", &rust_prose(rust), &BANNED).len();
    assert_eq!(found("/// For who asks."), 1);
    assert_eq!(found("let a = \"Nobody answers\";"), 1);
    assert_eq!(found("let told = whole(1); // besides, whose"), 0);
    let found = |page: &str| banned("a.md", &page_prose(page), &BANNED).len();
    assert_eq!(found("For `whoever` that\nis told, `a\nb` who"), 2);
    assert_eq!(found("```sh\nwho\n```\n`--beside`"), 0);
    assert_eq!(banned("a.sh", &script_prose("told=1\n  # who\n"), &BANNED).len(), 1);
}
