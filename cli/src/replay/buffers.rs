//! A cache of object buffers, by length.

use std::collections::HashMap;

use anyhow::Context;
use pagelith::AlignedBuf;

/// Unused buffers by length.
#[derive(Debug, Default)]
pub(crate) struct Buffers(HashMap<usize, Vec<AlignedBuf>>);

impl Buffers {
    /// A buffer of `bytes` bytes with unspecified content.
    pub(crate) fn take(&mut self, bytes: usize) -> anyhow::Result<AlignedBuf> {
        match self.0.get_mut(&bytes).and_then(Vec::pop) {
            Some(buffer) => Ok(buffer),
            None => AlignedBuf::new(bytes)
                .with_context(|| format!("no memory for an object bytes={bytes}")),
        }
    }

    /// Return a buffer, if there is one.
    pub(crate) fn put_back(&mut self, buffer: Option<AlignedBuf>) {
        if let Some(buffer) = buffer {
            self.0.entry(buffer.len()).or_default().push(buffer);
        }
    }
}
