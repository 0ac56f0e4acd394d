//! The process that has a store open, as text: written to its LOCK file, and read by a process that finds the store locked.
//!
//! A process number alone says nothing where namespaces have numbers of their own, or after it was used again.

use std::fs::read_to_string;
use std::os::unix::fs::MetadataExt;

/// Start times of one process differ by no more, seconds: the machine's clock may have been set meanwhile.
const SAME_START: u64 = 2;

/// This process: number and namespace of numbers, when it started (seconds since 1970), host, and which boot of it.
pub fn this_process() -> String {
    let pid = std::process::id();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let started = started(pid).map_or_else(|| "unknown".into(), |at| at.to_string());
    format!("pid={pid} pid_ns={} started={started} host={host} boot={}\n", namespace(), boot())
}

/// Whether the process of such words has ended; false also if that cannot be seen from here.
pub fn has_ended(owner: &str) -> bool {
    let field = |name: &str| owner.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    let Some(pid) = field("pid").and_then(|pid| pid.parse::<u32>().ok()) else { return false };
    let elsewhere = |name, here: String| field(name).is_some_and(|there| there != here);
    if elsewhere("boot", boot()) || elsewhere("pid_ns", namespace()) {
        return false;
    }
    let then = field("started").and_then(|at| at.parse::<u64>().ok());
    match (started(pid), then) {
        (None, _) => true,
        (Some(now), Some(then)) => now.abs_diff(then) > SAME_START,
        (Some(_), None) => false,
    }
}

/// When a process started, seconds since 1970; `None` if there is none of this number.
fn started(pid: u32) -> Option<u64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may have anything in it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let machine = read_to_string("/proc/stat").ok()?;
    let boot: u64 = machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
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
    use super::*;

    #[test]
    fn this_process_has_not_ended_and_says_where_it_runs() {
        let words = this_process();
        assert!(!has_ended(&words), "{words}");
        for name in ["pid=", "pid_ns=", "started=", "host=", "boot="] {
            assert!(words.contains(name) && !words.contains(&format!("{name}unknown")), "{words}");
        }
    }

    #[test]
    fn a_number_that_is_free_or_another_processs_has_ended_and_one_of_elsewhere_may_not_have() {
        // Above the kernel's largest process number, 2^22.
        assert!(has_ended("pid=4194305"));
        assert!(!has_ended(&format!("pid={}", std::process::id())), "as older stores say it");
        let words = this_process();
        let other = |name: &str| {
            let change = |w: &str| if w.starts_with(name) { format!("{name}1") } else { w.to_owned() };
            words.split_whitespace().map(change).collect::<Vec<_>>().join(" ")
        };
        assert!(has_ended(&other("started=")), "the number was used again");
        for elsewhere in ["boot=", "pid_ns="] {
            assert!(!has_ended(&other(elsewhere).replace("pid=", "pid=4194305 was=")), "{elsewhere}");
        }
        assert!(!has_ended("somebody") && !has_ended(""));
    }
}
