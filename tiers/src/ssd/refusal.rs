//! Why a store is not opened.

use pagelith_io::fault::IoFault;
use pagelith_layouts::error::FormatError;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The disk failed or refused.
    #[error("{0}")]
    Io(#[from] IoFault),
    /// The directory holds other things.
    #[error("directory is not a store and not empty dir={dir} file={file}")]
    NotAStore {
        /// The directory.
        dir: String,
        /// What lies in it.
        file: String,
    },
    /// Another process has the store open, or one was killed and its writes are still under way.
    #[error(
        "store is open elsewhere dir={dir} file={file} owner=({owner}); if that process has ended, a child that it forked still \
         has the file, or its last writes are under way"
    )]
    Locked {
        /// The directory.
        dir: String,
        /// The file whose lock is held.
        file: String,
        /// What the LOCK file says of who has it.
        owner: String,
    },
    /// A directory holds no file of the store, and others do.
    #[error(
        "ssd.dirs: directory {number} of {dirs} holds no file of the store, is its drive mounted? dir={dir}"
    )]
    NoDrive {
        /// The directory.
        dir: String,
        /// Its number in the configuration, from 1.
        number: usize,
        /// How many there are.
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
    /// A file of the store has another length than the manifest says.
    #[error(
        "a file of the store has another length dir={dir} file={file} expected_bytes={expected} found_bytes={found}"
    )]
    Length {
        /// The directory.
        dir: String,
        /// The file.
        file: &'static str,
        /// Its length as it should be.
        expected: u64,
        /// Its length.
        found: u64,
    },
    /// No copy of a manifest block can be read.
    #[error("{error} file={file} offset={offset}")]
    Manifest {
        /// What is wrong.
        error: FormatError,
        /// Which copy.
        file: &'static str,
        /// Byte offset in it.
        offset: u64,
    },
    /// A directory is another store's, or another of this store's.
    #[error("ssd.dirs: directory {number} is not the one it was: it holds {found} dir={dir}")]
    Misplaced {
        /// The directory.
        dir: String,
        /// Its number in the configuration, from 0.
        number: usize,
        /// What gives it away.
        found: String,
    },
    /// The store was made with another configuration.
    #[error(
        "store was made with another {field}: it has {found}, the configuration asks for {wanted} dir={dir}"
    )]
    Incompatible {
        /// The configuration field.
        field: &'static str,
        /// What the store has.
        found: u64,
        /// What was asked for.
        wanted: u64,
        /// The first directory.
        dir: String,
    },
}
