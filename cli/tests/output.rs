//! Output that cannot be written: a reader that has gone, one that does not read, and a full disk.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

use common::serving::{Serving, command, json};

/// Run with a stdout that `stdout` is.
fn run(args: &[&str], stdout: impl Into<Stdio>) -> Output {
    command(args).stdout(stdout).stderr(Stdio::piped()).output().expect("run")
}

fn gone() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").expect("/dev/full").into()
}

#[test]
fn stdout_that_nobody_reads_ends_every_command_quietly() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().to_str().expect("text");
    let replay = ["replay", "--requests", "20", "--dram", "4MiB"];
    let own = ["--ssd", "64MiB", "--dir", store];
    json(&command(&[&replay[..], &own, &["--json"]].concat()).output().expect("run"));
    let bench = ["bench", "--tier", "dram", "--op", "get", "--object-bytes", "4KiB", "--data", "1MiB"];
    let bench = [&bench[..], &["--rounds", "1", "--seconds", "0.01"]].concat();
    for args in [
        &["--help"][..],
        &["key", "a"],
        &["config", "show"],
        &["config", "check"],
        &["config", "check", "--dram", "1B"],
        &["inspect", store],
        &["inspect", "--json", store],
        &["verify", store],
        &["verify", "--json", store],
        &["verify", "--repair", store],
        &["verify", "--repair", "--json", store],
        &bench,
        &replay,
        &[&replay[..], &["--json"]].concat(),
    ] {
        let read = run(args, Stdio::piped());
        let said = String::from_utf8_lossy(&read.stderr).lines().count();
        let ended = run(args, gone());
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), read.status.code(), "{args:?} {text}");
        assert!(text.lines().count() == said && !text.contains("panicked"), "{args:?} {text}");
    }
}

#[test]
fn stdout_on_a_full_disk_is_an_error_with_a_name() {
    for args in
        [&["key", "a"][..], &["config", "show"], &["replay", "--json", "--requests", "5", "--ssd", "0"]]
    {
        let ended = run(args, full());
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?} {text}");
        assert!(text.contains("cannot write the result to stdout: No space left"), "{args:?} {text}");
    }
}

#[test]
fn stderr_that_nobody_takes_ends_no_command() {
    for stderr in [gone, full] {
        let mut replay = command(&["replay", "--json", "--requests", "5", "--ssd", "0"]);
        // Events of the library are written there too.
        replay.env("RUST_LOG", "trace").stderr(stderr());
        json(&replay.output().expect("run"));
        let missing = command(&["inspect", "/nowhere"]).stderr(stderr()).output().expect("run");
        assert_eq!(missing.status.code(), Some(2));
    }
}

/// A log whose reader is there and does not read; it is returned, to be kept.
fn unread() -> (Stdio, UnixStream) {
    let (reader, mut writer) = UnixStream::pair().expect("a pair");
    writer.set_nonblocking(true).expect("set");
    let filled = std::iter::repeat_with(|| writer.write(&[b'x'; 64])).find_map(Result::err);
    assert_eq!(filled.map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    writer.set_nonblocking(false).expect("set");
    (OwnedFd::from(writer).into(), reader)
}

fn end(child: &mut Child) {
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("run").success());
    assert_eq!(child.wait().expect("reaped").code(), Some(0));
}

#[test]
fn serve_whose_log_nobody_takes_serves_and_keeps_what_was_put() {
    for log in ["gone", "full", "unread"] {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags = ["--ssd", "256MiB", "--dir", store.to_str().expect("text"), "--metrics", "127.0.0.1:0"];
        let flags = [&flags[..], &["--listen", "tcp:127.0.0.1:0"]].concat();
        let (unread, _reader) = unread();
        let stderr = match log {
            "gone" => gone(),
            "full" => full(),
            _ => unread,
        };
        let mut server = Serving::logging_to(stderr, &flags);
        let client = ["replay", "--json", "--object-bytes", "8KiB", "--requests", "100", "--attach"];
        let attach = |server: &Serving| {
            json(&command(&[&client[..], &[&server.address]].concat()).output().expect("run"))
        };
        let (first, second) = (attach(&server), attach(&server));
        assert!(first["prefix_hit_ratio"] != 1.0 && second["prefix_hit_ratio"] == 1.0, "{first} {second}");
        assert_eq!(server.get("/healthz").0, 200);
        end(&mut server.child);
        let again = attach(&Serving::with(&flags));
        assert_eq!(again["prefix_hit_ratio"], 1.0, "what was put is lost log={log} {again}");
    }
}
