//! Directories for a store: direct I/O, and blocks that are copied on write.

use std::path::{Path, PathBuf};

use pagelith::io::disk::DiskFacts;
use pagelith::io::fault::{FaultKind, IoFault};
use pagelith::io::file_system::is_memory;
use pagelith::io::probe::{BackendChoice, copies_new_files, open_disk};

use super::check::Check;

const DIRECT: &str = "direct-io";
const COPIES: &str = "copy-on-write";

/// The checks of each directory.
pub(super) fn checks(dirs: &[PathBuf]) -> Vec<Check> {
    if dirs.is_empty() {
        return not_checked("skipped: no directory was given", "name one with --dir DIR");
    }
    dirs.iter().flat_map(|dir| of_dir(dir)).collect()
}

fn not_checked(found: &str, remedy: &str) -> Vec<Check> {
    [DIRECT, COPIES].map(|name| Check::note(name, found, remedy)).into()
}

fn of_dir(dir: &Path) -> Vec<Check> {
    let shown = dir.display();
    // `open_disk` would check the nearest directory above a missing one.
    let missing = match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some("not a directory".to_owned()),
        Err(error) => Some(format!("the directory cannot be used: {error}")),
    };
    if let Some(what) = missing {
        let remedy = "create the directory, or mount its drive";
        let skipped = format!("skipped: see {DIRECT} dir={shown}");
        let direct = Check::problem(DIRECT, format!("{what} dir={shown}"), remedy);
        return vec![direct, Check::note(COPIES, skipped, remedy)];
    }
    let opened = open_disk(&[dir.to_owned()], BackendChoice::Blocking).map(|disk| disk.facts());
    vec![direct_io(dir, is_memory(dir), opened), copy_on_write(dir, copies_new_files(dir))]
}

fn direct_io(dir: &Path, is_memory: bool, opened: Result<DiskFacts, IoFault>) -> Check {
    let dir = dir.display();
    match opened {
        Ok(facts) if facts.direct => Check::ok(
            DIRECT,
            format!(
                "O_DIRECT works memory_align={} offset_align={} dir={dir}",
                facts.memory_align, facts.offset_align
            ),
        ),
        Ok(_) if is_memory => Check::note(
            DIRECT,
            format!("files of this directory are memory, and are lost with it dir={dir}"),
            "use a directory on a drive",
        ),
        Ok(facts) => {
            let reason = facts.reason.split_once("no O_DIRECT: ").map_or("", |(_, why)| why);
            let found = format!("no O_DIRECT, so files go through the page cache: {reason}");
            Check::note(DIRECT, found, "use a directory on ext4 or XFS")
        }
        Err(fault) => Check::problem(DIRECT, fault.to_string(), remedy(&fault)),
    }
}

fn copy_on_write(dir: &Path, copies: Result<bool, IoFault>) -> Check {
    let dir = dir.display();
    match copies {
        Ok(false) => Check::ok(COPIES, format!("the store's files are written in place dir={dir}")),
        Ok(true) => Check::note(
            COPIES,
            format!("blocks are copied on write, so writes fail on a full file system dir={dir}"),
            "keep free space, or use ext4 or XFS",
        ),
        Err(fault) => Check::problem(COPIES, fault.to_string(), remedy(&fault)),
    }
}

fn remedy(fault: &IoFault) -> &'static str {
    match fault.kind {
        FaultKind::NoSpace => "free space on the file system, or raise the quota",
        FaultKind::ReadOnly => "mount it writable, and let this user write to the directory",
        FaultKind::Exhausted => "raise the limits of this process",
        _ => "check the drive and the kernel's log",
    }
}

#[cfg(test)]
mod tests {
    use pagelith::io::disk::IoBackend;
    use pagelith::io::fault::FaultOp;

    use super::super::check::State;
    use super::*;

    fn facts(direct: bool) -> DiskFacts {
        DiskFacts {
            backend: IoBackend::Blocking,
            direct,
            memory_align: 512,
            offset_align: 4096,
            parts_max: 1,
            reason: "blocking is configured; no O_DIRECT: /x: fuse".to_owned(),
        }
    }

    #[test]
    fn directory_without_direct_io_is_note_with_reason() {
        let dir = Path::new("/x");
        let check = |memory, opened| direct_io(dir, memory, opened);
        let works = check(false, Ok(facts(true)));
        assert_eq!(works.state, State::Ok);
        assert!(works.found.ends_with("memory_align=512 offset_align=4096 dir=/x"), "{works:?}");
        let buffered = check(false, Ok(facts(false)));
        assert_eq!(buffered.state, State::Note);
        assert!(buffered.found.ends_with("page cache: /x: fuse"), "{buffered:?}");
        let memory = check(true, Ok(facts(false)));
        assert!(memory.state == State::Note && memory.found.contains("memory"), "{memory:?}");
    }

    #[test]
    fn directory_that_cannot_be_written_is_problem_with_its_remedy() {
        for (kind, part) in [(FaultKind::NoSpace, "free space"), (FaultKind::ReadOnly, "writable")]
        {
            let fault = || IoFault::found(kind, FaultOp::Probe, "/x", 0, "");
            for check in [
                direct_io(Path::new("/x"), false, Err(fault())),
                copy_on_write(Path::new("/x"), Err(fault())),
            ] {
                assert_eq!(check.state, State::Problem);
                assert!(check.remedy.as_ref().unwrap().contains(part), "{check:?}");
            }
        }
    }

    #[test]
    fn copying_file_system_is_note() {
        assert_eq!(copy_on_write(Path::new("/x"), Ok(true)).state, State::Note);
        assert_eq!(copy_on_write(Path::new("/x"), Ok(false)).state, State::Ok);
    }
}
