//! Opens a store: files, memory, recovery, the flusher. All large memory is allocated here.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::disk::IoBackend;
use pagelith_io::probe::{BackendChoice, open_disk_with_stop};
use pagelith_io::runtime::{Env, Join};
use pagelith_io::staging::StagingPool;
use pagelith_io::sync::{Arc, Mutex};
use pagelith_io::system::{SystemClock, SystemEntropy, Threads};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::FINGERPRINT_KEY_BYTES;
use pagelith_layouts::footer;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_tiers::dram::arena::Arena;
use pagelith_tiers::policy::{
    LastRequests, TICKS_OF_LEAVING, TickClock, frame_policy, segment_policy,
};
use pagelith_tiers::ssd::guards::SegmentGuards;
use pagelith_tiers::ssd::log::{Log, LogConfig};
use pagelith_tiers::ssd::recover::{Recovered, recover};
use pagelith_tiers::ssd::serial_queue::SerialQueue;
use pagelith_tiers::ssd::volume::{FileSystemFull, OpenedVolume, Volume};

use crate::api::device::bound::Devices;
use crate::api::error::{Error, ErrorKind, Result};
use crate::background::flusher::Flusher;
use crate::background::peer_writer::PeerWriter;
use crate::background::recovery::RecoveryCollector;
use crate::config::{MachineLimits, MemoryPlan, SsdIo, SsdPolicy, ValidConfig};
use crate::memory::departed::DepartedObjects;
use crate::memory::frames::Frames;
use crate::memory::index::{FRAME_MAX, Index};
use crate::memory::namespaces::KnownNamespaces;
use crate::memory::pins::Pins;
use crate::memory::tenants::{Tenant, Tenants};
use crate::memory::visibility::Visibility;
use crate::rpc::connections::PeerConnections;
use crate::rpc::{Peer, Peers};
use crate::state::busy_puts::BusyPuts;
use crate::state::core::Core;
use crate::state::damage::Damage;
use crate::state::dram_core::DramCore;
use crate::state::event_log::EventLog;
use crate::state::flush_counts::FlushCounts;
use crate::state::header_cache::HeaderCache;
use crate::state::health::{Health, HealthLimits};
use crate::state::hints::Hints;
use crate::state::jobs::{Job, JobQueue, JobTable};
use crate::state::leaving::Superseded;
use crate::state::peer_queue::PeerQueue;
use crate::state::pending_groups::PendingGroups;
use crate::state::prefetch::Prefetch;
use crate::state::read_view::{ReadView, SnapshotVersion};
use crate::state::reads::ReadState;
use crate::state::replaced_objects::ReplacedObjects;
use crate::state::shared::{
    BytesInUse, CONSTANT_FINGERPRINT, RemoteTier, Shared, Signals, SsdAccess,
};
use crate::state::ssd_admission::SsdAdmission;
use crate::state::ssd_core::SsdCore;
use crate::state::stats::Counters;
use crate::state::tick_history::TickHistory;
use crate::state::written_namespaces::WrittenNamespaces;
use crate::store::open_volume::open_volume;
use crate::store::{configured_peers, log_use, rdma};

const OPEN_WAIT_MIN: Duration = Duration::from_secs(30);

/// Result of opening a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenReport {
    /// Whether the store was created by this open.
    pub made: bool,
    /// Duration of recovery.
    pub recovery: Duration,
    /// Objects found.
    pub objects: u64,
    /// I/O backend of the SSD tier; `None` without one.
    pub backend: Option<IoBackend>,
    /// Reason for that backend.
    pub backend_reason: String,
    /// The memory that was allocated.
    pub memory: MemoryPlan,
    /// Number of segments.
    pub segments: u32,
    /// Length of a segment in bytes.
    pub segment_bytes: u64,
    /// Largest object that the store accepts, in bytes.
    pub object_bytes_max: u64,
    /// Whether a checkpoint shortened recovery.
    pub from_checkpoint: bool,
    /// Checkpoints that claim to be complete and are not: their files are damaged.
    pub refused_checkpoints: u32,
    /// Footers read.
    pub footers: u32,
    /// Segments read record by record.
    pub scanned_segments: u32,
    /// Records that a crash tore; no flush had covered them.
    pub torn_records: u64,
    /// Manifest blocks repaired from the other copy.
    pub mended_blocks: u32,
}

impl OpenReport {
    /// Bytes of all segments.
    fn segments_bytes(&self) -> u64 {
        u64::from(self.segments) * self.segment_bytes
    }
}

/// The system environment for a configuration. Creation of files stops once `stop` is raised.
pub(crate) fn real_env(
    config: &ValidConfig,
    stop: &Arc<std::sync::atomic::AtomicBool>,
) -> Result<Env> {
    // An unknown amount of memory sets no limit: the configuration was validated by the caller.
    let unlimited = |_| MachineLimits::new(u64::MAX, String::new());
    let facts = MachineLimits::of_this_machine().unwrap_or_else(unlimited);
    config.check_machine(&facts).map_err(|e| Error::invalid(e.to_string()))?;
    for dir in config.dirs_in_memory() {
        tracing::warn!(dir = %dir.display(), "ssd.dirs: the files of this directory are memory, and are lost with it");
    }
    let disk = match config.has_ssd() {
        false => None,
        true => {
            let choice = match config.ssd_io() {
                SsdIo::Auto => BackendChoice::Auto,
                SsdIo::Uring => BackendChoice::Uring,
                SsdIo::Blocking => BackendChoice::Blocking,
            };
            let depth = log_config(config).queue_depth().max(config.read_depth() as usize);
            Some(open_disk_with_stop(config.ssd_dirs(), choice, depth, stop.clone())?)
        }
    };
    Ok(Env {
        disk,
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        runtime: Arc::new(Threads),
    })
}

fn log_config(config: &ValidConfig) -> LogConfig {
    LogConfig { write_bytes: config.write_bytes(), write_depth: config.write_depth() as usize }
}

/// An opened store's parts.
pub(crate) struct OpenedStore {
    pub shared: Arc<Shared>,
    pub flusher: Option<Box<dyn Join>>,
    pub writer: Option<Box<dyn Join>>,
    pub report: OpenReport,
}

/// Open or make a store in `env`, with the peers that are given, or else those of the
/// configuration.
#[tracing::instrument(level = "info", skip_all, name = "recover")]
pub(crate) fn open(config: ValidConfig, env: Env, peers: Option<Vec<Peer>>) -> Result<OpenedStore> {
    let began = env.clock.now();
    let arena = if config.dram_shared() { Arena::shared } else { Arena::new };
    let arena = arena(config.arena_bytes())
        .map_err(|e| Error::new(ErrorKind::Busy, format!("dram.bytes: {e}")))?;
    let index =
        Index::new(config.max_objects()).map_err(|e| Error::new(ErrorKind::Busy, e.to_string()))?;
    let departed = DepartedObjects::new(config.memory_plan().departed)
        .map_err(|e| Error::new(ErrorKind::Busy, format!("index.max_objects: {e}")))?;
    let headers = HeaderCache::new(config.headers_bytes())
        .map_err(|e| Error::new(ErrorKind::Busy, format!("ssd.headers_bytes: {e}")))?;
    let staging = StagingPool::new(config.staging_bytes() as usize)
        .map_err(|e| Error::new(ErrorKind::Busy, format!("staging.bytes: {e}")))?;
    let devices = rdma::of_store(&config, &arena.memory, &staging)?;
    let peers = match peers {
        Some(peers) => peers,
        None => configured_peers::peers(&config, &env, devices.host.get())?,
    };
    let remote = match peers.is_empty() {
        true => None,
        false => Some(Arc::new(Peers::new(peers)?)),
    };
    // After all steps that often fail: a store that cannot be opened is not created.
    let mut ssd = match (&env.disk, config.has_ssd()) {
        (Some(_), true) => Some(open_volume(&config, &env, io_timeout(&config))?),
        _ => None,
    };
    // Each frame has at least one 4 KiB unit of the arena, even while it is being dropped.
    let frame_numbers = (config.arena_bytes() / ALIGN).min(u64::from(FRAME_MAX) + 1) as usize;
    let last_requests = LastRequests::new(frame_numbers)
        .map_err(|e| Error::new(ErrorKind::Busy, format!("dram.bytes: {e}")))?;
    let last_requests = Arc::new(last_requests);
    let mut policy = frame_policy(config.dram_policy().name(), &last_requests)
        .ok_or_else(|| Error::new(ErrorKind::Internal, "dram.policy is unknown"))?;
    // Each frame has at least one object, and each object at least one such unit.
    let frames_max = config.max_objects().min(config.arena_bytes() / ALIGN) as usize;
    policy.reserve(frames_max);
    let mut fingerprint_key = [0; FINGERPRINT_KEY_BYTES];
    match &ssd {
        Some(opened) => fingerprint_key = opened.manifest.superblock().fingerprint_key,
        None => env.entropy.fill(&mut fingerprint_key),
    }
    let is_new = ssd.as_ref().is_none_or(|opened| opened.made);
    let namespaces = Arc::new(KnownNamespaces::new(is_new, config.namespaces_counted()));
    let mut core = Core {
        index,
        visibility: Visibility::default(),
        snapshot_version: SnapshotVersion::default(),
        dram: DramCore {
            frames: Frames::with_capacity(
                frames_max,
                frame_numbers,
                last_requests,
                namespaces.clone(),
            ),
            space: arena.space,
            policy,
            write_buffer_only: config.dram_bytes() == 0,
            adopting_bytes: 0,
            busy: BusyPuts::default(),
        },
        ssd: None,
        remote: remote.as_ref().map(|_| PeerQueue::default()),
        pins: Pins::default(),
        pending_groups: PendingGroups::default(),
        sequence: Sequence(1),
        counters: Counters::default(),
        departed,
        namespaces,
        tenants: Tenants::new(config.namespace_limits()),
        flushes: FlushCounts::default(),
        events: EventLog::default(),
        jobs: JobTable::default(),
    };
    let recovered = match &mut ssd {
        Some(opened) => {
            Some(recover_into(&mut core, &config, opened, fingerprint_key, env.clock.now())?)
        }
        None => None,
    };
    if config.dram_prefault() {
        // Recovery needs memory of its own, so the store's becomes resident only after it.
        let all = || {
            arena
                .memory
                .prefault()
                .and_then(|()| core.index.prefault())
                .and_then(|()| headers.prefault())
                .and_then(|()| core.departed.prefault())
        };
        let bytes = config.memory_plan().total;
        all().map_err(|e| {
            Error::new(ErrorKind::Busy, format!("dram.prefault: {e} bytes={bytes}"))
        })?;
    }
    let full = open_for_reading(&mut core, ssd.as_ref(), recovered.as_ref(), env.clock.now());
    let report = report(&config, &env, &core, ssd.as_ref(), recovered.as_ref(), began);
    let durable_generations = ssd.iter().flat_map(|o| o.manifest.generations()).collect();
    write_back_generations(&mut core, &durable_generations);
    let (volume, manifest) = ssd.map(|o| (Arc::new(o.volume), o.manifest)).unzip();
    // Events start here: recovery's findings are not events.
    core.events = EventLog::new(config.events_max());
    let read_view = ReadView::of(&mut core);
    let learned = recovered.as_ref().and_then(|r| r.learned.as_ref());
    let admission = SsdAdmission::new(&config, report.segments_bytes(), learned, env.clock.now());
    let shared = Arc::new(Shared {
        core: Mutex::new(core),
        read_view,
        memory: arena.memory,
        ssd: SsdAccess { volume: volume.clone(), staging, headers },
        admission,
        hints: Hints::new(config.hints_trust(), config.max_objects()),
        superseded: Superseded::new(config.max_objects()),
        env: env.clone(),
        config,
        fingerprint_key,
        object_bytes_max: report.object_bytes_max,
        remote: RemoteTier { peers: remote.clone(), removal_fence: Arc::default() },
        rdma: devices,
        devices: Devices::default(),
        signals: Signals::default(),
        reads: ReadState::default(),
        prefetch: Prefetch::default(),
        bytes: BytesInUse::default(),
    });
    let flusher = match (volume, manifest, recovered) {
        (Some(volume), Some(manifest), Some(r)) => {
            let mut log = Log::new(volume.clone(), manifest, log_config(&shared.config))?;
            full.iter().filter_map(|f| f.copy).for_each(|copy| log.mark_manifest_copy_stale(copy));
            let reason = full.map(|f| f.fault.to_string()).unwrap_or_default();
            let task = Flusher::new(shared.clone(), volume, log, durable_generations, &r, reason);
            Some(env.runtime.spawn(
                "pagelith-flusher",
                Box::new(task),
                shared.signals.flusher.clone(),
            )?)
        }
        _ => None,
    };
    let writer = match remote {
        Some(remote) => {
            let task = PeerWriter::new(shared.clone(), PeerConnections::new(remote.clone()));
            match env.runtime.spawn("pagelith-remote", Box::new(task), remote.writer_signal.clone())
            {
                Ok(writer) => Some(writer),
                Err(fault) => {
                    stop_flusher(&shared, flusher);
                    return Err(fault.into());
                }
            }
        }
        None => None,
    };
    Ok(OpenedStore { shared, flusher, writer, report })
}

/// The open failed after the flusher was started: stop it, so that the files are closed.
fn stop_flusher(shared: &Shared, flusher: Option<Box<dyn Join>>) {
    shared.lock().jobs.stopped = true;
    shared.signals.flusher.raise();
    if let Some(flusher) = flusher {
        flusher.join(shared.config.deadline());
    }
}

/// Longest duration of one read or write during open; `deadline_ms` applies to calls and may be
/// shorter.
fn io_timeout(config: &ValidConfig) -> Duration {
    config.deadline().max(OPEN_WAIT_MIN)
}

/// If the file system was full, open the tier read-only.
fn open_for_reading(
    core: &mut Core,
    opened: Option<&OpenedVolume>,
    recovered: Option<&Recovered>,
    now: Mono,
) -> Option<FileSystemFull> {
    // At most one is set: recovery does not write the manifest while one of its copies is outdated.
    let full =
        opened.and_then(|o| o.full.clone()).or_else(|| recovered.and_then(|r| r.full.clone()));
    if let (Some(full), Some(ssd)) = (&full, core.ssd.as_mut()) {
        ssd.health.stop_writing(now);
        tracing::error!(fault = %full.fault, "file system is full: ssd tier is opened read-only");
    }
    full
}

fn recover_into(
    core: &mut Core,
    config: &ValidConfig,
    opened: &mut OpenedVolume,
    secret: [u8; FINGERPRINT_KEY_BYTES],
    now: Mono,
) -> Result<Recovered> {
    let volume: &Volume = &opened.volume;
    let mut serial = SerialQueue::new(&*volume.disk, io_timeout(config))?;
    let mut collector = RecoveryCollector::new(secret, opened.manifest.generations());
    let constant = config.constant_fingerprint();
    let outdated = opened.full.as_ref().is_some_and(|full| full.copy.is_some());
    let manifest = (&mut opened.manifest, outdated);
    let recovered = recover(volume, manifest, &mut serial, !constant, &mut collector)
        .map_err(|f| Error::from(f).context("recover"))?;
    let policy = match config.ssd_policy() {
        SsdPolicy::Fifo => "fifo",
        SsdPolicy::Recency => "lowest-mean-recency",
    };
    let (probe, probe_max) = config.probe_pauses();
    let quarantine_after = config.quarantine_after();
    let limits = HealthLimits {
        probe,
        probe_max,
        quarantine_after,
        segments: volume.geometry.segment_count,
    };
    // Objects that leave first get a tick that much older.
    let first_tick = if opened.made { TICKS_OF_LEAVING } else { collector.first_tick() };
    core.sequence = recovered.next_sequence;
    core.ssd = Some(SsdCore {
        segments: recovered.segments.clone(),
        guards: Arc::new(SegmentGuards::of(&recovered.segments)),
        policy: segment_policy(policy, config.reinsert_ratio())
            .ok_or_else(|| Error::new(ErrorKind::Internal, "ssd.policy is unknown"))?,
        queue: JobQueue::default(),
        written: WrittenNamespaces::of_log(opened.made),
        health: Health::new(limits, now),
        unsynced: (0, 0),
        undecided: Default::default(),
        ticks: TickClock::new(first_tick, config.ssd_bytes()),
        tick_history: TickHistory::new(
            core.tenants.iter().filter_map(Tenant::idle_max).max().unwrap_or_default(),
        ),
        withdrawn_records: None,
        purges: VecDeque::new(),
        replaced: ReplacedObjects::default(),
        damage: Damage::default(),
    });
    core.counters.bytes_to_device = recovered.bytes_written;
    // If the store was created for more objects than the setting allows, the setting is wrong even
    // after a crash.
    let crashed = !recovered.clean && config.max_objects() >= volume.geometry.objects_max;
    collector.finish(core, constant.then_some(CONSTANT_FINGERPRINT), crashed)?;
    let secret = (!constant).then_some(&secret);
    log_use::count(core, volume, &mut serial, &recovered, secret)?;
    Ok(recovered)
}

/// Queue the clears that recovery knows only from records: the store ended before the manifest had
/// their generations.
fn write_back_generations(core: &mut Core, durable: &HashMap<NamespaceId, Generation>) {
    let newer = core.visibility.generations().iter().filter(|(ns, g)| durable.get(ns) != Some(g));
    let mut newer: Vec<_> = newer.map(|(ns, g)| (*ns, *g)).collect();
    newer.sort_unstable();
    for (namespace, generation) in newer {
        // No caller waits for this clear.
        if let Some(ssd) = core.ssd.as_mut() {
            ssd.queue.push(Job::Clear { id: 0, namespace, generation });
        }
    }
}

fn report(
    config: &ValidConfig,
    env: &Env,
    core: &Core,
    ssd: Option<&OpenedVolume>,
    recovered: Option<&Recovered>,
    began: Mono,
) -> OpenReport {
    let geometry = ssd.map(|o| o.volume.geometry);
    let facts = env.disk.as_ref().filter(|_| ssd.is_some()).map(|d| d.facts());
    let block = pagelith_layouts::checksum::BLOCK_BYTES;
    let by_segment =
        geometry.map_or(OBJECT_BYTES_MAX, |g| footer::object_bytes_max(g.segment_bytes, block));
    let report = OpenReport {
        made: ssd.is_some_and(|o| o.made),
        recovery: env.clock.now().since(began),
        objects: core.index.objects(),
        backend: facts.as_ref().map(|f| f.backend),
        backend_reason: facts.map(|f| f.reason).unwrap_or_default(),
        memory: config.memory_plan(),
        segments: geometry.map_or(0, |g| g.segment_count),
        segment_bytes: geometry.map_or(0, |g| g.segment_bytes),
        object_bytes_max: by_segment.min(config.arena_bytes()),
        from_checkpoint: recovered.is_some_and(|r| r.checkpoint.is_some()),
        refused_checkpoints: recovered.map_or(0, |r| r.refused_checkpoints),
        footers: recovered.map_or(0, |r| r.footers),
        scanned_segments: recovered.map_or(0, |r| r.scanned),
        torn_records: recovered.map_or(0, |r| r.torn),
        mended_blocks: ssd.map_or(0, |o| o.mended),
    };
    tracing::info!(
        backend = ?report.backend,
        reason = report.backend_reason,
        memory = %report.memory,
        objects = report.objects,
        recovery_ms = report.recovery.as_millis() as u64,
        torn = report.torn_records,
        "store is open"
    );
    report
}
