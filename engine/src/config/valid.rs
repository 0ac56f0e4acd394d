//! A configuration validated against itself and the machine: the numbers from which a store is
//! built.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelith_tiers::policy::admission::{AdmissionRule, AdmissionSettings};
use pagelith_tiers::ssd::volume::VolumeGeometry;

use super::choice::{DramPin, DramPolicy, Promote, SsdAdmissionRule, SsdIo, SsdPolicy};
use super::limits::NamespaceLimits;
use super::peer::PeerConfig;
use super::size::Size;
use super::validate;
use super::{Config, RdmaConfig};

/// The limits of the machine that validation needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineLimits {
    /// Memory that this process may use, in bytes: the machine's, or its cgroup's limit if that is
    /// less.
    pub memory_bytes: u64,
    /// Source of the number, for messages, such as `machine` or the cgroup's file.
    pub memory_source: String,
}

impl MachineLimits {
    /// Other limits than the machine's: memory in bytes, and the source of that number.
    pub fn new(memory_bytes: u64, memory_source: String) -> MachineLimits {
        MachineLimits { memory_bytes, memory_source }
    }

    /// The limits of this machine, and of the control group of this process.
    pub fn of_this_machine() -> Result<MachineLimits, crate::api::error::Error> {
        let facts = pagelith_io::memory_facts::MemoryFacts::read()?;
        Ok(MachineLimits { memory_bytes: facts.limit, memory_source: facts.source })
    }
}

/// A [`Config`] that may open a store, with every number resolved. Created by [`Config::validate`]
/// only.
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

/// The memory that a store allocates, in bytes; logged at open and never exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// The DRAM arena, or the write buffer without a DRAM tier.
    pub arena: u64,
    /// Staging memory.
    pub staging: u64,
    /// The index.
    pub index: u64,
    /// Headers of records on SSD.
    pub headers: u64,
    /// The history of pages from which admission to SSD learns.
    pub history: u64,
    /// Why objects left or were not taken.
    pub departed: u64,
    /// The sum.
    pub total: u64,
    /// Bytes of arena and staging that a driver locks (`dram.pin`).
    pub locked: u64,
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::from_bytes;
        let (arena, staging) = (size(self.arena), size(self.staging));
        let (index, headers) = (size(self.index), size(self.headers));
        let (history, departed) = (size(self.history), size(self.departed));
        let (total, locked) = (size(self.total), size(self.locked));
        write!(
            f,
            "arena={arena} staging={staging} index={index} headers={headers} history={history} \
             departed={departed} total={total} locked={locked}"
        )
    }
}

impl ValidConfig {
    /// The settings as they were given.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The memory that the store allocates.
    pub fn memory_plan(&self) -> MemoryPlan {
        self.memory
    }

    /// Bytes of the DRAM tier; 0 without one.
    pub fn dram_bytes(&self) -> u64 {
        self.config.dram.bytes.bytes()
    }

    /// Bytes of the arena: `dram_bytes` in whole pages, or two segments if that is 0.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Eviction order of the DRAM tier.
    pub fn dram_policy(&self) -> DramPolicy {
        self.config.dram.policy
    }

    /// Whether hits from SSD and from peers are kept in DRAM.
    pub fn promote(&self) -> Promote {
        self.config.dram.promote
    }

    /// The share of hits from DRAM that are verified.
    pub fn verify_ratio(&self) -> f64 {
        self.config.dram.verify_ratio
    }

    /// Whether the arena is memory that other processes can map.
    pub fn dram_shared(&self) -> bool {
        self.config.dram.shared
    }

    /// Whether the arena's memory is populated at open.
    pub fn dram_prefault(&self) -> bool {
        self.config.dram.prefault
    }

    /// The driver that locks the arena and the staging memory.
    pub fn dram_pin(&self) -> DramPin {
        self.config.dram.pin
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

    /// The files of the SSD tier in `dirs` directories; `None` if it is too small for that number.
    pub(crate) fn geometry(&self, dirs: u32) -> Option<VolumeGeometry> {
        let config = &self.config;
        let (bytes, segment) = (config.ssd.bytes.bytes(), self.segment_bytes);
        validate::geometry(bytes, segment, dirs, self.max_objects, config.namespaces_max)
    }

    /// Which segment is reclaimed first.
    pub fn ssd_policy(&self) -> SsdPolicy {
        self.config.ssd.policy
    }

    /// Largest share of a reclaimed segment that is written again, unless pinned objects need more.
    pub fn reinsert_ratio(&self) -> f64 {
        self.config.ssd.reinsert_ratio
    }

    /// The settings of admission; `None` if everything is written. Without a DRAM tier a page that
    /// is not written would be in no tier.
    pub(crate) fn admission(&self) -> Option<AdmissionSettings> {
        let ssd = &self.config.ssd;
        let budget = ssd.write_budget > Size::ZERO;
        let rule = match ssd.admission {
            SsdAdmissionRule::Through => AdmissionRule::Through,
            SsdAdmissionRule::Worth => AdmissionRule::Worth,
            SsdAdmissionRule::SecondTouch => AdmissionRule::SecondTouch,
        };
        let (min_reuse, thrift) = (ssd.min_reuse, ssd.thrift);
        validate::has_history(&self.config).then_some(AdmissionSettings {
            rule,
            min_reuse,
            thrift,
            budget,
        })
    }

    /// Pages in the history of admission.
    pub(crate) fn history_pages(&self) -> u64 {
        validate::history_pages(self.max_objects)
    }

    /// Bytes that may be written to SSD a day; 0: no limit.
    pub fn write_budget(&self) -> u64 {
        self.config.ssd.write_budget.bytes()
    }

    /// The I/O backend.
    pub fn ssd_io(&self) -> SsdIo {
        self.config.ssd.io
    }

    /// Most writes in flight.
    pub fn write_depth(&self) -> u32 {
        self.config.ssd.write_depth
    }

    /// Most writes in flight while the drive is being read.
    pub fn write_depth_reading(&self) -> u32 {
        self.config.ssd.write_depth_reading
    }

    /// Bytes of the largest single write; at most a segment.
    pub fn write_bytes(&self) -> u64 {
        self.config.ssd.write_bytes.bytes()
    }

    /// Bytes of memory for headers of records on SSD; 0: none, or no SSD tier.
    pub fn headers_bytes(&self) -> u64 {
        self.memory.headers
    }

    /// Sealed segments between index checkpoints; 0: only at close.
    pub fn checkpoint_segments(&self) -> u32 {
        self.config.ssd.checkpoint_segments
    }

    /// Pause before the first probe of a failed drive, and the longest pause.
    pub fn probe_pauses(&self) -> (Duration, Duration) {
        let ssd = &self.config.ssd;
        (Duration::from_millis(ssd.probe_ms), Duration::from_millis(ssd.probe_max_ms))
    }

    /// Bytes per second that the background scrub reads; 0: no background scrub.
    pub fn scrub_bytes_per_s(&self) -> u64 {
        self.config.ssd.scrub_bytes_per_s.bytes()
    }

    /// Failed reads of a segment after which it is quarantined.
    pub fn quarantine_after(&self) -> u32 {
        self.config.ssd.quarantine_after
    }

    /// The peers.
    pub fn peers(&self) -> &[PeerConfig] {
        &self.config.remote.peers
    }

    /// File with the key that identifies this process to peers.
    pub fn peers_key(&self) -> Option<&Path> {
        self.config.remote.key.as_deref()
    }

    /// Settings of RDMA.
    pub fn rdma(&self) -> &RdmaConfig {
        &self.config.rdma
    }

    /// The name of this host for the log of peers.
    pub fn local_hostname(&self) -> Option<&str> {
        self.config.remote.local_hostname.as_deref()
    }

    /// Bytes of staging memory, in whole pages.
    pub fn staging_bytes(&self) -> u64 {
        self.memory.staging
    }

    /// Bytes of staging that one batch may use: `staging_bytes` x ratio, rounded down; at least a
    /// chunk + 8192.
    pub fn staging_budget(&self) -> u64 {
        self.staging_budget
    }

    /// Size of the pieces in which an object larger than the budget is read; a multiple of the
    /// checksum block.
    pub fn staging_chunk_bytes(&self) -> u64 {
        self.config.staging.chunk_bytes.bytes()
    }

    /// Objects that the index holds, given or derived.
    pub fn max_objects(&self) -> u64 {
        self.max_objects
    }

    /// The same, with one fingerprint for all keys, so that only whole keys tell objects apart. For
    /// tests: it is very slow.
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

    /// Most reads in flight per session.
    pub fn read_depth(&self) -> u32 {
        self.config.read.depth
    }

    /// Whether the number of tokens of a page is known.
    pub fn knows_page_tokens(&self) -> bool {
        self.config.read.page_tokens > 0
    }

    /// Time in seconds in which a caller recomputes a page, at its rate in tokens a second or, if
    /// that is 0, at the configured one; `None` if all pages are loaded.
    pub fn page_recompute_seconds(&self, tokens_per_s: u64) -> Option<f64> {
        let read = &self.config.read;
        let rates = [tokens_per_s, read.prefill_tokens_per_s];
        let rate = rates.into_iter().find(|rate| *rate > 0)?;
        Some(f64::from(read.page_tokens) / rate as f64).filter(|_| self.knows_page_tokens())
    }

    /// Lifetime of an incomplete group.
    pub fn group_deadline(&self) -> Duration {
        Duration::from_millis(self.config.groups.deadline_ms)
    }

    /// Most events that are kept until they are read.
    pub fn events_max(&self) -> usize {
        self.config.events.max as usize
    }

    /// Longest wait of a call without its own timeout.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.config.deadline_ms)
    }

    /// Longest duration of a close.
    pub fn close_timeout(&self) -> Duration {
        Duration::from_millis(self.config.close_timeout_ms)
    }

    /// Most namespaces at a time.
    pub fn namespaces_max(&self) -> u32 {
        self.config.namespaces_max
    }

    /// Namespaces that have counts of their own; 0: nothing is counted by namespace.
    pub fn namespaces_counted(&self) -> usize {
        self.config.namespaces.counted as usize
    }

    /// Limits of namespaces.
    pub fn namespace_limits(&self) -> &[NamespaceLimits] {
        &self.config.namespaces.limits
    }

    /// Least share of right hints, so that they are followed.
    pub fn hints_trust(&self) -> f64 {
        self.config.hints.trust
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
