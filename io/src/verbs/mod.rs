//! RDMA verbs: the part of libibverbs that reliable connected queue pairs need, found when the
//! program runs.
//!
//! A program that contains this module starts on hosts without RDMA and without the library; the
//! first call then returns an error that names the missing part. See
//! `docs/decisions/0025-rdma-verbs-at-run-time.md`.
//!
//! Invariants:
//! - Each object holds an Arc of each object that it uses, so destruction has the right order.
//! - A device accesses memory only inside of regions, and a region keeps its memory.
//! - An object that the device does not release is leaked, with everything that it uses.
//!
//! ```no_run
//! use pagelith_io::verbs::{Device, GidWish, Library, Port};
//!
//! let library = Library::load()?;
//! let name = &Device::names(&library)?[0];
//! let device = Device::open(&library, name)?;
//! let port = Port::of(&device, 1)?;
//! port.check_active()?;
//! println!("{port}: {:?}", port.choose_gid(GidWish::Best)?);
//! # Ok::<(), pagelith_io::verbs::VerbsError>(())
//! ```

mod abi;
mod completion;
mod device;
mod device_list;
mod error;
mod gid;
mod gpu_index;
mod gpu_list;
#[cfg(test)]
mod layout_test;
mod library;
mod memory;
mod nic_choice;
mod port;
mod queue_pair;
mod rail;
mod request;
mod topology;

pub use completion::{Completion, CompletionKind, CompletionQueue, Status};
pub use device::{Device, DeviceEvent, DeviceLimits};
pub use device_list::DeviceList;
pub use error::{Result, VerbsError};
pub use gid::{Gid, GidEntry, GidKind, GidWish, ScoredGid};
pub use gpu_index::{GpuOfProcess, PhysicalGpu};
pub use gpu_list::{Gpu, NVIDIA_GPUS, gpus};
pub use library::{LIBRARY, Library};
pub use memory::{
    CallerMemory, DeviceMemory, HostMemory, LocalPiece, MemoryRegion, ProtectionDomain,
    RegisteredMemory, RemoteAccess, RemotePiece, locked_memory_limit,
};
pub use nic_choice::{NicCandidate, NicChoice, NicWish, ScoredNic, choose_nics};
pub use port::{LinkLayer, Mtu, Port, PortState};
pub use queue_pair::{Attachment, Capacity, Drain, DrainMarkers, Endpoint, QueuePair, State};
pub use rail::{RailEnd, path_mtu};
pub use request::{Operation, SendRequest};
pub use topology::{Distance, Locality};
