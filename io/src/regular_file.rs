//! Regular files that are opened by name, where something else may lie under that name.
//!
//! Two kinds: a file that an operator names (keys, configuration, a trace), to which links may lead; and a store's own file, whose name is
//! its only one: `links == 1`, and its owner is this process's user, root, or whoever new files there belong to.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat, open as open_raw};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use crate::create::show;
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::probe::owner_of_new_files;

/// Longest file of secrets: a hundred keys of a thousand namespaces each.
const SECRETS_BYTES_MAX: u64 = 4 << 20;
/// Never waits for the other end of a pipe, nor takes a terminal as this process's own.
const CAREFUL: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// What a store's file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be looked at; any owner is taken.
    Read,
    /// To be written.
    Write,
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Open a file that somebody named, to be read. Pipes, devices, sockets and directories are refused (`InvalidInput`), and not waited for.
pub fn open(path: &Path) -> std::io::Result<File> {
    let other = || Error::new(ErrorKind::InvalidInput, "not a regular file");
    let fd = match retry_on_intr(|| open_raw(path, OFlags::RDONLY | CAREFUL, Mode::empty())) {
        // What a socket answers, and a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Err(other()),
        opened => opened?,
    };
    if !is_regular(&fstat(&fd)?) {
        return Err(other());
    }
    Ok(File::from(fd))
}

/// All of a text of at most `bytes_max` bytes; see [`open`].
pub fn read_text(path: &Path, bytes_max: u64) -> std::io::Result<String> {
    text_of(open(path)?, bytes_max)
}

fn text_of(file: File, bytes_max: u64) -> std::io::Result<String> {
    let mut text = String::new();
    if file.take(bytes_max + 1).read_to_string(&mut text)? as u64 > bytes_max {
        return Err(Error::new(
            ErrorKind::FileTooLarge,
            format!("the file is too long bytes_max={bytes_max}"),
        ));
    }
    Ok(text)
}

/// A file of secrets; see [`open`]. `PermissionDenied` if it is another user's than this process's and root's, or if others can read it.
pub fn read_secret(path: &Path) -> std::io::Result<String> {
    let denied = |text| Err(Error::new(ErrorKind::PermissionDenied, text));
    let file = open(path)?;
    // Of the file that was opened, whatever lies at the path by now.
    let stat = fstat(&file)?;
    let user = geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != 0 {
        let owner = stat.st_uid;
        return denied(format!(
            "the keys are another user's, who can change them (chown) owner={owner} user={user}"
        ));
    }
    if stat.st_mode & 0o077 != 0 {
        return denied(format!("other users can read the keys (chmod 600) mode={:o}", stat.st_mode & 0o777));
    }
    text_of(file, SECRETS_BYTES_MAX)
}

/// Open the file of a store that has this name. Kind `ReadOnly` if it is no regular file, and for [`Access::Write`] if it has another name
/// besides or another owner: whoever put it there could read or change what is written, or have this process write to another file.
pub fn open_own(path: &Path, access: Access) -> Result<OwnedFd, IoFault> {
    let fault = |e: Errno| IoFault::of_errno(FaultOp::Open, show(path), 0, e.raw_os_error());
    let refused = |why: String| Err(IoFault::found(FaultKind::ReadOnly, FaultOp::Open, show(path), 0, why));
    let flags = if access == Access::Write { OFlags::RDWR } else { OFlags::RDONLY };
    let fd = match retry_on_intr(|| open_raw(path, flags | OFlags::NOFOLLOW | CAREFUL, Mode::empty())) {
        Err(Errno::LOOP) => {
            let why = "a symbolic link in place of a file of the store: put the file itself there, or name the directory that it is in";
            return refused(why.to_owned());
        }
        // What a directory and a socket answer.
        Err(e @ (Errno::ISDIR | Errno::NXIO)) => return not_regular(path, e),
        opened => opened.map_err(fault)?,
    };
    let stat = fstat(&fd).map_err(fault)?;
    if !is_regular(&stat) {
        return not_regular(path, Errno::INVAL);
    }
    if access == Access::Write
        && let Some(why) = shared_with(&stat, path)
    {
        return refused(why);
    }
    Ok(fd)
}

fn not_regular<T>(path: &Path, errno: Errno) -> Result<T, IoFault> {
    let fault = IoFault::of_errno(FaultOp::Open, show(path), 0, errno.raw_os_error());
    Err(IoFault { kind: FaultKind::ReadOnly, detail: "not a regular file".to_owned(), ..fault })
}

/// Why the file is not this process's user's alone.
fn shared_with(stat: &Stat, path: &Path) -> Option<String> {
    if stat.st_nlink > 1 {
        let links = stat.st_nlink;
        return Some(format!(
            "the file has other names (hard links), under which it would be changed as well: put a copy in its place links={links}"
        ));
    }
    let (owner, user) = (stat.st_uid, geteuid().as_raw());
    let is_ours = |owner: u32| owner == user || owner == 0;
    // A file system may give all files to one user, or all of root's to nobody.
    let is_given = || path.parent().and_then(owner_of_new_files) == Some(owner);
    (!is_ours(owner) && !is_given()).then(|| {
        format!("the file is another user's: run as that user, or give the store's files to this one (chown) owner={owner} user={user}")
    })
}

/// What lies under a name, links not followed.
pub(crate) fn at_name(path: &Path) -> Result<Stat, Errno> {
    retry_on_intr(|| lstat(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use rustix::fs::{CWD, mknodat};
    use tempfile::TempDir;

    use super::*;

    /// What is no regular file, by name.
    fn others(dir: &Path) -> Vec<PathBuf> {
        let at = |name: &str| dir.join(name);
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let _socket = UnixListener::bind(at("socket")).expect("a socket");
        std::fs::create_dir(at("directory")).expect("a directory");
        vec![
            at("pipe"),
            at("socket"),
            at("directory"),
            PathBuf::from("/dev/zero"),
            PathBuf::from("/dev/null"),
        ]
    }

    fn file(dir: &Path, name: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, "text").expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
        path
    }

    #[test]
    fn file_that_is_not_regular_is_refused_and_not_waited_for() {
        let dir = TempDir::new().expect("a directory");
        for path in others(dir.path()) {
            let refused = [open(&path).err(), read_text(&path, 100).err(), read_secret(&path).err()];
            for error in refused.map(|error| error.expect("refused")) {
                assert!(
                    error.kind() == ErrorKind::InvalidInput
                        && error.to_string().contains("not a regular file"),
                    "{path:?} {error}"
                );
            }
            for access in [Access::Read, Access::Write] {
                let fault = open_own(&path, access).expect_err("refused");
                assert!(
                    fault.kind == FaultKind::ReadOnly && fault.detail.contains("not a regular file"),
                    "{path:?} {fault}"
                );
            }
        }
    }

    #[test]
    fn named_file_is_read_through_links_up_to_its_bound() {
        let dir = TempDir::new().expect("a directory");
        let path = file(dir.path(), "a", 0o600);
        symlink(&path, dir.path().join("link")).expect("a link");
        assert_eq!(read_text(&dir.path().join("link"), 4).expect("text"), "text");
        assert_eq!(read_secret(&dir.path().join("link")).expect("text"), "text");
        assert_eq!(read_text(&path, 3).expect_err("too long").kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn secret_that_others_can_read_is_refused() {
        let dir = TempDir::new().expect("a directory");
        for mode in [0o640, 0o604, 0o660, 0o601] {
            let refused = read_secret(&file(dir.path(), "a", mode)).expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{mode:o}");
        }
    }

    #[test]
    fn file_of_a_store_has_one_name_and_no_link_to_it() {
        let dir = TempDir::new().expect("a directory");
        let path = file(dir.path(), "segments", 0o600);
        symlink(&path, dir.path().join("link")).expect("a link");
        for access in [Access::Read, Access::Write] {
            open_own(&path, access).expect("opened");
            let refused = open_own(&dir.path().join("link"), access).expect_err("refused");
            assert!(
                refused.kind == FaultKind::ReadOnly && refused.detail.contains("symbolic link"),
                "{refused}"
            );
        }
        std::fs::hard_link(&path, dir.path().join("other")).expect("a link");
        open_own(&path, Access::Read).expect("to be looked at");
        let refused = open_own(&path, Access::Write).expect_err("refused");
        assert!(refused.detail.contains("links=2"), "{refused}");
    }

    /// As root; else it says that it was skipped.
    #[test]
    fn file_of_another_user_is_refused() {
        use std::io::Write;
        if !geteuid().is_root() {
            // Past the test harness's capture: what was not tested is said aloud.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: file_of_another_user_is_refused: only root gives files away"
            );
            return;
        }
        let dir = TempDir::new().expect("a directory");
        let path = file(dir.path(), "segments", 0o600);
        std::os::unix::fs::chown(&path, Some(12345), None).expect("given away");
        let refused = read_secret(&path).expect_err("refused");
        assert!(refused.to_string().contains("owner=12345 user=0"), "{refused}");
        open_own(&path, Access::Read).expect("to be looked at");
        let refused = open_own(&path, Access::Write).expect_err("refused");
        assert!(refused.detail.contains("owner=12345 user=0"), "{refused}");
    }
}
