//! The files of a store, read with `layouts` only: no engine, no lock, and no writes (repair writes
//! through [`files`]). Unreadable parts are part of the result, so that a damaged store can be
//! inspected.

pub(crate) mod dir_order;
pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod read;
pub(crate) mod segment;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use pagelith_layouts::align::{ALIGN, align_down};
use pagelith_layouts::checkpoint::{self, CheckpointFacts};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, StoreId};
use pagelith_layouts::manifest::{self, BlockDamage, Manifest, Superblock};
use pagelith_layouts::names;
use pagelith_layouts::wire::printable::Printable;

use self::read::{read_blocks, read_up_to};
use crate::machine::{Access, FaultKind, open_store_file};

/// Maximum bytes read of a manifest copy: twice the size for the largest configuration, so that a
/// huge file of that name cannot exhaust memory.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// Blocks in sequence of which a device can read none if it has failed: 1 MiB.
const BLOCKS_OF_A_FAILED_DEVICE: usize = 256;

/// Handling of a store's locks while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Only find out whether the store is in use.
    Probe,
    /// Hold shared locks, which keep writers out.
    Shared,
    /// The caller holds the exclusive locks already.
    Held,
}

/// The files of a store.
pub(crate) struct OnDisk {
    dirs: Vec<PathBuf>,
    /// The segments file of each directory, `None` if missing.
    segments: Vec<Option<File>>,
    /// Contents of the manifest copies, `None` if missing.
    pub(crate) copies: [Option<Vec<u8>>; 2],
    /// The blocks that the device could not read so far: file, byte offset in it, and the error.
    unreadable: RefCell<BTreeMap<(PathBuf, u64), String>>,
    /// A file that another process has locked, if any.
    pub(crate) locked: Option<PathBuf>,
    /// The locks of [`LockMode::Shared`].
    _locks: Option<locks::Locks>,
}

impl OnDisk {
    /// Open the files in the directories of a store, which are given in the order of its
    /// configuration. An error if there is no store at all.
    pub(crate) fn open(dirs: &[PathBuf], mode: LockMode) -> anyhow::Result<OnDisk> {
        let files = files_of(dirs)?;
        let mut disk = OnDisk {
            dirs: dirs.to_vec(),
            segments: Vec::new(),
            copies: [None, None],
            unreadable: RefCell::default(),
            locked: None,
            _locks: None,
        };
        if mode != LockMode::Held {
            let owner = disk.owner().filter(|_| mode == LockMode::Shared);
            match locks::lock_all(&files, locks::LockKind::Shared, owner.as_deref()) {
                Ok(locks) => disk._locks = Some(locks).filter(|_| mode == LockMode::Shared),
                Err(path) => disk.locked = Some(path),
            }
        }
        for copy in 0..2 {
            disk.copies[copy] = disk.read_manifest(&disk.manifest_path(copy))?;
        }
        for dir in dirs {
            disk.segments.push(open_if_exists(&dir.join(names::SEGMENTS))?);
        }
        Ok(disk)
    }

    /// The manifest and its damaged blocks; or the damage of each copy if neither is usable.
    pub(crate) fn manifest(&self) -> Result<(Manifest, Vec<BlockDamage>), Vec<BlockDamage>> {
        let bytes = self.manifest_bytes();
        manifest::decode(bytes).map_err(|first| {
            // Decode each copy by itself, so that both are reported.
            let alone = |copy| {
                let damage = manifest::decode([bytes[copy], &[]]).err()?;
                Some(BlockDamage { copy, ..damage })
            };
            let mut all: Vec<BlockDamage> = (0..2).filter_map(alone).collect();
            if !all.contains(&first) {
                all.push(first);
            }
            all
        })
    }

    /// Path of a manifest copy: the first is in the first directory, the second in the last.
    pub(crate) fn manifest_path(&self, copy: usize) -> PathBuf {
        let dir = if copy == 0 { self.dirs.first() } else { self.dirs.last() };
        dir.map(|d| d.join(names::MANIFESTS[copy])).unwrap_or_default()
    }

    /// Path of a checkpoint.
    pub(crate) fn checkpoint_path(&self, which: usize) -> PathBuf {
        self.dirs.first().map(|d| d.join(names::CHECKPOINTS[which])).unwrap_or_default()
    }

    /// The two manifest copies' bytes, empty if missing.
    pub(crate) fn manifest_bytes(&self) -> [&[u8]; 2] {
        [0, 1].map(|copy| self.copies[copy].as_deref().unwrap_or_default())
    }

    /// The directories, in the order given.
    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Index and path of each directory without a file of the store.
    pub(crate) fn missing(&self) -> anyhow::Result<Vec<(usize, &Path)>> {
        let mut missing = Vec::new();
        for (i, dir) in self.dirs.iter().enumerate() {
            if !list_if_exists(dir)?
                .is_some_and(|names| names.iter().any(|n| names::is_store_file(n)))
            {
                missing.push((i, dir.as_path()));
            }
        }
        Ok(missing)
    }

    /// An error if a directory holds no file of the store. Its files are not damaged but absent:
    /// the drive may not be mounted.
    pub(crate) fn require_all_dirs(&self) -> anyhow::Result<()> {
        match self.missing()?.first() {
            None => Ok(()),
            Some(missing) => bail!("{}", self.missing_message(*missing)),
        }
    }

    /// The message about a directory without a file of the store.
    pub(crate) fn missing_message(&self, (number, dir): (usize, &Path)) -> String {
        let (number, of) = (number + 1, self.dir_count());
        let dir = dir.display();
        format!(
            "directory {number} of {of} holds no file of the store, is its drive mounted? dir={dir}"
        )
    }

    /// The message about the first directory without a segments file, if there is one. The file may
    /// have been moved, or be a link to a drive that is not mounted.
    pub(crate) fn missing_segments_message(&self) -> Option<String> {
        let number = self.segments.iter().position(Option::is_none)?;
        let (of, dir) = (self.dir_count(), self.dirs.get(number)?.display());
        let (file, number) = (names::SEGMENTS, number + 1);
        Some(format!(
            "directory {number} of {of} has no file {file}, is it on a drive that is not mounted? dir={dir}"
        ))
    }

    /// An error if a segments file is not a regular file: repair must be able to replace it before
    /// it drops anything.
    pub(crate) fn require_plain_segments(&self) -> anyhow::Result<()> {
        let paths = self.dirs.iter().map(|dir| dir.join(names::SEGMENTS));
        for path in paths {
            if std::fs::symlink_metadata(&path).is_ok_and(|about| !about.is_file()) {
                bail!("not a regular file, move it away first file={}", path.display());
            }
        }
        Ok(())
    }

    /// Number of directories given.
    pub(crate) fn dir_count(&self) -> u32 {
        self.dirs.len() as u32
    }

    /// The owner of the store, from the LOCK file.
    pub(crate) fn owner(&self) -> Option<String> {
        let path = self.dirs.first()?.join(names::LOCK);
        let bytes = read_if_exists(&path, ALIGN).ok()??;
        let text = String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_owned();
        // Escaped, since any process may have written the file.
        (!text.is_empty()).then(|| Printable(&text).to_string())
    }

    /// Path of the file that contains a segment, and the segment's byte offset in it.
    pub(crate) fn segment_location(
        &self,
        segment: SegmentId,
        superblock: &Superblock,
    ) -> (PathBuf, u64) {
        let (dir, offset) =
            names::segment_location(segment, self.dir_count(), superblock.segment_bytes);
        (self.dirs.get(dir).map(|d| d.join(names::SEGMENTS)).unwrap_or_default(), offset)
    }

    /// Fill `buf` from a byte offset of a segment.
    pub(crate) fn read_segment(
        &self,
        segment: SegmentId,
        superblock: &Superblock,
        offset: u64,
        buf: &mut [u8],
    ) -> anyhow::Result<()> {
        let (dir, start) =
            names::segment_location(segment, self.dir_count(), superblock.segment_bytes);
        self.read_slot(dir, start + offset, buf).with_context(|| {
            let (path, _) = self.segment_location(segment, superblock);
            format!("cannot read {segment} offset={offset} file={}", path.display())
        })
    }

    /// As [`OnDisk::read_segment`], but blocks that the device cannot read decode as damaged. An
    /// error if it can read none of many blocks: then it has probably failed.
    pub(crate) fn read_segment_blocks(
        &self,
        segment: SegmentId,
        superblock: &Superblock,
        offset: u64,
        buf: &mut [u8],
    ) -> anyhow::Result<()> {
        let Err(error) = self.read_segment(segment, superblock, offset, buf) else { return Ok(()) };
        let (dir, start) =
            names::segment_location(segment, self.dir_count(), superblock.segment_bytes);
        let Some(file) = self.segments.get(dir).and_then(Option::as_ref) else { return Err(error) };
        let (path, _) = self.segment_location(segment, superblock);
        let read = read_blocks(file, &path, start + offset, buf);
        let all = read.unreadable.len() as u64 * ALIGN >= buf.len() as u64;
        if read.bytes < buf.len() || (all && read.unreadable.len() >= BLOCKS_OF_A_FAILED_DEVICE) {
            return Err(error);
        }
        self.note_unreadable(&path, read.unreadable);
        Ok(())
    }

    /// Fill `buf` from a byte offset of a directory's segments file.
    pub(crate) fn read_slot(&self, dir: usize, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let file = self.segments.get(dir).and_then(Option::as_ref);
        let missing = || io::Error::new(io::ErrorKind::NotFound, "the file is missing");
        let path = self.dirs.get(dir).map(|d| d.join(names::SEGMENTS)).unwrap_or_default();
        match read_up_to(file.ok_or_else(missing)?, &path, offset, buf)? {
            read if read < buf.len() => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    fn note_unreadable(&self, path: &Path, blocks: Vec<(u64, io::Error)>) {
        let blocks = blocks.into_iter().map(|(at, e)| ((path.to_owned(), at), e.to_string()));
        self.unreadable.borrow_mut().extend(blocks);
    }

    /// The blocks that the device could not read so far: file, byte offset in it, and the error.
    pub(crate) fn unreadable(&self) -> BTreeMap<(PathBuf, u64), String> {
        self.unreadable.borrow().clone()
    }

    /// Byte offsets of a segment's blocks that the device could not read so far.
    pub(crate) fn unreadable_in(&self, segment: SegmentId, superblock: &Superblock) -> Vec<u64> {
        let (path, start) = self.segment_location(segment, superblock);
        let range = (path.clone(), start)..(path, start + superblock.segment_bytes);
        self.unreadable.borrow().range(range).map(|((_, at), _)| at - start).collect()
    }

    /// A manifest copy, `None` if it is missing. A partial block at its end is dropped.
    fn read_manifest(&self, path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(file) = open_if_exists(path)? else { return Ok(None) };
        let about = file.metadata().with_context(|| format!("cannot read file={}", path.display()));
        let mut bytes = vec![0; align_down(about?.len().min(MANIFEST_BYTES_MAX)) as usize];
        let read = read_blocks(&file, path, 0, &mut bytes);
        bytes.truncate(align_down(read.bytes as u64) as usize);
        self.note_unreadable(path, read.unreadable);
        Ok(Some(bytes))
    }

    /// Length of each directory's segments file in bytes, 0 if it is missing.
    pub(crate) fn segment_file_bytes(&self) -> Vec<u64> {
        let bytes = |file: &Option<File>| {
            file.as_ref().and_then(|f| f.metadata().ok()).map_or(0, |m| m.len())
        };
        self.segments.iter().map(bytes).collect()
    }

    /// Each file of the store with its expected and its actual length (`None` if it is missing).
    pub(crate) fn lengths(&self, superblock: &Superblock) -> Vec<(PathBuf, u64, Option<u64>)> {
        let manifest = Manifest::copy_bytes(superblock.segment_count, superblock.namespaces_max);
        let mut files = Vec::new();
        for i in 0..2 {
            files.push((self.manifest_path(i), manifest));
            files.push((self.checkpoint_path(i), superblock.checkpoint_bytes));
        }
        for (i, dir) in self.dirs.iter().enumerate() {
            let segments =
                superblock.segment_count.saturating_sub(i as u32).div_ceil(self.dir_count());
            files.push((dir.join(names::SEGMENTS), u64::from(segments) * superblock.segment_bytes));
        }
        let found = |path: &Path| std::fs::metadata(path).ok().map(|m| m.len());
        files.into_iter().map(|(path, expected)| (path.clone(), expected, found(&path))).collect()
    }

    /// The head of a checkpoint, and the file to read its chunks from; `None` if the file is
    /// missing.
    pub(crate) fn checkpoint(
        &self,
        which: usize,
        store: StoreId,
    ) -> anyhow::Result<Option<CheckpointFile>> {
        let path = self.checkpoint_path(which);
        let Some(file) = open_if_exists(&path)? else { return Ok(None) };
        let mut block = vec![0; ALIGN as usize];
        let read = read_blocks(&file, &path, 0, &mut block);
        self.note_unreadable(&path, read.unreadable);
        let head = checkpoint::decode_head(&block[..read.bytes], store);
        Ok(Some(CheckpointFile { head, file }))
    }

    /// Read a chunk of a checkpoint into `buf`; returns the number of bytes read.
    pub(crate) fn read_chunk(
        &self,
        which: usize,
        checkpoint: &CheckpointFile,
        index: u64,
        buf: &mut [u8],
    ) -> usize {
        let path = self.checkpoint_path(which);
        let read = read_blocks(&checkpoint.file, &path, checkpoint::chunk_offset(index), buf);
        self.note_unreadable(&path, read.unreadable);
        read.bytes
    }
}

/// An open checkpoint.
pub(crate) struct CheckpointFile {
    /// The decoded head.
    pub(crate) head: Result<CheckpointFacts, FormatError>,
    file: File,
}

/// The existing files of the store. An error if there is none, or if its creation was not finished.
pub(crate) fn files_of(dirs: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut absent) = (Vec::new(), None);
    for dir in dirs {
        let names = list_if_exists(dir)?;
        absent = absent.or(names.is_none().then_some(dir));
        for name in names.unwrap_or_default().iter().filter(|n| names::is_store_file(n)) {
            if name == names::CREATING {
                bail!(
                    "not a store: its creation was not finished, the next open of the store starts \
                     anew dir={}",
                    dir.display()
                );
            }
            files.push(dir.join(name));
        }
    }
    if files.is_empty() {
        if let Some(dir) = absent {
            list(dir)?;
        }
        bail!(
            "not a store: no file of a store is there, is the drive mounted? dir={}",
            display_dirs(dirs)
        );
    }
    Ok(files)
}

/// The directories, for messages.
pub(crate) fn display_dirs(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(",")
}

/// As [`list`]; `None` if the directory does not exist.
pub(crate) fn list_if_exists(dir: &Path) -> anyhow::Result<Option<Vec<String>>> {
    match std::fs::symlink_metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => list(dir).map(Some),
    }
}

/// Names of the entries of a directory.
pub(crate) fn list(dir: &Path) -> anyhow::Result<Vec<String>> {
    let context = || format!("not a store: the directory cannot be read dir={}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(context)? {
        names.extend(entry.with_context(context)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn open_if_exists(path: &Path) -> anyhow::Result<Option<File>> {
    match open_store_file(path, Access::Read) {
        Ok(fd) => Ok(Some(File::from(fd))),
        Err(fault) if fault.kind == FaultKind::NotFound => Ok(None),
        Err(fault) => Err(fault).context("cannot open a file of the store"),
    }
}

fn read_if_exists(path: &Path, bytes_max: u64) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(file) = open_if_exists(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let read = file.take(bytes_max).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read file={}", path.display()))?;
    Ok(Some(bytes))
}
