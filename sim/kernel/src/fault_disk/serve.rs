//! The FUSE server: serves the kernel's requests from memory, with the faults of the rules.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use super::image::Image;
use super::rules::{Fault, FileOp, draw_fault};
use super::{State, lock};

/// Nothing is cached in the kernel, because bytes may change at rest.
const TTL: Duration = Duration::ZERO;
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
const SECTOR: usize = 512;
/// Distance of a misdirected transfer: within a record, and far away.
const MISDIRECTED_BY: [usize; 3] = [4096, 64 << 10, 5 << 20];

/// The FUSE server's handle on the state.
pub(super) struct Server(pub(super) Arc<Mutex<State>>);

impl State {
    fn attr(&self, file: usize) -> Option<FileAttr> {
        let (name, image) = self.files.get(file)?;
        let links = u32::from(self.names.get(name) == Some(&file));
        Some(attr(INodeNo(file as u64 + 2), FileType::RegularFile, image.len() as u64, links))
    }

    fn image(&mut self, inode: INodeNo) -> Option<&mut Image> {
        self.files.get_mut(number(inode)?).map(|(_, image)| image)
    }

    fn draw_fault(&mut self, on: FileOp, inode: INodeNo) -> Option<Fault> {
        let (name, _) = self.files.get(number(inode)?)?;
        let fault = draw_fault(&self.rules, &mut self.rng, on, name);
        self.injected += u64::from(fault.is_some());
        fault
    }

    /// Another offset in the same file for a transfer of `len` bytes.
    fn misdirected_offset(&mut self, inode: INodeNo, at: usize, len: usize) -> usize {
        let by = MISDIRECTED_BY[self.rng.below(MISDIRECTED_BY.len() as u64) as usize];
        let end = self.image(inode).map_or(0, |image| image.len());
        if at + by + len <= end { at + by } else { at.saturating_sub(by) }
    }

    /// Executes a read.
    fn read(
        &mut self,
        inode: INodeNo,
        at: usize,
        len: usize,
        fault: Option<Fault>,
    ) -> Result<Vec<u8>, Errno> {
        let at = if fault == Some(Fault::Misdirected) {
            self.misdirected_offset(inode, at, len)
        } else {
            at
        };
        let mut bytes = self.image(inode).ok_or(Errno::ENOENT)?.read(at, len).to_vec();
        match fault {
            Some(Fault::Eio) => return Err(Errno::EIO),
            Some(Fault::Flip) if !bytes.is_empty() => flip(&mut bytes, self.rng.next()),
            Some(Fault::Short) => bytes.truncate(bytes.len() / 2),
            _ => {}
        }
        Ok(bytes)
    }

    /// Executes a write; returns the number of bytes that it reports as written.
    fn write(
        &mut self,
        inode: INodeNo,
        at: usize,
        bytes: &[u8],
        fault: Option<Fault>,
    ) -> Result<usize, Errno> {
        let (start, random) = (self.rng.next() as usize, self.rng.next());
        let misdirected_offset = self.misdirected_offset(inode, at, bytes.len());
        let image = self.image(inode).ok_or(Errno::ENOENT)?;
        match fault {
            Some(Fault::Eio) => return Err(Errno::EIO),
            Some(Fault::NoSpace) => return Err(Errno::ENOSPC),
            Some(Fault::Lost) => {}
            Some(Fault::Misdirected) => image.write(misdirected_offset, bytes),
            Some(Fault::Torn) => {
                let sectors = bytes.len().div_ceil(SECTOR);
                let gap = start % sectors * SECTOR;
                let gap_end = bytes.len().min(gap + (1 + random as usize % sectors) * SECTOR);
                image.write(at, &bytes[..gap]);
                image.write(at + gap_end, &bytes[gap_end..]);
            }
            Some(Fault::Flip) => {
                let mut bytes = bytes.to_vec();
                flip(&mut bytes, random);
                image.write(at, &bytes);
            }
            Some(Fault::Short) => {
                let half = bytes.len() / 2;
                image.write(at, &bytes[..half]);
                return Ok(half);
            }
            Some(Fault::Late(_)) | None => image.write(at, bytes),
        }
        Ok(bytes.len())
    }

    fn sync(&mut self, inode: INodeNo, fault: Option<Fault>) -> Result<(), Errno> {
        let image = self.image(inode).ok_or(Errno::ENOENT)?;
        match fault {
            Some(Fault::Eio) => {
                image.fail_sync();
                return Err(Errno::EIO);
            }
            Some(Fault::Lost) => {}
            _ => image.sync(),
        }
        Ok(())
    }
}

fn flip(bytes: &mut [u8], random: u64) {
    let bit = random as usize % (bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

fn number(inode: INodeNo) -> Option<usize> {
    (inode.0 as usize).checked_sub(2)
}

fn attr(ino: INodeNo, kind: FileType, size: u64, nlink: u32) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Runs it now, or later on its own thread, so that no other request waits for it.
fn run_at(fault: Option<Fault>, answer: impl FnOnce() + Send + 'static) {
    match fault {
        Some(Fault::Late(ms)) => {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(ms.into()));
                answer();
            });
        }
        _ => answer(),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Several transfers of one queue at a time, as with a device.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = lock(&self.0);
        let file =
            name.to_str().filter(|_| parent == INodeNo::ROOT).and_then(|n| state.names.get(n));
        match file.and_then(|file| state.attr(*file)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let root = (ino == INodeNo::ROOT).then(|| attr(ino, FileType::Directory, 0, 2));
        match root.or_else(|| lock(&self.0).attr(number(ino)?)) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = lock(&self.0);
        if let (Some(size), Some(image)) = (size, state.image(ino)) {
            image.set_len(size as usize);
        }
        match number(ino).and_then(|file| state.attr(file)) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut state = lock(&self.0);
        let Some(name) = name.to_str().filter(|_| parent == INodeNo::ROOT) else {
            return reply.error(Errno::EINVAL);
        };
        let file = state.files.len();
        state.files.push((name.to_owned(), Image::default()));
        state.names.insert(name.to_owned(), file);
        match state.attr(file) {
            Some(attr) => reply.created(&TTL, &attr, Generation(0), FileHandle(0), OPENED),
            None => reply.error(Errno::EIO),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), OPENED);
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match name.to_str().and_then(|name| lock(&self.0).names.remove(name)) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let fault = lock(&self.0).draw_fault(FileOp::Read, ino);
        let state = self.0.clone();
        run_at(fault, move || {
            let read = lock(&state).read(ino, offset as usize, size as usize, fault);
            match read {
                Ok(bytes) => reply.data(&bytes),
                Err(e) => reply.error(e),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let fault = lock(&self.0).draw_fault(FileOp::Write, ino);
        let (state, data) = (self.0.clone(), data.to_vec());
        run_at(fault, move || {
            let written = lock(&state).write(ino, offset as usize, &data, fault);
            match written {
                Ok(bytes) => reply.written(bytes as u32),
                Err(e) => reply.error(e),
            }
        });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let fault = lock(&self.0).draw_fault(FileOp::Sync, ino);
        let state = self.0.clone();
        run_at(fault, move || {
            let synced = lock(&state).sync(ino, fault);
            match synced {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(e),
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match lock(&self.0).image(ino) {
            Some(image) if mode == 0 => {
                image.set_len(image.len().max((offset + length) as usize));
                reply.ok();
            }
            Some(_) => reply.error(Errno::EOPNOTSUPP),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = lock(&self.0);
        for (i, (name, file)) in state.names.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*file as u64 + 2), i as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let free = (4 << 30) / 4096;
        reply.statfs(free, free, free, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}
