//! Memory for objects on their way, kept for the next ones of the same length.

use std::collections::HashMap;

use anyhow::Context;
use pagelith::AlignedBuf;

/// Buffers that nobody uses now, by length.
#[derive(Debug, Default)]
pub(crate) struct Buffers(HashMap<usize, Vec<AlignedBuf>>);

impl Buffers {
    /// A buffer of so many bytes; what it holds is unspecified.
    pub(crate) fn take(&mut self, bytes: usize) -> anyhow::Result<AlignedBuf> {
        match self.0.get_mut(&bytes).and_then(Vec::pop) {
            Some(buffer) => Ok(buffer),
            None => AlignedBuf::new(bytes).with_context(|| format!("no memory for an object bytes={bytes}")),
        }
    }

    /// Keep a buffer, if it came back.
    pub(crate) fn give(&mut self, buffer: Option<AlignedBuf>) {
        if let Some(buffer) = buffer {
            self.0.entry(buffer.len()).or_default().push(buffer);
        }
    }
}
