//! Every behaviour where the kernel refuses io_uring, as in containers: the store must report it
//! and work. The filter cannot be removed again, so a child of this program installs it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Mutex;

mod suite;

use suite::env::{IoKind, TestEnv};

const CHILD: &str = "TEST_PAGELITH_WEARS_FILTER";

/// From now on this thread, and threads that it starts, get EPERM from `io_uring_setup`.
fn refuse_io_uring() {
    // The same number on every architecture that has it (it came after they were unified).
    const IO_URING_SETUP: i64 = 425;
    const EPERM: u32 = 1;
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with seccomp");
    let filter = seccompiler::SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, Vec::new())]),
        seccompiler::SeccompAction::Allow,
        seccompiler::SeccompAction::Errno(EPERM),
        arch,
    )
    .expect("a filter");
    let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("put on");
}

fn say(line: std::fmt::Arguments<'_>) {
    writeln!(std::io::stdout(), "{line}").expect("the parent reads");
}

fn child() {
    refuse_io_uring();
    let todo = Mutex::new(suite::ALL.iter());
    #[allow(clippy::disallowed_methods)]
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().expect("no panic holds it").next();
                    let Some((name, behaviour)) = next else { return };
                    say(format_args!("{name}"));
                    behaviour(&TestEnv::new(IoKind::Refused, false, 1));
                    say(format_args!("{name} done"));
                }
            });
        }
    });
    say(format_args!("behaviours: shown={}", suite::ALL.len()));
}

#[test]
fn every_behaviour_works_with_io_uring_refused() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", "every_behaviour_works_with_io_uring_refused", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the child ran");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success()
            && said.contains(&format!("behaviours: shown={}", suite::ALL.len())),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
