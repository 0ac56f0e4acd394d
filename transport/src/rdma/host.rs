//! State shared by all RDMA links of a process: open devices, rails and registered memory.
//!
//! Invariants:
//! - A region is registered with every rail, or with none.
//! - Registered bytes, counted once for each device, are at most the locked-memory limit.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::system::SystemClock;
use pagelith_io::verbs::{
    Device, DeviceMemory, GidWish, Library, Locality, NicCandidate, NicChoice, NicWish, Port,
    ProtectionDomain, RegisteredMemory, RemoteAccess, VerbsError, choose_nics, locked_memory_limit,
};

use super::counters::{RdmaCounters, RdmaCounts};
use super::rail::Rail;
use super::rail_health::PeerHost;
use super::region::RdmaRegion;
use super::take_down_progress::TakeDownProgress;

/// Bytes of a chunk at most. A piece of a scatter list is inside of one chunk, and its length has
/// 32 bits; a message has at most 2 GiB.
const CHUNK_BYTES_MAX: usize = 1 << 30;

/// Where the kernel describes devices.
const SYSFS: &str = "/sys";

/// Which devices and addresses to use.
#[derive(Clone, Debug)]
pub struct RdmaSettings {
    /// The verbs library; `None` for the system's.
    pub library: Option<Arc<Library>>,
    /// The ports to use.
    pub nics: NicWish,
    /// The GID of each port.
    pub gid: GidWish,
}

impl Default for RdmaSettings {
    /// All active ports of the system's library, with their best GIDs.
    fn default() -> RdmaSettings {
        RdmaSettings {
            library: None,
            nics: NicWish::Near(Locality::default()),
            gid: GidWish::default(),
        }
    }
}

/// Open devices, their ports as rails, and the memory that is registered with them.
pub struct RdmaHost {
    rails: Vec<Rail>,
    choice: NicChoice,
    /// Held during a registration and its end, which may take seconds. Links need only `regions`.
    registering: Mutex<()>,
    regions: Mutex<Regions>,
    /// Raised with each change of the list of regions.
    version: AtomicU64,
    counters: Arc<RdmaCounters>,
    /// The queue pairs that are being taken down, of which no link may be left to ask.
    take_downs: Mutex<Vec<Weak<TakeDownProgress>>>,
    /// The clock of all failures and suspensions: links may have clocks that begin at other
    /// moments.
    clock: SystemClock,
}

#[derive(Default)]
struct Regions {
    all: Vec<Arc<RdmaRegion>>,
    numbers: u32,
}

impl RdmaHost {
    /// Open the devices, and choose the rails.
    ///
    /// # Errors
    /// If there is no library, no device, no active port or no usable GID, each by name.
    pub fn open(settings: &RdmaSettings) -> Result<Arc<RdmaHost>, VerbsError> {
        let library = settings.library.clone().map_or_else(Library::load, Ok)?;
        let devices = open_devices(&library, &settings.nics)?;
        let mut candidates = Vec::new();
        for device in &devices {
            let locality = Locality::of_device(Path::new(SYSFS), device.name());
            for number in 1..=device.limits().ports {
                let port = Port::of(device, number)?;
                candidates.push(NicCandidate { port, locality: locality.clone() });
            }
        }
        let choice = choose_nics(&candidates, &settings.nics)?;
        let rails = rails(&choice, &devices, settings)?;
        Ok(Arc::new(RdmaHost {
            rails,
            choice,
            registering: Mutex::default(),
            regions: Mutex::default(),
            version: AtomicU64::new(0),
            counters: Arc::default(),
            take_downs: Mutex::default(),
            // The system's: verbs are never simulated.
            clock: SystemClock::new(),
        }))
    }

    /// The rails; at least one. A rail's number is its position.
    pub fn rails(&self) -> &[Rail] {
        &self.rails
    }

    /// All ports as they were when the host was opened, each with the reason for its choice.
    pub fn choice(&self) -> &NicChoice {
        &self.choice
    }

    /// The rails that are not suspended for all peers.
    pub fn rails_up(&self) -> impl Iterator<Item = &Rail> {
        let now = self.now();
        self.rails.iter().filter(move |rail| rail.is_up(now))
    }

    /// The rails that new links to this peer may use, with their numbers.
    pub fn rails_up_for(&self, peer: PeerHost) -> impl Iterator<Item = (usize, &Rail)> {
        let now = self.now();
        self.rails.iter().enumerate().filter(move |(_, rail)| rail.is_up_for(peer, now))
    }

    /// The time of failures and suspensions.
    pub(super) fn now(&self) -> Mono {
        self.clock.now()
    }

    /// Register memory with every rail. Its pages are locked until the registration ends, once for
    /// each device.
    ///
    /// # Errors
    /// If the process may not lock as much, or if a device refuses; then nothing of it is
    /// registered.
    pub fn register(
        &self,
        memory: Arc<dyn DeviceMemory>,
        access: RemoteAccess,
    ) -> Result<Arc<RdmaRegion>, VerbsError> {
        // One registration at a time, so that all of them together keep to the limit.
        let _one = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_locked_memory(&self.lock(), memory.bytes())?;
        let limits = self.rails.iter().map(|rail| rail.device().limits().max_mr_size);
        let limit = limits.min().and_then(|limit| usize::try_from(limit).ok());
        let chunk_bytes = limit.map_or(CHUNK_BYTES_MAX, |limit| limit.min(CHUNK_BYTES_MAX));
        let mut per_rail: Vec<Arc<RegisteredMemory>> = Vec::with_capacity(self.rails.len());
        for rail in &self.rails {
            let same = |other: &Rail| Arc::ptr_eq(other.domain(), rail.domain());
            let known = self.rails.iter().position(same).and_then(|first| per_rail.get(first));
            let registered = match known {
                Some(registered) => registered.clone(),
                None => {
                    Arc::new(RegisteredMemory::new(rail.domain(), &memory, chunk_bytes, access)?)
                }
            };
            per_rail.push(registered);
        }
        let mut regions = self.lock();
        let region = Arc::new(RdmaRegion::new(regions.numbers, memory, access, per_rail));
        regions.numbers += 1;
        regions.all.push(region.clone());
        self.version.fetch_add(1, Ordering::Release);
        Ok(region)
    }

    /// End the registration of a region. After this returns without an error, no device accesses
    /// its memory through it. Transfers that use it fail; they end the links that carry them.
    ///
    /// # Errors
    /// If a device keeps the registration. The memory is leaked then: it is never reused.
    pub fn unregister(&self, region: &RdmaRegion) -> Result<(), VerbsError> {
        let _one = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock().all.retain(|one| one.number() != region.number());
        self.version.fetch_add(1, Ordering::Release);
        region.deregister()
    }

    /// The registered regions, in the order of their numbers.
    pub fn regions(&self) -> Vec<Arc<RdmaRegion>> {
        self.lock().all.clone()
    }

    /// A number that changes with each change of the list of regions. Read it before the list.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Registered bytes, counted once for each device.
    pub fn registered_bytes(&self) -> u64 {
        self.registered(&self.lock())
    }

    /// Counters of all links of this process.
    pub fn counters(&self) -> &RdmaCounters {
        &self.counters
    }

    /// Their values now, with the queue pairs whose devices need too long to release them.
    pub fn counts(&self) -> RdmaCounts {
        self.take_downs().iter().filter_map(Weak::upgrade).for_each(|progress| {
            progress.result();
        });
        self.counters.counts()
    }

    /// Begin to take down so many queue pairs.
    pub(super) fn begin_take_down(&self, pairs: u64) -> Arc<TakeDownProgress> {
        let progress = Arc::new(TakeDownProgress::new(self.counters.clone(), pairs));
        let mut all = self.take_downs();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&progress));
        progress
    }

    fn take_downs(&self) -> MutexGuard<'_, Vec<Weak<TakeDownProgress>>> {
        self.take_downs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_locked_memory(&self, regions: &Regions, bytes: usize) -> Result<(), VerbsError> {
        let Some(limit) = locked_memory_limit() else { return Ok(()) };
        let registered = self.registered(regions);
        let bytes = (bytes as u64).saturating_mul(self.devices() as u64);
        if registered.saturating_add(bytes) <= limit {
            return Ok(());
        }
        let names: Vec<_> = self.rails.iter().map(|rail| rail.device().name()).collect();
        Err(VerbsError::LockedMemory { device: names.join(","), bytes, registered, limit })
    }

    fn registered(&self, regions: &Regions) -> u64 {
        let bytes = regions.all.iter().map(|region| region.bytes()).sum::<u64>();
        bytes * self.devices() as u64
    }

    fn devices(&self) -> usize {
        let first = |(at, rail): &(usize, &Rail)| {
            !self.rails[..*at].iter().any(|other| Arc::ptr_eq(other.domain(), rail.domain()))
        };
        self.rails.iter().enumerate().filter(first).count()
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RdmaHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaHost").field("rails", &self.rails).finish_non_exhaustive()
    }
}

/// The devices that may have rails. One that cannot be opened is an error if the configuration
/// names it, or if no other can.
fn open_devices(library: &Arc<Library>, nics: &NicWish) -> Result<Vec<Arc<Device>>, VerbsError> {
    if let NicWish::Device(name) = nics {
        return Ok(vec![Device::open(library, name)?]);
    }
    let names = Device::names(library)?;
    let (mut opened, mut error) = (Vec::new(), None);
    for name in &names {
        match Device::open(library, name) {
            Ok(device) => opened.push(device),
            Err(why) => error = error.or(Some(why)),
        }
    }
    match error {
        Some(error) if opened.is_empty() => Err(error),
        _ => Ok(opened),
    }
}

/// The chosen ports as rails. A port without a usable GID is an error if the configuration names
/// its device, or if no other port has one.
fn rails(
    choice: &NicChoice,
    devices: &[Arc<Device>],
    settings: &RdmaSettings,
) -> Result<Vec<Rail>, VerbsError> {
    let mut rails: Vec<Rail> = Vec::new();
    let mut without_gid = None;
    for port in choice.rails() {
        if let Err(error) = port.choose_gid(settings.gid) {
            without_gid = without_gid.or(Some(error));
            continue;
        }
        let known = rails.iter().find(|rail| rail.device().name() == port.device);
        let domain = match known {
            Some(rail) => rail.domain().clone(),
            None => {
                let device = devices.iter().find(|device| device.name() == port.device);
                ProtectionDomain::new(device.ok_or(VerbsError::NoDevice)?)?
            }
        };
        rails.push(Rail::new(port.number, settings.gid, domain));
    }
    let asked_for = matches!(settings.nics, NicWish::Device(_));
    match without_gid {
        Some(error) if asked_for || rails.is_empty() => Err(error),
        _ => Ok(rails),
    }
}
