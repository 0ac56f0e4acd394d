//! The flags and options of a repair.

use clap::{Args, ValueEnum};

/// The flags of repair.
#[derive(Args, Clone, Debug)]
pub(in crate::verify) struct RepairArgs {
    /// Drop and report damaged objects, and leave a store that verifies and opens; the store must
    /// be closed. If removals may be lost with the damage, all older objects are dropped too;
    /// without a valid manifest the store becomes empty. =keep keeps these instead: objects that
    /// were removed or cleared may then return
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "drop")]
    repair: Option<DoubtPolicy>,
    /// Repair even if a directory holds no file of the store, because its drive is lost for good.
    /// Without this flag repair refuses and reports what it would drop, since the drive may just
    /// not be mounted
    #[arg(long, requires = "repair")]
    drop_missing_dirs: bool,
    /// With --repair=keep, if both superblocks are lost: `ssd.bytes` of the store in bytes
    #[arg(long, value_name = "BYTES", requires = "repair")]
    capacity_bytes: Option<u64>,
    /// With --repair=keep, if both superblocks are lost: `namespaces_max` of the store
    #[arg(long, value_name = "N", requires = "repair")]
    namespaces_max: Option<u32>,
}

/// Handling of objects that a lost removal may have hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DoubtPolicy {
    /// Doubtful objects are dropped.
    Drop,
    /// Doubtful objects are kept.
    Keep,
}

/// The options of a repair.
#[derive(Clone, Copy, Debug)]
pub(in crate::verify) struct RepairOptions {
    pub(super) keep: bool,
    pub(super) drop_missing_dirs: bool,
    pub(super) capacity_bytes: Option<u64>,
    pub(super) namespaces_max: Option<u32>,
}

impl RepairArgs {
    /// The options, if repair was requested.
    pub(in crate::verify) fn options(&self) -> Option<RepairOptions> {
        let keep = self.repair? == DoubtPolicy::Keep;
        Some(RepairOptions {
            keep,
            drop_missing_dirs: self.drop_missing_dirs,
            capacity_bytes: self.capacity_bytes,
            namespaces_max: self.namespaces_max,
        })
    }
}
