//! Environments in which a behaviour runs: real directories with one of the I/O backends, or the
//! simulated machine.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::device;
use super::fake_device::Fake;
use super::harness::{Store, Transport};
use pagelith::config::SsdIo;
use pagelith::io::disk::{Disk, IoBackend};
use pagelith::{Config, Error, MachineLimits, Size};
use pagelith_sim::disk::FaultPlan;
use pagelith_sim::env::SimWorld;
use tempfile::TempDir;

/// The I/O backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    Uring,
    Blocking,
    /// The store chooses, and io_uring is refused.
    Refused,
    Sim,
}

enum Medium {
    Real(TempDir),
    Sim(Box<SimWorld>),
}

/// The environment of one behaviour. All its stores use the same directories.
pub struct TestEnv {
    pub kind: IoKind,
    /// Every key has the same fingerprint: only whole keys tell objects apart.
    pub constant: bool,
    /// The transport between a behaviour and its stores.
    pub transport: Transport,
    dirs: usize,
    medium: Medium,
    /// The driver of the device whose memory gets and puts use.
    driver: Option<Arc<Fake>>,
}

impl TestEnv {
    pub fn new(kind: IoKind, constant: bool, dirs: usize) -> TestEnv {
        TestEnv::over(Transport::Embedded, kind, constant, dirs)
    }

    /// An environment whose stores are accessed over a link.
    pub fn over(transport: Transport, kind: IoKind, constant: bool, dirs: usize) -> TestEnv {
        let medium = match kind {
            IoKind::Sim => Medium::Sim(Box::new(SimWorld::with_dirs(7, dirs))),
            IoKind::Uring | IoKind::Blocking | IoKind::Refused => {
                Medium::Real(tempfile::tempdir().expect("a directory"))
            }
        };
        TestEnv { kind, constant, transport, dirs, medium, driver: None }
    }

    /// Another empty environment of this kind.
    pub fn fresh(&self, dirs: usize) -> TestEnv {
        let fresh = TestEnv::over(self.transport, self.kind, self.constant, dirs);
        TestEnv { driver: self.driver.clone(), ..fresh }
    }

    /// Let gets and puts of all stores use memory of a device.
    pub fn with_device(self) -> TestEnv {
        TestEnv { driver: Some(device::fake()), ..self }
    }

    /// The simulated machine, if this is one.
    pub fn sim(&self) -> Option<&SimWorld> {
        match &self.medium {
            Medium::Sim(sim) => Some(sim),
            Medium::Real(_) => None,
        }
    }

    /// Whether the store is embedded: only then can bytes go straight into the caller's memory.
    pub fn is_embedded(&self) -> bool {
        self.transport == Transport::Embedded
    }

    /// Whether `exists` distinguishes keys.
    pub fn tells_keys_apart(&self) -> bool {
        !self.constant
    }

    /// `n`, or less where each object is compared with all others.
    pub fn many(&self, n: usize) -> usize {
        if self.constant { n.min(24) } else { n }
    }

    /// The directories.
    pub fn paths(&self) -> Vec<PathBuf> {
        let root = match &self.medium {
            Medium::Real(dir) => dir.path().to_path_buf(),
            Medium::Sim(_) => PathBuf::from("/sim"),
        };
        (0..self.dirs).map(|i| root.join(i.to_string())).collect()
    }

    /// 4 MiB of DRAM, 16 MiB of SSD in segments of 1 MiB, nothing promoted.
    pub fn config(&self) -> Config {
        let mut c = Config::default();
        c.dram.bytes = Size::mib(4);
        c.dram.promote = pagelith::config::Promote::Never;
        // Policies whose choices a test can foresee. Tests of others set them.
        c.dram.policy = pagelith::config::DramPolicy::Lru;
        c.ssd.policy = pagelith::config::SsdPolicy::Fifo;
        c.ssd.admission = pagelith::config::SsdAdmissionRule::Through;
        c.ssd.bytes = Size::mib(16);
        c.ssd.segment_bytes = Some(Size::mib(1));
        c.ssd.dirs = self.paths();
        c.ssd.io = match self.kind {
            IoKind::Uring => SsdIo::Uring,
            IoKind::Blocking => SsdIo::Blocking,
            IoKind::Refused | IoKind::Sim => SsdIo::Auto,
        };
        c.staging.bytes = Size::mib(4);
        c.namespaces_max = 64;
        c.index.max_objects = Some(4096);
        c.memory.reserve = Size::ZERO;
        c
    }

    /// As [`TestEnv::config`], without a DRAM tier: flushed objects are on SSD only.
    pub fn cold_config(&self) -> Config {
        let mut c = self.config();
        c.dram.bytes = Size::ZERO;
        c
    }

    /// As [`TestEnv::config`], without an SSD tier.
    pub fn memory_config(&self, bytes: Size) -> Config {
        let mut c = self.config();
        c.dram.bytes = bytes;
        c.ssd.bytes = Size::ZERO;
        c.ssd.dirs = Vec::new();
        c
    }

    pub fn try_open(&self, config: &Config) -> Result<Store, Error> {
        let store = self.try_open_for_host(config)?;
        Ok(match &self.driver {
            Some(driver) => store.over_device(driver.clone()),
            None => store,
        })
    }

    fn try_open_for_host(&self, config: &Config) -> Result<Store, Error> {
        let facts = MachineLimits::of_this_machine().expect("facts");
        let mut config = config.clone();
        if self.driver.is_some() {
            // The largest object of a behaviour is copied through half of it.
            config.staging.bytes = config.staging.bytes.max(Size::mib(8));
        }
        config.dram.shared = matches!(self.transport, Transport::SharedArena);
        let valid = config.validate(&facts).unwrap_or_else(|e| panic!("{e}"));
        let valid = if self.constant { valid.with_constant_fingerprint() } else { valid };
        let timeout = valid.deadline();
        match (&self.medium, self.transport) {
            (Medium::Sim(sim), transport) => {
                let env = sim.env();
                let store = pagelith::Store::open_in(valid, env.clone())?;
                Ok(match transport {
                    Transport::Sim => Store::sim(store, timeout, sim.clock.clone(), env.runtime),
                    Transport::Embedded
                    | Transport::Tcp
                    | Transport::Rdma
                    | Transport::SharedRings
                    | Transport::SharedArena => Store::embedded(store),
                })
            }
            (
                Medium::Real(_),
                transport @ (Transport::Tcp
                | Transport::Rdma
                | Transport::SharedRings
                | Transport::SharedArena),
            ) => Ok(Store::socket(pagelith::Store::open(valid)?, timeout, transport)),
            (Medium::Real(_), Transport::Embedded | Transport::Sim) => {
                pagelith::Store::open(valid).map(Store::embedded)
            }
        }
    }

    pub fn open(&self, config: &Config) -> Store {
        let store = self.try_open(config).unwrap_or_else(|e| panic!("{:?}: {e}", e.kind));
        if config.ssd.bytes > Size::ZERO {
            let report = store.opened();
            let side = match self.kind {
                IoKind::Uring => IoBackend::Uring,
                IoKind::Blocking | IoKind::Refused => IoBackend::Blocking,
                IoKind::Sim => IoBackend::Simulated,
            };
            assert_eq!(report.backend, Some(side), "reason={}", report.backend_reason);
            if self.kind == IoKind::Refused {
                assert!(
                    report.backend_reason.contains("io_uring"),
                    "reason={}",
                    report.backend_reason
                );
            }
        }
        store
    }

    /// Drop the store as a crash would, and open it again.
    pub fn crash(&self, store: Store, config: &Config) -> Store {
        store.abandon();
        self.open(config)
    }

    /// Close the store and open it again.
    pub fn reopen(&self, store: Store, config: &Config) -> Store {
        store.close().expect("closed");
        self.open(config)
    }

    /// A directory's files and their lengths.
    pub fn files(&self, dir: usize) -> Vec<(String, u64)> {
        match &self.medium {
            Medium::Sim(sim) => sim.disk.connect().list(dir).expect("listed"),
            Medium::Real(_) => std::fs::read_dir(&self.paths()[dir])
                .expect("listed")
                .map(|entry| {
                    let entry = entry.expect("an entry");
                    let len = entry.metadata().expect("metadata").len();
                    (entry.file_name().to_string_lossy().into_owned(), len)
                })
                .collect(),
        }
    }

    /// Bytes of all files together.
    pub fn total_bytes(&self) -> u64 {
        (0..self.dirs).flat_map(|d| self.files(d)).map(|f| f.1).sum()
    }

    /// A whole file.
    pub fn read(&self, dir: usize, name: &str) -> Vec<u8> {
        match &self.medium {
            Medium::Sim(sim) => {
                let len = self.files(dir).iter().find(|f| f.0 == name).expect("a file").1;
                sim.disk.peek(dir, name, 0, len as usize).expect("bytes")
            }
            Medium::Real(_) => std::fs::read(self.paths()[dir].join(name)).expect("bytes"),
        }
    }

    /// Change bytes of a file, as damage would; the store is closed.
    pub fn write(&self, dir: usize, name: &str, offset: u64, bytes: &[u8]) {
        match &self.medium {
            Medium::Sim(sim) => {
                let (name, bytes) = (name.to_string(), bytes.to_vec());
                sim.disk.inject(FaultPlan::Overwrite { dir, name, offset, bytes });
            }
            Medium::Real(_) => {
                let path = self.paths()[dir].join(name);
                let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
                file.write_all_at(bytes, offset).expect("written");
                file.sync_all().expect("synced");
            }
        }
    }

    /// Flip a bit of a file; the store is closed.
    pub fn flip(&self, dir: usize, name: &str, offset: u64) {
        let byte = self.read(dir, name)[offset as usize];
        self.write(dir, name, offset, &[byte ^ 0x10]);
    }
}

/// Why stores of this kind cannot be opened on this machine; `None` if they can.
pub fn unavailable(kind: IoKind) -> Option<String> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    match kind {
        IoKind::Uring => {}
        IoKind::Blocking | IoKind::Refused | IoKind::Sim => return None,
    }
    let refused = || {
        let world = TestEnv::new(kind, false, 1);
        let error = world.try_open(&world.config()).err()?;
        // A full disk says nothing about io_uring.
        assert!(
            ![pagelith::ErrorKind::NoSpace, pagelith::ErrorKind::Busy].contains(&error.kind),
            "{error}"
        );
        Some(error.to_string())
    };
    REFUSED.get_or_init(refused).clone()
}
