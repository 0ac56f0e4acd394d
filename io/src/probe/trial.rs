//! A trial: one aligned block is written and read back through a queue, as the store does it.

use std::time::Duration;

use crate::buffer::{AlignedBuf, Part};
use crate::disk::{FileId, Op, Queue};
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::op_check::Alignment;

/// The time limit for a block; a slower device counts as failed.
const TRIAL_WAIT: Duration = Duration::from_secs(10);

/// Write a block (if `may_write`), read it back and compare. The block has the smallest size that
/// `align` allows and does not begin at offset 0, so that the trial tests the alignment.
pub(super) fn round_trip(
    queue: &mut dyn Queue,
    file: FileId,
    may_write: bool,
    align: Alignment,
    path: &str,
) -> Result<(), IoFault> {
    let unit = align.memory.max(align.offset);
    let offset = unit as u64;
    if may_write {
        let mut block = block(unit, path)?;
        block.copy_from_slice(&pattern(unit));
        run(queue, Op::Write { file, offset, parts: vec![block.into_part()] }, path)?;
    }
    let empty = block(unit, path)?;
    let parts = run(queue, Op::Read { file, offset, parts: vec![empty.into_part()] }, path)?;
    if may_write && !parts.iter().all(|p| p.bytes() == pattern(unit)) {
        let detail = "a block read back differs from the written one";
        return Err(IoFault::found(FaultKind::Device, FaultOp::Probe, path, offset, detail));
    }
    Ok(())
}

fn block(len: usize, path: &str) -> Result<AlignedBuf, IoFault> {
    AlignedBuf::new(len)
        .map_err(|e| IoFault::of_errno(FaultOp::Probe, path, 0, e.raw_os_error().unwrap_or(0)))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ 0xa5).collect()
}

fn run(queue: &mut dyn Queue, op: Op, path: &str) -> Result<Vec<Part>, IoFault> {
    let busy = |detail: &str| IoFault::found(FaultKind::Device, FaultOp::Probe, path, 0, detail);
    queue.submit(0, op).map_err(|_| busy("an idle queue has no room"))?;
    let mut done = Vec::new();
    queue.wait(&mut done, TRIAL_WAIT);
    let completion = done.pop().ok_or_else(|| busy("the device did not answer in 10 s"))?;
    completion.result.map(|()| completion.op.into_parts())
}
