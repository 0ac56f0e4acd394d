//! The lanes: each tests one kind of fault over the real kernel.

mod fuse;
mod loops;
mod power;

use std::path::Path;

use crate::report::LaneCounts;

/// Why a lane cannot run on this machine.
pub type Skip = String;

/// A lane: its name, its row of the fault matrix, and the function for one run in an empty
/// directory.
pub struct Lane {
    /// Its name.
    pub name: &'static str,
    /// The row, or rows, of the fault matrix.
    pub row: &'static str,
    /// One run with a seed. Panics on a violation.
    pub run: fn(&Path, u64) -> Result<LaneCounts, Skip>,
}

/// All lanes.
pub const LANES: [Lane; 25] = [
    Lane { name: "fuse-torn-write", row: "1", run: fuse::torn_write },
    Lane { name: "fuse-lost-write", row: "2", run: fuse::lost_write },
    Lane { name: "fuse-misdirected-write", row: "3", run: fuse::misdirected_write },
    Lane { name: "fuse-misdirected-read", row: "3", run: fuse::misdirected_read },
    Lane { name: "fuse-flip-at-rest", row: "4", run: fuse::flip_at_rest },
    Lane { name: "fuse-flip-in-read", row: "5", run: fuse::flip_in_read },
    Lane { name: "fuse-flip-in-write", row: "5", run: fuse::flip_in_write },
    Lane { name: "fuse-short", row: "7", run: fuse::short },
    Lane { name: "fuse-eio-read", row: "8", run: fuse::eio_read },
    Lane { name: "fuse-eio-write", row: "9", run: fuse::eio_write },
    Lane { name: "fuse-stall", row: "10", run: fuse::stall },
    Lane { name: "fuse-enospc", row: "11", run: fuse::no_space },
    Lane { name: "fuse-kill-power-cut", row: "12,13", run: power::kill_and_cut },
    Lane { name: "fuse-power-cut", row: "13", run: power::cut },
    Lane { name: "fuse-power-cut-reclaiming", row: "13", run: power::cut_while_reclaiming },
    Lane { name: "fuse-fsync-eio", row: "14", run: power::failed_sync_and_cut },
    Lane { name: "fuse-lost-sync", row: "13", run: power::lost_sync_and_cut },
    Lane { name: "fuse-all", row: "1-11", run: fuse::all },
    Lane { name: "loop-at-rest", row: "3,4", run: loops::at_rest },
    Lane { name: "loop-stale-records", row: "3", run: loops::stale_records },
    Lane { name: "loop-manifest-at-rest", row: "23", run: loops::manifest_at_rest },
    Lane { name: "loop-eio-truncated", row: "8", run: loops::eio },
    Lane { name: "loop-short-file", row: "7", run: loops::short },
    Lane { name: "loop-throttled", row: "10", run: loops::throttled },
    Lane { name: "loop-enospc", row: "11", run: loops::full },
];
