//! Files that settings name must be regular and have the right owner. No message repeats the contents of a key file.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use common::serving::keys;

/// Long enough for any machine; a program that waits for the other end of a pipe is ended by it.
const SECONDS: &str = "60";

/// What the program says when it refuses these arguments.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let mut command = common::without_settings(Command::new("timeout"));
    let output = command
        .args(["--signal=KILL", SECONDS, env!("CARGO_BIN_EXE_pagelith")])
        .args(args)
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?} {said}");
    said
}

#[track_caller]
fn serve(keys: &str) -> String {
    refused(&["serve", "--dram", "1MiB", "--listen", "tcp:127.0.0.1:0", "--keys", keys])
}

/// As the key of a process that has other stores behind it.
#[track_caller]
fn client(key: &str) -> String {
    refused(&["replay", "--ssd", "0", "--requests", "1", "--remote", "tcp:127.0.0.1:1", "--key", key])
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Whether this process may give files to another user; if not, that is said past the test harness's capture.
fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "skipped: {what}: only root gives files away");
    }
    root
}

#[test]
fn key_file_that_others_can_read_or_change_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = keys(dir.path(), &["a"]);
    for mode in [0o640, 0o604, 0o620] {
        std::fs::set_permissions(&one, PermissionsExt::from_mode(mode)).expect("shared");
        assert!(serve(&one).contains("other users can read the keys") && client(&one).contains("chmod 600"));
    }
    std::fs::set_permissions(&one, PermissionsExt::from_mode(0o600)).expect("kept to oneself");
    if is_root("key_file_that_others_can_read_or_change_is_refused") {
        chown(&one, Some(12345), None).expect("given away");
        for said in [serve(&one), client(&one)] {
            assert!(said.contains("another user's") && said.contains("owner=12345"), "{said}");
        }
    }
}

#[test]
fn file_of_a_setting_that_is_not_regular_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["pipe", "pipe.toml"] {
        assert!(Command::new("mkfifo").arg(at(name)).status().expect("run").success());
    }
    let _listeners = ["socket", "socket.json"].map(|name| UnixListener::bind(at(name)).expect("a socket"));
    for name in ["directory", "directory.toml"] {
        std::fs::create_dir(at(name)).expect("a directory");
    }
    for path in [&at("pipe"), &at("socket"), &at("directory"), Path::new("/dev/zero")] {
        let config = at("key.toml");
        std::fs::write(&config, format!("[remote]\nkey = {path:?}\npeers = [\"tcp:127.0.0.1:1\"]\n"))
            .expect("written");
        let listen = ["serve", "--dram", "1MiB", "--listen", "tcp:127.0.0.1:0", "--config", text(&config)];
        for said in [serve(text(path)), client(text(path)), refused(&listen)] {
            assert!(said.contains("not a regular file") && said.contains(text(path)), "{said}");
        }
    }
    for name in ["pipe.toml", "socket.json", "directory.toml"] {
        for command in [&["config", "check"][..], &["serve"], &["replay"]] {
            let said = refused(&[command, &["--config", text(&at(name))]].concat());
            assert!(said.contains("not a regular file") && said.contains(name), "{said}");
        }
    }
}

/// No part of a secret either: eight digits of it would be a part.
#[track_caller]
fn repeats_nothing(said: &str, secret: &str) {
    let parts = secret.as_bytes().windows(6).map(|part| std::str::from_utf8(part).expect("digits"));
    for part in parts {
        assert!(!said.contains(part), "{part} of a secret is said: {said}");
    }
}

#[test]
fn nothing_that_stands_in_a_key_file_is_repeated() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ring");
    // No part of it stands in the path, or in a word of a message.
    let secret = "9f3ae07c51d842b6".repeat(4);
    let (short, half) = (&secret[..60], &secret[..31]);
    let spaced = format!("{} {}", &secret[..32], &secret[32..]);
    let entry = |name: &str, secret: &str, rest: &str| {
        format!("[[key]]\nname = \"{name}\"\nsecret = \"{secret}\"\n{rest}")
    };
    let wrong = [
        (entry("a", short, ""), "secret is not 64 hexadecimal digits in quotes entry=1 line=1"),
        (entry("a", &spaced, ""), "secret is not 64 hexadecimal digits"),
        (entry("a", &format!("{}g", &secret[..63]), ""), "secret is not 64 hexadecimal digits"),
        (
            format!("[[key]]\nname = \"a\"\nsceret = \"{short}\""),
            "an entry has name, secret, rights and namespaces",
        ),
        (
            format!("[[key]]\nname = \"a\"\n\"{half}\" = \"{secret}\""),
            "an entry has name, secret, rights and namespaces",
        ),
        (
            format!("[[key]]\nname = \"a\"\nsecret = {short}"),
            "not TOML of [[key]] entries whose texts are in quotes line=3",
        ),
        (format!("[[key]]\nname = \"a\"\nsecret = [\"{secret}\"]"), "secret is not 64 hexadecimal digits"),
        (format!("key = \"{secret}\""), "not TOML of [[key]] entries"),
        (format!("key = [\"{half}\"]"), "not TOML of [[key]] entries"),
        (format!("{half} = \"a\""), "not TOML of [[key]] entries"),
        (secret.clone(), "not TOML of [[key]] entries"),
        (entry(&secret, "a", ""), "secret is not 64 hexadecimal digits"),
        (entry(half, half, ""), "secret is not 64 hexadecimal digits"),
        (entry(&secret, &secret, ""), "name must be 1 to 31 of"),
        (entry(&format!("{half}="), &secret, ""), "name must be 1 to 31 of"),
        (
            format!("[[key]]\nname = {{ a = \"{half}\" }}\nsecret = \"{secret}\""),
            "name is missing, or no text",
        ),
        (entry("a", &secret, &format!("rights = [\"{half}\"]")), "rights must be a list of"),
        (entry("a", &secret, "rights = [\"all\"]"), "rights must be a list of"),
        (
            entry("a", &secret, &format!("namespaces = [\"{half}\"]")),
            "namespaces must be a list of texts of 32",
        ),
        (
            entry("a", &secret, &format!("namespaces = \"{half}\"")),
            "namespaces must be a list of texts of 32",
        ),
        (entry("a", &secret, "\n") + &entry("a", &secret, ""), "the name is another entry's as well entry=2"),
        (
            entry(half, &secret, "\n") + &entry(half, &secret, ""),
            "the name is another entry's as well entry=2",
        ),
        (
            entry("a", &secret, "\n") + &entry("b", half, ""),
            "secret is not 64 hexadecimal digits in quotes entry=2 line=5",
        ),
    ];
    for (content, why) in wrong {
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("kept to oneself");
        let said = serve(text(&path));
        assert!(said.contains(why) && said.contains(text(&path)), "{why}: {said}");
        repeats_nothing(&said, &secret);
        repeats_nothing(&client(text(&path)), &secret);
    }
    // Bytes that are no text, and the secret in place of the file.
    std::fs::write(&path, [&b"\xff"[..], secret.as_bytes()].concat()).expect("written");
    for said in
        [serve(text(&path)), client(text(&path)), serve(&secret), client(&secret), serve(short), client(half)]
    {
        repeats_nothing(&said, &secret);
    }
    // A client's has one.
    std::fs::write(&path, entry("a", &secret, "\n") + &entry("b", &secret, "")).expect("written");
    assert!(client(text(&path)).contains("a client's file has one key keys=2"));
    assert!(refused(&["serve", "--beyond-this-host"]).contains("--keys <FILE>"));
}
