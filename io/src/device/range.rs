//! Ranges of a device's memory.

use std::fmt;
use std::sync::Arc;

use super::bound::Bound;
use super::error::{DeviceError, Result};
use crate::buffer::KeepAlive;

/// A range of a device's memory, named through a handle of it.
#[derive(Clone)]
pub struct DeviceRange {
    bound: Arc<Bound>,
    address: u64,
    bytes: usize,
    keep: KeepAlive,
}

impl DeviceRange {
    pub(super) fn new(
        bound: &Arc<Bound>,
        address: u64,
        bytes: usize,
        keep: KeepAlive,
    ) -> Result<DeviceRange> {
        if bytes == 0 {
            return Err(DeviceError::OutsideMemory { offset: 0, bytes, memory: 0 });
        }
        let device = bound.device();
        // A driver may not know which memory is its own.
        let fits = address.checked_add(bytes as u64).is_some();
        if !fits || !bound.call(|calls| calls.owns(device.ordinal, address, bytes))? {
            return Err(DeviceError::ForeignMemory { device, address, bytes });
        }
        Ok(DeviceRange { bound: bound.clone(), address, bytes, keep })
    }

    /// `bytes` bytes of the range, from `offset` on.
    ///
    /// # Errors
    /// `OutsideMemory`.
    pub fn slice(&self, offset: usize, bytes: usize) -> Result<DeviceRange> {
        match offset.checked_add(bytes) {
            Some(end) if bytes > 0 && end <= self.bytes => {
                Ok(DeviceRange { address: self.address + offset as u64, bytes, ..self.clone() })
            }
            _ => Err(DeviceError::OutsideMemory { offset, bytes, memory: self.bytes }),
        }
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_bound_to(&self, bound: &Arc<Bound>) -> bool {
        Arc::ptr_eq(&self.bound, bound)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// What keeps the memory.
    pub(super) fn keep(&self) -> KeepAlive {
        self.keep.clone()
    }
}

impl fmt::Debug for DeviceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceRange({}, bytes={})", self.bound.device(), self.bytes)
    }
}
