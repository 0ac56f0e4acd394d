//! System calls that are refused, as in some containers.

use std::collections::BTreeMap;

/// Run `start` with a seccomp filter under which the system call of this number fails with EPERM.
pub fn without_call<T: Send>(number: i64, start: impl FnOnce() -> T + Send) -> T {
    const EPERM: u32 = 1;
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with seccomp");
    let filter = seccompiler::SeccompFilter::new(
        BTreeMap::from([(number, Vec::new())]),
        seccompiler::SeccompAction::Allow,
        seccompiler::SeccompAction::Errno(EPERM),
        arch,
    );
    let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
    // A filter cannot be removed, so it is applied in a separate thread.
    std::thread::scope(|scope| {
        let started = scope.spawn(move || {
            seccompiler::apply_filter(&program).expect("applied");
            start()
        });
        started.join().expect("started")
    })
}
