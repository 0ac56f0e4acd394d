//! A cache of object buffers, by length.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context;
use pagelith::AlignedBuf;
use pagelith::client::register_memory;
use pagelith::transport::rdma::host::RdmaHost;
use pagelith::transport::rdma::registration::RdmaRegistration;

/// Buffers that are allocated together, and registered as one.
const ADJACENT: usize = 64;

/// Unused buffers by length. With RDMA devices all of them are registered; the registrations end
/// first.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    registrations: Vec<RdmaRegistration>,
    unused: HashMap<usize, Vec<AlignedBuf>>,
    devices: Option<Arc<RdmaHost>>,
}

impl Buffers {
    /// No buffers yet; new ones are registered with these devices.
    pub(crate) fn registered_with(devices: Option<Arc<RdmaHost>>) -> Buffers {
        Buffers { devices, ..Buffers::default() }
    }

    /// A buffer of `bytes` bytes with unspecified content.
    pub(crate) fn take(&mut self, bytes: usize) -> anyhow::Result<AlignedBuf> {
        let unused = self.unused.entry(bytes).or_default();
        if let Some(buffer) = unused.pop() {
            return Ok(buffer);
        }
        let no_memory = || format!("no memory for an object bytes={bytes}");
        let Some(devices) = &self.devices else {
            return AlignedBuf::new(bytes).with_context(no_memory);
        };
        let mut buffers = AlignedBuf::many(ADJACENT, bytes).with_context(no_memory)?;
        if let [first, .., last] = &buffers[..] {
            let len = last.as_ptr().addr() + last.len() - first.as_ptr().addr();
            self.registrations.push(register_memory(devices, first.as_ptr(), len)?);
        }
        let taken = buffers.pop().with_context(no_memory)?;
        unused.extend(buffers);
        Ok(taken)
    }

    /// Return a buffer, if there is one.
    pub(crate) fn put_back(&mut self, buffer: Option<AlignedBuf>) {
        if let Some(buffer) = buffer {
            self.unused.entry(buffer.len()).or_default().push(buffer);
        }
    }
}
