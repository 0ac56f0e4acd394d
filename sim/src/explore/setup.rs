//! The setup of a run: the store's configuration and the disk's behaviour, chosen by the seed.

use std::time::Duration;

use pagelith::config::{
    DramPolicy, NamespaceLimits, Promote, SsdAdmissionRule, SsdPolicy, WhenFull,
};
use pagelith::{Config, MachineLimits, Size, ValidConfig};

use super::event_mirror::EVENTS_MAX;
use super::objects;
use crate::entropy::SplitMix64;

/// The setup of a run's store. Everything is small, so that a few thousand operations reach every
/// limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Directories.
    pub dirs: usize,
    /// MiB of the SSD tier, 0 for none; segments have 1 MiB.
    pub ssd_mib: u32,
    /// The store has room for everything: no object may be missing.
    pub roomy: bool,
    /// KiB of the arena; 0 for a write buffer.
    pub dram_kib: u32,
    /// Eviction policy of DRAM.
    pub dram_policy: DramPolicy,
    /// Whether reads from SSD are kept in DRAM.
    pub promote: bool,
    /// Whether reclaim goes by recency instead of first in, first out.
    pub recency: bool,
    /// Which puts are written; all in a roomy store.
    pub admission: SsdAdmissionRule,
    /// Sealed segments between checkpoints.
    pub checkpoint: u32,
    /// KiB of the largest write.
    pub write_kib: u32,
    /// Writes in flight.
    pub write_depth: u32,
    /// Reads in flight a session.
    pub read_depth: u32,
    /// KiB of staging memory.
    pub staging_kib: u32,
    /// Objects in the index.
    pub objects: u64,
    /// One fingerprint for all keys.
    pub constant: bool,
    /// Deadline of calls without a timeout.
    pub deadline_ms: u64,
    /// Deadline of groups.
    pub group_ms: u64,
    /// Sessions in addition to the store's own.
    pub sessions: usize,
    /// Simulated time of a disk operation.
    pub latency_us: u64,
    /// Disk operations complete out of order.
    pub shuffle: bool,
    /// Failed reads in a segment before it is quarantined.
    pub quarantine_after: u32,
    /// Milliseconds before a failed device is tried again.
    pub probe_ms: u64,
    /// KiB a second verified in the background; 0 for none.
    pub scrub_kib: u32,
    /// Most steps of background tasks between two operations.
    pub steps: u64,
    /// Memory for known headers, in KiB; 0: none.
    pub headers_kib: u32,
    /// Memory is shared with processes on the host. Not drawn: no run of the explorer has it.
    pub shared: bool,
}

impl Setup {
    /// A random setup by the seed's generator.
    pub fn draw(rng: &mut SplitMix64, constant: bool) -> Setup {
        let pick = |rng: &mut SplitMix64, of: &[u32]| of[rng.below(of.len() as u64) as usize];
        let constant = constant || rng.one_in(24);
        let roomy = rng.one_in(4) && !constant;
        let ssd = !rng.one_in(20) || roomy;
        let dirs = 1 + rng.below(2) as usize;
        let dram_kib = match ssd {
            true => pick(rng, &[0, 1024, 1024, 2048, 4096]),
            false => pick(rng, &[256, 1024, 4096]),
        };
        let objects = match roomy {
            true => 4096,
            // Every operation examines all of them.
            false if constant => 40,
            // An index that fills up, one that rarely does, one that never does.
            false => u64::from(pick(rng, &[96, 320, 2048, 2048])),
        };
        Setup {
            dirs,
            ssd_mib: if roomy { 320 } else { u32::from(ssd) * pick(rng, &[7, 8, 10, 16]) },
            roomy,
            dram_kib,
            dram_policy: [DramPolicy::Lru, DramPolicy::Fifo, DramPolicy::S3Fifo]
                [rng.below(3) as usize],
            promote: !rng.one_in(3),
            recency: rng.one_in(2),
            checkpoint: pick(rng, &[0, 1, 2, 4]),
            write_kib: pick(rng, &[64, 256, 1024]),
            write_depth: pick(rng, &[1, 4, 8]),
            read_depth: pick(rng, &[1, 4, 64]),
            staging_kib: pick(rng, &[96, 160, 1024]),
            objects,
            constant,
            deadline_ms: u64::from(pick(rng, &[2000, 5000])),
            group_ms: u64::from(pick(rng, &[50, 30_000])),
            sessions: 2 + rng.below(3) as usize,
            latency_us: u64::from(pick(rng, &[20, 100, 1000])),
            shuffle: rng.one_in(2),
            quarantine_after: pick(rng, &[1, 3, 1000]),
            probe_ms: u64::from(pick(rng, &[1, 20, 1000])),
            scrub_kib: pick(rng, &[0, 0, 0, 4096]),
            steps: u64::from(pick(rng, &[1, 4, 12])),
            // Derived instead of drawn, so that the plans of existing seeds do not change.
            admission: match (roomy, dirs as u64 + objects + u64::from(dram_kib) / 1024) {
                (true, _) => SsdAdmissionRule::Through,
                (false, n) if n % 3 == 0 => SsdAdmissionRule::Through,
                (false, n) if n % 3 == 1 => SsdAdmissionRule::Worth,
                (false, _) => SsdAdmissionRule::SecondTouch,
            },
            headers_kib: [0, 64, 1024][(objects as usize + dirs) % 3],
            shared: false,
        }
    }

    /// The configuration.
    pub fn config(&self) -> ValidConfig {
        let (deadline_ms, close_timeout_ms) = (self.deadline_ms, self.deadline_ms);
        let mut c = Config::default();
        c.deadline_ms = deadline_ms;
        c.close_timeout_ms = close_timeout_ms;
        c.namespaces_max = 8;
        c.groups.deadline_ms = self.group_ms;
        // With equal fingerprints an event may name another object of its group.
        c.events.max = if self.constant { 0 } else { EVENTS_MAX };
        c.dram.bytes = Size::kib(self.dram_kib);
        c.dram.shared = self.shared;
        c.dram.policy = self.dram_policy;
        c.dram.promote = if self.promote { Promote::Always } else { Promote::Never };
        if self.ssd_mib > 0 {
            c.ssd.bytes = Size::mib(self.ssd_mib);
            c.ssd.dirs = (0..self.dirs).map(|d| format!("sim{d}").into()).collect();
        }
        c.ssd.segment_bytes = Some(Size::mib(1));
        c.ssd.policy = if self.recency { SsdPolicy::Recency } else { SsdPolicy::Fifo };
        c.ssd.admission = self.admission;
        c.ssd.write_bytes = Size::kib(self.write_kib);
        c.ssd.write_depth = self.write_depth;
        c.ssd.headers_bytes = Size::kib(self.headers_kib);
        c.ssd.checkpoint_segments = self.checkpoint;
        c.ssd.quarantine_after = self.quarantine_after;
        c.ssd.probe_ms = self.probe_ms;
        c.ssd.probe_max_ms = 4 * self.probe_ms;
        c.ssd.scrub_bytes_per_s = Size::kib(self.scrub_kib);
        if self.is_limited() {
            let mut limits = NamespaceLimits::of(objects::namespace(0));
            limits.dram_bytes = Some(c.dram.bytes);
            limits.ssd_bytes = Some(Size::mib(2));
            limits.when_full = WhenFull::EvictOwn;
            c.namespaces.limits = vec![limits];
        }
        c.staging.bytes = Size::kib(self.staging_kib);
        c.staging.chunk_bytes = Size::kib(64);
        c.index.max_objects = Some(self.objects);
        c.read.depth = self.read_depth;
        let facts = MachineLimits::new(1 << 40, "simulated".into());
        let valid = c.validate(&facts).expect("a valid configuration");
        if self.constant { valid.with_constant_fingerprint() } else { valid }
    }

    /// Whether a namespace has limits; derived, so that the plans of existing seeds do not change.
    fn is_limited(&self) -> bool {
        let has_tiers = self.ssd_mib > 0 && self.dram_kib > 0;
        has_tiers && !self.roomy && (self.dirs as u64 + self.objects / 96).is_multiple_of(2)
    }

    /// Deadline of calls without a timeout.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}
