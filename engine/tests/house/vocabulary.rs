//! The words of comments and of texts that users see: those of the field.

use super::source::{code, files, is_test_file, text};

/// Words of an old dialect, and what to say instead.
const BANNED: [(&str, &str); 9] = [
    ("nobody", "no thread, no caller, no client"),
    ("somebody", "a thread, a caller, a client"),
    ("whoever", "the thread, caller or client that"),
    ("whomever", "the thread, caller or client that"),
    ("who", "a thread, a caller, a client that"),
    ("in vain", "without success"),
    ("afar", "remote"),
    ("beside", "next to, concurrently, as well as"),
    ("told", "notified, reported, distinguished"),
];
/// The crates that ship.
const CRATES: [&str; 8] =
    ["layouts", "io", "tiers", "transport", "client", "engine", "cli", "python"];
/// Texts that hold a banned word for a reason.
const ALLOWED: [(&str, &str); 2] = [
    // The user's name.
    ("io/src/regular_file.rs", "to the user nobody"),
    // The name of a key in the report of a bench, which scripts read.
    ("cli/src/bench/mod.rs", "--beside="),
];

/// The comments and texts of a file: everything but its code.
fn prose(rust: &str) -> String {
    let code = code(rust);
    let masked = |(c, seen): (char, char)| if c == seen && !c.is_whitespace() { ' ' } else { c };
    rust.chars().zip(code.chars()).map(masked).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let line = line.to_lowercase();
    let named = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(named) && !line[at + word.len()..].starts_with(named))
}

/// Banned words of a file, by line.
fn banned(path: &str, rust: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in prose(rust).lines().enumerate() {
        for (word, instead) in BANNED {
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
    let sources = CRATES.iter().flat_map(|dir| files(&format!("{dir}/src"), ".rs"));
    let shipped = sources.filter(|path| !is_test_file(path));
    let found: Vec<_> = shipped.flat_map(|path| banned(&path, &text(&path))).collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn banned_word_is_detected_in_comments_and_texts_only() {
    assert_eq!(banned("a.rs", "/// For who asks.").len(), 1);
    assert_eq!(banned("a.rs", "let a = \"Nobody answers\";").len(), 1);
    assert_eq!(banned("a.rs", "let told = whole(1); // besides, whose").len(), 0);
}
