//! The device and the deadline of a call that copies to or from it.

use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::device::{CallerStream, Copies, DeviceHandle, DeviceRange};

use super::bound::{CountedBytes, device_error};
use super::store::DeviceStore;
use crate::api::error::{Error, ErrorKind, Result};

/// Queries of a device without a pause between them: a short copy ends before a pause would.
const POLLS: u32 = 100;
/// Pause between two queries after these.
const POLL_STEP: Duration = Duration::from_micros(50);

/// A call that copies to or from a device.
pub struct DeviceCall<'a> {
    pub store: &'a dyn DeviceStore,
    pub device: &'a DeviceHandle,
    pub after: Option<&'a CallerStream>,
    pub deadline: Mono,
}

impl DeviceCall<'_> {
    /// A list of copies, which holds the locks of the store's memory.
    pub fn begin(&self) -> Result<Copies> {
        let mut copies = self.device.begin(self.after).map_err(|why| device_error(&why))?;
        copies.hold(Box::new(self.store.devices().locked()));
        Ok(copies)
    }

    /// Wait until the device is done with the copies, or for the deadline.
    pub fn wait(&self, copies: &mut Copies) -> Result<()> {
        let mut polls = 0;
        loop {
            if copies.poll().map_err(|why| device_error(&why))? {
                return Ok(());
            }
            if self.is_late() {
                let device = self.device.device();
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "device is not done with copies in time; their memory is kept until the \
                         device is done device={device}"
                    ),
                ));
            }
            if polls >= POLLS {
                self.pause();
            }
            polls += 1;
        }
    }

    /// Wait for memory that copies of other calls use. False at the deadline.
    pub fn wait_for_memory(&self) -> bool {
        self.pause();
        self.store.devices().release_late();
        !self.is_late()
    }

    /// Whether the deadline has passed.
    pub fn is_late(&self) -> bool {
        self.left().is_zero()
    }

    /// The time until the deadline.
    pub fn left(&self) -> Duration {
        self.deadline.since(self.store.now())
    }

    fn pause(&self) {
        self.store.pause(self.left().min(POLL_STEP));
    }

    /// Most bytes of staging memory that copies may use at a time. Reads of the store use the rest.
    pub fn staging_max(&self) -> Result<u64> {
        Ok(self.store.staging()?.capacity() as u64 / 2)
    }

    /// Staging memory of `bytes` bytes, and what counts it; `None` if all is in use now.
    pub fn stage(&self, bytes: usize) -> Result<Option<(Part, CountedBytes)>> {
        let most = self.staging_max()?;
        let Some(counted) = self.store.devices().staged.count(bytes as u64, most) else {
            return Ok(None);
        };
        // The rest of the last page is released with the part.
        let part = self.store.staging()?.try_part(bytes).map(|part| part.split(bytes).0);
        Ok(part.map(|part| (part, counted)))
    }

    /// An error if a range is of another handle.
    pub fn check(&self, ranges: &[DeviceRange]) -> Result<()> {
        if ranges.iter().all(|range| self.device.has_named(range)) {
            return Ok(());
        }
        let device = self.device.device();
        Err(Error::invalid(format!(
            "memory was named through another handle; name it through the one of this call \
             device={device}"
        )))
    }

    /// An error if `bytes` bytes never fit into staging memory, of which reads need `margin` bytes
    /// more.
    pub fn check_staging(&self, bytes: u64, margin: u64) -> Result<()> {
        let most = self.staging_max()?.saturating_sub(margin);
        if bytes <= most {
            return Ok(());
        }
        let setting = self.store.staging_setting();
        Err(Error::invalid(format!(
            "bytes exceed half of the staging memory; raise {setting} bytes={bytes} max={most}"
        )))
    }
}
