//! The memory that this process may use: the machine's memory, and the limits of its control
//! groups.

use std::path::{Path, PathBuf};

use crate::fault::{FaultKind, FaultOp, IoFault};

/// Memory of the machine and this process's share of it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// The machine's memory: `MemTotal` of /proc/meminfo.
    pub total: u64,
    /// The memory that can be allocated now without swapping: `MemAvailable` of /proc/meminfo, at
    /// most `limit`.
    pub available: u64,
    /// The most that this process may use: the minimum of `total` and the limits of its control
    /// group and all groups above it, version 1 (`memory.limit_in_bytes`) and 2 (`memory.max`).
    pub limit: u64,
    /// The source of `limit`: "MemTotal", or the control group's file.
    pub source: String,
}

impl MemoryFacts {
    /// Read the facts from /proc and the cgroup file systems. Fails only if /proc/meminfo cannot be
    /// read or parsed; a control group that is not visible sets no limit.
    pub fn read() -> Result<MemoryFacts, IoFault> {
        let meminfo = "/proc/meminfo";
        let text = std::fs::read_to_string(meminfo).map_err(|e| {
            IoFault::of_errno(FaultOp::Probe, meminfo, 0, e.raw_os_error().unwrap_or(0))
        })?;
        let (total, available) = parse_meminfo(&text).ok_or_else(|| {
            let detail = "no MemTotal and MemAvailable in kB";
            IoFault::found(FaultKind::Other, FaultOp::Probe, meminfo, 0, detail)
        })?;
        Ok(with_limits(total, available, limits(&MEMORY)))
    }
}

/// The smallest `pids.max` of this process's control group and all groups above it, as
/// `FILE=VALUE`.
pub(crate) fn pids_max() -> Option<String> {
    let (limit, file) = limits(&PIDS).min()?;
    Some(format!("{file}={limit}"))
}

/// The limits of this process's control group and all groups above it, with their files.
fn limits(controller: &'static Controller) -> impl Iterator<Item = (u64, String)> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    limit_files(&own, &mounts, controller).into_iter().filter_map(|file| {
        let limit = parse_limit(&std::fs::read_to_string(&file).ok()?)?;
        Some((limit, file.display().to_string()))
    })
}

fn with_limits(
    total: u64,
    available: u64,
    limits: impl Iterator<Item = (u64, String)>,
) -> MemoryFacts {
    // The first of equal values is taken: a limit equal to the machine's memory is no limit.
    let (limit, source) =
        limits.fold((total, "MemTotal".to_owned()), |a, b| if b.0 < a.0 { b } else { a });
    MemoryFacts { total, available: available.min(limit), limit, source }
}

/// `MemTotal` and `MemAvailable` in bytes. The kernel's "kB" are 1024 bytes.
fn parse_meminfo(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// The value of a limit file; `None` for "max" and for text that is not a number.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The mount point of a hierarchy, and the group that is its visible root.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: String,
    point: PathBuf,
    is_v2: bool,
    file: &'static str,
}

/// A controller, and the files of its limit in the two versions of control groups.
struct Controller {
    name: &'static str,
    v1_file: &'static str,
    v2_file: &'static str,
}

const MEMORY: Controller =
    Controller { name: "memory", v1_file: "memory.limit_in_bytes", v2_file: "memory.max" };
const PIDS: Controller = Controller { name: "pids", v1_file: "pids.max", v2_file: "pids.max" };

/// The limit files of this process's group and every visible group above it, in both hierarchies.
fn limit_files(own_cgroup: &str, mountinfo: &str, controller: &'static Controller) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for mount in mountinfo.lines().filter_map(|line| parse_mount(line, controller)) {
        for (is_v2, path) in own_cgroup.lines().filter_map(|line| parse_own(line, controller)) {
            if is_v2 == mount.is_v2 {
                walk(&mount, path, &mut files);
            }
        }
    }
    files
}

fn walk(mount: &Mount, group: &str, files: &mut Vec<PathBuf>) {
    // If the group is outside the mount's root (a foreign mount), only the mount point is left,
    // which is what a container sees as its own group.
    let below = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let mut dir = mount.point.join(below);
    loop {
        files.push(dir.join(mount.file));
        if dir == mount.point || !dir.pop() {
            return;
        }
    }
}

/// Parse a line of /proc/self/cgroup, "id:controllers:path", if it belongs to the controller's
/// hierarchy (cgroups(7)): whether that hierarchy is version 2, and the path.
fn parse_own<'l>(line: &'l str, controller: &Controller) -> Option<(bool, &'l str)> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    // ".." stands for groups outside this process's namespace.
    let path = if path.starts_with("/..") { "/" } else { path };
    match (id, controllers) {
        ("0", "") => Some((true, path)),
        _ if controllers.split(',').any(|c| c == controller.name) => Some((false, path)),
        _ => None,
    }
}

/// Parse a line of /proc/self/mountinfo if it mounts the controller's hierarchy
/// (proc_pid_mountinfo(5)).
fn parse_mount(line: &str, controller: &'static Controller) -> Option<Mount> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, point) = (unescape(front.next()?), PathBuf::from(unescape(front.next()?)));
    let mut back = back.split(' ');
    let (fs_type, options) = (back.next()?, back.nth(1)?);
    let (is_v2, file) = match fs_type {
        "cgroup2" => (true, controller.v2_file),
        "cgroup" if options.split(',').any(|o| o == controller.name) => (false, controller.v1_file),
        _ => return None,
    };
    Some(Mount { root, point, is_v2, file })
}

/// Undo the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &str) -> String {
    // The backslash is last, so that its result is not unescaped again.
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\n";
    const V1_MOUNTS: &str = "\
25 1 0:23 / /proc rw - proc proc rw
31 26 0:28 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
32 26 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory
33 26 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";

    fn names(own: &str, mounts: &str) -> Vec<String> {
        limit_files(own, mounts, &MEMORY).iter().map(|p| p.display().to_string()).collect()
    }

    #[test]
    fn meminfo_is_parsed_to_bytes() {
        assert_eq!(parse_meminfo(MEMINFO), Some((16 << 20, 8 << 20)));
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n"), None);
        assert_eq!(parse_meminfo("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
        assert_eq!(parse_meminfo(""), None);
    }

    #[test]
    fn both_cgroup_hierarchies_are_walked_to_root() {
        let own = "9:name=systemd:/\n4:memory:/a/b\n3:cpu,cpuacct:/a\n0::/x\n";
        let expected = [
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/unified/x/memory.max",
            "/sys/fs/cgroup/unified/memory.max",
        ];
        assert_eq!(names(own, V1_MOUNTS), expected);
    }

    #[test]
    fn cgroup_outside_mount_root_maps_to_mount_point() {
        let mounts =
            "32 26 0:29 /docker/abc /sys/fs/cgroup/memory\\040x ro - cgroup cgroup rw,memory\n";
        let at_root = ["/sys/fs/cgroup/memory x/memory.limit_in_bytes"];
        assert_eq!(names("4:memory:/docker/abc\n", mounts), at_root);
        assert_eq!(names("4:memory:/elsewhere\n", mounts), at_root);
        assert_eq!(names("4:memory:/../..\n", mounts), at_root);
        let below = "/sys/fs/cgroup/memory x/job/memory.limit_in_bytes";
        assert_eq!(names("4:memory:/docker/abc/job\n", mounts), [below, at_root[0]]);
    }

    #[test]
    fn unparsable_cgroup_files_set_no_limit() {
        assert_eq!(names("garbage\n:::\n4:memory\n", V1_MOUNTS), Vec::<String>::new());
        assert_eq!(
            names("4:memory:/a\n", "garbage\n1 2 3 - cgroup\n - - -\n"),
            Vec::<String>::new()
        );
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("-1\n"), None);
        assert_eq!(parse_limit("4096\n"), Some(4096));
    }

    #[test]
    fn smallest_limit_is_chosen_and_named() {
        let none = [(9_223_372_036_854_771_712, "v1".to_owned())];
        let facts = with_limits(100, 50, none.into_iter());
        assert_eq!((facts.limit, facts.source.as_str(), facts.available), (100, "MemTotal", 50));
        let some = [(60, "a".to_owned()), (40, "b".to_owned()), (40, "c".to_owned())];
        let facts = with_limits(100, 50, some.into_iter());
        assert_eq!((facts.limit, facts.source.as_str(), facts.available), (40, "b", 40));
    }

    #[test]
    fn memory_facts_of_this_machine_are_consistent() {
        let facts = MemoryFacts::read().unwrap();
        assert!(facts.available > 0 && facts.available <= facts.limit, "{facts:?}");
        assert!(facts.limit <= facts.total, "{facts:?}");
    }
}
