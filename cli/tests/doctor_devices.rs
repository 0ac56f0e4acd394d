//! `doctor` over devices of the fake drivers.
#![allow(clippy::disallowed_methods, reason = "a test copies the library")]

mod common;
#[path = "../../io/tests/fakes/library.rs"]
mod fake_library;

use common::{ProgramOutput, pagelith_with};
use serde_json::Value;

/// Run the program on a machine with a fake driver of this name.
fn doctor(library: &str, script: &str) -> ProgramOutput {
    let fake = fake_library::built("pagelith-fake-device");
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fake, dir.path().join(library)).unwrap();
    let env =
        [("LD_LIBRARY_PATH", dir.path().to_str().unwrap()), ("TEST_PAGELITH_FAKE_DEVICE", script)];
    pagelith_with(&["doctor", "--json"], &env)
}

/// The checks of this name.
fn named(ran: &ProgramOutput, name: &str) -> Vec<Value> {
    let all = ran.json();
    let checks = all.as_array().unwrap().iter().filter(|check| check["name"] == name);
    checks.cloned().collect()
}

#[test]
fn devices_are_shown_with_driver_and_place() {
    let ran = doctor("libcuda.so.1", "devices=2");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let driver = &named(&ran, "device-cuda")[0];
    assert_eq!(driver["found"], "library=libcuda.so.1 version=12.4 devices=2");
    let devices = named(&ran, "device");
    let right = "device=cuda:1 model=Fake GPU pci=0000:FA:0E.0 numa_node=unknown memory=80.0GiB";
    assert_eq!((devices.len(), &devices[1]["found"]), (2, &right.into()));
    let direct = named(&ran, "gpudirect")[0]["found"].as_str().unwrap().to_owned();
    assert!(direct.starts_with("not used by Pagelith peer-memory="), "{direct}");

    let ran = doctor("libascendcl.so", "");
    let found = named(&ran, "device-ascend")[0]["found"].as_str().unwrap().to_owned();
    assert_eq!(found, "library=libascendcl.so version=1.14.0 devices=1");
}

#[test]
fn driver_without_device_is_a_note_with_the_remedy() {
    let ran = doctor("libcuda.so.1", "devices=0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let driver = &named(&ran, "device-cuda")[0];
    assert_eq!(driver["state"], "note");
    let found = driver["found"].as_str().unwrap();
    assert!(found.starts_with("no such device; check `nvidia-smi`"), "{found}");
    assert!(driver["remedy"].is_string());
}
