//! Accelerators (GPUs, NPUs): memory of the host that their drivers lock, memory of theirs, and
//! copies between the two. The drivers are found when the program runs.
//!
//! A device is used through a [`DeviceHandle`] only, which [`Driver::bind`] gives out once the
//! engine of this process has initialised the device. See `docs/decisions/0029-devices.md`.
//!
//! Invariants:
//! - Nothing here initialises a driver or makes a context, other than [`Driver::devices`].
//! - Each call of a driver runs in the context of its device, whatever thread makes it. The thread
//!   has its own context back afterwards.
//! - Memory of a copy is kept until the device is known to be done with it, or for ever.
//!
//! ```no_run
//! use pagelith_io::device::{Device, Driver};
//!
//! let handle = Driver::load(Device::cuda(0).driver)?.bind(0)?;
//! println!("{handle:?}");
//! # Ok::<(), pagelith_io::device::DeviceError>(())
//! ```

mod ascend;
mod bound;
mod calls;
mod chunks;
mod context;
mod copies;
mod cuda;
mod driver;
mod error;
mod facts;
mod handle;
mod kind;
mod locked;
mod populate;
mod range;
mod work;

pub use chunks::CHUNK_BYTES;
pub use copies::{CallerStream, Copies};
pub use driver::Driver;
pub use error::{DeviceError, Result};
pub use facts::DeviceFacts;
pub use handle::DeviceHandle;
pub use kind::{Device, DriverKind};
pub use locked::LockedMemory;
pub use range::DeviceRange;
pub use work::Owner;
