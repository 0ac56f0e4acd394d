//! RDMA devices from the configuration, and the store's memory registered with them.

use std::ffi::OsString;
use std::path::Path;

use pagelith_client::client::Client;

use pagelith_io::staging::StagingPool;
use pagelith_io::sync::Arc;
use pagelith_io::verbs::{
    Device, DeviceList, DeviceMemory, GidWish, Gpu, GpuOfProcess, Library, Locality, NVIDIA_GPUS,
    NicWish, RemoteAccess, VerbsError, gpus,
};
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_transport::auth::Key;
use pagelith_transport::dial::SocketDial;
use pagelith_transport::peer_address::{BulkTransport, PeerAddress};
use pagelith_transport::rdma::host::{RdmaHost, RdmaSettings};
use pagelith_transport::rdma::rdma_use::RdmaUse;
use pagelith_transport::rdma::region::RdmaRegion;

use crate::api::error::{Error, ErrorKind, Result};
use crate::config::{Config, ConfigError, ENV_PREFIX, RdmaConfig, ValidConfig};
use crate::state::shared::RdmaDevices;

const SYSFS: &str = "/sys";
const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";

/// Open the configured devices of this host, with the system's verbs library.
///
/// # Errors
/// `Unavailable` without library, device, active port or GID; `Invalid` if the configured devices
/// do not exist or do not cover the GPU. The message names the cause.
pub fn open_host(config: &RdmaConfig) -> Result<Arc<RdmaHost>> {
    let library = Library::load().map_err(|why| rdma_error(&why))?;
    open_host_of(&library, config)
}

/// As [`open_host`], with this verbs library.
///
/// # Errors
/// As [`open_host`].
pub fn open_host_of(library: &Arc<Library>, config: &RdmaConfig) -> Result<Arc<RdmaHost>> {
    let settings = rdma_settings(config, library, &GpuOfThisHost::read());
    settings.and_then(|settings| RdmaHost::open(&settings)).map_err(|why| rdma_error(&why))
}

/// The use of RDMA on links to a peer with this transport. `auto` is TCP without usable devices,
/// which is logged.
///
/// # Errors
/// As [`open_host`], if the transport is `rdma`.
pub fn rdma_use(transport: BulkTransport, config: &RdmaConfig) -> Result<RdmaUse> {
    match transport {
        BulkTransport::Tcp => Ok(RdmaUse::Off),
        BulkTransport::Rdma => open_host(config).map(RdmaUse::Demanded),
        BulkTransport::Auto => Ok(match open_host(config) {
            Ok(host) => RdmaUse::Offered(host),
            Err(error) => {
                warn_of_tcp(&error);
                RdmaUse::Off
            }
        }),
    }
}

/// Dial options for [`Client::over`], to attach to the store process at `peer` with the devices and
/// the host name of this configuration.
///
/// # Errors
/// As [`open_host`], if the transport is `rdma`.
pub fn dial(peer: &PeerAddress, key: Option<&Key>, config: &Config) -> Result<SocketDial> {
    let rdma = rdma_use(peer.transport, &config.rdma)?;
    let local_hostname = config.remote.local_hostname.clone();
    Ok(SocketDial { rdma, local_hostname, ..Client::dial(&peer.address, key) })
}

/// The settings of a process that opens no store and attaches to one: of those in the environment,
/// `remote.local_hostname`, and all that begin with `PAGELITH_RDMA__`.
///
/// # Errors
/// If one of them is not a setting, or has a wrong value.
pub fn config_of_environment() -> std::result::Result<Config, ConfigError> {
    let (rdma, host) =
        (format!("{ENV_PREFIX}RDMA__"), format!("{ENV_PREFIX}REMOTE__LOCAL_HOSTNAME"));
    let is_used = |(name, _): &(OsString, OsString)| {
        name.to_str().is_some_and(|name| name.starts_with(&rdma) || name == host)
    };
    Config::builder().env(std::env::vars_os().filter(is_used)).build()
}

/// The GPUs of this host, and which of them the process sees.
struct GpuOfThisHost {
    gpus: Vec<Gpu>,
    visible: Option<String>,
}

impl GpuOfThisHost {
    fn read() -> GpuOfThisHost {
        let visible = std::env::var(VISIBLE_GPUS).ok();
        GpuOfThisHost { gpus: gpus(Path::new(NVIDIA_GPUS)), visible }
    }
}

fn rdma_settings(
    config: &RdmaConfig,
    library: &Arc<Library>,
    host: &GpuOfThisHost,
) -> std::result::Result<RdmaSettings, VerbsError> {
    let uuids: Vec<String> = host.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let process = GpuOfProcess {
        visible: config.gpu.map(|gpu| gpu as usize),
        cuda_visible_devices: host.visible.as_deref(),
        uuids: &uuids,
    };
    let nics = match &config.devices {
        Some(list) => {
            let found = Device::names(library)?;
            NicWish::Device(DeviceList::parse(list)?.device(&process, &found)?.to_owned())
        }
        None if config.gpu.is_none() => NicWish::Near(Locality::default()),
        None => {
            let gpu = &host.gpus[process.physical()?.0];
            NicWish::Near(Locality::of_pci_device(Path::new(SYSFS), &gpu.pci)?)
        }
    };
    // The range of the setting is that of the type.
    let index = config.gid_index.and_then(|index| u8::try_from(index).ok());
    let gid = index.map_or(GidWish::Best, GidWish::Index);
    Ok(RdmaSettings { library: Some(library.clone()), nics, gid })
}

fn rdma_error(why: &VerbsError) -> Error {
    let kind = match why {
        VerbsError::LockedMemory { .. } => ErrorKind::Busy,
        VerbsError::DeviceUnknown { .. }
        | VerbsError::DeviceEntryEmpty { .. }
        | VerbsError::DeviceListTooShort { .. }
        | VerbsError::ListedDeviceUnknown { .. }
        | VerbsError::ProcessWithoutGpu
        | VerbsError::GpuNotVisible { .. }
        | VerbsError::MigDevice { .. }
        | VerbsError::GpuRepeated { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("rdma: {why}"))
}

/// The devices that the configuration needs, with the store's memory registered. If only peers of
/// transport `auto` need them, and they or the memory cannot be used, they are missing, which is
/// logged.
///
/// # Errors
/// As [`open_host`] and [`register_store`], if clients or a peer demand RDMA.
pub(crate) fn of_store(
    config: &ValidConfig,
    arena: &Arc<ArenaMemory>,
    staging: &StagingPool,
) -> Result<RdmaDevices> {
    let has = |wanted| config.peers().iter().any(|peer| peer.transport == wanted);
    let demanded = config.rdma().serve || has(BulkTransport::Rdma);
    if !demanded && !has(BulkTransport::Auto) {
        return Ok(RdmaDevices::default());
    }
    let opened = open_host(config.rdma()).and_then(|host| {
        let pushes = config.peers().iter().any(|peer| peer.transport != BulkTransport::Tcp);
        register_store(&host, arena, staging, pushes).map(|()| host)
    });
    match opened {
        Ok(host) => Ok(RdmaDevices { host: host.into(), is_missing: false }),
        Err(error) if !demanded => {
            warn_of_tcp(&error);
            Ok(RdmaDevices { is_missing: true, ..RdmaDevices::default() })
        }
        Err(error) => Err(error),
    }
}

/// Register the arena and the staging memory, which are locked then. Peers may read the arena if
/// the store `pushes` to peers by RDMA.
///
/// # Errors
/// `Busy` if the process may not lock so much memory; `Unavailable` if a device refuses it.
pub(crate) fn register_store(
    host: &RdmaHost,
    arena: &Arc<ArenaMemory>,
    staging: &StagingPool,
    pushes: bool,
) -> Result<()> {
    let access = if pushes { RemoteAccess::READ } else { RemoteAccess::NONE };
    let registered = register(host, "dram.bytes", arena.clone(), access)?;
    let staging = Arc::new(staging.clone());
    match register(host, "staging.bytes", staging, RemoteAccess::NONE) {
        Ok(_) => Ok(()),
        Err(error) => {
            // A failure is logged.
            let _ = host.unregister(&registered);
            Err(error)
        }
    }
}

/// Register memory whose length this setting determines. The error names both.
///
/// # Errors
/// As [`register_store`].
pub fn register(
    host: &RdmaHost,
    setting: &str,
    memory: Arc<dyn DeviceMemory>,
    access: RemoteAccess,
) -> Result<Arc<RdmaRegion>> {
    let bytes = memory.bytes();
    let region = host.register(memory, access).map_err(|why| rdma_error(&why).context(setting))?;
    tracing::info!(setting, bytes, rails = ?host.rails(), "memory registered for RDMA");
    Ok(region)
}

/// The use of RDMA on links to a peer with this transport.
pub(crate) fn of_peer(transport: BulkTransport, host: Option<&Arc<RdmaHost>>) -> RdmaUse {
    match (transport, host) {
        (BulkTransport::Tcp, _) | (_, None) => RdmaUse::Off,
        (BulkTransport::Auto, Some(host)) => RdmaUse::Offered(host.clone()),
        (BulkTransport::Rdma, Some(host)) => RdmaUse::Demanded(host.clone()),
    }
}

fn warn_of_tcp(error: &Error) {
    tracing::warn!(%error, "no RDMA: payload travels over TCP; fix the cause, or set the peer's transport to \"tcp\"");
}
