//! The error of opening a store.

use pagelith_io::fault::IoFault;
use pagelith_layouts::error::FormatError;

/// A store could not be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A disk operation failed.
    #[error("{0}")]
    Io(#[from] IoFault),
    /// The directory has files that do not belong to a store.
    #[error("directory is not a store and not empty dir={dir} file={file}")]
    NotAStore {
        /// The directory.
        dir: String,
        /// A file in it.
        file: String,
    },
    /// Another process has the store open, or a killed process still has writes in flight.
    #[error(
        "store is open elsewhere dir={dir} file={file} owner=({owner}); if that process has ended, a child that it forked \
         still has the file, its last writes are under way, or `pagelith verify` reads it"
    )]
    Locked {
        /// The directory.
        dir: String,
        /// The file whose lock is held.
        file: String,
        /// Content of the LOCK file.
        owner: String,
    },
    /// A directory has no file of the store, while other directories have some.
    #[error(
        "ssd.dirs: directory {number} of {dirs} holds no file of the store, is its drive mounted? dir={dir}"
    )]
    NoDrive {
        /// The directory.
        dir: String,
        /// Its number in the configuration, from 1.
        number: usize,
        /// Number of directories.
        dirs: usize,
    },
    /// A file of the store is missing.
    #[error("a file of the store is missing dir={dir} file={file}")]
    Missing {
        /// The directory.
        dir: String,
        /// The file.
        file: &'static str,
    },
    /// A file of the store does not have the length that the manifest implies.
    #[error(
        "a file of the store has another length dir={dir} file={file} expected_bytes={expected} found_bytes={found}"
    )]
    Length {
        /// The directory.
        dir: String,
        /// The file.
        file: &'static str,
        /// Expected length in bytes.
        expected: u64,
        /// Actual length in bytes.
        found: u64,
    },
    /// A manifest block is valid in no copy.
    #[error("{error} file={file} offset={offset}")]
    Manifest {
        /// The error of the block.
        error: FormatError,
        /// The file of the copy.
        file: &'static str,
        /// Byte offset in the file.
        offset: u64,
    },
    /// A directory belongs to another store, or has another number in this store.
    #[error("ssd.dirs: directory {number} is not the one it was: it holds {found} dir={dir}")]
    Misplaced {
        /// The directory.
        dir: String,
        /// Its number in the configuration, from 1.
        number: usize,
        /// The content that proves it.
        found: String,
    },
    /// The store was created with another configuration.
    #[error(
        "store was created with another {field}: it has {found}, the configuration has {wanted} dir={dir}"
    )]
    Incompatible {
        /// The configuration field.
        field: &'static str,
        /// Value in the store.
        found: u64,
        /// Configured value.
        wanted: u64,
        /// The first directory.
        dir: String,
    },
}
