//! The limits of this process that may have caused a fault, for its message. The errno alone does
//! not name the limit, and its text can mislead ("Cannot allocate memory" for the limit on locked
//! memory).

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::fault::{FaultOp, IoFault};
use crate::memory_facts;

/// The same fault with the limits that may have caused it, and their values, added to its detail.
/// It applies to faults in creating a queue, a mapping or a thread, registering memory, or opening
/// a descriptor.
pub fn named(mut fault: IoFault) -> IoFault {
    let limits: Vec<String> = match (fault.op, Errno::from_raw_os_error(fault.errno)) {
        (_, Errno::MFILE) => {
            limit("RLIMIT_NOFILE", "ulimit -n", Resource::Nofile).into_iter().collect()
        }
        (FaultOp::Spawn, Errno::AGAIN) => {
            let user = limit("RLIMIT_NPROC", "ulimit -u", Resource::Nproc);
            user.into_iter().chain(memory_facts::pids_max()).collect()
        }
        (FaultOp::Spawn, Errno::NOMEM) => {
            limit("RLIMIT_AS", "ulimit -v", Resource::As).into_iter().collect()
        }
        (FaultOp::Queue | FaultOp::Register, Errno::NOMEM | Errno::PERM | Errno::AGAIN) => {
            let locked =
                limit("RLIMIT_MEMLOCK", "ulimit -l", Resource::Memlock).filter(|_| !may_lock());
            locked.into_iter().chain(limit("RLIMIT_AS", "ulimit -v", Resource::As)).collect()
        }
        _ => Vec::new(),
    };
    if !limits.is_empty() {
        let separator = if fault.detail.is_empty() { "" } else { ", " };
        fault.detail = format!("{}{separator}limits: {}", fault.detail, limits.join(", "));
    }
    fault
}

/// The limit on this process's mappings, to be appended to a message; empty if none is set.
pub fn mapping_limit_text() -> String {
    limit("RLIMIT_AS", "ulimit -v", Resource::As)
        .map_or_else(String::new, |limit| format!(", limits: {limit}"))
}

/// The limit on open descriptors of this process, before and after [`raise_descriptors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimits {
    /// The limit when the function was called.
    pub before: u64,
    /// The limit from now on.
    pub now: u64,
}

/// Raise the soft limit on open descriptors to the hard limit (`RLIMIT_NOFILE`). Nothing changes if
/// the system refuses.
pub fn raise_descriptors() -> DescriptorLimits {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    DescriptorLimits { before: limit.current.unwrap_or(u64::MAX), now }
}

/// Bytes that this process may lock in memory (`RLIMIT_MEMLOCK`); `None` if nothing limits it.
pub fn locked_memory_max() -> Option<u64> {
    getrlimit(Resource::Memlock).current.filter(|_| !may_lock())
}

/// The number of descriptors that this process has open; `None` without a `/proc`.
#[allow(clippy::disallowed_methods, reason = "reads /proc of this process, no file of a store")]
pub fn open_descriptors() -> Option<u64> {
    // The directory's own descriptor is one of them.
    std::fs::read_dir("/proc/self/fd").ok().map(|open| (open.count() as u64).saturating_sub(1))
}

/// A limit and its value in the units of setrlimit(2), bytes or a number; `None` if it is not set.
fn limit(name: &str, command: &str, resource: Resource) -> Option<String> {
    getrlimit(resource).current.map(|value| format!("{name}={value} ({command})"))
}

/// Whether this thread may lock memory without limit.
fn may_lock() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_limit_and_value() {
        let files = getrlimit(Resource::Nofile).current.map_or_else(String::new, |n| n.to_string());
        let fault = named(IoFault::of_errno(FaultOp::Queue, "x", 0, Errno::MFILE.raw_os_error()));
        assert!(fault.detail.contains(&format!("RLIMIT_NOFILE={files} (ulimit -n)")), "{fault}");
        let mut before = IoFault::of_errno(FaultOp::Queue, "x", 0, Errno::MFILE.raw_os_error());
        before.detail = "first".to_owned();
        assert!(named(before).detail.starts_with("first, limits: RLIMIT_NOFILE="));
    }

    #[test]
    fn fault_without_limit_is_unchanged() {
        for (op, errno) in [
            (FaultOp::Read, Errno::IO),
            (FaultOp::Queue, Errno::NOSYS),
            (FaultOp::Read, Errno::NOMEM),
        ] {
            let fault = IoFault::of_errno(op, "x", 0, errno.raw_os_error());
            assert_eq!(named(fault.clone()), fault);
        }
    }
}
