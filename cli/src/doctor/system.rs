//! The kernel, the limits of this process, memory and processors.

use pagelith::Config;
use pagelith::io::fault::IoFault;
use pagelith::io::limits::{DescriptorLimits, locked_memory_max, raise_descriptors};
use pagelith::io::memory_facts::MemoryFacts;
use pagelith::io::probe::try_io_uring;
use rustix::fs::statvfs;
use rustix::system::uname;

use super::check::Check;
use crate::quantity::bytes as size;

/// Huge pages of shared memory and the alignment of direct I/O are reported since this version.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Enough for a store process and its clients with shared memory; see `docs/operations.md`.
const DESCRIPTORS_MIN: u64 = 65_536;
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The checks that need no directory and no RDMA.
pub(super) fn checks() -> Vec<Check> {
    let depth = Config::default().read.depth as usize;
    vec![
        kernel(&uname().release().to_string_lossy()),
        io_uring(try_io_uring(depth)),
        anonymous_huge_pages(mode(&read(&format!("{THP}/enabled")))),
        shared_huge_pages(mode(&read(&format!("{THP}/shmem_enabled")))),
        locked_memory(locked_memory_max()),
        open_files(raise_descriptors()),
        dev_shm(),
        memory(MemoryFacts::read()),
        cpus(),
        numa_nodes(list_length(&read("/sys/devices/system/node/online"))),
    ]
}

/// The text of a file of /sys; empty if it cannot be read.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The two first numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The mode in brackets, such as `madvise` of `always [madvise] never`.
fn mode(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// The length of a list of numbers and ranges, such as `0-3,8`.
fn list_length(text: &str) -> Option<u64> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    text.trim().split(',').map(range).sum()
}

fn kernel(release: &str) -> Check {
    match version(release) {
        Some(version) if version < KERNEL_MIN => Check::note(
            "kernel",
            format!(
                "too old to make huge pages on demand and to report direct I/O release={release}"
            ),
            format!("use Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1),
        ),
        _ => Check::ok("kernel", format!("release={release}")),
    }
}

fn io_uring(tried: Result<(), IoFault>) -> Check {
    match tried {
        Ok(()) => Check::ok("io_uring", "two rings were created"),
        Err(fault) => Check::note(
            "io_uring",
            format!("refused, so helper threads transfer the bytes: {fault}"),
            "allow it: kernel.io_uring_disabled=0, a seccomp profile that permits io_uring_setup, \
             io_uring_enter and io_uring_register, and enough locked memory",
        ),
    }
}

fn anonymous_huge_pages(mode: Option<&str>) -> Check {
    let name = "huge-pages-anonymous";
    match mode {
        Some(mode @ ("always" | "madvise")) => Check::ok(name, format!("mode={mode}")),
        other => Check::note(
            name,
            format!("the index has small pages mode={}", other.unwrap_or("none")),
            format!("echo madvise > {THP}/enabled"),
        ),
    }
}

fn shared_huge_pages(mode: Option<&str>) -> Check {
    let name = "huge-pages-shared";
    let remedy = |text: &str| format!("{text}echo advise > {THP}/shmem_enabled");
    match mode {
        Some(mode @ ("always" | "within_size" | "advise" | "force")) => {
            Check::ok(name, format!("mode={mode}"))
        }
        Some("never") => Check::note(
            name,
            "a shared arena has huge pages only with dram.prefault mode=never",
            remedy("set dram.prefault, or "),
        ),
        other => Check::note(
            name,
            format!("a shared arena has small pages mode={}", other.unwrap_or("none")),
            remedy(""),
        ),
    }
}

fn locked_memory(limit: Option<u64>) -> Check {
    let name = "locked-memory";
    match limit {
        None => Check::ok(name, "no limit for this process"),
        Some(limit) => Check::note(
            name,
            format!("registered memory and, on some kernels, rings count limit={}", size(limit)),
            "raise it (ulimit -l, LimitMEMLOCK=infinity, --ulimit memlock=-1), or grant \
             CAP_IPC_LOCK",
        ),
    }
}

fn open_files(limits: DescriptorLimits) -> Check {
    let name = "open-files";
    let found = format!("soft={} hard={}", limits.before, limits.now);
    match limits.now >= DESCRIPTORS_MIN {
        true => Check::ok(name, found),
        false => Check::note(
            name,
            format!("few clients fit: 4 descriptors each over TCP, 37 over a Unix socket {found}"),
            format!(
                "raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=) to \
                 {DESCRIPTORS_MIN}"
            ),
        ),
    }
}

/// Only its size: memory that Pagelith shares is a memfd.
fn dev_shm() -> Check {
    match statvfs("/dev/shm") {
        Ok(found) => {
            let bytes = |blocks: u64| size(blocks.saturating_mul(found.f_frsize));
            let (total, free) = (bytes(found.f_blocks), bytes(found.f_bavail));
            Check::ok("dev-shm", format!("not used by Pagelith size={total} free={free}"))
        }
        Err(error) => Check::note(
            "dev-shm",
            format!("not used by Pagelith, and absent: {error}"),
            "mount a tmpfs at /dev/shm if the inference engine needs it",
        ),
    }
}

fn memory(facts: Result<MemoryFacts, IoFault>) -> Check {
    match facts {
        Ok(MemoryFacts { total, available, limit, source }) => Check::ok(
            "memory-limit",
            format!(
                "limit={} source={source} machine={} available={}",
                size(limit),
                size(total),
                size(available)
            ),
        ),
        Err(fault) => Check::problem("memory-limit", fault.to_string(), "mount /proc"),
    }
}

fn cpus() -> Check {
    let own = std::thread::available_parallelism().map_or(1, usize::from);
    let online = list_length(&read("/sys/devices/system/cpu/online"));
    let online = online.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
    Check::ok("cpus", format!("usable={own} online={online}"))
}

fn numa_nodes(nodes: Option<u64>) -> Check {
    match nodes {
        Some(nodes) => Check::ok("numa-nodes", format!("nodes={nodes}")),
        None => Check::ok("numa-nodes", "not reported, so one nodes=1"),
    }
}

#[cfg(test)]
mod tests {
    use pagelith::io::fault::FaultOp;

    use super::super::check::State;
    use super::*;

    #[test]
    fn kernel_is_compared_by_its_two_first_numbers() {
        assert_eq!(version("6.18.44-fc-v769"), Some((6, 18)));
        assert_eq!(version("5.4-rc1"), Some((5, 4)));
        assert_eq!(version("unknown"), None);
        let state = |release| kernel(release).state;
        assert_eq!((state("6.1.0"), state("5.15.0")), (State::Ok, State::Note));
        assert_eq!((state("10.0"), state("unknown")), (State::Ok, State::Ok));
    }

    #[test]
    fn huge_page_mode_is_the_one_in_brackets() {
        assert_eq!(mode("always [madvise] never\n"), Some("madvise"));
        assert_eq!((mode(""), mode("always")), (None, None));
        let anonymous = |mode| anonymous_huge_pages(mode).state;
        assert_eq!(["always", "madvise"].map(|mode| anonymous(Some(mode))), [State::Ok; 2]);
        assert_eq!([Some("never"), None].map(anonymous), [State::Note; 2]);
        let shared = |mode| shared_huge_pages(mode).state;
        let all = ["always", "within_size", "advise", "force"];
        assert_eq!(all.map(|mode| shared(Some(mode))), [State::Ok; 4]);
        assert_eq!([Some("never"), Some("deny"), None].map(shared), [State::Note; 3]);
        assert!(shared_huge_pages(Some("never")).remedy.unwrap().contains("dram.prefault"));
    }

    #[test]
    fn list_of_numbers_and_ranges_has_length() {
        assert_eq!(["0", "0-3", "0-1,4,6-7\n"].map(list_length), [Some(1), Some(4), Some(5)]);
        assert_eq!(["", "x", "3-1"].map(list_length), [None; 3]);
    }

    #[test]
    fn refused_io_uring_is_note_with_errno() {
        let check = io_uring(Err(IoFault::of_errno(FaultOp::Queue, "io_uring", 0, 1)));
        assert!(check.state == State::Note && check.found.contains("errno=1"), "{check:?}");
    }

    #[test]
    fn low_limits_are_notes_with_their_values() {
        let check = locked_memory(Some(8 << 20));
        assert!(check.state == State::Note && check.found.ends_with("limit=8.0MiB"), "{check:?}");
        assert_eq!(locked_memory(None).state, State::Ok);
        let check = open_files(DescriptorLimits { before: 1024, now: 4096 });
        assert!(check.state == State::Note && check.found.ends_with("soft=1024 hard=4096"));
        assert_eq!(open_files(DescriptorLimits { before: 1024, now: 1 << 20 }).state, State::Ok);
    }
}
