//! Errors of devices. Each names the thing that failed and the remedy.

use super::kind::{Device, DriverKind};

/// Why a call of a driver, or a check before it, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The driver is not installed, or cannot be loaded.
    #[error(
        "no {driver} driver: {reason}; {}, or use host memory only path={path}",
        driver.install()
    )]
    LibraryAbsent {
        /// The driver.
        driver: DriverKind,
        /// The name or path that was loaded.
        path: String,
        /// The loader's message.
        reason: String,
    },
    /// The library was loaded, but it lacks a function.
    #[error(
        "not a usable {driver} driver: {symbol} is missing; update it to {} or newer path={path}",
        driver.oldest()
    )]
    LibraryUnusable {
        /// The driver.
        driver: DriverKind,
        /// The name or path that was loaded.
        path: String,
        /// The missing function.
        symbol: &'static str,
    },
    /// The driver has no device of this number.
    #[error(
        "no such device; check `{}` and {}, and pass the device to a container device={device} \
         devices={count}",
        device.driver.tool(),
        device.driver.visible()
    )]
    NoDevice {
        /// The requested device.
        device: Device,
        /// The number of devices that this process sees.
        count: u32,
    },
    /// The device has no context in this process, or on this thread.
    #[error(
        "the device has no context yet: initialise it first ({}), then bind it, then register \
         memory or transfer device={device} call={call} code={code}",
        device.driver.initialise()
    )]
    ContextAbsent {
        /// The device.
        device: Device,
        /// The function that found none.
        call: &'static str,
        /// Its result.
        code: i32,
    },
    /// The calling thread has a context in which the device cannot be bound.
    #[error(
        "the thread's context is another one: {found}; bind on a thread that has none, or whose \
         context is that of the device ({}) device={device} call={call}",
        device.driver.initialise()
    )]
    ContextOther {
        /// The device.
        device: Device,
        /// The function that found the context.
        call: &'static str,
        /// The context that was found.
        found: String,
    },
    /// The driver did not lock a chunk of memory; no other chunk stays locked.
    #[error(
        "memory cannot be page-locked: {call} failed: {name}; {}, lower {setting}, or set dram.pin \
         to off device={device} offset={offset} bytes={bytes} code={code}",
        lock_remedy(name)
    )]
    NotLocked {
        /// The device.
        device: Device,
        /// The setting that decides how much memory it is.
        setting: String,
        /// The function.
        call: &'static str,
        /// Offset of the chunk.
        offset: usize,
        /// Bytes of the whole memory.
        bytes: usize,
        /// The function's result.
        code: i32,
        /// The result's name.
        name: String,
    },
    /// A range is not memory of the device.
    #[error(
        "the range is not memory of the device; name memory that was allocated on it \
         device={device} address={address:#x} bytes={bytes}"
    )]
    ForeignMemory {
        /// The device.
        device: Device,
        /// The first address.
        address: u64,
        /// Bytes.
        bytes: usize,
    },
    /// A range is empty, or not inside of its memory.
    #[error("the range is not inside of the memory offset={offset} bytes={bytes} memory={memory}")]
    OutsideMemory {
        /// Offset in the memory.
        offset: usize,
        /// Bytes.
        bytes: usize,
        /// Bytes of the memory.
        memory: usize,
    },
    /// Another call failed.
    #[error(
        "{call} failed: {name}; if the device is lost, restart this process device={device} \
         code={code}"
    )]
    CallFailed {
        /// The device.
        device: Device,
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The result's name.
        name: String,
    },
}

/// The result of a call of a driver.
pub type Result<T> = std::result::Result<T, DeviceError>;

fn lock_remedy(name: &str) -> &'static str {
    match name {
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" => {
            "end the other registration of these addresses"
        }
        _ => "free memory of the host",
    }
}
