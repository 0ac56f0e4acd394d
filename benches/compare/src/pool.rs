//! Memory for returned values, like an inference engine's host pool: one mapping of huge pages,
//! touched. On a virtual disk, reads into huge pages were twice as fast as reads into pages of 4
//! KiB, for every side. So every side that reads into the harness's memory gets huge pages.

use anyhow::Context;
use pagelith::AlignedBuf;

/// Minimum length of a buffer with huge pages.
const HUGE_BYTES: usize = 4 << 20;

/// Memory for `objects` values of this length, concatenated.
pub(crate) fn prefaulted(objects: usize, object_bytes: usize) -> anyhow::Result<AlignedBuf> {
    let len = (objects * object_bytes).max(HUGE_BYTES);
    let mut memory = AlignedBuf::new(len).context("no memory for the values")?;
    memory.fill(1);
    Ok(memory)
}
