//! Memory exposed to the other end, filled by whole packets in any order.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_transport::link::LinkEvent;

/// An operation, its item, and the start offset of the range.
pub(super) type RangeKey = (OpId, u32, u64);

struct ExposedRange {
    parts: Vec<Part>,
    len: u64,
    /// Ranges that have arrived: start and length.
    landed: BTreeMap<u64, u64>,
}

/// The ranges exposed at one end.
#[derive(Default)]
pub(super) struct ExposedMemory(BTreeMap<RangeKey, ExposedRange>);

impl ExposedMemory {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Exposes a range, unless its memory is shared or empty, or it overlaps an exposed range.
    pub fn expose(
        &mut self,
        (op, item, from): RangeKey,
        parts: Vec<Part>,
    ) -> Result<(), Vec<Part>> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let end = from.checked_add(len);
        let taken =
            self.0.range((op, item, 0)..=(op, item, u64::MAX)).any(|((_, _, at), found)| {
                end.is_none_or(|end| *at < end && from < at.saturating_add(found.len))
            });
        if len == 0 || end.is_none() || taken || parts.iter().any(|part| !part.is_exclusive()) {
            return Err(parts);
        }
        self.0.insert((op, item, from), ExposedRange { parts, len, landed: BTreeMap::new() });
        Ok(())
    }

    /// Writes a packet into its exposed range. `None` if the bytes are not exposed, overlap bytes
    /// that have arrived, or exceed the range. Otherwise the range, once it is complete.
    pub fn write(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Option<Option<LinkEvent>> {
        let name = self.begin(op, item, offset, bytes.len() as u64)?;
        let found = self.0.get_mut(&name)?;
        write_at(&mut found.parts, offset - name.2, bytes);
        Some(self.complete(name))
    }

    /// As [`ExposedMemory::write`], for bytes that the peer's device has placed in the memory.
    pub fn placed(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        len: u64,
    ) -> Option<Option<LinkEvent>> {
        let name = self.begin(op, item, offset, len)?;
        Some(self.complete(name))
    }

    /// Counts bytes as arrived, and returns their range.
    fn begin(&mut self, op: OpId, item: u32, offset: u64, len: u64) -> Option<RangeKey> {
        let (name, found) = self.0.range_mut((op, item, 0)..=(op, item, offset)).next_back()?;
        let at = offset - name.2;
        let overlaps =
            found.landed.range(..at + len).next_back().is_some_and(|(from, n)| from + n > at);
        if at + len > found.len || overlaps {
            return None;
        }
        found.landed.insert(at, len);
        Some(*name)
    }

    /// The range, if all of it has arrived.
    fn complete(&mut self, name: RangeKey) -> Option<LinkEvent> {
        let found = self.0.get(&name)?;
        if found.landed.values().sum::<u64>() < found.len {
            return None;
        }
        let (op, item, offset) = name;
        let parts = self.0.remove(&name)?.parts;
        Some(LinkEvent::Received { op, item, offset, parts })
    }

    /// The ranges exposed for `op`, with their memory.
    pub fn ranges(&self, op: OpId) -> impl Iterator<Item = (RangeKey, &[Part])> {
        let of_op = self.0.range((op, 0, 0)..=(op, u32::MAX, u64::MAX));
        of_op.map(|(name, found)| (*name, found.parts.as_slice()))
    }

    /// Removes a range and returns its memory.
    pub fn take(&mut self, name: RangeKey) -> Option<Vec<Part>> {
        self.0.remove(&name).map(|found| found.parts)
    }

    /// The memory of a range of `len` bytes, if the range is exactly that long and no byte has
    /// arrived.
    pub fn unused(&mut self, name: RangeKey, len: u64) -> Option<Vec<Part>> {
        let whole = |found: &ExposedRange| found.landed.is_empty() && found.len == len;
        if !self.0.get(&name).is_some_and(whole) {
            return None;
        }
        self.0.remove(&name).map(|found| found.parts)
    }

    /// The ranges exposed for `op`.
    pub fn names(&self, op: OpId) -> impl Iterator<Item = RangeKey> {
        self.0.keys().copied().filter(move |(of, ..)| *of == op)
    }

    /// Returns the memory exposed for `op`, or for all operations.
    pub fn retract(&mut self, op: Option<OpId>, events: &mut Vec<LinkEvent>) {
        for ((at, item, offset), found) in std::mem::take(&mut self.0) {
            if op.is_none_or(|op| op == at) {
                events.push(LinkEvent::Retracted { op: at, item, offset, parts: found.parts });
            } else {
                self.0.insert((at, item, offset), found);
            }
        }
    }
}

/// Writes bytes to `parts`, from `at` on.
pub(super) fn write_at(parts: &mut [Part], mut at: u64, mut bytes: &[u8]) {
    for part in parts {
        let len = part.len() as u64;
        if at >= len {
            at -= len;
            continue;
        }
        let target =
            part.bytes_mut().and_then(|all| all.get_mut(at as usize..)).unwrap_or_default();
        let (now, rest) = bytes.split_at(target.len().min(bytes.len()));
        target[..now.len()].copy_from_slice(now);
        (at, bytes) = (0, rest);
    }
}
