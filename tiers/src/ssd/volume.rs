//! The files of a store: creates, opens and locks them.

use std::sync::Arc;

use pagelith_io::disk::{Disk, FileId};
use pagelith_io::entropy::Entropy;
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_layouts::align::{ALIGN, align_down};
use pagelith_layouts::checksum::{BLOCK_BYTES, FINGERPRINT_KEY_BYTES};
use pagelith_layouts::ids::{SegmentId, StoreId};
use pagelith_layouts::manifest::{self, Manifest, Superblock};
use pagelith_layouts::names;

use super::dir_check;
use super::serial_queue::SerialQueue;
pub use super::volume_error::VolumeError;
pub use super::volume_geometry::{SEGMENTS_MIN, VolumeGeometry};
pub use super::volume_lock::Opening;
use super::volume_lock::{lock, lock_text};

/// The files of an open store.
pub struct Volume {
    /// Their disk.
    pub disk: Arc<dyn Disk>,
    /// Their sizes.
    pub geometry: VolumeGeometry,
    /// The store's identifier.
    pub store: StoreId,
    /// The two copies of the manifest.
    pub manifests: [FileId; 2],
    /// The two checkpoints.
    pub checkpoints: [FileId; 2],
    /// The segments file of each directory.
    pub segments: Vec<FileId>,
}

impl Volume {
    /// The file and byte offset of byte `offset` of a segment.
    pub fn file_offset(&self, segment: SegmentId, offset: u64) -> (FileId, u64) {
        let (dir, start) =
            names::segment_location(segment, self.geometry.dirs, self.geometry.segment_bytes);
        (self.segments[dir], start + offset)
    }
}

/// A store that was opened or created.
pub struct OpenedVolume {
    /// Its files.
    pub volume: Volume,
    /// Its manifest.
    pub manifest: Manifest,
    /// Whether it was created by this open.
    pub made: bool,
    /// Number of manifest blocks that were damaged in one copy and repaired from the other.
    pub mended: u32,
    /// A write failed because the file system is full.
    pub full: Option<FileSystemFull>,
}

/// A write that failed because the file system is full. The store can still be read.
#[derive(Clone, Debug)]
pub struct FileSystemFull {
    /// The fault of the write.
    pub fault: IoFault,
    /// The copy of the manifest that was not updated, if it was one.
    pub copy: Option<usize>,
}

impl FileSystemFull {
    /// Convert a fault of kind `NoSpace` into a [`FileSystemFull`]; any other fault stays an error.
    pub(super) fn of(
        written: Result<(), IoFault>,
        copy: Option<usize>,
    ) -> Result<Option<FileSystemFull>, IoFault> {
        match written {
            Ok(()) => Ok(None),
            Err(fault) if fault.kind == FaultKind::NoSpace => {
                Ok(Some(FileSystemFull { fault, copy }))
            }
            Err(fault) => Err(fault),
        }
    }
}

/// More than the length of a copy of the manifest with the most segments (2^18) and namespaces
/// (65,536), so that a damaged length of the file allocates no more memory.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Most times that an open starts again because another opener created files meanwhile.
const RACES_MAX: u32 = 8;

/// Open the store in `disk`'s directories, or create one if they are empty. If creation fails, no
/// files are left.
pub fn open_or_create(
    disk: Arc<dyn Disk>,
    geometry: VolumeGeometry,
    entropy: &dyn Entropy,
    opening: &Opening<'_>,
) -> Result<OpenedVolume, VolumeError> {
    let mut races = 0;
    loop {
        match inspect_dirs(&*disk, opening)? {
            DirsState::Store => return open(disk, geometry, opening),
            DirsState::Empty => {}
            DirsState::HalfCreated => {
                lock_files(&*disk, opening)?;
                remove_files(&*disk)?;
            }
        }
        match claim_dirs(&*disk) {
            Ok(()) => return create(disk, geometry, entropy, opening),
            Err(fault)
                if matches!(fault.kind, FaultKind::Exists | FaultKind::Locked)
                    && races < RACES_MAX =>
            {
                races += 1;
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}

enum DirsState {
    Empty,
    HalfCreated,
    Store,
}

/// Determine the state of the directories.
fn inspect_dirs(disk: &dyn Disk, opening: &Opening<'_>) -> Result<DirsState, VolumeError> {
    let (mut ours, mut without) = (None, None);
    let mut manifest = false;
    for dir in 0..disk.dirs() {
        let files = disk.list(dir)?;
        if files.is_empty() {
            without.get_or_insert(dir);
        }
        for (name, _) in files {
            if !names::is_store_file(&name) {
                return Err(VolumeError::NotAStore { dir: disk.dir_name(dir), file: name });
            }
            if name == names::CREATING {
                // In another directory than the first it is of a store with other directories.
                dir_check::check_names(disk, disk.dirs())?;
                // A process that is creating the store now holds the lock of this file.
                return match lock(disk, dir, names::CREATING, opening) {
                    Ok(_) => Ok(DirsState::HalfCreated),
                    // It has created the store meanwhile.
                    Err(VolumeError::Missing { .. }) => inspect_dirs(disk, opening),
                    Err(other) => Err(other),
                };
            }
            manifest |= names::MANIFESTS.contains(&&*name);
            ours.get_or_insert(dir);
        }
    }
    match (ours, without) {
        (None, _) => Ok(DirsState::Empty),
        (Some(_), Some(dir)) => Err(VolumeError::NoDrive {
            dir: disk.dir_name(dir),
            number: dir + 1,
            dirs: disk.dirs(),
        }),
        (Some(_), None) if manifest => Ok(DirsState::Store),
        (Some(dir), None) => {
            Err(VolumeError::Missing { dir: disk.dir_name(dir), file: names::MANIFESTS[0] })
        }
    }
}

/// Lock all files of a store whose creation was not finished, so that none of a store in use is
/// removed. The lock of the marker is held already.
fn lock_files(disk: &dyn Disk, opening: &Opening<'_>) -> Result<(), VolumeError> {
    let names = [names::MANIFESTS, names::CHECKPOINTS, [names::SEGMENTS, names::LOCK]].concat();
    for dir in 0..disk.dirs() {
        for name in &names {
            match lock(disk, dir, name, opening) {
                Ok(_) | Err(VolumeError::Missing { .. }) => {}
                Err(other) => return Err(other),
            }
        }
    }
    Ok(())
}

/// Remove all files of a store.
fn remove_files(disk: &dyn Disk) -> Result<(), IoFault> {
    for dir in 0..disk.dirs() {
        let files = disk.list(dir)?;
        // The marker is removed last: while it exists, the other files are known to be incomplete.
        for (name, _) in
            files.iter().filter(|(n, _)| names::is_store_file(n) && n != names::CREATING)
        {
            disk.remove(dir, name)?;
        }
    }
    disk.remove(0, names::CREATING)
}

/// Create the marker in directories that were empty a moment before. If another opener was faster,
/// the fault is of kind `Exists` or `Locked`, and its files are as they were.
fn claim_dirs(disk: &dyn Disk) -> Result<(), IoFault> {
    disk.create(0, names::CREATING, ALIGN)?;
    let claimed = (0..disk.dirs()).try_for_each(|dir| {
        // A marker in another directory is that of a store with other directories.
        let is_ours = |name: &str| dir == 0 && name == names::CREATING;
        match disk.list(dir)?.into_iter().find(|(name, _)| !is_ours(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let path = format!("{}/{name}", disk.dir_name(dir));
                let detail = "another opener has created it meanwhile";
                Err(IoFault::found(FaultKind::Exists, FaultOp::Create, path, 0, detail))
            }
        }
    });
    if claimed.is_err() {
        disk.remove(0, names::CREATING)?;
    }
    claimed
}

/// Create a store in directories that have only the marker of this open.
fn create(
    disk: Arc<dyn Disk>,
    geometry: VolumeGeometry,
    entropy: &dyn Entropy,
    opening: &Opening<'_>,
) -> Result<OpenedVolume, VolumeError> {
    let mut names = vec![(0, names::CREATING)];
    let created = create_files(&disk, geometry, entropy, opening, &mut names);
    if created.is_err() {
        // The first failure is reported; a directory that cannot be cleaned keeps its marker. Files
        // that this open has not created belong to another opener.
        let _ = names.iter().rev().try_for_each(|(dir, name)| disk.remove(*dir, name));
    }
    created
}

/// Create a file of the store, and add it to `names`.
fn create_file(
    disk: &dyn Disk,
    dir: usize,
    name: &'static str,
    len: u64,
    names: &mut Vec<(usize, &'static str)>,
) -> Result<FileId, IoFault> {
    let file = disk.create(dir, name, len)?;
    names.push((dir, name));
    Ok(file)
}

fn create_files(
    disk: &Arc<dyn Disk>,
    geometry: VolumeGeometry,
    entropy: &dyn Entropy,
    opening: &Opening<'_>,
    created: &mut Vec<(usize, &'static str)>,
) -> Result<OpenedVolume, VolumeError> {
    let mut create = |dir, name, len| create_file(&**disk, dir, name, len, created);
    let mut segments = Vec::new();
    for dir in 0..geometry.dirs {
        segments.push(create(dir as usize, names::SEGMENTS, geometry.dir_bytes(dir))?);
    }
    let [c0, c1] = names::CHECKPOINTS;
    let bytes = geometry.checkpoint_bytes();
    let checkpoints = [create(0, c0, bytes)?, create(0, c1, bytes)?];
    let mut key = [0; FINGERPRINT_KEY_BYTES];
    entropy.fill(&mut key);
    let manifest = Manifest::new(StoreId(entropy.bytes16()), geometry.superblock(key));
    let mut manifests = [FileId(0); 2];
    let mut serial = SerialQueue::new(&**disk, opening.timeout)?;
    let copy = manifest.copy();
    for (i, file) in manifests.iter_mut().enumerate() {
        let dir = manifest_dir(geometry.dirs, i);
        *file = create(dir, names::MANIFESTS[i], geometry.manifest_bytes())?;
        serial.write(*file, 0, &copy)?;
        serial.sync(*file)?;
    }
    let lock_file = create(0, names::LOCK, ALIGN)?;
    serial.write(lock_file, 0, lock_text(opening.owner))?;
    // Everything above is synced; without the marker the store is valid.
    disk.remove(0, names::CREATING)?;
    let store = manifest.store();
    let volume = Volume { disk: disk.clone(), geometry, store, manifests, checkpoints, segments };
    Ok(OpenedVolume { volume, manifest, made: true, mended: 0, full: None })
}

/// The directory of a copy of the manifest. With several directories, the copies are on different
/// drives.
fn manifest_dir(dirs: u32, copy: usize) -> usize {
    if copy == 0 { 0 } else { dirs as usize - 1 }
}

fn open(
    disk: Arc<dyn Disk>,
    geometry: VolumeGeometry,
    opening: &Opening<'_>,
) -> Result<OpenedVolume, VolumeError> {
    let dirs = geometry.dirs;
    dir_check::check_names(&*disk, dirs as usize)?;
    // Take every lock before reading any byte.
    let mut segments = Vec::new();
    for dir in 0..dirs as usize {
        segments.push(lock(&*disk, dir, names::SEGMENTS, opening)?);
    }
    let mut serial = SerialQueue::new(&*disk, opening.timeout)?;
    let mut files = [None; 2];
    let mut copies = [Vec::new(), Vec::new()];
    for i in 0..2 {
        match lock(&*disk, manifest_dir(dirs, i), names::MANIFESTS[i], opening) {
            Ok((file, len)) => {
                files[i] = Some((file, len));
                if len >= ALIGN {
                    let len = align_down(len.min(MANIFEST_BYTES_MAX)) as usize;
                    copies[i] = read_copy(&mut serial, file, len);
                }
            }
            Err(VolumeError::Missing { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    let (manifest, damage) =
        manifest::decode([&copies[0], &copies[1]]).map_err(|d| VolumeError::Manifest {
            error: d.error,
            file: names::MANIFESTS[d.copy],
            offset: u64::from(d.index) * ALIGN,
        })?;
    check_config(&*disk, &geometry, manifest.superblock())?;
    // The number of segments and the size of checkpoints were fixed when the store was created.
    // They need not match the current size of the index.
    let found = manifest.superblock();
    let geometry = VolumeGeometry {
        segment_count: found.segment_count,
        objects_max: found.objects_max,
        ..geometry
    };
    for (dir, (_, found)) in segments.iter().enumerate() {
        check_length(&*disk, dir, names::SEGMENTS, geometry.dir_bytes(dir as u32), *found)?;
    }
    let files_of_segments: Vec<FileId> = segments.iter().map(|(file, _)| *file).collect();
    dir_check::check_heads(&*disk, &mut serial, manifest.store(), &files_of_segments)?;
    let (manifests, mut full) =
        repair_manifests(&*disk, &mut serial, &geometry, &manifest, files, &copies)?;
    let mut checkpoints = [FileId(0); 2];
    for (i, file) in checkpoints.iter_mut().enumerate() {
        *file =
            open_or_replace(&*disk, names::CHECKPOINTS[i], geometry.checkpoint_bytes(), opening)?;
    }
    let lock_file = open_or_replace(&*disk, names::LOCK, ALIGN, opening)?;
    let owner_written = serial.write(lock_file, 0, lock_text(opening.owner));
    full = full.or(FileSystemFull::of(owner_written, None)?);
    let store = manifest.store();
    let volume =
        Volume { disk, geometry, store, manifests, checkpoints, segments: files_of_segments };
    Ok(OpenedVolume { volume, manifest, made: false, mended: damage.len() as u32, full })
}

/// Open a file of the first directory that the store does not depend on; it is created again if it
/// is missing or has another length.
fn open_or_replace(
    disk: &dyn Disk,
    name: &'static str,
    len: u64,
    opening: &Opening<'_>,
) -> Result<FileId, VolumeError> {
    match lock(disk, 0, name, opening) {
        Ok((file, found)) if found == len => return Ok(file),
        Ok(_) => disk.remove(0, name)?,
        Err(VolumeError::Missing { .. }) => {}
        Err(other) => return Err(other),
    }
    Ok(disk.create(0, name, len)?)
}

fn check_length(
    disk: &dyn Disk,
    dir: usize,
    file: &'static str,
    expected: u64,
    found: u64,
) -> Result<(), VolumeError> {
    if found == expected {
        return Ok(());
    }
    Err(VolumeError::Length { dir: disk.dir_name(dir), file, expected, found })
}

fn check_config(
    disk: &dyn Disk,
    wanted: &VolumeGeometry,
    found: &Superblock,
) -> Result<(), VolumeError> {
    let pairs = [
        ("number of ssd.dirs", u64::from(found.dir_count), u64::from(wanted.dirs)),
        ("ssd.bytes", found.capacity_bytes, wanted.capacity_bytes),
        ("ssd.segment_bytes", found.segment_bytes, wanted.segment_bytes),
        ("namespaces_max", found.namespaces_max.into(), wanted.namespaces_max.into()),
        ("checksum block size", found.block_bytes.into(), BLOCK_BYTES.into()),
    ];
    match pairs.into_iter().find(|(_, found, wanted)| found != wanted) {
        None => Ok(()),
        Some((field, found, wanted)) => {
            Err(VolumeError::Incompatible { field, found, wanted, dir: disk.dir_name(0) })
        }
    }
}

/// A copy of the manifest, with zeros for unreadable blocks: the other copy may have them.
fn read_copy(serial: &mut SerialQueue, file: FileId, len: usize) -> Vec<u8> {
    if let Ok(whole) = serial.read(file, 0, len) {
        return whole.to_vec();
    }
    let mut copy = vec![0; len];
    for (i, block) in copy.chunks_exact_mut(ALIGN as usize).enumerate() {
        if let Ok(read) = serial.read(file, i as u64 * ALIGN, ALIGN as usize) {
            block.copy_from_slice(&read);
        }
    }
    copy
}

/// Bring both copies to the same state before anything else is written, so that afterwards either
/// may be lost.
fn repair_manifests(
    disk: &dyn Disk,
    serial: &mut SerialQueue,
    geometry: &VolumeGeometry,
    manifest: &Manifest,
    files: [Option<(FileId, u64)>; 2],
    copies: &[Vec<u8>; 2],
) -> Result<([FileId; 2], Option<FileSystemFull>), VolumeError> {
    let wanted = manifest.copy();
    let (mut out, mut full) = ([FileId(0); 2], None);
    for i in 0..2 {
        let name = names::MANIFESTS[i];
        let dir = manifest_dir(geometry.dirs, i);
        out[i] = match files[i] {
            Some((file, len)) if len == geometry.manifest_bytes() => file,
            // A copy of another length is open and locked already, so it is replaced without being
            // opened again. It may have blocks that the first copy lacks, so it is kept if the
            // first copy could not be written.
            _ => {
                if let Some(FileSystemFull { fault, .. }) = full {
                    return Err(VolumeError::Io(fault));
                }
                disk.remove(dir, name)?;
                disk.create(dir, name, geometry.manifest_bytes())?
            }
        };
        // One copy after the other: if one could not be written, the other is not changed.
        if full.is_none() {
            let written =
                if copies[i] == wanted { Ok(()) } else { serial.write(out[i], 0, &wanted) };
            // Sync even if the content is right: a killed process may have written it without a
            // sync.
            full = FileSystemFull::of(written.and_then(|()| serial.sync(out[i])), Some(i))?;
        }
    }
    Ok((out, full))
}

#[cfg(test)]
mod tests;
