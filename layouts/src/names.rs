//! Every file name of a store.

/// Describes the owner for people; the locks themselves are on the data files.
pub const LOCK: &str = "LOCK";
/// Exists while a store is being created. If it is found at open, the other files are not trusted
/// and the store is created again.
pub const CREATING: &str = "CREATING";
/// The segments of one directory, contiguous.
pub const SEGMENTS: &str = "segments";
/// The two copies of the manifest: the first in the first directory, the second in the last.
pub const MANIFESTS: [&str; 2] = ["manifest.0", "manifest.1"];
/// The two checkpoints, written alternately, in the first directory.
pub const CHECKPOINTS: [&str; 2] = ["checkpoint.0", "checkpoint.1"];

/// Whether `name` is a file name that a store uses.
pub fn is_store_file(name: &str) -> bool {
    [LOCK, CREATING, SEGMENTS].contains(&name)
        || MANIFESTS.contains(&name)
        || CHECKPOINTS.contains(&name)
}

/// Location of a segment: (directory, byte offset in that directory's segments file). Segments are
/// striped over the directories, so that neighbours in the log are on different drives.
pub fn segment_location(
    segment: crate::ids::SegmentId,
    dirs: u32,
    segment_bytes: u64,
) -> (usize, u64) {
    let dirs = dirs.max(1);
    ((segment.0 % dirs) as usize, u64::from(segment.0 / dirs) * segment_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SegmentId;

    #[test]
    fn only_exact_file_names_are_ours() {
        let ours = [
            "LOCK",
            "CREATING",
            "segments",
            "manifest.0",
            "manifest.1",
            "checkpoint.0",
            "checkpoint.1",
        ];
        assert_eq!(ours.map(is_store_file), [true; 7]);
        assert_eq!(
            ["", "lock", "manifest", "manifest.2", "segments~", "./LOCK"].map(is_store_file),
            [false; 6]
        );
    }

    #[test]
    fn neighbouring_segments_are_in_different_directories() {
        let locations: Vec<_> = (0..5).map(|i| segment_location(SegmentId(i), 2, 4096)).collect();
        assert_eq!(locations, [(0, 0), (1, 0), (0, 4096), (1, 4096), (0, 8192)]);
        assert_eq!(
            segment_location(SegmentId(7), 0, 4096),
            (0, 7 * 4096),
            "no directory counts as one"
        );
        let far = segment_location(SegmentId(u32::MAX), 1, 1 << 28);
        assert_eq!(far, (0, u64::from(u32::MAX) << 28), "no overflow at the format's bounds");
    }
}
