//! Memory that values are read into, as an inference engine's host pool is: one mapping of huge pages, touched. On a
//! virtual disk a read into huge pages was seen to be twice as fast as one into pages of 4 KiB, whoever asks for it, so
//! that every side that reads into the harness's memory gets this kind.

use anyhow::Context;
use pagelith::AlignedBuf;

/// From this length on a buffer is of huge pages.
const HUGE_BYTES: usize = 4 << 20;

/// Room for so many objects of this length, one behind the other.
pub(crate) fn touched(objects: usize, object_bytes: usize) -> anyhow::Result<AlignedBuf> {
    let len = (objects * object_bytes).max(HUGE_BYTES);
    let mut memory = AlignedBuf::new(len).context("no memory for the values")?;
    memory.fill(1);
    Ok(memory)
}
