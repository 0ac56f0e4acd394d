//! What a command would fail of later is found before it makes anything, and what it made is taken back.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files and processes")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::serving::{Serving, command};
use common::{pagelith, without_settings};

/// What `serve` says that cannot listen there; nothing was made.
fn refused_before_anything_is_made(listening: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("store");
    let store = ["serve", "--dram", "8MiB", "--ssd", "64MiB", "--dir", dir.to_str().expect("text")];
    let ran = pagelith(&[&store[..], listening].concat());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(std::fs::read_dir(home.path()).expect("listed").count(), 0, "{ran:?}");
    ran.stderr
}

#[test]
fn port_in_use_is_found_before_a_store_is_made() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let at = taken.local_addr().expect("an address").to_string();
    let said = refused_before_anything_is_made(&["--listen", &format!("tcp:{at}")]);
    assert!(said.contains(&at) && said.contains("in use"), "{said}");
    let said = refused_before_anything_is_made(&["--listen", "tcp:127.0.0.1:0", "--metrics", &at]);
    assert!(said.contains(&format!("--metrics={at}")) && said.contains("in use"), "{said}");
}

#[test]
fn socket_path_that_is_too_long_or_in_use_is_found_before_a_store_is_made() {
    let long = format!("unix:/tmp/{}", "p".repeat(103));
    let said = refused_before_anything_is_made(&["--listen", &long]);
    assert!(said.contains("at most 107 bytes, this one has 108"), "{said}");
    let home = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", home.path().join("socket").display());
    let server = Serving::at(&address);
    let said = refused_before_anything_is_made(&["--listen", &address]);
    assert!(said.contains("in use"), "{said}");
    // The one that has it is still there.
    let replay = command(&["replay", "--attach", &address, "--requests", "1"]).output().expect("run");
    assert!(replay.status.success(), "{replay:?}");
    drop(server);
}

#[test]
fn transfer_memory_is_of_any_size_in_its_range() {
    for size in ["64KiB", "65537", "1MB"] {
        drop(Serving::with(&["--listen", "tcp:127.0.0.1:0", "--transfer", size]));
    }
    for size in ["0", "65535", "2TiB"] {
        let said = refused_before_anything_is_made(&["--transfer", size]);
        assert!(said.contains("--transfer") && said.contains("between 64KiB and 1TiB"), "{said}");
    }
}

/// Run under a limit of 20 MiB a file.
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
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("text"))
}

#[test]
fn limit_of_a_files_length_is_named_beforehand_and_ends_nobody() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("store");
    let store = ["--ssd", "64MiB", "--dir", dir.to_str().expect("text")];
    let replay = ["replay", "--dram", "8MiB", "--requests", "10"];
    for (code, command) in [(1, &["config", "check"][..]), (2, &["serve", "--dram", "8MiB"]), (2, &replay)] {
        let (ended, said) = limited(&[command, &store].concat());
        assert!(
            ended == Some(code) && said.contains("ssd.bytes: needs a file of"),
            "{command:?} {ended:?} {said}"
        );
        assert!(said.contains("ulimit -f"), "{said}");
    }
    assert!(!dir.exists());
    // So does one that is there already.
    let made = pagelith(&[&replay[..], &store].concat());
    assert_eq!(made.code, Some(0), "{made:?}");
    let (ended, said) = limited(&[&replay[..], &store].concat());
    assert!(ended == Some(2) && said.contains("ulimit -f"), "{ended:?} {said}");
    // Memory that is shared is a file as well, and so is that of `--transfer`, where sharing was asked for by name.
    let shared = [("PAGELITH_DRAM__SHARED", "true")];
    let socket = format!("unix:{}", home.path().join("socket").display());
    let (ended, said) = limited_with(&shared, &["serve", "--listen", &socket]);
    assert!(ended == Some(2) && said.contains("dram.bytes: is a file of memory"), "{ended:?} {said}");
    let (ended, said) = limited_with(&shared, &["serve", "--listen", &socket, "--dram", "1MiB"]);
    assert!(
        ended == Some(2) && said.contains("--transfer") && said.contains("ulimit -f"),
        "{ended:?} {said}"
    );
}

#[test]
fn output_beyond_the_limit_of_a_files_length_is_no_signal() {
    let home = tempfile::tempdir().expect("a directory");
    let output = std::fs::File::create(home.path().join("output")).expect("made");
    let mut shell = without_settings(Command::new("bash"));
    shell.args(["-c", "ulimit -f 1; exec \"$0\" config show", env!("CARGO_BIN_EXE_pagelith")]);
    let ended = shell.stdout(output).stderr(Stdio::null()).status().expect("run");
    assert!(!ended.success() && ended.code().is_some(), "{ended:?}");
}

#[test]
fn directory_whose_files_are_memory_is_told_of_beforehand() {
    let shm = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let dir = shm.path().join("store");
    let dir = dir.to_str().expect("text");
    let check = |ssd: &str| pagelith(&["config", "check", "--dir", dir, "--ssd", ssd]);
    let fits = check("64MiB");
    assert!(
        fits.code == Some(0) && fits.stdout.contains(&format!("are memory, and are lost with it dir={dir}")),
        "{fits:?}"
    );
    let too_much = check("60TiB");
    assert!(
        too_much.code == Some(1) && too_much.stdout.contains("ssd.dirs: must be on a drive"),
        "{too_much:?}"
    );
    let serve = pagelith(&["serve", "--dir", dir, "--ssd", "60TiB"]);
    assert!(serve.code == Some(2) && serve.stderr.contains("ssd.dirs: must be on a drive"), "{serve:?}");
    assert_eq!(std::fs::read_dir(shm.path()).expect("listed").count(), 0);
}

/// A replay whose store is in a directory of its own under `home`, once that is there.
fn replaying(home: &Path) -> Child {
    let mut replay = command(&["replay", "--requests", "1000000"]);
    replay.env("TMPDIR", home).env("RUST_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = replay.spawn().expect("spawned");
    let mut said = BufReader::new(child.stderr.take().expect("stderr"));
    let mut line = String::new();
    while !line.contains("store is open") {
        line.clear();
        assert!(said.read_line(&mut line).expect("a line") > 0, "it ended");
    }
    // It may go on saying things.
    std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
    assert_eq!(std::fs::read_dir(home).expect("listed").count(), 1);
    child
}

fn kill(child: &mut Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(killed.expect("run").success());
    assert!(!child.wait().expect("reaped").success());
}

#[test]
fn temporary_files_go_with_the_process_or_at_the_next_start() {
    let home = tempfile::tempdir().expect("a directory");
    let left = || std::fs::read_dir(home.path()).expect("listed").count();
    for signal in ["-TERM", "-INT", "-HUP"] {
        kill(&mut replaying(home.path()), signal);
        assert_eq!(left(), 0, "{signal}");
    }
    kill(&mut replaying(home.path()), "-KILL");
    assert_eq!(left(), 1);
    let next = command(&["replay", "--requests", "10"]).env("TMPDIR", home.path()).output().expect("run");
    assert!(next.status.success() && left() == 0, "{next:?}");
}
