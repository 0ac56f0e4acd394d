//! Configuration: from code, a file (TOML or JSON) and the environment.
//!
//! **Precedence, lowest first: defaults < file < environment < code.** Each layer replaces single settings
//! of the ones before it. Each layer must be right by itself: a wrong value in the file is refused even
//! where the environment replaces it, since nobody wants to learn of it when the variable goes.
//!
//! - file: [`Config::from_toml_str`], [`Config::from_json_str`], or [`ConfigBuilder::file`]. The caller
//!   reads the file; nothing here touches the disk.
//! - environment: `PAGELITH_` and the path in upper case with `__` for each dot:
//!   `PAGELITH_DRAM__BYTES=2GiB`. `ssd.dirs` and `remote.peers` are separated by commas, or a JSON list. *Every* variable with
//!   the prefix must be a setting, but for those that Kubernetes sets for a Service of that name (`PAGELITH_PORT_7411_TCP`).
//! - code: the fields of [`Config`], or [`ConfigBuilder::set`].
//!
//! A configuration is refused, never repaired or rounded: [`ConfigError`] lists every problem at once, each
//! with the path of its setting and what would be right. Only a [`ValidConfig`] opens a store.
//!
//! ```
//! use pagelith::config::{Config, ConfigFormat, Facts, Size};
//!
//! let facts = Facts { memory_bytes: 8 << 30, memory_source: "machine".into() };
//! let valid = Config::builder()
//!     .file(ConfigFormat::Toml, "[dram]\nbytes = \"1GiB\"\npolicy = \"s3fifo\"")
//!     .env([("PAGELITH_DRAM__BYTES", "2GiB")])
//!     .set(|config| config.read.depth = 256)
//!     .validate(&facts)?;
//! assert_eq!(valid.dram_bytes(), 2 << 30);
//!
//! let refused = Config::from_toml_str("[dram]\nbites = 1\npromote = false").unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "dram.bites: is not a setting; did you mean dram.bytes?\n\
//!      dram.promote: must be one of \"always\", \"never\", got=false type=boolean"
//! );
//! # Ok::<(), pagelith::config::ConfigError>(())
//! ```

mod choice;
mod depth;
mod error;
mod fields;
mod machine;
mod node;
mod parse;
mod peer;
mod removed;
mod rule;
mod service_link;
mod setting;
mod size;
mod unknown;
mod valid;
mod validate;

use std::path::PathBuf;

use serde::Serialize;

pub use choice::{DramPolicy, Promote, SsdIo, SsdPolicy};
pub use error::{ConfigError, Problem};
pub use fields::{ENV_PREFIX, Field, fields};
pub use parse::{ConfigBuilder, ConfigFormat};
pub use peer::PeerConfig;
pub use size::{Size, SizeError};
pub use valid::{Facts, MemoryPlan, ValidConfig};

/// All settings of a store. `Default` is a 256 MiB DRAM cache without an SSD tier.
///
/// Each setting says its default, its range, and why one would change it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// The longest any call waits that is given no deadline of its own, in milliseconds. Default 30 000;
    /// 1 to 3 600 000. Lower it where a late hit is worse than a miss. Opening the store waits for the drive for at
    /// least 30 s whatever this says.
    pub deadline_ms: u64,
    /// The longest that closing the store may take, in milliseconds: all that waits in memory is written within it.
    /// Default 120 000; 1 to 3 600 000. Raise it for a large arena over a slow drive, and with it what the service
    /// manager allows.
    pub close_timeout_ms: u64,
    /// The most namespaces (model, revision, dtype, tenant, ...) the store knows at a time. Default 4096;
    /// 1 to 65 536. Raise it for many tenants; each costs a row in memory and in the manifest.
    pub namespaces_max: u32,
    /// The DRAM tier.
    pub dram: DramConfig,
    /// The SSD tier.
    pub ssd: SsdConfig,
    /// The remote tier.
    pub remote: RemoteConfig,
    /// Memory that direct reads land in when they cannot land in the caller's.
    pub staging: StagingConfig,
    /// Groups that are put in several calls.
    pub groups: GroupsConfig,
    /// What is told of objects that come and go.
    pub events: EventsConfig,
    /// The index.
    pub index: IndexConfig,
    /// Reading.
    pub read: ReadConfig,
    /// What the machine keeps.
    pub memory: MemoryConfig,
    /// Log events.
    pub log: LogConfig,
}

/// Settings of the DRAM tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DramConfig {
    /// Bytes of the arena, of which whole pages of 4096 are used. Default 256 MiB; 0, or 64 KiB to 8 TiB; with an SSD tier
    /// at least one segment. As much as the host can spare: a DRAM hit is many times faster than an SSD hit. 0 means no DRAM cache
    /// tier: the arena is then a write buffer of two segments.
    pub bytes: Size,
    /// Which object leaves first: `lru` (default), `fifo` or `s3fifo`. `s3fifo` where many pages are used
    /// once; `fifo` to compare against.
    pub policy: DramPolicy,
    /// Whether an SSD hit is copied into DRAM, and what a peer sent is kept here: `always` (default) or `never`. `never` where
    /// hits do not repeat, to save the copy and keep what is in DRAM.
    pub promote: Promote,
    /// The share of hits from DRAM that are verified on their way out. Default 1: all of them; 0 to 1. Lower it to
    /// get at the speed of a copy where memory has ECC and is trusted; what is not verified may hand over bytes that
    /// changed in memory.
    pub verify_ratio: f64,
    /// Whether the arena is memory that attached processes of this host can be shown, which then copy hits from where they lie.
    /// Default false. For a store process with clients over a Unix socket (`pagelith serve` has it there unless told otherwise);
    /// who may read every namespace can look at all of it. Such memory is of huge pages only where the system gives them
    /// (`shmem_enabled`).
    pub shared: bool,
    /// Whether the arena, the index and the memory for headers (`ssd.headers_bytes`) are given their memory when the store is opened,
    /// and without a DRAM tier the write buffer in the arena's place. Default false: pages are cleared as they are first
    /// filled, which costs the first lap of puts and promotions more than the work itself, most of all on a virtual machine whose
    /// host has to bring them. With it the store opens as much later as one thread takes to clear all of them, and they are
    /// taken from the system from the start; needs Linux 5.14.
    pub prefault: bool,
    /// In how many parts the order is kept in which pages leave: 1 to 128, rounded down to a power of two. Default: one for each 64 MiB of the
    /// arena, at most 64. With one, with `s3fifo` and where the arena is `shared`, threads that put take turns, and the page that leaves is
    /// the one that the policy has next; with more they do not, and it is the next of one of the parts.
    pub lanes: Option<u64>,
}

/// Settings of the SSD tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SsdConfig {
    /// Bytes of all files of the store together. Default 0: no SSD tier; at most 64 TiB, and at least four
    /// segments (or one a directory, if that is more) and what two manifests and two checkpoints take, some 100 bytes
    /// for each of `index.max_objects` and `namespaces_max`. The size of the cache that survives a
    /// restart.
    pub bytes: Size,
    /// The directories, one a drive; segments are striped over them. Default none; at most 64, all
    /// different. Name several to add up the bandwidth of drives.
    pub dirs: Vec<PathBuf>,
    /// Bytes of a segment: the unit of reclaim and, less its header and footer, the largest object. Default
    /// `ssd.bytes` / 64 rounded down to a power of two, within 4 MiB to 256 MiB (which fits the
    /// default `dram.bytes`); a power of two from 1 MiB to 256 MiB. Raise it for objects that do not fit;
    /// lower it to reclaim in smaller steps.
    pub segment_bytes: Option<Size>,
    /// Which segment is reclaimed first: `fifo` (default) or `recency`. `recency` keeps what is used, for
    /// more writes.
    pub policy: SsdPolicy,
    /// The most bytes copied forward while reclaiming, per byte put; used by `recency`. Default 0.25; 0 to
    /// 0.25. Lower it to spare the drive's endurance.
    pub reinsert_ratio: f64,
    /// How the drive is driven: `auto` (default: io_uring where allowed, else blocking), `uring` (or refuse
    /// to open) or `blocking`. `uring` makes a container that forbids io_uring an error instead of a slow
    /// store.
    pub io: SsdIo,
    /// Writes in flight. Default 8; 1 to 64. Raise it if sustained puts stay below the drive's bandwidth;
    /// lower it if reads suffer under them.
    pub write_depth: u32,
    /// Writes in flight while anybody reads from the drive, and for 50 ms after: what is queued before a read, the read
    /// waits for. Default 2; 1 to 64, at most `ssd.write_depth` counts. Raise it if puts starve beside reads; 1 for the
    /// shortest tails.
    pub write_depth_reading: u32,
    /// The largest single write. Default 1 MiB; a multiple of 4096 from 64 KiB to 16 MiB, at most a segment.
    /// Lower it if writes delay reads; raise it for drives with a large stripe.
    pub write_bytes: Size,
    /// Bytes of memory for headers of records on SSD. Default 64 MiB; 0: none, or 64 KiB to 64 TiB. A get of an object whose header is
    /// known reads its payload alone, and not 4096 bytes more; some 400 bytes for one of 64 KiB, 900 for one of 1 MiB. Raise it for a
    /// large drive of small objects.
    pub headers_bytes: Size,
    /// Write an index checkpoint each time this many segments were sealed. Default 16; 0: only at close.
    /// Lower it to open faster after a crash, for more writes.
    pub checkpoint_segments: u32,
    /// How long after the drive failed it is tried again whether it does its work, in milliseconds; the pause doubles
    /// as long as it does not. Default 1000; 1 to 3 600 000. Raise it for drives that take long to come back.
    pub probe_ms: u64,
    /// The longest such pause, in milliseconds. Default 60 000; at least `ssd.probe_ms`, at most 3 600 000. Lower it
    /// where the drive must be in use again soon.
    pub probe_max_ms: u64,
    /// Failing reads in a segment (of the device, or of what is not intact) after which it is quarantined: neither
    /// read nor used before the store is opened again. Default 3; 1 to 1 000 000. Raise it for drives that fail reads
    /// and recover; 1 where reads from a bad place take long.
    pub quarantine_after: u32,
    /// Bytes a second that are read in the background and verified, pass after pass, while nothing is being written.
    /// Default 0: none; or 4 KiB to 1 TiB. Turn it on to find rot while DRAM or a peer still has the object; the tier's
    /// bytes divided by it is how long a pass takes.
    pub scrub_bytes_per_s: Size,
}

/// Settings of the remote tier: peers' stores behind DRAM and SSD.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RemoteConfig {
    /// Store processes that hold pages for this store: what is not here is asked of the one that owns its page, and what is put here is offered to
    /// it. Default none; at most 64. Each is an address, or a table ([`PeerConfig`]). Who shares pages with others names the same peers by
    /// the same names, with the same weights. That one cannot be reached is no error, and costs misses.
    pub peers: Vec<PeerConfig>,
    /// The file with the key by which those know this process, as `pagelith key` prints it; no other user may read it. Default none. For
    /// peers that demand one (`pagelith serve --keys`).
    pub key: Option<PathBuf>,
}

/// Settings of the staging memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagingConfig {
    /// Bytes of aligned memory for staged reads, of which whole pages of 4096 are used. Default 64 MiB; 64 KiB to 1 TiB, and `bytes` x `ratio` at
    /// least one chunk + 8192. Raise it if batches with unaligned destinations are split too often.
    pub bytes: Size,
    /// The part of `bytes` that batches may be charged. Default 0.9; above 0, at most 1. Lower it to keep
    /// room for reads beside a large batch.
    pub ratio: f64,
    /// The piece in which an object above the whole budget is read. Default 1 MiB; a multiple of 32 KiB (the
    /// unit of checksum) from 64 KiB to 256 MiB. Raise it for drives that need large reads.
    pub chunk_bytes: Size,
}

/// Settings of groups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupsConfig {
    /// How long a group that was begun and is not complete is kept, in milliseconds; then it is dropped and
    /// counted. Default 30 000, as Mooncake discards puts that were not finished; 1 to 3 600 000. Lower it if
    /// groups that never complete hold memory back; raise it for slow writers.
    pub deadline_ms: u64,
}

/// Settings of events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventsConfig {
    /// How many events (objects stored and removed) are kept until they are taken; the oldest are dropped beyond it, and
    /// counted. Some 150 bytes of memory each, once they are there. Default 0: none is noted; up to 1 048 576. Set it to
    /// what happens between two takings: a put in DRAM and on SSD and its eviction from both are four.
    pub max: u32,
}

/// Settings of the index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexConfig {
    /// The most objects the store knows; 40 bytes of memory each, allocated at open. Default
    /// (`dram.bytes` + `ssd.bytes`) / 16 KiB, within 65 536 to 16 777 216; 1 to 2^32. Raise it for a large
    /// drive full of small objects; lower it to save memory with large ones.
    pub max_objects: Option<u64>,
}

/// Settings of reading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadConfig {
    /// Reads in flight per session. Default 128; 1 to 1024. Raise it for drives that need more to reach
    /// their bandwidth with small objects.
    pub depth: u32,
}

/// Settings of memory as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryConfig {
    /// What the machine or cgroup keeps for everything else. Default 256 MiB; at most 64 TiB. Arena,
    /// staging, index and headers together may be what is there less this. Raise it by what the process around the
    /// store needs.
    pub reserve: Size,
}

/// Settings of log events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogConfig {
    /// An event for each batch, with the objects and bytes that each tier gave. Default false. Turn it on
    /// to see where hits come from.
    pub batch_summary: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            deadline_ms: 30_000,
            close_timeout_ms: 120_000,
            namespaces_max: 4096,
            dram: DramConfig::default(),
            ssd: SsdConfig::default(),
            remote: RemoteConfig::default(),
            staging: StagingConfig::default(),
            groups: GroupsConfig { deadline_ms: 30_000 },
            events: EventsConfig { max: 0 },
            index: IndexConfig { max_objects: None },
            read: ReadConfig { depth: 128 },
            memory: MemoryConfig { reserve: Size::mib(256) },
            log: LogConfig { batch_summary: false },
        }
    }
}

impl Default for DramConfig {
    fn default() -> DramConfig {
        let (policy, promote) = (DramPolicy::Lru, Promote::Always);
        DramConfig {
            bytes: Size::mib(256),
            policy,
            promote,
            verify_ratio: 1.0,
            shared: false,
            prefault: false,
            lanes: None,
        }
    }
}

impl Default for SsdConfig {
    fn default() -> SsdConfig {
        SsdConfig {
            bytes: Size::ZERO,
            dirs: Vec::new(),
            segment_bytes: None,
            policy: SsdPolicy::Fifo,
            reinsert_ratio: 0.25,
            io: SsdIo::Auto,
            write_depth: 8,
            write_depth_reading: 2,
            write_bytes: Size::mib(1),
            headers_bytes: Size::mib(64),
            checkpoint_segments: 16,
            probe_ms: 1000,
            probe_max_ms: 60_000,
            quarantine_after: 3,
            scrub_bytes_per_s: Size::ZERO,
        }
    }
}

impl Default for StagingConfig {
    fn default() -> StagingConfig {
        StagingConfig { bytes: Size::mib(64), ratio: 0.9, chunk_bytes: Size::mib(1) }
    }
}
