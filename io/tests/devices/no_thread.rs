//! Copies while the system starts no further thread. Limits apply to a process, so the test runs in
//! a child process.

use pagelith_io::device::{DeviceError, DriverKind};
use pagelith_io::staging::StagingPool;
use rustix::process::{Resource, Rlimit, Uid, getrlimit, getuid, setrlimit};
use rustix::thread::set_thread_res_uid;

use crate::fake::Fake;

const CHILD: &str = "TEST_PAGELITH_NO_THREAD";
const NAME: &str = "no_thread::memory_of_copies_is_kept_while_no_thread_can_ask_the_device";

/// No further thread of this user can start during the call.
fn without_threads(call: impl FnOnce()) {
    let (own, nobody) = (getuid(), Uid::from_raw(65_534));
    if own.is_root() {
        // The limit does not apply to root.
        set_thread_res_uid(nobody, nobody, own).expect("another user");
    }
    let before = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..before }).expect("lowered");
    call();
    setrlimit(Resource::Nproc, before).expect("restored");
    if own.is_root() {
        set_thread_res_uid(own, own, own).expect("the first user");
    }
}

/// Ascend: a thread without a context needs another one for each call.
fn child() {
    let (fake, handle) = Fake::bound(DriverKind::Ascend, "hang=1");
    let memory = fake.memory(&handle, 4_096);
    let staging = StagingPool::new(4_096).expect("memory");
    let mut from = staging.try_part(4_096).expect("free");
    from.bytes_mut().expect("exclusive").fill(7);
    let mut copies = handle.begin(None).expect("a stream");
    copies.to_device(from, &memory.range).expect("queued");
    copies.submit().expect("submitted");
    fake.leave();
    without_threads(|| {
        for error in [copies.poll().map(drop), handle.begin(None).map(drop)] {
            let error = error.expect_err("no thread");
            assert!(matches!(error, DeviceError::CallFailed { call: "thread", .. }), "{error}");
        }
        drop(copies);
        assert_eq!(handle.late_copies(), 1);
        assert!(staging.try_part(4_096).is_none(), "the device still reads it");
    });
    fake.change("hang=0");
    while handle.late_copies() > 0 {
        fake.step();
    }
    assert_eq!(memory.bytes(), vec![7; 4_096]);
    drop((memory, handle));
    let left = ["retained", "streams", "events", "work", "violations"];
    assert_eq!(left.map(|what| fake.count(what)), [0; 5]);
}

#[test]
fn memory_of_copies_is_kept_while_no_thread_can_ask_the_device() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let command = command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1");
    let output = command.output().expect("a child");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
}
