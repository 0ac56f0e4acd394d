//! Validates relations between settings, and between settings and the machine.
//!
//! Ranges bound every number here (at most 2^50 bytes), so sums cannot overflow. A relation is
//! checked only if all of the settings that it reads are within their ranges.

use pagelith_layouts::align::align_down;
use pagelith_layouts::staging;
use pagelith_tiers::policy::admission::Admission;
use pagelith_tiers::ssd::volume::{SEGMENTS_MIN, VolumeGeometry};

use super::Config;
use super::SEGMENT_MAX;
use super::choice::{DramPin, SsdAdmissionRule};
use super::error::{ConfigError, Problem, ok_unless_problems};
use super::parse::Draft;
use super::size::Size;
use super::valid::{MachineLimits, MemoryPlan, ValidConfig};

/// Segments of the write buffer without a DRAM tier: one is filled while the other is flushed.
const WRITE_BUFFER_SEGMENTS: u64 = 2;
/// Bounds of the derived segment size. The largest fits the default `dram.bytes`, so that an SSD
/// tier of any size opens with the other defaults.
const SEGMENT_DERIVED: (u64, u64) = (4 << 20, 256 << 20);
/// The tier's size divided by the derived segment's: reclaim then frees 1 to 2 % at a time.
const SEGMENTS_DERIVED: u64 = 64;
/// Most memory of the index itself for each object (`docs/operations.md`, "Size").
const INDEX_BYTES_PER_OBJECT: u64 = 40;
/// Bytes that remember why objects left, for each object of the index: one entry of 4 bytes for
/// two. With the 8 bytes of the history all policies together take 10.
const DEPARTED_BYTES_PER_OBJECT: u64 = 2;
/// Mean object size for which the derived index is sized, and bounds of its number of objects.
const OBJECT_BYTES_ASSUMED: u64 = 16 << 10;
const OBJECTS_DERIVED: (u64, u64) = (65_536, 16_777_216);

impl Config {
    /// Check every setting, and the relations between them and to the machine. The error contains
    /// all problems; nothing is created, neither files nor memory.
    pub fn validate(&self, limits: &MachineLimits) -> Result<ValidConfig, ConfigError> {
        let mut draft = Draft::of(self.clone());
        draft.check_ranges();
        resolve(draft, limits)
    }
}

/// The draft's problems and those of its relations, or else its resolved numbers.
pub(super) fn resolve(draft: Draft, limits: &MachineLimits) -> Result<ValidConfig, ConfigError> {
    let numbers = Resolved::of(&draft.config);
    let mut relations = Relations { draft, numbers };
    relations.check_capacity();
    relations.check_segments();
    relations.check_probe();
    relations.check_remote();
    relations.check_staging();
    relations.check_limits();
    relations.check_recompute();
    relations.check_memory(limits);
    let Draft { config, problems, .. } = relations.draft;
    ok_unless_problems(problems, ()).map(|()| ValidConfig {
        config,
        arena_bytes: numbers.memory.arena,
        segment_bytes: numbers.segment,
        staging_budget: numbers.staging_budget,
        max_objects: numbers.max_objects,
        memory: numbers.memory,
        #[cfg(feature = "internals")]
        constant_fingerprint: false,
    })
}

/// Numbers derived from the settings. Saturating, since settings may be out of range here.
#[derive(Clone, Copy)]
struct Resolved {
    segment: u64,
    staging_budget: u64,
    max_objects: u64,
    memory: MemoryPlan,
}

impl Resolved {
    fn of(config: &Config) -> Resolved {
        let (dram, ssd) = (config.dram.bytes.bytes(), config.ssd.bytes.bytes());
        let segment = config.ssd.segment_bytes.map_or_else(|| derived_segment(ssd), Size::bytes);
        let arena = match dram {
            0 if ssd > 0 => segment.saturating_mul(WRITE_BUFFER_SEGMENTS),
            dram => align_down(dram),
        };
        let max_objects = config.index.max_objects.unwrap_or_else(|| {
            (dram.saturating_add(ssd) / OBJECT_BYTES_ASSUMED)
                .clamp(OBJECTS_DERIVED.0, OBJECTS_DERIVED.1)
        });
        let staging_bytes = align_down(config.staging.bytes.bytes());
        let index = max_objects.saturating_mul(INDEX_BYTES_PER_OBJECT);
        let headers = if ssd > 0 { config.ssd.headers_bytes.bytes() } else { 0 };
        let history = match has_history(config) {
            true => Admission::memory_bytes(history_pages(max_objects)),
            false => 0,
        };
        // In whole cache lines.
        let departed =
            max_objects.saturating_mul(DEPARTED_BYTES_PER_OBJECT).div_ceil(64).saturating_mul(64);
        let parts = [arena, staging_bytes, index, headers, history, departed];
        let total = parts.into_iter().fold(0u64, u64::saturating_add);
        let locked = match config.dram.pin {
            DramPin::Off => 0,
            DramPin::Cuda | DramPin::Ascend => arena.saturating_add(staging_bytes),
        };
        Resolved {
            segment,
            staging_budget: staging::usable(staging_bytes, config.staging.ratio),
            max_objects,
            memory: MemoryPlan {
                arena,
                staging: staging_bytes,
                index,
                headers,
                history,
                departed,
                total,
                locked,
            },
        }
    }
}

/// Whether admission has a history: whether anything may be refused.
pub(super) fn has_history(config: &Config) -> bool {
    let ssd = &config.ssd;
    let may_refuse = ssd.admission != SsdAdmissionRule::Through || ssd.write_budget > Size::ZERO;
    ssd.bytes > Size::ZERO && config.dram.bytes > Size::ZERO && may_refuse
}

/// Pages in that history: as many as the tiers hold, and as many that left them.
pub(super) fn history_pages(max_objects: u64) -> u64 {
    max_objects.saturating_mul(2).min(u64::MAX / 8)
}

/// The files of an SSD tier; `None` if it is too small for them.
pub(super) fn geometry(
    bytes: u64,
    segment: u64,
    dirs: u32,
    max_objects: u64,
    namespaces: u32,
) -> Option<VolumeGeometry> {
    // An object takes at least a sector, and two entries if it is attached.
    VolumeGeometry::fit(bytes, segment, dirs, max_objects.min(bytes / 2048), namespaces)
}

fn derived_segment(ssd_bytes: u64) -> u64 {
    let part = (ssd_bytes / SEGMENTS_DERIVED).clamp(SEGMENT_DERIVED.0, SEGMENT_DERIVED.1);
    1 << part.ilog2()
}

struct Relations {
    draft: Draft,
    numbers: Resolved,
}

impl Relations {
    fn are_valid(&self, paths: &[&str]) -> bool {
        !paths.iter().any(|path| self.draft.wrong_settings.contains(path))
    }

    fn problem(&mut self, field: &str, message: String) {
        self.draft.problems.push(Problem { field: field.to_owned(), message });
    }

    /// A store has some capacity, and an SSD tier has both a size and a directory.
    fn check_capacity(&mut self) {
        let (dram, ssd) = (self.draft.config.dram.bytes, self.draft.config.ssd.bytes);
        let dirs = self.draft.config.ssd.dirs.len();
        if self.are_valid(&["dram.bytes", "ssd.bytes"]) && dram == Size::ZERO && ssd == Size::ZERO {
            let message = "must be above 0, or ssd.bytes must be: embedded with no capacity, \
                           got=0B ssd.bytes=0B";
            self.problem("dram.bytes", message.to_owned());
        }
        if !self.are_valid(&["ssd.bytes", "ssd.dirs"]) {
            return;
        }
        if ssd > Size::ZERO && dirs == 0 {
            self.problem("ssd.dirs", format!("must name a directory, got=[] ssd.bytes={ssd}"));
        }
        if ssd == Size::ZERO && dirs > 0 {
            let message =
                format!("must be above 0, or ssd.dirs empty, got=0B ssd.dirs={dirs} directories");
            self.problem("ssd.bytes", message);
        }
    }

    /// Tier, arena and single writes are consistent with the segment size.
    fn check_segments(&mut self) {
        let config = &self.draft.config;
        let (dram, ssd, write) = (config.dram.bytes, config.ssd.bytes, config.ssd.write_bytes);
        if ssd == Size::ZERO || !self.are_valid(&["ssd.bytes", "ssd.segment_bytes"]) {
            return;
        }
        let segment = Size::from_bytes(self.numbers.segment);
        self.check_files();
        if self.are_valid(&["dram.bytes"]) && dram > Size::ZERO && dram < segment {
            let message = format!(
                "must be 0 or at least a segment ({segment}) with an SSD tier, got={dram} \
                 ssd.segment_bytes={segment}"
            );
            self.problem("dram.bytes", message);
        }
        if self.are_valid(&["ssd.write_bytes"]) && write > segment {
            let message =
                format!("must be at most a segment, got={write} ssd.segment_bytes={segment}");
            self.problem("ssd.write_bytes", message);
        }
    }

    /// The other files fit too, and the index can address all segments.
    fn check_files(&mut self) {
        if !self.are_valid(&["ssd.dirs", "index.max_objects", "namespaces_max"]) {
            return;
        }
        let config = &self.draft.config;
        let Resolved { segment, max_objects, .. } = self.numbers;
        let (ssd, dirs, namespaces) =
            (config.ssd.bytes.bytes(), config.ssd.dirs.len() as u32, config.namespaces_max);
        let segments = SEGMENTS_MIN.max(dirs);
        let fits = |bytes| {
            let geometry = geometry(bytes, segment, dirs, max_objects, namespaces);
            geometry.is_some_and(|geometry| geometry.segment_count >= segments)
        };
        if !fits(ssd) {
            // A larger tier has larger checkpoints, so the least size has no closed form.
            let step = segment.min(1 << 20);
            let mut least = u64::from(segments) * segment;
            while !fits(least) {
                least += step;
            }
            let size = Size::from_bytes;
            let message = format!(
                "must be at least {} ({segments} segments, two manifests and two checkpoints), got={} \
                 ssd.segment_bytes={} index.max_objects={max_objects} namespaces_max={namespaces}",
                size(least),
                size(ssd),
                size(segment)
            );
            return self.problem("ssd.bytes", message);
        }
        let too_many = |segment| {
            let geometry = geometry(ssd, segment, dirs, max_objects, namespaces);
            geometry.is_some_and(|geometry| geometry.segment_count > SEGMENT_MAX)
        };
        if too_many(segment) {
            let mut least = segment;
            while too_many(least) {
                least *= 2;
            }
            let size = Size::from_bytes;
            let (least, segment, ssd) = (size(least), size(segment), size(ssd));
            let message = format!(
                "must be at least {least} for a tier of that size, got={segment} ssd.bytes={ssd}"
            );
            self.problem("ssd.segment_bytes", message);
        }
    }

    /// A prefill rate needs the tokens of a page.
    fn check_recompute(&mut self) {
        let read = &self.draft.config.read;
        let (rate, tokens) = (read.prefill_tokens_per_s, read.page_tokens);
        if self.are_valid(&["read.prefill_tokens_per_s", "read.page_tokens"])
            && rate > 0
            && tokens == 0
        {
            let message = format!(
                "must be above 0 with read.prefill_tokens_per_s, got={tokens} \
                 read.prefill_tokens_per_s={rate}"
            );
            self.problem("read.page_tokens", message);
        }
    }

    /// Limits of namespaces are within their tiers.
    fn check_limits(&mut self) {
        let config = &self.draft.config;
        let (dram, ssd) = (config.dram.bytes, config.ssd.bytes);
        let segment = Size::from_bytes(self.numbers.segment);
        if !self.are_valid(&["dram.bytes", "ssd.bytes", "ssd.segment_bytes", "namespaces.limits"]) {
            return;
        }
        let mut faults = Vec::new();
        for (number, entry) in config.namespaces.limits.iter().enumerate() {
            if let Some(bytes) = entry.dram_bytes.filter(|bytes| *bytes > dram) {
                faults.push(format!(
                    "entry {number} must have as dram_bytes at most dram.bytes, got={bytes} dram.bytes={dram}"
                ));
            }
            if let Some(bytes) = entry.ssd_bytes.filter(|b| !(segment..=ssd).contains(b)) {
                faults.push(format!(
                    "entry {number} must have as ssd_bytes at least a segment and at most ssd.bytes, \
                     got={bytes} ssd.segment_bytes={segment} ssd.bytes={ssd}"
                ));
            }
            if entry.idle_days.is_some() && ssd == Size::ZERO {
                let message = "must have no idle_days without an SSD tier, got ssd.bytes=0B";
                faults.push(format!("entry {number} {message}"));
            }
        }
        faults.into_iter().for_each(|fault| self.problem("namespaces.limits", fault));
    }

    /// The longest pause is at least the first.
    fn check_probe(&mut self) {
        let (first, longest) = (self.draft.config.ssd.probe_ms, self.draft.config.ssd.probe_max_ms);
        if self.are_valid(&["ssd.probe_ms", "ssd.probe_max_ms"]) && longest < first {
            let message =
                format!("must be at least ssd.probe_ms, got={longest} ssd.probe_ms={first}");
            self.problem("ssd.probe_max_ms", message);
        }
    }

    /// A key requires peers.
    fn check_remote(&mut self) {
        let remote = &self.draft.config.remote;
        if self.are_valid(&["remote.peers", "remote.key"])
            && remote.key.is_some()
            && remote.peers.is_empty()
        {
            self.problem(
                "remote.key",
                "must be unset without remote.peers, to which it identifies this store".to_owned(),
            );
        }
    }

    /// One chunk of an object larger than the budget can always be read.
    fn check_staging(&mut self) {
        if !self.are_valid(&["staging.bytes", "staging.ratio", "staging.chunk_bytes"]) {
            return;
        }
        let settings = &self.draft.config.staging;
        let budget = self.numbers.staging_budget;
        let needed = staging::cost(settings.chunk_bytes.bytes());
        if budget < needed {
            let message = format!(
                "must leave a budget (bytes x ratio) of at least one chunk + {} = {needed} bytes, \
                 got={} budget={budget} staging.ratio={} staging.chunk_bytes={}",
                staging::OVERHEAD,
                settings.bytes,
                settings.ratio,
                settings.chunk_bytes
            );
            self.problem("staging.bytes", message);
        }
    }

    /// The store's memory and the reserve fit the machine. The problem names the largest term, the
    /// first of equal ones, since lowering it gains most.
    fn check_memory(&mut self, limits: &MachineLimits) {
        let terms = [
            "dram.bytes",
            "ssd.bytes",
            "ssd.segment_bytes",
            "ssd.headers_bytes",
            "staging.bytes",
            "index.max_objects",
        ];
        if !self.are_valid(&terms) || !self.are_valid(&["memory.reserve"]) {
            return;
        }
        let plan = self.numbers.memory;
        let reserve = self.draft.config.memory.reserve;
        let needed = plan.total.saturating_add(reserve.bytes());
        if needed <= limits.memory_bytes {
            return;
        }
        let arena_field = if self.draft.config.dram.bytes == Size::ZERO {
            "ssd.segment_bytes"
        } else {
            "dram.bytes"
        };
        let terms = [
            (plan.arena, arena_field),
            (plan.staging, "staging.bytes"),
            (plan.index, "index.max_objects"),
            (plan.headers, "ssd.headers_bytes"),
            (plan.history, "index.max_objects"),
            (plan.departed, "index.max_objects"),
            (reserve.bytes(), "memory.reserve"),
        ];
        let largest = terms
            .iter()
            .rev()
            .max_by_key(|(bytes, _)| *bytes)
            .map_or(arena_field, |(_, field)| *field);
        let size = Size::from_bytes;
        let message = format!(
            "must be lower: arena + staging + index + headers + history + departed + \
             memory.reserve must be at most {}, \
             got={} arena={} staging={} index={} headers={} history={} departed={} memory.reserve={} source={}",
            size(limits.memory_bytes),
            size(needed),
            size(plan.arena),
            size(plan.staging),
            size(plan.index),
            size(plan.headers),
            size(plan.history),
            size(plan.departed),
            reserve,
            limits.memory_source
        );
        self.problem(largest, message);
    }
}
