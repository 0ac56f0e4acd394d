//! Memory of the host that a driver locks, so that its device accesses it without a copy.
//!
//! Invariants:
//! - All of the memory is locked, or nothing.
//! - The memory is released after it is unlocked; if that fails, it is leaked.

use std::fmt;
use std::sync::Arc;

use super::chunks::runs;
use super::context::BoundContext;
use super::error::{DeviceError, Result};
use super::handle::DeviceHandle;
use super::populate::populate;
use crate::verbs::DeviceMemory;

/// How often the progress of one memory is logged.
const LOG_SHARE: usize = 8;

/// Locked memory; dropping it unlocks the memory.
#[must_use = "dropping this unlocks the memory"]
pub struct LockedMemory {
    /// First addresses.
    chunks: Vec<usize>,
    memory: Arc<dyn DeviceMemory>,
    /// Not the binding, whose late copies may own this memory.
    context: Arc<BoundContext>,
}

impl LockedMemory {
    /// Lock all of `memory` for the device. It is made resident first, by several threads and on
    /// the device's NUMA node if that is known. `setting` names it in the log.
    ///
    /// # Errors
    /// `NotLocked` if the driver refuses a chunk; then nothing is locked. `CallFailed`.
    pub fn new(
        handle: &DeviceHandle,
        setting: &str,
        memory: Arc<dyn DeviceMemory>,
    ) -> Result<LockedMemory> {
        let (base, bytes) = (memory.base().as_ptr().expose_provenance(), memory.bytes());
        let device = handle.device();
        populate(&*memory, handle.node());
        let mut locked =
            LockedMemory { chunks: Vec::new(), memory, context: handle.0.context.clone() };
        let mut logged = 0;
        for (offset, length) in runs(base, bytes) {
            let start = base + offset;
            // SAFETY: the chunk is inside of the memory, which is kept until it is unlocked, and
            // whose owner allows accesses of devices.
            let done = locked.context.call(|calls| unsafe { calls.lock(start, length) });
            done.map_err(|error| not_locked(error, setting, offset, bytes))?;
            locked.chunks.push(start);
            let end = offset + length;
            if end * LOG_SHARE / bytes > logged {
                logged = end * LOG_SHARE / bytes;
                tracing::info!(setting, %device, locked = end, bytes, "memory is being locked");
            }
        }
        Ok(locked)
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// The error of a chunk that was refused.
fn not_locked(error: DeviceError, setting: &str, offset: usize, bytes: usize) -> DeviceError {
    match error {
        DeviceError::CallFailed { device, call, code, name } => {
            let setting = setting.to_owned();
            DeviceError::NotLocked { device, setting, call, offset, bytes, code, name }
        }
        error => error,
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let mut failures = 0usize;
        for chunk in chunks {
            if let Err(error) = self.context.call(|calls| calls.unlock(chunk)) {
                failures += 1;
                tracing::debug!(%error, "chunk stays locked");
            }
        }
        if failures > 0 {
            let (device, bytes) = (self.context.device(), self.memory.bytes());
            tracing::warn!(%device, failures, bytes, "memory stays locked, and is leaked");
            std::mem::forget(self.memory.clone());
        }
    }
}

impl fmt::Debug for LockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockedMemory(bytes={})", self.bytes())
    }
}
