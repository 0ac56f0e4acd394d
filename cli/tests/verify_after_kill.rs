//! A killed replay leaves a store that `verify` finds intact, and that opens again.
#![allow(clippy::disallowed_methods, reason = "a test looks at real files")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::pagelith;

/// Default segment size of such a small store.
const SEGMENT_BYTES: u64 = 4 << 20;
const ARGS: [&str; 6] =
    ["replay", "--requests=1000000", "--dram=8MiB", "--ssd=40MiB", "--object-bytes=8KiB", "--json"];

/// A running replay, killed on drop.
struct Replay(Child);

impl Replay {
    fn start(store: &Path) -> Replay {
        let mut command = common::without_settings(Command::new(env!("CARGO_BIN_EXE_pagelith")));
        command.args(ARGS).arg("--dir").arg(store).stdout(Stdio::null()).stderr(Stdio::null());
        Replay(command.spawn().unwrap())
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // SIGKILL; the test asserts separately that it did not end by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The incarnation in the head of segment `id`; 0 if there is none yet.
fn incarnation(store: &Path, id: u64) -> u64 {
    let mut bytes = [0; 8];
    let read = |file: File| file.read_exact_at(&mut bytes, id * SEGMENT_BYTES + 48);
    let _ = File::open(store.join("segments")).and_then(read);
    u64::from_le_bytes(bytes)
}

#[test]
fn store_verifies_and_opens_after_kill() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    // Each time a little later: in the middle of the log, at its end, in its second and third pass.
    for (segment, pass) in [(0, 1), (3, 1), (7, 1), (2, 2), (5, 2), (1, 3)] {
        let mut replay = Replay::start(&store);
        let before = incarnation(&store, segment);
        while incarnation(&store, segment) < before.max(pass) {
            assert!(replay.0.try_wait().unwrap().is_none(), "the replay ended by itself");
            std::thread::yield_now();
        }
        drop(replay);
        let ran = pagelith(&["verify".as_ref(), store.as_os_str()]);
        assert_eq!(ran.code, Some(0), "segment={segment} pass={pass} {ran:?}");
    }
    let store = store.to_string_lossy();
    let ran = pagelith(&[&ARGS[..1], &["--requests=50"], &ARGS[2..], &["--dir", &store]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["wrong_bytes"], 0, "{ran:?}");
}
