//! Files that another process opened and handed over, to be read: what is in them is whatever that process puts there, at any time.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;

use crate::blocking::Pool;
use crate::disk::Disk;
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::files::DataFile;
use crate::real::{Mover, RealDisk};
use crate::sync::{PoisonError, StaticMutex};
use crate::uring;

/// The helper threads of all that is read so, and of which process they are: a forked one has none of them. A process has a
/// link for each of its threads, and files on each.
static POOL: StaticMutex<(u32, Weak<Pool>)> = StaticMutex::new((0, Weak::new()));

/// A disk that has these files, numbered in their order, and makes no others: by io_uring where this process may use it, else by
/// helper threads.
///
/// Errors: kind `Invalid` if one is no regular file; what keeps helper threads from being started.
pub fn open_handed(files: &[Arc<OwnedFd>]) -> Result<Arc<dyn Disk>, IoFault> {
    let files = (0..).zip(files).map(|(number, file)| data_file(number, file));
    let files = files.collect::<Result<Vec<(DataFile, bool)>, IoFault>>()?;
    let direct = files.iter().all(|(_, direct)| *direct);
    let files = files.into_iter().map(|(file, _)| file);
    let (mover, reason) = mover()?;
    Ok(Arc::new(RealDisk::handed(files, mover, direct, reason)))
}

/// The file, and whether it is read past the page cache.
fn data_file(number: usize, file: &Arc<OwnedFd>) -> Result<(DataFile, bool), IoFault> {
    let name = format!("file {number} that was handed over");
    let fault = |e: Errno| IoFault::of_errno(FaultOp::Open, name.clone(), 0, e.raw_os_error());
    let stat = fstat(file).map_err(fault)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(IoFault::found(FaultKind::Invalid, FaultOp::Open, name, 0, "not a regular file"));
    }
    let direct = fcntl_getfl(file).map_err(fault)?.contains(OFlags::DIRECT);
    let fd = file.try_clone().map_err(|_| fault(Errno::MFILE))?;
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    Ok((DataFile { fd, path: name.clone(), dir: 0, name, len }, direct))
}

/// With as many rings as can be had; a link that gets none has the helper threads.
fn mover() -> Result<(Mover, String), IoFault> {
    let mut known = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    let pool = match known.1.upgrade() {
        Some(pool) if known.0 == process => pool,
        Some(_) | None => Arc::new(Pool::start()?),
    };
    *known = (process, Arc::downgrade(&pool));
    drop(known);
    Ok(match uring::try_two(1) {
        Ok(()) => (Mover::Uring { pool, may_do_without: true }, "io_uring works".to_owned()),
        Err(fault) => (Mover::Blocking(pool), format!("{fault}, using blocking")),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::buffer::AlignedBuf;
    use crate::disk::{FileId, Op};
    use crate::probe::{SideChoice, open_disk};

    /// What a file holds, written through the disk that it is of.
    fn written(disk: &dyn Disk, file: FileId, bytes: &[u8]) {
        let mut buf = AlignedBuf::new(bytes.len()).expect("memory");
        buf.copy_from_slice(bytes);
        let mut queue = disk.queue(1).expect("a queue");
        let (offset, parts) = (4096, vec![buf.into_part()]);
        queue.submit(1, Op::Write { file, offset, parts }).expect("room");
        let mut done = Vec::new();
        while done.is_empty() {
            queue.wait(&mut done, Duration::from_secs(1));
        }
        assert_eq!(done[0].result, Ok(()));
    }

    fn read(disk: &dyn Disk, file: FileId, offset: u64) -> Result<Vec<u8>, IoFault> {
        let part = AlignedBuf::new(4096).expect("memory").into_part();
        let mut queue = disk.queue(1).expect("a queue");
        queue.submit(1, Op::Read { file, offset, parts: vec![part] }).expect("room");
        let mut done = Vec::new();
        while done.is_empty() {
            queue.wait(&mut done, Duration::from_secs(1));
        }
        let done = done.remove(0);
        done.result.map(|()| done.op.into_parts()[0].bytes().to_vec())
    }

    #[test]
    fn who_was_handed_a_file_reads_what_its_owner_writes_and_writes_nothing() {
        for side in [SideChoice::Auto, SideChoice::Blocking] {
            let dir = TempDir::new().expect("a directory");
            let owner = open_disk(&[dir.path().to_path_buf()], side).expect("a disk");
            let file = owner.create(0, "segments", 8192).expect("a file");
            let reader = Arc::new(owner.reader(file).expect("may be read"));
            let handed = open_handed(&[reader.clone(), reader]).expect("a disk");
            let bytes: Vec<u8> = (0..4096u32).map(|i| (i / 7) as u8).collect();
            written(&*owner, file, &bytes);
            assert_eq!(read(&*handed, FileId(1), 4096), Ok(bytes));
            assert!(read(&*handed, FileId(0), 8192).is_err(), "beyond its end");
            let part = AlignedBuf::new(4096).expect("memory").into_part();
            let mut queue = handed.queue(1).expect("a queue");
            queue.submit(1, Op::Write { file: FileId(0), offset: 0, parts: vec![part] }).expect("room");
            let mut done = Vec::new();
            while done.is_empty() {
                queue.wait(&mut done, Duration::from_secs(1));
            }
            assert!(done[0].result.is_err(), "it was opened to be read");
            drop((queue, handed));
            // The lock is on the owner's own description.
            assert!(
                open_disk(&[dir.path().to_path_buf()], side).expect("a disk").open(0, "segments").is_err()
            );
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let (pipe, _other) = std::io::pipe().expect("a pipe");
        let refused = open_handed(&[Arc::new(pipe.into())]).err().expect("no file");
        assert_eq!(refused.kind, FaultKind::Invalid);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "another process's hands are played")]
    fn a_file_that_another_has_taken_the_place_of_is_not_handed_over() {
        let dir = TempDir::new().expect("a directory");
        let owner = open_disk(&[dir.path().to_path_buf()], SideChoice::Auto).expect("a disk");
        let file = owner.create(0, "segments", 8192).expect("a file");
        std::fs::rename(dir.path().join("segments"), dir.path().join("before")).expect("renamed");
        std::fs::write(dir.path().join("segments"), vec![0; 8192]).expect("written");
        assert!(owner.reader(file).is_err());
    }
}
