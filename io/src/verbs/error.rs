//! Errors of verbs. Each names the thing that failed and the remedy.

use std::io;

/// Why a verbs call, or a check before it, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// The library is not installed, or cannot be loaded.
    #[error(
        "no verbs library: {reason}; install libibverbs1 and ibverbs-providers, or use TCP \
         path={path}"
    )]
    LibraryAbsent {
        /// The name or path that was loaded.
        path: String,
        /// The loader's message.
        reason: String,
    },
    /// The file was loaded, but it lacks a function.
    #[error(
        "not a usable verbs library: {symbol} is missing; install rdma-core 32 or newer \
         path={path}"
    )]
    LibraryUnusable {
        /// The name or path that was loaded.
        path: String,
        /// The missing function.
        symbol: &'static str,
    },
    /// The kernel has no RDMA subsystem, or this process may not use it.
    #[error(
        "the kernel offers no RDMA: {}; load the module ib_uverbs and the device's driver, and \
         pass /dev/infiniband to a container errno={errno}", text(*errno)
    )]
    KernelWithoutRdma {
        /// The errno of the device list.
        errno: i32,
    },
    /// The list of devices is empty.
    #[error(
        "no RDMA device; check `rdma link` and the device's driver, and pass /dev/infiniband to a \
         container"
    )]
    NoDevice,
    /// No device has the name.
    #[error("no such RDMA device; choose one of those found device={name} found={found}")]
    DeviceUnknown {
        /// The requested name.
        name: String,
        /// The names of all devices.
        found: String,
    },
    /// An entry of the list of devices is empty.
    #[error(
        "the list of RDMA devices has an empty entry; name one device for all GPUs, or one for \
         each GPU in the order of `nvidia-smi` gpu={gpu} entry={gpu} list={list}"
    )]
    DeviceEntryEmpty {
        /// The physical index of the GPU that the entry is for, so also the entry's index.
        gpu: usize,
        /// The list.
        list: String,
    },
    /// The list of devices has several entries, and none for the GPU.
    #[error(
        "the list of RDMA devices does not cover the GPU; name one device for all GPUs, or one \
         for each GPU in the order of `nvidia-smi` gpu={gpu} entries={entries} list={list}"
    )]
    DeviceListTooShort {
        /// The physical index of the GPU.
        gpu: usize,
        /// The number of entries.
        entries: usize,
        /// The list.
        list: String,
    },
    /// No device has the name that the list has for the GPU.
    #[error(
        "the list of RDMA devices names an unknown device; choose one of those found gpu={gpu} \
         device={name} found={found}"
    )]
    ListedDeviceUnknown {
        /// The physical index of the GPU.
        gpu: usize,
        /// The name in the list.
        name: String,
        /// The names of all devices.
        found: String,
    },
    /// A list with a device for each GPU is used by a process without a GPU.
    #[error(
        "the list of RDMA devices has an entry for each GPU, but the process has no GPU; name one \
         device for all GPUs"
    )]
    ProcessWithoutGpu,
    /// `CUDA_VISIBLE_DEVICES` has no GPU of the process's index.
    #[error(
        "the process's GPU is not visible: {reason}; correct CUDA_VISIBLE_DEVICES \
         visible_gpu={visible} visible_gpus={count} CUDA_VISIBLE_DEVICES={value}"
    )]
    GpuNotVisible {
        /// The index among visible GPUs.
        visible: usize,
        /// The number of visible GPUs.
        count: usize,
        /// Why there are no more.
        reason: String,
        /// The variable's value.
        value: String,
    },
    /// `CUDA_VISIBLE_DEVICES` names a part of a GPU.
    #[error(
        "CUDA_VISIBLE_DEVICES names a MIG device, which has no physical index; name one RDMA \
         device for all GPUs entry={entry} CUDA_VISIBLE_DEVICES={value}"
    )]
    MigDevice {
        /// The entry.
        entry: String,
        /// The variable's value.
        value: String,
    },
    /// `CUDA_VISIBLE_DEVICES` names a GPU twice.
    #[error(
        "CUDA_VISIBLE_DEVICES names a GPU twice, so no GPU is visible; name each GPU once \
         gpu={gpu} entry={entry} CUDA_VISIBLE_DEVICES={value}"
    )]
    GpuRepeated {
        /// The physical index of the GPU.
        gpu: usize,
        /// The second entry that names it.
        entry: String,
        /// The variable's value.
        value: String,
    },
    /// No PCI device has the address.
    #[error(
        "no such PCI device; give the GPU's address as `nvidia-smi` prints it, and mount sysfs \
         address={address} sysfs={sysfs}"
    )]
    PciDeviceUnknown {
        /// The address.
        address: String,
        /// The directory of sysfs.
        sysfs: String,
    },
    /// No port of any device can be used.
    #[error(
        "no usable RDMA port; connect a cable, set a network interface up, or use TCP \
         wanted={wanted} candidates={candidates}"
    )]
    NoUsablePort {
        /// The requested ports.
        wanted: String,
        /// All ports, each with its verdict.
        candidates: String,
    },
    /// The two ends of a rail do not fit together.
    #[error("rail refused: {reason}; {remedy}, or use TCP own={own} peer={peer}")]
    RailRefused {
        /// The limit that is exceeded.
        reason: &'static str,
        /// The remedy.
        remedy: &'static str,
        /// The own host and port.
        own: String,
        /// The peer's host and port.
        peer: String,
    },
    /// The device reported that it failed.
    #[error("the device failed; reload its driver, then restart this process device={device}")]
    DeviceFailed {
        /// The device.
        device: String,
    },
    /// The provider lacks a function of the data path.
    #[error("the device's provider lacks {function}; update rdma-core device={device}")]
    ProviderUnusable {
        /// The device.
        device: String,
        /// The missing function.
        function: &'static str,
    },
    /// The device has no port of this number.
    #[error("no such port; ports are numbered from 1 device={device} port={port} ports={ports}")]
    PortUnknown {
        /// The device.
        device: String,
        /// The requested number.
        port: u8,
        /// The number of ports.
        ports: u8,
    },
    /// The port cannot carry traffic.
    #[error(
        "port is not active; connect its cable, or set its network interface up device={device} \
         port={port} state={state}"
    )]
    PortInactive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The port's state.
        state: &'static str,
    },
    /// No GID of the port can reach another host, or the wanted one is not there.
    #[error(
        "no usable GID; give the port's network interface an IP address, or choose a GID by its \
         index device={device} port={port} wanted={wanted} gids={gids}"
    )]
    NoUsableGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The requested GID.
        wanted: String,
        /// All GIDs of the port, each with its verdict.
        gids: String,
    },
    /// Registration would lock more memory than the process may lock.
    #[error(
        "registration exceeds the locked-memory limit; raise it (`ulimit -l`, LimitMEMLOCK=) or \
         register less device={device} bytes={bytes} registered={registered} limit={limit}"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// Bytes of the registration that failed, all chunks of it.
        bytes: u64,
        /// Bytes that are known to be registered, counted once for each device.
        registered: u64,
        /// The value of RLIMIT_MEMLOCK.
        limit: u64,
    },
    /// A memory region is larger than the device allows.
    #[error(
        "memory region exceeds the device's limit; register it in chunks device={device} \
         bytes={bytes} max_mr_size={limit}"
    )]
    RegionTooLarge {
        /// The device.
        device: String,
        /// Bytes of the region.
        bytes: u64,
        /// The device's `max_mr_size`.
        limit: u64,
    },
    /// A queue is larger than the device allows.
    #[error(
        "the device's limit is exceeded; ask for less device={device} {what}={asked} limit={limit}"
    )]
    CapacityTooLarge {
        /// The device.
        device: String,
        /// The name of the limited attribute.
        what: &'static str,
        /// The requested value.
        asked: u32,
        /// The device's limit.
        limit: u32,
    },
    /// A range is not inside of its memory region, or empty.
    #[error(
        "range is not inside of the memory region offset={offset} length={length} region={region}"
    )]
    OutsideRegion {
        /// Offset in the region.
        offset: usize,
        /// Bytes.
        length: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// A queue refused a work request.
    #[error("{call} failed: {}; posted={posted} errno={errno}", text(*errno))]
    PostRefused {
        /// The verbs function.
        call: &'static str,
        /// The number of requests that were posted before the refused one.
        posted: usize,
        /// The errno.
        errno: i32,
    },
    /// Another call failed.
    #[error("{call} failed: {} device={device} errno={errno}", text(*errno))]
    CallFailed {
        /// The function.
        call: &'static str,
        /// The device.
        device: String,
        /// The errno.
        errno: i32,
    },
}

/// The result of a verbs call.
pub type Result<T> = std::result::Result<T, VerbsError>;

fn text(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The errno of the call that just failed in this thread.
pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
