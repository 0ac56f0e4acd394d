//! Output that cannot be written: a closed pipe, a pipe that is not read, and a full disk.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

use common::store_process::{StoreProcess, command, json};

/// Run with this stdout.
fn run(args: &[&str], stdout: impl Into<Stdio>) -> Output {
    command(args).stdout(stdout).stderr(Stdio::piped()).output().expect("run")
}

fn closed_pipe() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full_disk() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").expect("/dev/full").into()
}

#[test]
fn closed_stdout_ends_every_command_without_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().to_str().expect("text");
    let replay = ["replay", "--requests", "20", "--dram", "4MiB"];
    let own = ["--ssd", "64MiB", "--dir", store];
    json(&command(&[&replay[..], &own, &["--json"]].concat()).output().expect("run"));
    let bench =
        ["bench", "--tier", "dram", "--op", "get", "--object-bytes", "4KiB", "--data", "1MiB"];
    let bench = [&bench[..], &["--rounds", "1", "--seconds", "0.01"]].concat();
    for args in [
        &["--help"][..],
        &["key", "a"],
        &["config", "show"],
        &["config", "check"],
        &["config", "check", "--dram", "1B"],
        &["doctor", "--dir", "/nowhere"],
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
        let lines = String::from_utf8_lossy(&read.stderr).lines().count();
        let ended = run(args, closed_pipe());
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), read.status.code(), "{args:?} {text}");
        assert!(text.lines().count() == lines && !text.contains("panicked"), "{args:?} {text}");
    }
}

#[test]
fn stdout_on_a_full_disk_is_reported_as_an_error() {
    for args in [
        &["key", "a"][..],
        &["config", "show"],
        &["replay", "--json", "--requests", "5", "--ssd", "0"],
    ] {
        let ended = run(args, full_disk());
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?} {text}");
        assert!(
            text.contains("cannot write the result to stdout: No space left"),
            "{args:?} {text}"
        );
    }
}

#[test]
fn unwritable_stderr_ends_no_command() {
    for stderr in [closed_pipe, full_disk] {
        let mut replay = command(&["replay", "--json", "--requests", "5", "--ssd", "0"]);
        // Events of the library go to stderr too.
        replay.env("RUST_LOG", "trace").stderr(stderr());
        json(&replay.output().expect("run"));
        let missing = command(&["inspect", "/nowhere"]).stderr(stderr()).output().expect("run");
        assert_eq!(missing.status.code(), Some(2));
    }
}

/// A log whose reader does not read, and that reader, which must be kept.
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
fn serve_with_an_unwritable_log_serves_and_keeps_objects() {
    for log in ["closed pipe", "full disk", "unread"] {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let flags =
            ["--ssd", "256MiB", "--dir", store.to_str().expect("text"), "--metrics", "127.0.0.1:0"];
        let flags = [&flags[..], &["--listen", "tcp:127.0.0.1:0"]].concat();
        let (unread, _reader) = unread();
        let stderr = match log {
            "closed pipe" => closed_pipe(),
            "full disk" => full_disk(),
            _ => unread,
        };
        let mut server = StoreProcess::logging_to(stderr, &flags);
        let client =
            ["replay", "--json", "--object-bytes", "8KiB", "--requests", "100", "--attach"];
        let attach = |server: &StoreProcess| {
            json(&command(&[&client[..], &[&server.address]].concat()).output().expect("run"))
        };
        let (first, second) = (attach(&server), attach(&server));
        assert!(
            first["prefix_hit_ratio"] != 1.0 && second["prefix_hit_ratio"] == 1.0,
            "{first} {second}"
        );
        assert_eq!(server.get("/healthz").0, 200);
        end(&mut server.child);
        let again = attach(&StoreProcess::with(&flags));
        assert_eq!(again["prefix_hit_ratio"], 1.0, "objects are lost log={log} {again}");
    }
}
