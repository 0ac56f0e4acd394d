//! `doctor rdma` over devices of the fake verbs library: good ones, and one that breaks each rule.
#![allow(clippy::disallowed_methods, reason = "a test copies the library")]

mod common;
#[path = "../../io/tests/fakes/library.rs"]
mod fake_library;

use common::{ProgramOutput, pagelith_with};
use serde_json::Value;

/// The checks of a port, in their order.
const CASES: [&str; 6] =
    ["rdma-write", "rdma-read", "rdma-notice", "rdma-drain", "rdma-destroy", "rdma-deregister"];

/// Bytes of each device are under way for a time, so that a transfer can be ended amid them.
const SLOW: &str = "late-bytes=400";

/// Run the program on a machine with these devices.
fn doctor(args: &[&str], devices: &[&str]) -> ProgramOutput {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fake_library::built("pagelith-fake-verbs"), dir.path().join("libibverbs.so.1"))
        .unwrap();
    let devices: Vec<String> = devices.iter().map(|device| format!("{SLOW} {device}")).collect();
    let env = [
        ("LD_LIBRARY_PATH", dir.path().to_str().unwrap()),
        ("TEST_PAGELITH_FAKE_VERBS", &devices.join(";")),
    ];
    pagelith_with(args, &env)
}

/// The checks of a run that had a problem, which is the only one.
fn only_problem(ran: &ProgramOutput) -> Value {
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let json = ran.json();
    let mut problems = json.as_array().unwrap().iter().filter(|check| check["state"] == "problem");
    let first = problems.next().unwrap_or_else(|| panic!("no problem: {ran:?}")).clone();
    assert_eq!(problems.next(), None);
    first
}

/// A device with one fault has a problem in one check, with this text.
fn broken(fault: &str, case: &str, text: &str) {
    let ran = doctor(&["doctor", "rdma", "--json"], &[fault]);
    let problem = only_problem(&ran);
    assert_eq!(problem["name"], case, "{problem}");
    let found = problem["found"].as_str().unwrap();
    assert!(found.contains(text) && found.ends_with("device=fake1 port=1"), "{problem}");
    assert!(problem["remedy"].as_str().unwrap().starts_with("do not use this device"), "{problem}");
    assert_eq!(ran.json().as_array().unwrap().len(), CASES.len(), "all cases are tried");
}

#[test]
fn good_devices_have_every_check_held_and_status_zero() {
    let ran = doctor(&["doctor", "rdma", "--json"], &["", "delay=3 late-completions=2"]);
    assert!(ran.code == Some(0) && ran.stderr.is_empty(), "{ran:?}");
    let json = ran.json();
    let checks = json.as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(names, [CASES, CASES].concat());
    for (at, check) in checks.iter().enumerate() {
        assert_eq!((&check["state"], &check["remedy"]), (&"ok".into(), &Value::Null), "{check}");
        let device = format!("device=fake{} port=1", at / CASES.len() + 1);
        assert!(check["found"].as_str().unwrap().ends_with(&device), "{check}");
    }
    assert!(checks[0]["found"].as_str().unwrap().contains("bytes=16777216 gb_per_s="));
    assert!(checks[3]["found"].as_str().unwrap().contains("rounds=5 amid_bytes="));
}

#[test]
fn text_has_a_line_for_each_case() {
    let ran = doctor(&["doctor", "rdma"], &[""]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let names: Vec<&str> =
        ran.stdout.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names, CASES, "{ran:?}");
}

#[test]
fn device_that_changes_bytes_is_a_problem() {
    let ran = doctor(&["doctor", "rdma", "--json"], &["corrupt=1"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let json = ran.json();
    for check in &json.as_array().unwrap()[..2] {
        assert_eq!(check["state"], "problem", "{check}");
        assert!(
            check["found"].as_str().unwrap().contains("wrong bytes arrived wrong=64"),
            "{check}"
        );
    }
}

#[test]
fn notice_before_its_data_is_a_problem() {
    let ran = doctor(&["doctor", "rdma", "--json"], &["notice-first=1"]);
    let json = ran.json();
    let check = json.as_array().unwrap().iter().find(|check| check["name"] == "rdma-notice");
    let check = check.unwrap();
    assert_eq!((ran.code, &check["state"]), (Some(1), &"problem".into()), "{ran:?}");
    assert!(check["found"].as_str().unwrap().contains("bytes were missing"), "{check}");
}

#[test]
fn queue_that_is_never_drained_is_a_problem() {
    broken("never-drain=1", "rdma-drain", "the queues were not drained in time round=1");
}

#[test]
fn bytes_after_drain_are_a_problem() {
    broken("lands-after-error=1", "rdma-drain", "bytes landed late bytes=");
}

#[test]
fn bytes_after_destroy_are_a_problem() {
    broken("lands-after-destroy=1", "rdma-destroy", "bytes landed late bytes=");
}

#[test]
fn bytes_after_deregistration_are_a_problem() {
    broken("lands-after-deregister=1", "rdma-deregister", "bytes landed late bytes=");
}

#[test]
fn queue_pair_that_cannot_be_destroyed_is_a_problem() {
    broken("fail-destroy=1000", "rdma-destroy", "ibv_destroy_qp failed: ");
}

#[test]
fn completion_that_is_lost_is_a_problem() {
    broken("lose-completion=3", "rdma-write", "no completion in 10 s");
}

#[test]
fn limit_of_the_device_is_a_problem_with_the_limit() {
    let ran = doctor(&["doctor", "rdma", "--json"], &["max-mr-size=1048576"]);
    let json = ran.json();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for check in json.as_array().unwrap() {
        let found = check["found"].as_str().unwrap();
        assert!(found.starts_with("cannot connect the port with itself: memory region"), "{check}");
        assert!(found.contains("max_mr_size=1048576"), "{check}");
        assert!(check["remedy"].as_str().unwrap().starts_with("do what the error says"), "{check}");
    }
}

#[test]
fn machine_without_a_usable_port_is_a_problem() {
    for (devices, name, text) in [
        (&[][..], "rdma-devices", "no RDMA device"),
        (&["port=down", "gids="], "rdma-devices", "no usable port"),
    ] {
        let problem = only_problem(&doctor(&["doctor", "rdma", "--json"], devices));
        assert_eq!(problem["name"], name, "{problem}");
        assert!(problem["found"].as_str().unwrap().starts_with(text), "{problem}");
    }
}

#[test]
fn port_that_is_down_is_skipped_with_its_reason() {
    let ran = doctor(&["doctor", "rdma", "--json"], &["port=down", ""]);
    let json = ran.json();
    let check = &json[0];
    assert_eq!((ran.code, &check["name"]), (Some(0), &"rdma-port".into()), "{ran:?}");
    let found = check["found"].as_str().unwrap();
    assert!(found.starts_with("skipped: port is not active"), "{check}");
    assert_eq!(json.as_array().unwrap().len(), 1 + CASES.len());
}

#[test]
fn plain_doctor_shows_limits_gids_and_distances_of_each_device() {
    let ran = doctor(&["doctor", "--json"], &["max-mr-size=1048576"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    let found = |name: &str| {
        let check = json.as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
        check["found"].as_str().unwrap().to_owned()
    };
    assert!(found("rdma-device").contains("device=fake1 numa_node=unknown ports=1"), "{ran:?}");
    assert!(found("rdma-device").contains("max_mr_size=1.0MiB"), "{ran:?}");
    assert!(found("rdma-gpu-distance").starts_with("device=fake1 gpus: "), "{ran:?}");
    assert!(found("rdma-gids").contains("chosen=2 gids: "), "{ran:?}");
}
