//! `doctor`: its findings on this machine, and its exit status.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use common::seccomp::without_call;
use common::{ProgramOutput, pagelith, pagelith_with};
use serde_json::Value;

/// The checks of every machine, in their order.
const CHECKS: [&str; 14] = [
    "kernel",
    "io_uring",
    "huge-pages-anonymous",
    "huge-pages-shared",
    "locked-memory",
    "open-files",
    "dev-shm",
    "memory-limit",
    "cpus",
    "numa-nodes",
    "direct-io",
    "copy-on-write",
    "rdma-library",
    "rdma-devices",
];

/// The check of this name in the JSON output.
fn check(ran: &ProgramOutput, name: &str) -> Value {
    let all = ran.json();
    let found = all.as_array().unwrap().iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {ran:?}")).clone()
}

#[test]
fn text_names_every_check_and_ends_with_status_zero() {
    let ran = pagelith(&["doctor"]);
    assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{ran:?}");
    let names: Vec<&str> = ran
        .stdout
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(&names[..CHECKS.len()], CHECKS, "{ran:?}");
}

#[test]
fn json_is_a_list_of_checks_with_a_remedy_where_something_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let ran = pagelith(&["doctor", "--json", "--dir", dir.path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    let checks = json.as_array().unwrap();
    assert!(CHECKS.iter().all(|name| checks.iter().any(|check| check["name"] == *name)), "{ran:?}");
    for check in checks {
        let is_ok = check["state"] == "ok";
        assert!(is_ok || check["state"] == "note", "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
        assert_eq!(check["remedy"].is_null(), is_ok, "{check}");
    }
    // The temporary files are removed.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn missing_directory_is_a_problem_with_status_one() {
    let home = tempfile::tempdir().unwrap();
    let (missing, file) = (home.path().join("missing"), home.path().join("file"));
    std::fs::write(&file, "x").unwrap();
    for dir in [&missing, &file] {
        let dir = dir.to_str().unwrap();
        let ran = pagelith(&["doctor", "--json", "--dir", dir]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let check = check(&ran, "direct-io");
        assert_eq!(check["state"], "problem", "{check}");
        assert!(check["found"].as_str().unwrap().contains(dir), "{check}");
        assert!(check["remedy"].as_str().unwrap().contains("create the directory"), "{check}");
    }
    assert!(!missing.exists());
}

#[test]
fn directory_in_memory_is_a_note() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let ran = pagelith(&["doctor", "--json", "--dir", dir.path().to_str().unwrap()]);
    assert_eq!(
        (ran.code, &check(&ran, "direct-io")["state"]),
        (Some(0), &"note".into()),
        "{ran:?}"
    );
}

#[test]
fn refused_io_uring_is_a_note_with_the_errno() {
    // The same number on every architecture.
    const IO_URING_SETUP: i64 = 425;
    let ran = without_call(IO_URING_SETUP, || pagelith(&["doctor", "--json"]));
    let found = check(&ran, "io_uring");
    assert_eq!((ran.code, &found["state"]), (Some(0), &"note".into()), "{ran:?}");
    assert!(found["found"].as_str().unwrap().contains("errno=1"), "{found}");
    assert!(found["remedy"].as_str().unwrap().contains("seccomp profile"), "{found}");
}

/// The loader finds a file of the library's name first, which is no library.
#[test]
fn library_that_cannot_be_loaded_is_a_note_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libibverbs.so.1"), "not a library").unwrap();
    let env = [("LD_LIBRARY_PATH", dir.path().to_str().unwrap())];
    let ran = pagelith_with(&["doctor", "--json"], &env);
    let library = check(&ran, "rdma-library");
    assert_eq!((ran.code, &library["state"]), (Some(0), &"note".into()), "{ran:?}");
    assert!(library["found"].as_str().unwrap().contains("libibverbs.so.1"), "{library}");
    assert!(library["remedy"].as_str().unwrap().contains("install libibverbs1"), "{library}");
}
