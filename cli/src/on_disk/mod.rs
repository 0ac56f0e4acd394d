//! A store's files as they lie there, read with `layouts` alone: no engine, no lock needed, nothing written
//! (what repair writes goes through [`files`]). What cannot be read is part of the answer, so that a broken store
//! can be looked at.

pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod segment;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use pagelith_layouts::align::{ALIGN, align_down};
use pagelith_layouts::checkpoint::{self, CheckpointFacts};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, StoreId};
use pagelith_layouts::manifest::{self, BlockDamage, Manifest, Superblock};
use pagelith_layouts::names;
use pagelith_layouts::wire::printable::Printable;

use crate::machine::{Access, FaultKind, open_own};

/// Most bytes of a manifest copy that are read: twice what the largest configuration needs, so that a huge
/// file of that name cannot take all memory.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// What a look at a store does about its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Find out whether the store is in use.
    Peek,
    /// Keep everybody who would write away as long as the look lasts.
    Shared,
    /// The caller has the store to itself already.
    Mine,
}

/// The files of a store.
pub(crate) struct OnDisk {
    dirs: Vec<PathBuf>,
    /// Segments file of each directory, `None` if missing.
    segments: Vec<Option<File>>,
    /// Contents of the manifest copies, `None` if missing.
    pub(crate) copies: [Option<Vec<u8>>; 2],
    /// A file that another process holds the lock of, if any.
    pub(crate) locked: Option<PathBuf>,
    /// Held as long as this value lives, if it was asked for.
    _locks: Option<locks::Locks>,
}

impl OnDisk {
    /// Look at the directories of a store, all of them in the order of its configuration. An error if there is
    /// no store at all.
    pub(crate) fn open(dirs: &[PathBuf], hold: Hold) -> anyhow::Result<OnDisk> {
        let files = files_of(dirs)?;
        let mut disk = OnDisk {
            dirs: dirs.to_vec(),
            segments: Vec::new(),
            copies: [None, None],
            locked: None,
            _locks: None,
        };
        if hold != Hold::Mine {
            let owner = disk.owner().filter(|_| hold == Hold::Shared);
            match locks::take(&files, locks::Kind::Shared, owner.as_deref()) {
                Ok(locks) => disk._locks = Some(locks).filter(|_| hold == Hold::Shared),
                Err(path) => disk.locked = Some(path),
            }
        }
        for copy in 0..2 {
            disk.copies[copy] = read_if_there(&disk.manifest_path(copy), MANIFEST_BYTES_MAX)?;
        }
        for dir in dirs {
            disk.segments.push(open_if_there(&dir.join(names::SEGMENTS))?);
        }
        Ok(disk)
    }

    /// The manifest and what is damaged of it; or what is wrong with each copy if neither will do.
    pub(crate) fn manifest(&self) -> Result<(Manifest, Vec<BlockDamage>), Vec<BlockDamage>> {
        let bytes = self.manifest_bytes();
        manifest::decode(bytes).map_err(|first| {
            // Each copy by itself, so that both are named.
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

    /// Path of a manifest copy: the first lies in the first directory, the second in the last.
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

    /// Number and path of the directories that hold no file of the store.
    pub(crate) fn missing(&self) -> anyhow::Result<Vec<(usize, &Path)>> {
        let mut missing = Vec::new();
        for (i, dir) in self.dirs.iter().enumerate() {
            if !list_if_there(dir)?.is_some_and(|names| names.iter().any(|n| names::is_ours(n))) {
                missing.push((i, dir.as_path()));
            }
        }
        Ok(missing)
    }

    /// An error if a directory holds no file of the store: what lies there is not damaged, it is elsewhere.
    pub(crate) fn require_all_dirs(&self) -> anyhow::Result<()> {
        match self.missing()?.first() {
            None => Ok(()),
            Some(missing) => bail!("{}", self.is_missing(*missing)),
        }
    }

    /// What to say of a directory that holds no file of the store.
    pub(crate) fn is_missing(&self, (number, dir): (usize, &Path)) -> String {
        let (number, of) = (number + 1, self.dir_count());
        let dir = dir.display();
        format!("directory {number} of {of} holds no file of the store, is its drive mounted? dir={dir}")
    }

    /// What to say of the first directory without a segments file: it may have been moved, or be a link to a drive that is not mounted.
    pub(crate) fn lacks_segments(&self) -> Option<String> {
        let number = self.segments.iter().position(Option::is_none)?;
        let (of, dir) = (self.dir_count(), self.dirs.get(number)?.display());
        let (file, number) = (names::SEGMENTS, number + 1);
        Some(format!(
            "directory {number} of {of} has no file {file}, is it on a drive that is not mounted? dir={dir}"
        ))
    }

    /// An error if something else has the name of a segments file: nothing is dropped before it can be replaced.
    pub(crate) fn require_plain_segments(&self) -> anyhow::Result<()> {
        let paths = self.dirs.iter().map(|dir| dir.join(names::SEGMENTS));
        for path in paths {
            if std::fs::symlink_metadata(&path).is_ok_and(|about| !about.is_file()) {
                bail!("it is no regular file, move it away first file={}", path.display());
            }
        }
        Ok(())
    }

    /// Number of directories given.
    pub(crate) fn dir_count(&self) -> u32 {
        self.dirs.len() as u32
    }

    /// What the LOCK file says of the store's owner.
    pub(crate) fn owner(&self) -> Option<String> {
        let path = self.dirs.first()?.join(names::LOCK);
        let bytes = read_if_there(&path, ALIGN).ok()??;
        let text = String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_owned();
        // Whatever wrote it.
        (!text.is_empty()).then(|| Printable(&text).to_string())
    }

    /// Path of the file that a segment lies in, and the segment's byte offset there.
    pub(crate) fn segment_place(&self, segment: SegmentId, superblock: &Superblock) -> (PathBuf, u64) {
        let (dir, offset) = names::segment_place(segment, self.dir_count(), superblock.segment_bytes);
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
        let (dir, start) = names::segment_place(segment, self.dir_count(), superblock.segment_bytes);
        let read = match self.segments.get(dir).and_then(Option::as_ref) {
            Some(file) => file.read_exact_at(buf, start + offset),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "the file is missing")),
        };
        read.with_context(|| {
            let (path, _) = self.segment_place(segment, superblock);
            format!("cannot read {segment} offset={offset} file={}", path.display())
        })
    }

    /// Fill `buf` from a byte offset of a directory's segments; whether it could be.
    pub(crate) fn read_slot(&self, dir: usize, offset: u64, buf: &mut [u8]) -> bool {
        let file = self.segments.get(dir).and_then(Option::as_ref);
        file.is_some_and(|file| file.read_exact_at(buf, offset).is_ok())
    }

    /// Length of each directory's segments in bytes, 0 if they are missing.
    pub(crate) fn segment_file_bytes(&self) -> Vec<u64> {
        let bytes =
            |file: &Option<File>| file.as_ref().and_then(|f| f.metadata().ok()).map_or(0, |m| m.len());
        self.segments.iter().map(bytes).collect()
    }

    /// Each file that the store should have, with the length it should have and the one it has (`None` if it
    /// is missing).
    pub(crate) fn lengths(&self, superblock: &Superblock) -> Vec<(PathBuf, u64, Option<u64>)> {
        let manifest = Manifest::copy_bytes(superblock.segment_count, superblock.namespaces_max);
        let mut files = Vec::new();
        for i in 0..2 {
            files.push((self.manifest_path(i), manifest));
            files.push((self.checkpoint_path(i), superblock.checkpoint_bytes));
        }
        for (i, dir) in self.dirs.iter().enumerate() {
            let segments = superblock.segment_count.saturating_sub(i as u32).div_ceil(self.dir_count());
            files.push((dir.join(names::SEGMENTS), u64::from(segments) * superblock.segment_bytes));
        }
        let found = |path: &Path| std::fs::metadata(path).ok().map(|m| m.len());
        files.into_iter().map(|(path, expected)| (path.clone(), expected, found(&path))).collect()
    }

    /// The head of a checkpoint, and the file to read its chunks from; `None` if the file is missing.
    pub(crate) fn checkpoint(&self, which: usize, store: StoreId) -> anyhow::Result<Option<CheckpointFile>> {
        let path = self.checkpoint_path(which);
        let Some(file) = open_if_there(&path)? else { return Ok(None) };
        let mut block = vec![0; ALIGN as usize];
        let read = read_up_to(&file, 0, &mut block);
        let read = read.with_context(|| format!("cannot read the checkpoint file={}", path.display()))?;
        Ok(Some(CheckpointFile { head: checkpoint::decode_head(&block[..read], store), file }))
    }
}

/// An open checkpoint.
pub(crate) struct CheckpointFile {
    /// What its head says.
    pub(crate) head: Result<CheckpointFacts, FormatError>,
    file: File,
}

impl CheckpointFile {
    /// Read a chunk into `buf`; returns how much of it is there.
    pub(crate) fn read_chunk(&self, index: u64, buf: &mut [u8]) -> io::Result<usize> {
        read_up_to(&self.file, checkpoint::chunk_offset(index), buf)
    }
}

/// The store's files that are there. An error if none is, or if the store was never finished.
pub(crate) fn files_of(dirs: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut absent) = (Vec::new(), None);
    for dir in dirs {
        let names = list_if_there(dir)?;
        absent = absent.or(names.is_none().then_some(dir));
        for name in names.unwrap_or_default().iter().filter(|n| names::is_ours(n)) {
            if name == names::CREATING {
                bail!("not a store: its creation was never finished dir={}", dir.display());
            }
            files.push(dir.join(name));
        }
    }
    if files.is_empty() {
        if let Some(dir) = absent {
            list(dir)?;
        }
        bail!("not a store: no file of a store is there, is the drive mounted? dir={}", shown(dirs));
    }
    Ok(files)
}

/// The directories as messages show them.
pub(crate) fn shown(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(",")
}

/// As [`list`]; `None` if there is no such directory.
pub(crate) fn list_if_there(dir: &Path) -> anyhow::Result<Option<Vec<String>>> {
    match std::fs::symlink_metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => list(dir).map(Some),
    }
}

/// Names of what is in a directory.
pub(crate) fn list(dir: &Path) -> anyhow::Result<Vec<String>> {
    let context = || format!("not a store: the directory cannot be read dir={}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(context)? {
        names.extend(entry.with_context(context)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn open_if_there(path: &Path) -> anyhow::Result<Option<File>> {
    match open_own(path, Access::Read) {
        Ok(fd) => Ok(Some(File::from(fd))),
        Err(fault) if fault.kind == FaultKind::NotFound => Ok(None),
        Err(fault) => Err(fault).context("cannot open a file of the store"),
    }
}

fn read_if_there(path: &Path, bytes_max: u64) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(file) = open_if_there(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let read = file.take(bytes_max).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read file={}", path.display()))?;
    // A ragged end is no block.
    bytes.truncate(align_down(bytes.len() as u64) as usize);
    Ok(Some(bytes))
}

/// Fill `buf` from `offset` as far as the file goes.
fn read_up_to(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
