//! Files named by settings must be regular and have the right owner. No message contains parts of a
//! key file.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use common::store_process::keys;

/// Time limit that ends a program which blocks on a pipe.
const SECONDS: &str = "60";

/// The error of the program with these arguments.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let mut command = common::without_settings(Command::new("timeout"));
    let output = command
        .args(["--signal=KILL", SECONDS, env!("CARGO_BIN_EXE_pagelith")])
        .args(args)
        .output()
        .expect("run");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?} {message}");
    message
}

#[track_caller]
fn serve(keys: &str) -> String {
    refused(&["serve", "--dram", "1MiB", "--listen", "tcp:127.0.0.1:0", "--keys", keys])
}

/// The error for this key file of a process with peers.
#[track_caller]
fn client(key: &str) -> String {
    refused(&[
        "replay",
        "--ssd",
        "0",
        "--requests",
        "1",
        "--remote",
        "tcp:127.0.0.1:1",
        "--key",
        key,
    ])
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Whether this process can change the owner of files; if not, prints a visible skip.
fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "skipped: {what}: only root gives files away");
    }
    root
}

#[test]
fn key_file_accessible_to_others_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = keys(dir.path(), &["a"]);
    for mode in [0o640, 0o604, 0o620] {
        std::fs::set_permissions(&one, PermissionsExt::from_mode(mode)).expect("shared");
        assert!(
            serve(&one).contains("other users can read the file of keys")
                && client(&one).contains("chmod 600")
        );
    }
    std::fs::set_permissions(&one, PermissionsExt::from_mode(0o600)).expect("made private");
    if is_root("key_file_accessible_to_others_is_refused") {
        chown(&one, Some(12345), None).expect("given away");
        for message in [serve(&one), client(&one)] {
            assert!(
                message.contains("belongs to another user") && message.contains("owner=12345"),
                "{message}"
            );
        }
    }
}

#[test]
fn special_file_in_a_setting_is_refused_without_blocking() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["pipe", "pipe.toml"] {
        assert!(Command::new("mkfifo").arg(at(name)).status().expect("run").success());
    }
    let _listeners =
        ["socket", "socket.json"].map(|name| UnixListener::bind(at(name)).expect("a socket"));
    for name in ["directory", "directory.toml"] {
        std::fs::create_dir(at(name)).expect("a directory");
    }
    for path in [&at("pipe"), &at("socket"), &at("directory"), Path::new("/dev/zero")] {
        let config = at("key.toml");
        std::fs::write(
            &config,
            format!("[remote]\nkey = {path:?}\npeers = [\"tcp:127.0.0.1:1\"]\n"),
        )
        .expect("written");
        let listen =
            ["serve", "--dram", "1MiB", "--listen", "tcp:127.0.0.1:0", "--config", text(&config)];
        for message in [serve(text(path)), client(text(path)), refused(&listen)] {
            assert!(
                message.contains("not a regular file") && message.contains(text(path)),
                "{message}"
            );
        }
    }
    for name in ["pipe.toml", "socket.json", "directory.toml"] {
        for command in [&["config", "check"][..], &["serve"], &["replay"]] {
            let message = refused(&[command, &["--config", text(&at(name))]].concat());
            assert!(message.contains("not a regular file") && message.contains(name), "{message}");
        }
    }
}

/// Check that a message contains no six digits of a secret.
#[track_caller]
fn assert_no_secret(message: &str, secret: &str) {
    let parts = secret.as_bytes().windows(6).map(|part| std::str::from_utf8(part).expect("digits"));
    for part in parts {
        assert!(!message.contains(part), "the message has a part of a secret {part}: {message}");
    }
}

#[test]
fn message_about_a_key_file_has_no_part_of_its_content() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ring");
    // No part of it occurs in the path or in the words of a message.
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
        (
            format!("[[key]]\nname = \"a\"\nsecret = [\"{secret}\"]"),
            "secret is not 64 hexadecimal digits",
        ),
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
            "name is missing, or is not a string",
        ),
        (entry("a", &secret, &format!("rights = [\"{half}\"]")), "rights must be a list of"),
        (entry("a", &secret, "rights = [\"all\"]"), "rights must be a list of"),
        (
            entry("a", &secret, &format!("namespaces = [\"{half}\"]")),
            "namespaces must be a list of strings of 32",
        ),
        (
            entry("a", &secret, &format!("namespaces = \"{half}\"")),
            "namespaces must be a list of strings of 32",
        ),
        (
            entry("a", &secret, "\n") + &entry("a", &secret, ""),
            "two entries have this name entry=2",
        ),
        (
            entry(half, &secret, "\n") + &entry(half, &secret, ""),
            "two entries have this name entry=2",
        ),
        (
            entry("a", &secret, "\n") + &entry("b", half, ""),
            "secret is not 64 hexadecimal digits in quotes entry=2 line=5",
        ),
    ];
    for (content, why) in wrong {
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("made private");
        let message = serve(text(&path));
        assert!(message.contains(why) && message.contains(text(&path)), "{why}: {message}");
        assert_no_secret(&message, &secret);
        assert_no_secret(&client(text(&path)), &secret);
    }
    // Bytes that are not UTF-8, and the secret as the path.
    std::fs::write(&path, [&b"\xff"[..], secret.as_bytes()].concat()).expect("written");
    for message in [
        serve(text(&path)),
        client(text(&path)),
        serve(&secret),
        client(&secret),
        serve(short),
        client(half),
    ] {
        assert_no_secret(&message, &secret);
    }
    // A client's key file has one entry.
    std::fs::write(&path, entry("a", &secret, "\n") + &entry("b", &secret, "")).expect("written");
    assert!(client(text(&path)).contains("a client's file must have exactly one key keys=2"));
    assert!(refused(&["serve", "--allow-remote"]).contains("--keys <FILE>"));
}
