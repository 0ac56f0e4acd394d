//! Errors are found before a command creates files, and temporary files are removed.
#![allow(
    clippy::disallowed_methods,
    reason = "a test sets up and looks at real files and processes"
)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::store_process::{StoreProcess, command};
use common::{pagelith, without_settings};

/// The error of `serve` with these flags; asserts that it created nothing.
fn refused_without_files(listening: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("store");
    let store = ["serve", "--dram", "8MiB", "--ssd", "64MiB", "--dir", dir.to_str().expect("text")];
    let ran = pagelith(&[&store[..], listening].concat());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(std::fs::read_dir(home.path()).expect("listed").count(), 0, "{ran:?}");
    ran.stderr
}

#[test]
fn port_in_use_is_found_before_a_store_is_created() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let at = taken.local_addr().expect("an address").to_string();
    let message = refused_without_files(&["--listen", &format!("tcp:{at}")]);
    assert!(message.contains(&at) && message.contains("in use"), "{message}");
    let message = refused_without_files(&["--listen", "tcp:127.0.0.1:0", "--metrics", &at]);
    assert!(
        message.contains(&format!("--metrics={at}")) && message.contains("in use"),
        "{message}"
    );
}

#[test]
fn unusable_socket_path_is_found_before_a_store_is_created() {
    let long = format!("unix:/tmp/{}", "p".repeat(103));
    let message = refused_without_files(&["--listen", &long]);
    assert!(message.contains("at most 107 bytes, this one has 108"), "{message}");
    let home = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", home.path().join("socket").display());
    let server = StoreProcess::at(&address);
    let message = refused_without_files(&["--listen", &address]);
    assert!(message.contains("in use"), "{message}");
    // The first server still works.
    let replay =
        command(&["replay", "--attach", &address, "--requests", "1"]).output().expect("run");
    assert!(replay.status.success(), "{replay:?}");
    drop(server);
}

#[test]
fn transfer_memory_outside_its_range_is_refused() {
    for size in ["64KiB", "65537", "1MB"] {
        drop(StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--transfer", size]));
    }
    for size in ["0", "65535", "2TiB"] {
        let message = refused_without_files(&["--transfer", size]);
        assert!(
            message.contains("--transfer") && message.contains("between 64KiB and 1TiB"),
            "{message}"
        );
    }
}

/// Run with a file size limit of 20 MiB.
fn limited(args: &[&str]) -> (Option<i32>, String) {
    limited_with(&[], args)
}

fn limited_with(env: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut shell = without_settings(Command::new("bash"));
    let output = shell
        .args(["-c", "ulimit -f 20480; exec \"$0\" \"$@\"", program])
        .args(args)
        .envs(env.iter().copied())
        .output()
        .expect("run");
    let message = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(message).expect("text"))
}

#[test]
fn file_size_limit_is_reported_before_a_store_is_created() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("store");
    let store = ["--ssd", "64MiB", "--dir", dir.to_str().expect("text")];
    let replay = ["replay", "--dram", "8MiB", "--requests", "10"];
    for (code, command) in
        [(1, &["config", "check"][..]), (2, &["serve", "--dram", "8MiB"]), (2, &replay)]
    {
        let (ended, message) = limited(&[command, &store].concat());
        assert!(
            ended == Some(code) && message.contains("ssd.bytes: needs a file of"),
            "{command:?} {ended:?} {message}"
        );
        assert!(message.contains("ulimit -f"), "{message}");
    }
    assert!(!dir.exists());
    // The same for an existing store.
    let made = pagelith(&[&replay[..], &store].concat());
    assert_eq!(made.code, Some(0), "{made:?}");
    let (ended, message) = limited(&[&replay[..], &store].concat());
    assert!(ended == Some(2) && message.contains("ulimit -f"), "{ended:?} {message}");
    // Shared memory is a file too, and with dram.shared = true so is the memory of `--transfer`.
    let shared = [("PAGELITH_DRAM__SHARED", "true")];
    let socket = format!("unix:{}", home.path().join("socket").display());
    let (ended, message) = limited_with(&shared, &["serve", "--listen", &socket]);
    assert!(
        ended == Some(2) && message.contains("dram.bytes: is a file of memory"),
        "{ended:?} {message}"
    );
    let (ended, message) = limited_with(&shared, &["serve", "--listen", &socket, "--dram", "1MiB"]);
    assert!(
        ended == Some(2) && message.contains("--transfer") && message.contains("ulimit -f"),
        "{ended:?} {message}"
    );
}

#[test]
fn output_beyond_the_file_size_limit_is_an_error_not_a_signal() {
    let home = tempfile::tempdir().expect("a directory");
    let output = std::fs::File::create(home.path().join("output")).expect("made");
    let mut shell = without_settings(Command::new("bash"));
    // The limit is 1024 bytes, and so the directory has a long name.
    let show =
        format!("ulimit -f 1; exec \"$0\" config show --ssd 1GiB --dir /{}", "d".repeat(100));
    shell.args(["-c", &show, env!("CARGO_BIN_EXE_pagelith")]);
    let ended = shell.stdout(output).stderr(Stdio::null()).status().expect("run");
    assert!(!ended.success() && ended.code().is_some(), "{ended:?}");
}

#[test]
fn directory_in_a_memory_file_system_is_reported_before_a_store_is_created() {
    let shm = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = shm.path().join("store");
    let dir = dir.to_str().expect("text");
    let check = |ssd: &str| pagelith(&["config", "check", "--dir", dir, "--ssd", ssd]);
    let fits = check("64MiB");
    assert!(
        fits.code == Some(0)
            && fits.stdout.contains(&format!("are memory, and are lost with it dir={dir}")),
        "{fits:?}"
    );
    let too_much = check("60TiB");
    assert!(
        too_much.code == Some(1) && too_much.stdout.contains("ssd.dirs: must be on a drive"),
        "{too_much:?}"
    );
    let serve = pagelith(&["serve", "--dir", dir, "--ssd", "60TiB"]);
    assert!(
        serve.code == Some(2) && serve.stderr.contains("ssd.dirs: must be on a drive"),
        "{serve:?}"
    );
    assert_eq!(std::fs::read_dir(shm.path()).expect("listed").count(), 0);
}

/// A running replay whose store is in a temporary directory under `home`. `hangup` is a flag
/// of `env` for SIGHUP: these tests may run under `nohup` themselves.
fn replaying(home: &Path, hangup: &str) -> Child {
    let mut replay = without_settings(Command::new("env"));
    replay.args([hangup, env!("CARGO_BIN_EXE_pagelith"), "replay", "--requests", "1000000"]);
    replay.env("TMPDIR", home).env("RUST_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = replay.spawn().expect("spawned");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr"));
    let mut line = String::new();
    while !line.contains("store is open") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("a line") > 0, "it ended");
    }
    // Keep reading its log.
    std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
    assert_eq!(std::fs::read_dir(home).expect("listed").count(), 1);
    child
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("run").success());
}

/// Send a signal; returns the one that ended the process.
fn kill(mut child: Child, signal: &str) -> Option<i32> {
    send(&child, signal);
    child.wait().expect("reaped").signal()
}

#[test]
fn temporary_files_are_removed_by_signals_or_at_the_next_start() {
    let home = tempfile::tempdir().expect("a directory");
    let left = || std::fs::read_dir(home.path()).expect("listed").count();
    for (signal, number) in [("-TERM", 15), ("-INT", 2), ("-HUP", 1)] {
        let ended_by = kill(replaying(home.path(), "--default-signal=HUP"), signal);
        assert_eq!((ended_by, left()), (Some(number), 0), "{signal}");
    }
    let ignoring = replaying(home.path(), "--ignore-signal=HUP");
    send(&ignoring, "-HUP");
    assert_eq!((kill(ignoring, "-TERM"), left()), (Some(15), 0), "as under nohup");
    assert_eq!(
        (kill(replaying(home.path(), "--default-signal=HUP"), "-KILL"), left()),
        (Some(9), 1)
    );
    let next =
        command(&["replay", "--requests", "10"]).env("TMPDIR", home.path()).output().expect("run");
    assert!(next.status.success() && left() == 0, "{next:?}");
}
