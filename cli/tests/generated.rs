//! Completions and manual pages.
#![allow(clippy::disallowed_methods, reason = "a test looks at real files")]

mod common;

use common::pagelith;

#[test]
fn completions_of_each_shell_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = pagelith(&["completions", shell]);
        assert_eq!(script.code, Some(0), "{script:?}");
        for command in ["serve", "stats", "top", "doctor"] {
            assert!(script.stdout.contains(command), "{shell} {command}");
        }
    }
}

#[test]
fn manual_pages_are_written_for_every_command_and_only_into_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    assert_eq!(pagelith(&["man", path]).code, Some(0));
    for page in ["pagelith.1", "pagelith-serve.1", "pagelith-stats.1", "pagelith-top.1"] {
        let text = std::fs::read_to_string(dir.path().join(page)).expect(page);
        assert!(text.contains(".TH") && text.contains("Example"), "{page}");
    }
    let missing = pagelith(&["man", &format!("{path}/none")]);
    assert!(missing.code == Some(2) && missing.stderr.contains("dir="), "{missing:?}");
}
