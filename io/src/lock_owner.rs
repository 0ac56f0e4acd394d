//! The process that has a store open, as text. The owner writes it to its LOCK file; a process that
//! finds the store locked reads it.
//!
//! A process id alone is ambiguous: each pid namespace has its own numbers, and numbers are reused.

use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt;

/// Largest difference in seconds between two readings of one process's start time, since the
/// machine's clock may be adjusted in between.
const START_TOLERANCE_S: u64 = 2;

/// A description of this process: its id, pid namespace, start time (seconds since 1970), host, and
/// the host's boot id.
pub fn this_process() -> String {
    let pid = std::process::id();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let started = started(pid).map_or_else(|| "unknown".into(), |at| at.to_string());
    format!("pid={pid} pid_ns={} started={started} host={host} boot={}\n", namespace(), boot())
}

/// Whether the process of such a description has ended; also false if that cannot be determined
/// from this host, boot and pid namespace.
pub fn has_ended(owner: &str) -> bool {
    let field =
        |name: &str| owner.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    let Some(pid) = field("pid").and_then(|pid| pid.parse::<u32>().ok()) else { return false };
    let differs = |name, own: String| field(name).is_some_and(|other| other != own);
    if differs("boot", boot()) || differs("pid_ns", namespace()) {
        return false;
    }
    let then = field("started").and_then(|at| at.parse::<u64>().ok());
    match (started(pid), then) {
        (None, _) => true,
        (Some(now), Some(then)) => now.abs_diff(then) > START_TOLERANCE_S,
        (Some(_), None) => false,
    }
}

/// The start time of a process in seconds since 1970; `None` if no process has this id, or it has
/// ended.
fn started(pid: u32) -> Option<u64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A process that has ended stays in state Z or X until its parent waits for it (proc(5)).
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    let ticks: u64 = fields.nth(18)?.parse().ok()?;
    let machine = read_to_string("/proc/stat").ok()?;
    let boot: u64 =
        machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + ticks / rustix::param::clock_ticks_per_second())
}

fn namespace() -> String {
    let ns = std::fs::metadata("/proc/self/ns/pid").map(|m| m.ino());
    ns.map_or_else(|_| "unknown".into(), |ino| ino.to_string())
}

fn boot() -> String {
    let id = read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn running_process_has_not_ended() {
        let text = this_process();
        assert!(!has_ended(&text), "{text}");
        for name in ["pid=", "pid_ns=", "started=", "host=", "boot="] {
            assert!(text.contains(name) && !text.contains(&format!("{name}unknown")), "{text}");
        }
    }

    /// Its parent has not waited for it yet.
    #[test]
    fn zombie_has_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), options).expect("it ended");
        let stat = read_to_string(format!("/proc/{}/stat", child.id())).expect("a zombie");
        assert!(stat.contains(") Z "), "{stat}");
        assert!(has_ended(&format!("pid={}", child.id())));
        child.wait().expect("reaped");
    }

    #[test]
    fn unused_or_reused_pid_has_ended_and_foreign_one_has_not() {
        // Above the kernel's largest process number, 2^22.
        assert!(has_ended("pid=4194305"));
        assert!(!has_ended(&format!("pid={}", std::process::id())), "the format of older stores");
        let text = this_process();
        let with_changed = |name: &str| {
            let change =
                |w: &str| if w.starts_with(name) { format!("{name}1") } else { w.to_owned() };
            text.split_whitespace().map(change).collect::<Vec<_>>().join(" ")
        };
        assert!(has_ended(&with_changed("started=")), "the process id was reused");
        for field in ["boot=", "pid_ns="] {
            assert!(
                !has_ended(&with_changed(field).replace("pid=", "pid=4194305 was=")),
                "{field}"
            );
        }
        assert!(!has_ended("another") && !has_ended(""));
    }
}
