//! Regular files that are opened by name, with checks of the file that was found.
//!
//! Two kinds: a file that an operator names (keys, configuration, a trace), possibly through
//! symbolic links; and a store's own file, which has one name only: `links == 1`, and its owner is
//! this process's user, root, or the owner that the file system gives to new files there.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat, open as open_raw};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;

use crate::create::owner_of_new_files;
use crate::fault::{FaultKind, FaultOp, IoFault, show};

/// Longest file of secrets in bytes: room for a hundred keys of a thousand namespaces each.
const SECRETS_BYTES_MAX: u64 = 4 << 20;
/// Never waits for the other end of a pipe, nor makes a terminal this process's controlling
/// terminal.
const NONBLOCKING: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The access for which a store's file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read; any owner is accepted.
    Read,
    /// To be written.
    Write,
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Open a file that an operator named, for reading. Pipes, devices, sockets and directories are
/// refused (`InvalidInput`), without waiting for them.
pub fn open(path: &Path) -> std::io::Result<File> {
    let other = || Error::new(ErrorKind::InvalidInput, "not a regular file");
    let fd = match retry_on_intr(|| open_raw(path, OFlags::RDONLY | NONBLOCKING, Mode::empty())) {
        // A socket fails so, and a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return Err(other()),
        opened => opened?,
    };
    if !is_regular(&fstat(&fd)?) {
        return Err(other());
    }
    Ok(File::from(fd))
}

/// Read a text file of at most `bytes_max` bytes; see [`open`].
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

/// Read a file of secrets; see [`open`]. `PermissionDenied` if its owner is neither this process's
/// user nor root, or if other users can access it.
pub fn read_secret(path: &Path) -> std::io::Result<String> {
    let denied = |text| Err(Error::new(ErrorKind::PermissionDenied, text));
    let file = open(path)?;
    // The open file is examined: the path may refer to another one by now.
    let stat = fstat(&file)?;
    let user = geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != 0 {
        let owner = stat.st_uid;
        return denied(format!(
            "file of keys belongs to another user, which can change it: chown it owner={owner} user={user}"
        ));
    }
    if stat.st_mode & 0o077 != 0 {
        return denied(format!(
            "other users can read the file of keys: chmod 600 it mode={:o}",
            stat.st_mode & 0o777
        ));
    }
    text_of(file, SECRETS_BYTES_MAX)
}

/// Open a file of a store by name. The fault is of kind `ReadOnly` if it is not a regular file, and
/// for [`Access::Write`] if it has another name or a foreign owner: another user could then read or
/// change the data, or redirect this process's writes to another file.
pub fn open_store_file(path: &Path, access: Access) -> Result<OwnedFd, IoFault> {
    let fault = |e: Errno| IoFault::of_errno(FaultOp::Open, show(path), 0, e.raw_os_error());
    let refused =
        |why: String| Err(IoFault::found(FaultKind::ReadOnly, FaultOp::Open, show(path), 0, why));
    let flags = if access == Access::Write { OFlags::RDWR } else { OFlags::RDONLY };
    let fd = match retry_on_intr(|| {
        open_raw(path, flags | OFlags::NOFOLLOW | NONBLOCKING, Mode::empty())
    }) {
        Err(Errno::LOOP) => {
            let why = "a symbolic link in place of a file of the store: put the file itself there, or name the directory that it is in";
            return refused(why.to_owned());
        }
        // A directory and a socket fail so.
        Err(e @ (Errno::ISDIR | Errno::NXIO)) => return not_regular(path, e),
        opened => opened.map_err(fault)?,
    };
    let stat = fstat(&fd).map_err(fault)?;
    if !is_regular(&stat) {
        return not_regular(path, Errno::INVAL);
    }
    if access == Access::Write
        && let Some(why) = foreign_access(&stat, path)
    {
        return refused(why);
    }
    Ok(fd)
}

fn not_regular<T>(path: &Path, errno: Errno) -> Result<T, IoFault> {
    let fault = IoFault::of_errno(FaultOp::Open, show(path), 0, errno.raw_os_error());
    Err(IoFault { kind: FaultKind::ReadOnly, detail: "not a regular file".to_owned(), ..fault })
}

/// The reason why a file is not exclusive to this process's user; `None` if it is.
fn foreign_access(stat: &Stat, path: &Path) -> Option<String> {
    if stat.st_nlink > 1 {
        let links = stat.st_nlink;
        return Some(format!(
            "the file has other hard links, whose data would change too: replace the file with a copy links={links}"
        ));
    }
    let (owner, user) = (stat.st_uid, geteuid().as_raw());
    let is_own = |owner: u32| owner == user || owner == 0;
    // A file system may map all files to one user, or root's files to the user nobody.
    let is_default_owner = || path.parent().and_then(owner_of_new_files) == Some(owner);
    (!is_own(owner) && !is_default_owner()).then(|| {
        format!("file belongs to another user: run as that user, or chown the store's files to this one owner={owner} user={user}")
    })
}

/// The status of a name, without following symbolic links.
pub(crate) fn lstat_name(path: &Path) -> Result<Stat, Errno> {
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

    /// Paths that are not regular files.
    fn irregular_files(dir: &Path) -> Vec<PathBuf> {
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
    fn irregular_file_is_refused_without_blocking() {
        let dir = TempDir::new().expect("a directory");
        for path in irregular_files(dir.path()) {
            let refused =
                [open(&path).err(), read_text(&path, 100).err(), read_secret(&path).err()];
            for error in refused.map(|error| error.expect("refused")) {
                assert!(
                    error.kind() == ErrorKind::InvalidInput
                        && error.to_string().contains("not a regular file"),
                    "{path:?} {error}"
                );
            }
            for access in [Access::Read, Access::Write] {
                let fault = open_store_file(&path, access).expect_err("refused");
                assert!(
                    fault.kind == FaultKind::ReadOnly
                        && fault.detail.contains("not a regular file"),
                    "{path:?} {fault}"
                );
            }
        }
    }

    #[test]
    fn named_file_is_read_through_links_up_to_limit() {
        let dir = TempDir::new().expect("a directory");
        let path = file(dir.path(), "a", 0o600);
        symlink(&path, dir.path().join("link")).expect("a link");
        assert_eq!(read_text(&dir.path().join("link"), 4).expect("text"), "text");
        assert_eq!(read_secret(&dir.path().join("link")).expect("text"), "text");
        assert_eq!(read_text(&path, 3).expect_err("too long").kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn secret_readable_by_others_is_refused() {
        let dir = TempDir::new().expect("a directory");
        for mode in [0o640, 0o604, 0o660, 0o601] {
            let refused = read_secret(&file(dir.path(), "a", mode)).expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{mode:o}");
        }
    }

    #[test]
    fn store_file_with_link_is_refused() {
        let dir = TempDir::new().expect("a directory");
        let path = file(dir.path(), "segments", 0o600);
        symlink(&path, dir.path().join("link")).expect("a link");
        for access in [Access::Read, Access::Write] {
            open_store_file(&path, access).expect("opened");
            let refused = open_store_file(&dir.path().join("link"), access).expect_err("refused");
            assert!(
                refused.kind == FaultKind::ReadOnly && refused.detail.contains("symbolic link"),
                "{refused}"
            );
        }
        std::fs::hard_link(&path, dir.path().join("other")).expect("a link");
        open_store_file(&path, Access::Read).expect("read access");
        let refused = open_store_file(&path, Access::Write).expect_err("refused");
        assert!(refused.detail.contains("links=2"), "{refused}");
    }

    /// Needs root; otherwise it prints that it was skipped.
    #[test]
    fn file_of_another_user_is_refused() {
        use std::io::Write;
        if !geteuid().is_root() {
            // Written past the test harness's capture, so that the skip is visible.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: file_of_another_user_is_refused: only root gives files away"
            );
            return;
        }
        let dir = TempDir::new().expect("a directory");
        let path = file(dir.path(), "segments", 0o600);
        std::os::unix::fs::chown(&path, Some(12345), None).expect("chown");
        let refused = read_secret(&path).expect_err("refused");
        assert!(refused.to_string().contains("owner=12345 user=0"), "{refused}");
        open_store_file(&path, Access::Read).expect("read access");
        let refused = open_store_file(&path, Access::Write).expect_err("refused");
        assert!(refused.detail.contains("owner=12345 user=0"), "{refused}");
    }
}
