//! Configuration: from code, a file (TOML or JSON) and the environment.
//!
//! **Precedence, lowest first: defaults < file < environment < code.** Each layer replaces single
//! settings of the layers before it. Each layer must be valid by itself: a wrong value in the file
//! is refused even if the environment replaces it, or the error would appear only when the variable
//! is unset.
//!
//! - file: [`Config::from_toml_str`], [`Config::from_json_str`], or [`ConfigBuilder::file`]. The
//!   caller reads the file; this module does no I/O.
//! - environment: `PAGELITH_` and the path in upper case with `__` for each dot:
//!   `PAGELITH_DRAM__BYTES=2GiB`. `ssd.dirs` and `remote.peers` are separated by commas, or a JSON
//!   list. *Every* variable with the prefix must be a setting, except those that Kubernetes sets
//!   for a Service of that name (`PAGELITH_PORT_7411_TCP`).
//! - code: the fields of [`Config`], or [`ConfigBuilder::set`].
//!
//! A configuration is refused, never repaired or rounded: [`ConfigError`] lists every problem at
//! once, each with the path of its setting and the expected value. Only a [`ValidConfig`] opens a
//! store.
//!
//! ```
//! use pagelith::config::{Config, ConfigFormat, MachineLimits, Size};
//!
//! let facts = MachineLimits::new(8 << 30, "machine".into());
//! let valid = Config::builder()
//!     .file(ConfigFormat::Toml, "[dram]\nbytes = \"1GiB\"\npolicy = \"lru\"")
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
mod limits;
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

pub use choice::{DramPin, DramPolicy, Promote, SsdAdmissionRule, SsdIo, SsdPolicy, WhenFull};
pub use error::{ConfigError, Problem};
pub use fields::{ENV_PREFIX, Field, fields};
pub use limits::NamespaceLimits;
pub use parse::{ConfigBuilder, ConfigFormat};
pub use peer::PeerConfig;
pub use size::{Size, SizeError};
pub use valid::{MachineLimits, MemoryPlan, ValidConfig};

/// The highest number of a segment: entries of the index have 18 bits for it.
pub(crate) const SEGMENT_MAX: u32 = (1 << 18) - 1;

/// All settings of a store. `Default` is a 256 MiB DRAM cache without an SSD tier.
///
/// Each setting's documentation gives its default, its range, and reasons to change it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Config {
    /// Longest wait, in milliseconds, of a call without its own timeout. Default 30 000; 1 to 3 600
    /// 000. Lower it where a late hit is worse than a miss. Opening the store waits for the drive
    /// for at least 30 s regardless.
    pub deadline_ms: u64,
    /// Longest duration of a close, in milliseconds; within it, everything that waits in memory is
    /// written. Default 120 000; 1 to 3 600 000. Raise it for a large arena over a slow drive, and
    /// raise the service manager's limit with it.
    pub close_timeout_ms: u64,
    /// Most namespaces (model, revision, dtype, tenant, ...) that the store knows at a time.
    /// Default 4096; 1 to 65 536. Raise it for many tenants; each costs a row in memory and in the
    /// manifest.
    pub namespaces_max: u32,
    /// The DRAM tier.
    pub dram: DramConfig,
    /// The SSD tier.
    pub ssd: SsdConfig,
    /// The remote tier.
    pub remote: RemoteConfig,
    /// RDMA: for peers with that transport, and for clients of `pagelith serve --rdma`.
    pub rdma: RdmaConfig,
    /// Memory for reads that cannot go straight into the caller's memory.
    pub staging: StagingConfig,
    /// Groups that are put in several calls.
    pub groups: GroupsConfig,
    /// Events about objects that appear in and leave the store.
    pub events: EventsConfig,
    /// The index.
    pub index: IndexConfig,
    /// Reading.
    pub read: ReadConfig,
    /// Memory left to the rest of the machine.
    pub memory: MemoryConfig,
    /// Log events.
    pub log: LogConfig,
    /// Counts and limits of namespaces.
    pub namespaces: NamespacesConfig,
    /// Hints of callers.
    pub hints: HintsConfig,
}

/// Settings of hints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HintsConfig {
    /// The least share of a namespace's hints that a session has ended, so that such hints are
    /// followed: those after which the session's pages were not requested again. Default 0.95; 0
    /// to 1. Lower it if the caller's wrong hints are worth the memory that the others free; 1
    /// follows only hints of which none was wrong.
    pub trust: f64,
}

/// Settings of namespaces.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NamespacesConfig {
    /// Namespaces that have counts of their own in the statistics: the first in which objects are
    /// put or found since the open. Default 0: none are counted; at most 512. All others are
    /// counted together. Set it to the number of tenants, to see what each uses.
    pub counted: u32,
    /// Limits of namespaces, each a table ([`NamespaceLimits`]). Default none; at most 512. Set
    /// them so that one tenant cannot fill a tier. With `ssd_bytes` an open reads the footer of
    /// each segment.
    pub limits: Vec<NamespaceLimits>,
}

/// Settings of the DRAM tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DramConfig {
    /// Bytes of the arena, used in whole pages of 4096. Default 256 MiB; 0, or 64 KiB to 8 TiB;
    /// with an SSD tier at least one segment. Give it as much as the host can spare: a DRAM hit is
    /// many times faster than an SSD hit. 0 means no DRAM tier: the arena is then a write buffer of
    /// two segments.
    pub bytes: Size,
    /// Eviction order: `s3fifo` (default), `lru` or `fifo`. `s3fifo` keeps pages that are used once
    /// from displacing others; use `lru` if the oldest page must leave first, and `fifo` as a
    /// baseline.
    pub policy: DramPolicy,
    /// Whether hits from SSD and from peers are kept in DRAM: `always` (default) or `never`. Use
    /// `never` if hits do not repeat, to save the copy and keep the present contents of DRAM.
    pub promote: Promote,
    /// The share of DRAM hits that are verified. Default 1: all of them; 0 to 1. Lower it, if
    /// memory has ECC and is trusted, to get at the speed of a copy. An unverified hit may return
    /// bytes that changed in memory.
    pub verify_ratio: f64,
    /// Whether the arena is shared memory from which attached processes of this host copy hits
    /// themselves. Default false; `pagelith serve` sets it for a Unix socket by default. A client
    /// that may read every namespace can read all of the arena. Shared memory has huge pages only
    /// where the system provides them (`shmem_enabled`).
    pub shared: bool,
    /// Whether the arena (without a DRAM tier the write buffer), the index and the memory for
    /// headers (`ssd.headers_bytes`) are populated when the store is opened. Default false: the
    /// kernel clears pages as they are first touched. That costs the first round of puts and
    /// promotions more than the work itself, most of all on a virtual machine whose host must
    /// provide the pages. If true, open takes as long as one thread needs to clear all of them, and
    /// the memory is used from the start; needs Linux 5.14.
    pub prefault: bool,
    /// The driver that page-locks the arena and the staging memory: `off` (default), `cuda` or
    /// `ascend`. The device then copies hits out of them and puts into them by itself. They are
    /// locked when the first device of that driver is bound to the store, which fails if the driver
    /// refuses, and stay locked until the store is dropped. Without a bound device, as in `pagelith
    /// serve`, nothing is locked.
    pub pin: DramPin,
}

/// Settings of the SSD tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SsdConfig {
    /// Bytes of all files of the store together. Default 0: no SSD tier; at most 64 TiB, and at
    /// least four segments (or one a directory, if that is more) plus two manifests and two
    /// checkpoints, which take some 100 bytes for each of `index.max_objects` and `namespaces_max`.
    /// This is the size of the cache that survives a restart.
    pub bytes: Size,
    /// The directories, one per drive; segments are striped over them. Default none; at most 64,
    /// all different. List several to combine the bandwidth of drives.
    pub dirs: Vec<PathBuf>,
    /// Bytes of a segment: the unit of reclaim and, less its header and footer, the largest object.
    /// Default `ssd.bytes` / 64 rounded down to a power of two, within 4 MiB to 256 MiB (which fits
    /// the default `dram.bytes`); a power of two from 1 MiB to 256 MiB. Raise it for objects that
    /// do not fit; lower it to reclaim in smaller steps.
    pub segment_bytes: Option<Size>,
    /// Which segment is reclaimed first: `recency` (default) or `fifo`. `recency` keeps recently
    /// used objects, at the cost of a few more writes; `fifo` causes the fewest.
    pub policy: SsdPolicy,
    /// Largest share of a reclaimed segment that is written again, used by `recency`. Pinned and
    /// leased objects count against it, and are written again in any case. Default 0.25; 0 to 0.25.
    /// Lower it to spare the drive's endurance.
    pub reinsert_ratio: f64,
    /// Which of the pages that are put are written: `worth` (default) learns which pages are
    /// requested again, and begins by writing all; `through` writes all; `second-touch` writes
    /// those that were put or got before. A flush writes the others too, if DRAM still has them.
    /// Without a DRAM tier everything is written. Use `through` if every page shall reach SSD
    /// without a flush, at the cost of the drive's endurance.
    pub admission: SsdAdmissionRule,
    /// For `worth`: the least share of a kind of pages that must be requested again within two laps
    /// of the log. Default 0.2; 0 to 1. Raise it to write less, at the cost of hits.
    pub min_reuse: f64,
    /// For `worth`: the least worth of a kind of pages, as a multiple of that of what reclaim gives
    /// up. Default 0.9; 0 to 2. Raise it to write less, at the cost of hits.
    pub thrift: f64,
    /// Bytes that may be written to SSD a day, with what reclaim reinserts. Default 0: no limit; or
    /// 1 MiB to 1 PiB. Pages that were requested before come first. A flush is not limited. Set it
    /// to the drive's rated endurance, divided by its days of service.
    pub write_budget: Size,
    /// The I/O backend: `auto` (default: io_uring where allowed, else blocking), `uring` (or refuse
    /// to open) or `blocking`. With `uring`, a container that forbids io_uring causes an error
    /// instead of a slow store.
    pub io: SsdIo,
    /// Most writes in flight. Default 8; 1 to 64. Raise it if sustained puts stay below the drive's
    /// bandwidth; lower it if writes delay reads.
    pub write_depth: u32,
    /// Most writes in flight while the drive is being read, and for 50 ms after: a read waits for
    /// the writes queued before it. Default 2; 1 to 64, capped at `ssd.write_depth`. Raise it if
    /// reads starve puts; 1 gives the shortest tails.
    pub write_depth_reading: u32,
    /// The largest single write. Default 1 MiB; a multiple of 4096 from 64 KiB to 16 MiB, at most a
    /// segment. Lower it if writes delay reads; raise it for drives with a large stripe.
    pub write_bytes: Size,
    /// Bytes of memory for headers of records on SSD. Default 64 MiB; 0: none, or 64 KiB to 64 TiB.
    /// A get of an object with a cached header reads its payload alone, without another 4096 bytes.
    /// A header takes some 400 bytes for an object of 64 KiB, 900 for one of 1 MiB. Raise it for a
    /// large drive of small objects.
    pub headers_bytes: Size,
    /// Write an index checkpoint after this many segments were sealed. Default 16; 0: only at
    /// close. Lower it to open faster after a crash, at the cost of more writes.
    pub checkpoint_segments: u32,
    /// Pause before a failed drive is probed, in milliseconds; it doubles with each failed probe.
    /// Default 1000; 1 to 3 600 000. Raise it for drives that take long to recover.
    pub probe_ms: u64,
    /// Longest such pause, in milliseconds. Default 60 000; at least `ssd.probe_ms`, at most 3 600
    /// 000. Lower it if the drive must be in use again soon.
    pub probe_max_ms: u64,
    /// Failed reads of a segment (device errors, or records that fail verification) after which it
    /// is quarantined: neither read nor reused before the store is opened again. Default 3; 1 to 1
    /// 000 000. Raise it for drives that fail reads and recover; use 1 if reads of bad blocks take
    /// long.
    pub quarantine_after: u32,
    /// Bytes per second that the background scrub reads and verifies, pass after pass, while
    /// nothing is being written. Default 0: none; or 4 KiB to 1 TiB. Turn it on to find latent
    /// damage while DRAM or a peer still has a copy. A pass takes the tier's bytes divided by this
    /// rate.
    pub scrub_bytes_per_s: Size,
}

/// Settings of the remote tier: peers' stores, asked after DRAM and SSD.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RemoteConfig {
    /// Store processes that hold pages for this store. A page that is absent locally is requested
    /// from the peer that owns it, and each put is offered to that peer. Default none; at most 64.
    /// Each is an address, or a table ([`PeerConfig`]). All stores that share pages must list the
    /// same peers with the same names and weights. An unreachable peer is no error; it costs
    /// misses.
    pub peers: Vec<PeerConfig>,
    /// File with the key that identifies this process to peers, as `pagelith key` prints it; no
    /// other user may read it. Default none. Needed for peers that demand keys (`pagelith serve
    /// --keys`).
    pub key: Option<PathBuf>,
    /// The name of this host, which peers, and the store process to which a client attaches, show
    /// in their log. Default none: they log its address. Up to 253 letters, digits, dots, hyphens
    /// and underscores. Set it where addresses are translated, or change.
    pub local_hostname: Option<String>,
}

/// Settings of RDMA. Memory that devices may access is registered with all of them, and locked: its
/// bytes, once for each device, count against the locked-memory limit (`ulimit -l`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RdmaConfig {
    /// Whether clients of this store may use RDMA. Default false; `pagelith serve --rdma` sets it.
    /// The arena and the staging memory are then registered when the store is opened, which fails
    /// without a usable device. Clients learn neither addresses nor keys of that memory.
    pub serve: bool,
    /// The devices: one name for all GPUs, or one for each GPU of the host, in the order of
    /// `nvidia-smi` and separated by commas. Default: all active ports that are nearest to
    /// `rdma.gpu` in the PCIe tree, or without it all active ports. `pagelith doctor` lists names
    /// and distances.
    pub devices: Option<String>,
    /// The GPU that this process uses, by its index among those in `CUDA_VISIBLE_DEVICES`. Default
    /// none; up to 1023. Needed if `rdma.devices` has several names.
    pub gpu: Option<u32>,
    /// The index of the GID that all ports use. Default: that of the GID with the highest score,
    /// RoCE v2 with a routable address; up to 255. Set it if `pagelith doctor` shows that the
    /// network needs another.
    pub gid_index: Option<u32>,
}

/// Settings of the staging memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StagingConfig {
    /// Bytes of aligned memory for staged reads, used in whole pages of 4096. Default 64 MiB; 64
    /// KiB to 1 TiB, and `bytes` x `ratio` at least one chunk + 8192. Raise it if batches with
    /// unaligned destinations are split too often.
    pub bytes: Size,
    /// The share of `bytes` that one batch may use. Default 0.9; above 0, at most 1. Lower it to
    /// keep room for other reads during a large batch.
    pub ratio: f64,
    /// Size of the pieces in which an object larger than the budget is read. Default 1 MiB; a
    /// multiple of 32 KiB (the unit of checksum) from 64 KiB to 256 MiB. Raise it for drives that
    /// need large reads.
    pub chunk_bytes: Size,
}

/// Settings of groups.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupsConfig {
    /// Lifetime of an incomplete group, in milliseconds; then it is dropped and counted. Default 30
    /// 000, as Mooncake discards unfinished puts; 1 to 3 600 000. Lower it if groups that never
    /// complete occupy memory; raise it for slow writers.
    pub deadline_ms: u64,
}

/// Settings of events.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EventsConfig {
    /// Most events (objects stored and removed) that are kept until they are read; beyond it the
    /// oldest are dropped and counted. Each takes some 150 bytes of memory once recorded. Default
    /// 0: none are recorded; up to 1 048 576. Set it to the number of events between two reads: a
    /// put into DRAM and SSD and its eviction from both are four.
    pub max: u32,
}

/// Settings of the index.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct IndexConfig {
    /// Most objects that the store knows, an attached one counting twice; 40 bytes of memory each,
    /// allocated at open. Default (`dram.bytes` + `ssd.bytes`) / 16 KiB, within 65 536 to 16 777
    /// 216; 1 to 2^32. Raise it for a large drive full of small objects; lower it to save memory
    /// with large objects.
    pub max_objects: Option<u64>,
}

/// Settings of reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ReadConfig {
    /// Most reads in flight per session. Default 128; 1 to 1024. Raise it for drives that need more
    /// to reach their bandwidth with small objects.
    pub depth: u32,
    /// Tokens that the caller's engine prefills a second. Default 0: everything that is present is
    /// loaded; up to 10^9. If set, objects on SSD whose load would take longer than recomputing
    /// their pages, by the rate of recent loads, are misses (`slow`). Set it, with
    /// `read.page_tokens`, if the drive may be slower than the engine. A get may have a rate of its
    /// own ([`Options::prefill_tokens_per_s`](crate::Options::prefill_tokens_per_s)).
    pub prefill_tokens_per_s: u64,
    /// Tokens of a page, for `read.prefill_tokens_per_s` and the rates of gets. Default 0; up to
    /// 65 536.
    pub page_tokens: u32,
}

/// Settings of memory as a whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// Memory of the machine or cgroup left to everything else. Default 256 MiB; at most 64 TiB.
    /// Arena, staging, index and headers together may take the available memory less this. Raise it
    /// by the needs of the process that embeds the store.
    pub reserve: Size,
}

/// Settings of log events.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogConfig {
    /// Log an event for each batch, with the objects and bytes from each tier. Default false. Turn
    /// it on to see where hits come from.
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
            rdma: RdmaConfig::default(),
            staging: StagingConfig::default(),
            groups: GroupsConfig { deadline_ms: 30_000 },
            events: EventsConfig { max: 0 },
            index: IndexConfig { max_objects: None },
            read: ReadConfig { depth: 128, prefill_tokens_per_s: 0, page_tokens: 0 },
            memory: MemoryConfig { reserve: Size::mib(256) },
            log: LogConfig { batch_summary: false },
            namespaces: NamespacesConfig { counted: 0, limits: Vec::new() },
            hints: HintsConfig { trust: 0.95 },
        }
    }
}

impl Default for DramConfig {
    fn default() -> DramConfig {
        let (policy, promote) = (DramPolicy::S3Fifo, Promote::Always);
        DramConfig {
            bytes: Size::mib(256),
            policy,
            promote,
            verify_ratio: 1.0,
            shared: false,
            prefault: false,
            pin: DramPin::Off,
        }
    }
}

impl Default for SsdConfig {
    fn default() -> SsdConfig {
        SsdConfig {
            bytes: Size::ZERO,
            dirs: Vec::new(),
            segment_bytes: None,
            policy: SsdPolicy::Recency,
            reinsert_ratio: 0.25,
            admission: SsdAdmissionRule::Worth,
            min_reuse: 0.2,
            thrift: 0.9,
            write_budget: Size::ZERO,
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
