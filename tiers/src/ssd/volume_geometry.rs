//! The sizes of a store's files.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint;
use pagelith_layouts::checksum::{BLOCK_BYTES, FINGERPRINT_KEY_BYTES};
use pagelith_layouts::manifest::{Manifest, Superblock};

/// Fewest segments of a store: one open, one spare, one being reclaimed, one with data.
pub const SEGMENTS_MIN: u32 = 4;

/// The sizes of a store's files.
///
/// Invariant: `total_bytes() <= capacity_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeGeometry {
    /// Largest total length of all files in bytes.
    pub capacity_bytes: u64,
    /// Length of a segment in bytes.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Number of directories.
    pub dirs: u32,
    /// Most objects of a checkpoint.
    pub objects_max: u64,
    /// Most namespaces of the manifest.
    pub namespaces_max: u32,
}

impl VolumeGeometry {
    /// The geometry with the most segments that fit `capacity_bytes` together with the other files;
    /// `None` if fewer than [`SEGMENTS_MIN`] fit.
    pub fn fit(
        capacity_bytes: u64,
        segment_bytes: u64,
        dirs: u32,
        objects_max: u64,
        namespaces_max: u32,
    ) -> Option<VolumeGeometry> {
        let most = u32::try_from(capacity_bytes / segment_bytes.max(1)).ok()?;
        (SEGMENTS_MIN..=most)
            .rev()
            .map(|segment_count| VolumeGeometry {
                capacity_bytes,
                segment_bytes,
                segment_count,
                dirs,
                objects_max,
                namespaces_max,
            })
            .find(|g| g.total_bytes() <= capacity_bytes)
    }

    /// Length of a copy of the manifest in bytes.
    pub fn manifest_bytes(&self) -> u64 {
        Manifest::copy_bytes(self.segment_count, self.namespaces_max)
    }

    /// Length of a checkpoint file in bytes.
    pub fn checkpoint_bytes(&self) -> u64 {
        checkpoint::file_bytes(self.segment_count.into(), self.objects_max)
    }

    /// Length of the segments file of a directory in bytes.
    pub fn dir_bytes(&self, dir: u32) -> u64 {
        let segments = self.segment_count.saturating_sub(dir).div_ceil(self.dirs.max(1));
        u64::from(segments) * self.segment_bytes
    }

    /// Total length of all files in bytes, the lock file included.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.segment_count) * self.segment_bytes
            + 2 * (self.manifest_bytes() + self.checkpoint_bytes())
            + ALIGN
    }

    pub(super) fn superblock(&self, fingerprint_key: [u8; FINGERPRINT_KEY_BYTES]) -> Superblock {
        Superblock {
            segment_bytes: self.segment_bytes,
            capacity_bytes: self.capacity_bytes,
            checkpoint_bytes: self.checkpoint_bytes(),
            objects_max: self.objects_max,
            segment_count: self.segment_count,
            dir_count: self.dirs,
            block_bytes: BLOCK_BYTES,
            namespaces_max: self.namespaces_max,
            fingerprint_key,
            reserved: [0; 80],
        }
    }
}
