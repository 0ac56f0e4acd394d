//! A configuration that was checked against itself and the machine: the numbers a store is built from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelith_tiers::ssd::volume::Geometry;

use super::choice::{DramPolicy, Promote, SsdIo, SsdPolicy};
use super::peer::PeerConfig;
use super::size::Size;
use super::validate;
use super::{Config, DramConfig};

/// What validation has to know of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Memory that this process may use: the machine's, or its cgroup's limit if that is less. Bytes.
    pub memory_bytes: u64,
    /// Where the number is from, for messages; such as `machine` or the cgroup's file.
    pub memory_source: String,
}

impl Facts {
    /// What this machine, and the control group that the process is in, allow.
    pub fn of_this_machine() -> Result<Facts, crate::Error> {
        let facts = pagelith_io::facts::MemoryFacts::read()?;
        Ok(Facts { memory_bytes: facts.limit, memory_source: facts.source })
    }
}

/// Bytes of the arena for each part of its order where their number is not set, and most of those.
const LANE_BYTES: u64 = 64 << 20;
const LANES_UNSET_MAX: u64 = 64;

/// A [`Config`] that may open a store. Made by [`Config::validate`] only; every number is resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidConfig {
    pub(super) config: Config,
    pub(super) arena_bytes: u64,
    pub(super) segment_bytes: u64,
    pub(super) staging_budget: u64,
    pub(super) max_objects: u64,
    pub(super) memory: MemoryPlan,
    #[cfg(feature = "internals")]
    pub(super) constant_fingerprint: bool,
}

/// The memory a store allocates, in bytes; printed at open and never exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The DRAM arena, or the write buffer where there is no DRAM tier.
    pub arena: u64,
    /// Staging memory.
    pub staging: u64,
    /// The index.
    pub index: u64,
    /// Headers of what is on SSD.
    pub headers: u64,
    /// Where clients of this host find what lies in the arena, where that is shared.
    pub catalog: u64,
    /// All of them.
    pub total: u64,
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::from_bytes;
        let (arena, staging) = (size(self.arena), size(self.staging));
        let (index, headers, catalog) = (size(self.index), size(self.headers), size(self.catalog));
        let total = size(self.total);
        write!(
            f,
            "arena={arena} staging={staging} index={index} headers={headers} catalog={catalog} total={total}"
        )
    }
}

impl ValidConfig {
    /// The settings as they were given.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the store allocates.
    pub fn memory_plan(&self) -> MemoryPlan {
        self.memory
    }

    /// How many objects in the arena clients are told of at most, where it is shared.
    pub fn catalog_rows(&self) -> u64 {
        validate::catalog_rows(self.max_objects, self.memory.arena)
    }

    /// Bytes of the DRAM cache tier; 0: there is none.
    pub fn dram_bytes(&self) -> u64 {
        self.config.dram.bytes.bytes()
    }

    /// Bytes of the arena: the whole pages of `dram_bytes`, or two segments where that is 0.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Which object leaves DRAM first.
    pub fn dram_policy(&self) -> DramPolicy {
        self.config.dram.policy
    }

    /// Whether SSD hits are copied into DRAM.
    pub fn promote(&self) -> Promote {
        self.config.dram.promote
    }

    /// The share of hits from DRAM that are verified.
    pub fn verify_ratio(&self) -> f64 {
        self.config.dram.verify_ratio
    }

    /// Whether the arena is memory that other processes can be shown.
    pub fn dram_shared(&self) -> bool {
        self.config.dram.shared
    }

    /// Whether the arena's memory is all there from the start.
    pub fn dram_prefault(&self) -> bool {
        self.config.dram.prefault
    }

    /// In how many parts the order is kept in which pages leave DRAM.
    pub fn lanes(&self) -> usize {
        let DramConfig { policy, shared, .. } = self.config.dram;
        // What a catalog is told of takes the core's lock, and one order is the better one then.
        let divides = policy != DramPolicy::S3Fifo && !shared && !self.constant_fingerprint();
        let unset = || (self.arena_bytes / LANE_BYTES).clamp(1, LANES_UNSET_MAX);
        let lanes = self.config.dram.lanes.unwrap_or_else(unset).max(1);
        if divides { 1 << lanes.ilog2() } else { 1 }
    }

    /// Whether there is an SSD tier.
    pub fn has_ssd(&self) -> bool {
        self.config.ssd.bytes > Size::ZERO
    }

    /// Bytes of all files together; 0 without an SSD tier.
    pub fn ssd_bytes(&self) -> u64 {
        self.config.ssd.bytes.bytes()
    }

    /// The SSD tier's directories; empty without one.
    pub fn ssd_dirs(&self) -> &[PathBuf] {
        &self.config.ssd.dirs
    }

    /// Bytes of a segment, given or derived. Meaningless without an SSD tier.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The files of the SSD tier in so many directories; `None` if it is too small for that many.
    pub(crate) fn geometry(&self, dirs: u32) -> Option<Geometry> {
        let config = &self.config;
        let (bytes, segment) = (config.ssd.bytes.bytes(), self.segment_bytes);
        validate::geometry(bytes, segment, dirs, self.max_objects, config.namespaces_max)
    }

    /// Which segment is reclaimed first.
    pub fn ssd_policy(&self) -> SsdPolicy {
        self.config.ssd.policy
    }

    /// The most bytes copied forward per byte put.
    pub fn reinsert_ratio(&self) -> f64 {
        self.config.ssd.reinsert_ratio
    }

    /// How the drive is driven.
    pub fn ssd_io(&self) -> SsdIo {
        self.config.ssd.io
    }

    /// Writes in flight.
    pub fn write_depth(&self) -> u32 {
        self.config.ssd.write_depth
    }

    /// Writes in flight while the drive is read.
    pub fn write_depth_reading(&self) -> u32 {
        self.config.ssd.write_depth_reading
    }

    /// Bytes of the largest single write; at most a segment.
    pub fn write_bytes(&self) -> u64 {
        self.config.ssd.write_bytes.bytes()
    }

    /// Bytes of headers of what is on SSD that are kept in memory; 0: none, or no SSD tier.
    pub fn headers_bytes(&self) -> u64 {
        self.memory.headers
    }

    /// Sealed segments between index checkpoints; 0: only at close.
    pub fn checkpoint_segments(&self) -> u32 {
        self.config.ssd.checkpoint_segments
    }

    /// Pause before the first trial of a drive that failed, and the longest.
    pub fn probe_pauses(&self) -> (Duration, Duration) {
        let ssd = &self.config.ssd;
        (Duration::from_millis(ssd.probe_ms), Duration::from_millis(ssd.probe_max_ms))
    }

    /// Bytes a second that the background scrub reads; 0: there is none.
    pub fn scrub_bytes_per_s(&self) -> u64 {
        self.config.ssd.scrub_bytes_per_s.bytes()
    }

    /// Failing reads in a segment after which it is quarantined.
    pub fn quarantine_after(&self) -> u32 {
        self.config.ssd.quarantine_after
    }

    /// The store processes behind this store.
    pub fn peers(&self) -> &[PeerConfig] {
        &self.config.remote.peers
    }

    /// The file with the key by which those know this process.
    pub fn peers_key(&self) -> Option<&Path> {
        self.config.remote.key.as_deref()
    }

    /// Bytes of staging memory: the whole pages of what was given.
    pub fn staging_bytes(&self) -> u64 {
        self.memory.staging
    }

    /// Bytes of staging that one batch may be charged: those x ratio, rounded down; at least a chunk + 8192.
    pub fn staging_budget(&self) -> u64 {
        self.staging_budget
    }

    /// Bytes of the piece in which an object above the budget is read; a multiple of the checksum block.
    pub fn staging_chunk_bytes(&self) -> u64 {
        self.config.staging.chunk_bytes.bytes()
    }

    /// Objects the index holds, given or derived.
    pub fn max_objects(&self) -> u64 {
        self.max_objects
    }

    /// The same, with one fingerprint for all keys, so that only whole keys tell objects apart. For tests: it is very slow.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn with_constant_fingerprint(self) -> ValidConfig {
        ValidConfig { constant_fingerprint: true, ..self }
    }

    /// Whether every key has the same fingerprint.
    #[cfg(feature = "internals")]
    pub(crate) fn constant_fingerprint(&self) -> bool {
        self.constant_fingerprint
    }

    /// Whether every key has the same fingerprint: only in tests.
    #[cfg(not(feature = "internals"))]
    pub(crate) const fn constant_fingerprint(&self) -> bool {
        false
    }

    /// Reads in flight per session.
    pub fn read_depth(&self) -> u32 {
        self.config.read.depth
    }

    /// How long a group that is not complete is kept.
    pub fn group_deadline(&self) -> Duration {
        Duration::from_millis(self.config.groups.deadline_ms)
    }

    /// Events that are kept until they are taken.
    pub fn events_max(&self) -> usize {
        self.config.events.max as usize
    }

    /// The longest wait that is given no deadline of its own.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.config.deadline_ms)
    }

    /// The longest that closing may take.
    pub fn close_timeout(&self) -> Duration {
        Duration::from_millis(self.config.close_timeout_ms)
    }

    /// The most namespaces at a time.
    pub fn namespaces_max(&self) -> u32 {
        self.config.namespaces_max
    }

    /// Bytes left to the rest of the machine.
    pub fn memory_reserve(&self) -> u64 {
        self.config.memory.reserve.bytes()
    }

    /// Whether each batch logs an event.
    pub fn batch_summary(&self) -> bool {
        self.config.log.batch_summary
    }
}
