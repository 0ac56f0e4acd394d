//! A copy of the machine's disk.

use super::table::FileTable;
use crate::entropy::SplitMix64;

/// The machine's disk at one moment: durable and unsynced files, and the random state. Costs a few
/// pointers per file; blocks are shared until written.
#[derive(Clone, Debug)]
pub struct DiskSnapshot {
    pub(super) files: FileTable,
    pub(super) moment: u64,
    pub(super) changes: u64,
    pub(super) capacity: u64,
    pub(super) rng: SplitMix64,
}
