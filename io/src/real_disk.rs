//! The disk over directories of real file systems.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use pagelith_layouts::align::ALIGN;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::blocking::{BlockingQueue, Pool};
use crate::copy_on_write;
use crate::create::{check_name, create, lock, make_dirs, remove_dirs, set_direct, sync_dir};
use crate::disk::{Disk, DiskFacts, FileId, IoBackend, Queue};
use crate::fault::{FaultKind, FaultOp, IoFault, show};
use crate::file_system::check_length;
use crate::files::{DataFile, Files};
use crate::fork;
use crate::op_check::{Alignment, PARTS_MAX};
use crate::registered::{MemoryRange, RegisteredMemory, Registration};
use crate::regular_file::{Access, lstat_name, open_store_file};
use crate::sync::{Mutex, PoisonError};
use crate::uring::{self, UringQueue, UringShared};

/// The mechanism that transfers the bytes.
pub(crate) enum TransferBackend {
    /// One ring per queue.
    Uring {
        /// Performs the operations that do not go through a ring.
        pool: Arc<Pool>,
        /// Whether a queue without a ring falls back to the helper threads.
        may_do_without: bool,
    },
    /// The disk's helper threads.
    Blocking(Arc<Pool>),
}

/// A list of directories, all with the same mechanism.
pub(crate) struct RealDisk {
    dirs: Vec<PathBuf>,
    files: Arc<Files>,
    registered: Arc<RegisteredMemory>,
    mover: TransferBackend,
    direct: bool,
    align: Alignment,
    reason: String,
    /// Whether the warning about a queue without a ring was logged.
    ring_warned: AtomicBool,
    /// Directories that this disk created, outermost first; removed again if the creation of the
    /// store fails.
    made: Mutex<Vec<PathBuf>>,
    /// True once file creation must stop.
    stop: Arc<AtomicBool>,
    /// Guards the warning about a copy-on-write file system.
    cow_warning: Once,
}

impl RealDisk {
    /// A disk over `dirs`, which need not exist; `reason` says why `mover` was chosen.
    pub(crate) fn new(
        dirs: &[PathBuf],
        mover: TransferBackend,
        direct: bool,
        align: Alignment,
        reason: String,
    ) -> RealDisk {
        let made = Mutex::default();
        let (files, registered) = (Arc::default(), Arc::default());
        fork::track(&files);
        // The process may change its working directory while files are open.
        let dirs =
            dirs.iter().map(|d| std::path::absolute(d).unwrap_or_else(|_| d.clone())).collect();
        let (ring_warned, stop, cow_warning) =
            (AtomicBool::new(false), Arc::default(), Once::new());
        RealDisk {
            dirs,
            files,
            registered,
            mover,
            direct,
            align,
            reason,
            ring_warned,
            made,
            stop,
            cow_warning,
        }
    }

    /// The same disk with a stop flag, which ends file creation.
    pub(crate) fn with_stop(self, stop: Arc<AtomicBool>) -> RealDisk {
        RealDisk { stop, ..self }
    }

    /// Add an open file to the table.
    fn insert(&self, file: DataFile) -> FileId {
        if copy_on_write::copies(&file.fd) {
            self.cow_warning.call_once(|| {
                tracing::warn!(
                    path = file.path,
                    "the file system is copy-on-write: once it is full the store cannot be written; \
                     keep space free, or on btrfs recreate the store where files may be NOCOW"
                );
            });
        }
        self.files.insert(file)
    }

    fn dir(&self, dir: usize, op: FaultOp) -> Result<&Path, IoFault> {
        self.dirs.get(dir).map(PathBuf::as_path).ok_or_else(|| {
            let detail = format!("no such directory: dir={dir} dirs={}", self.dirs.len());
            IoFault::found(FaultKind::Invalid, op, "", 0, detail)
        })
    }
}

impl Disk for RealDisk {
    fn facts(&self) -> DiskFacts {
        DiskFacts {
            backend: match self.mover {
                TransferBackend::Uring { .. } => IoBackend::Uring,
                TransferBackend::Blocking(_) => IoBackend::Blocking,
            },
            direct: self.direct,
            memory_align: self.align.memory,
            offset_align: self.align.offset,
            parts_max: PARTS_MAX,
            reason: self.reason.clone(),
        }
    }

    fn dirs(&self) -> usize {
        self.dirs.len()
    }

    fn dir_name(&self, dir: usize) -> String {
        self.dirs.get(dir).map_or_else(String::new, |d| show(d))
    }

    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        list(self.dir(dir, FaultOp::List)?)
    }

    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault> {
        let path = self.dir(dir, FaultOp::Create)?;
        let made = make_dirs(path)?;
        let fd =
            create(path, name, len, self.direct, &self.stop).inspect_err(|_| remove_dirs(&made))?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).extend(made);
        let path = show(&path.join(name));
        Ok(self.insert(DataFile { fd, path, dir, name: name.to_owned(), len }))
    }

    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault> {
        let file = open(self.dir(dir, FaultOp::Open)?, dir, name, self.direct)?;
        let len = file.len;
        Ok((self.insert(file), len))
    }

    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault> {
        let path = self.dir(dir, FaultOp::Remove)?;
        check_name(path, name, FaultOp::Remove)?;
        let unlinked = retry_on_intr(|| rustix::fs::unlink(path.join(name)));
        if matches!(unlinked, Ok(()) | Err(Errno::NOENT)) {
            self.files.remove(dir, name);
        }
        match unlinked {
            Ok(()) => {
                sync_dir(path, FaultOp::Remove)?;
                remove_dirs(&self.made.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(e) => {
                Err(IoFault::of_errno(FaultOp::Remove, show(&path.join(name)), 0, e.raw_os_error()))
            }
        }
    }

    fn check_names(&self) -> Result<(), IoFault> {
        self.files
            .all()
            .iter()
            .try_for_each(|file| check_name_of(file, self.dir(file.dir, FaultOp::Sync)?))
    }

    fn read_prefix(&self, dir: usize, name: &str) -> Option<Vec<u8>> {
        let path = self.dir(dir, FaultOp::Open).ok()?.join(name);
        let fd = open_store_file(&path, Access::Read).ok()?;
        let mut bytes = vec![0; ALIGN as usize];
        let read = retry_on_intr(|| rustix::io::read(&fd, &mut bytes)).ok()?;
        bytes.truncate(read);
        Some(bytes)
    }

    fn register(&self, base: usize, len: usize) -> Result<Registration, IoFault> {
        let span = MemoryRange { base, len };
        match self.mover {
            TransferBackend::Uring { .. } if len > 0 => {
                uring::may_register(span)?;
                Ok(self.registered.add(span))
            }
            TransferBackend::Uring { .. } | TransferBackend::Blocking(_) => {
                Ok(Registration::none())
            }
        }
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        let (files, align) = (self.files.clone(), self.align);
        let (pool, fault) = match &self.mover {
            TransferBackend::Uring { pool, may_do_without } => {
                let registered = self.registered.clone();
                let common =
                    UringShared { files: files.clone(), registered, align, pool: pool.clone() };
                match UringQueue::new(common, depth) {
                    Ok(queue) => return Ok(Box::new(queue)),
                    Err(fault) if *may_do_without => (pool, Some(fault)),
                    Err(fault) => return Err(fault),
                }
            }
            TransferBackend::Blocking(pool) => (pool, None),
        };
        if let Some(fault) = fault {
            match self.ring_warned.swap(true, Ordering::Relaxed) {
                false => {
                    tracing::warn!(%fault, "no ring for an I/O queue, it uses blocking I/O, which is slower")
                }
                true => {
                    tracing::debug!(%fault, "no ring for an I/O queue, it uses blocking I/O")
                }
            }
        }
        Ok(Box::new(BlockingQueue::new(files, align, pool.clone(), depth)))
    }
}

fn open(dir: &Path, index: usize, name: &str, direct: bool) -> Result<DataFile, IoFault> {
    check_name(dir, name, FaultOp::Open)?;
    let path = dir.join(name);
    let fault = |e: Errno| IoFault::of_errno(FaultOp::Open, show(&path), 0, e.raw_os_error());
    let fd = open_store_file(&path, Access::Write)?;
    lock(&fd, &path, FaultOp::Open)?;
    let stat = rustix::fs::fstat(&fd).map_err(fault)?;
    if stat.st_nlink == 0 {
        // The file was removed between the open and the lock.
        return Err(fault(Errno::NOENT));
    }
    rustix::fs::fcntl_setfl(&fd, OFlags::RDWR)
        .and_then(|()| set_direct(&fd, direct))
        .map_err(fault)?;
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    check_length(&path, len, FaultOp::Open)?;
    Ok(DataFile { fd, path: show(&path), dir: index, name: name.to_owned(), len })
}

/// See [`Disk::check_names`].
fn check_name_of(file: &DataFile, dir: &Path) -> Result<(), IoFault> {
    let own = rustix::fs::fstat(&file.fd)
        .map_err(|e| IoFault::of_errno(FaultOp::Sync, &file.path, 0, e.raw_os_error()))?;
    let change = match lstat_name(&dir.join(&file.name)) {
        Ok(named) if (named.st_dev, named.st_ino) != (own.st_dev, own.st_ino) => "replaced",
        Err(Errno::NOENT | Errno::NOTDIR) => "removed",
        _ if u64::try_from(own.st_size).unwrap_or(0) < file.len => "cut",
        // Any other error, such as a directory that this user can no longer enter, says nothing
        // about the file.
        Ok(_) | Err(_) => return Ok(()),
    };
    let detail =
        format!("the file was {change} while the store is open; close the store and open it again");
    Err(IoFault::found(FaultKind::Gone, FaultOp::Sync, &file.path, 0, detail))
}

/// The regular files of `dir`, sorted by name. Names that are not UTF-8 are not the store's.
pub(crate) fn list(dir: &Path) -> Result<Vec<(String, u64)>, IoFault> {
    let fault = |e: Errno| IoFault::of_errno(FaultOp::List, show(dir), 0, e.raw_os_error());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match retry_on_intr(|| rustix::fs::open(dir, flags, Mode::empty())) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(fault(e)),
    };
    let mut files = Vec::new();
    for entry in rustix::fs::Dir::read_from(&fd).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        let stat =
            match rustix::fs::statat(&fd, entry.file_name(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            {
                Ok(stat) => stat,
                // Removed since the directory was read.
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(fault(e)),
            };
        if let (FileType::RegularFile, Some(name)) =
            (FileType::from_raw_mode(stat.st_mode), name.to_str())
        {
            files.push((name.to_owned(), u64::try_from(stat.st_size).unwrap_or(0)));
        }
    }
    files.sort();
    Ok(files)
}
