//! The buffers that one ring has registered, and the choice of reads that use them.
//!
//! Invariant: a ring's list changes only while none of its reads that use the list is in flight
//! (`live == 0`), because an entry names a buffer by its index in the list. Until then reads run
//! without registered buffers.

use std::sync::Arc;

use io_uring::IoUring;
use rustix::io::Errno;

use super::entries::{EntryRange, EntryRanges};
use super::ring;
use crate::buffer::Part;
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::registered::{MemoryRange, RegisteredMemory};

/// Bytes from which a registered part gets an entry of its own in an operation with several parts.
/// This saves the page lookup and costs another entry
/// (docs/decisions/0008-read-path-from-ssd.md).
const SEPARATE_ENTRY_BYTES_MIN: usize = 128 << 10;

/// The registered buffers of one ring.
pub(super) struct FixedBuffers {
    pub(super) registered: Arc<RegisteredMemory>,
    /// The version of the disk's list that `spans` was taken from.
    version: u64,
    /// Sorted by address; the index is the kernel's buffer index.
    spans: Vec<MemoryRange>,
    /// Entries in flight that name an index of `spans`.
    pub(super) live: usize,
    /// All entries so far that named one.
    #[cfg(test)]
    pub(super) made: usize,
}

impl FixedBuffers {
    /// The state of a ring that has registered nothing yet.
    pub(super) fn new(registered: Arc<RegisteredMemory>) -> FixedBuffers {
        FixedBuffers {
            registered,
            version: 0,
            spans: Vec::new(),
            live: 0,
            #[cfg(test)]
            made: 0,
        }
    }

    /// Register the disk's current list with `ring`, if it has changed and no entry in flight
    /// prevents it. Blocks while the kernel looks the pages up. Returns whether reads may use the
    /// list.
    pub(super) fn refresh(&mut self, ring: &IoUring) -> bool {
        if self.version == self.registered.version() {
            return !self.spans.is_empty();
        }
        if self.live > 0 {
            return false;
        }
        let (version, spans) = self.registered.buffers();
        let had = !self.spans.is_empty();
        self.version = version;
        self.spans = match ring::register(ring, had, &spans) {
            Ok(()) => spans,
            Err(e) => {
                let fault = refused(e, String::new());
                tracing::warn!(
                    %fault,
                    buffers = spans.len(),
                    "memory could not be registered with a ring, its reads cost more"
                );
                Vec::new()
            }
        };
        !self.spans.is_empty()
    }

    /// The index of the buffer that contains the whole part.
    fn find(&self, part: &Part) -> Option<u16> {
        let at = self.spans.partition_point(|span| span.base <= part.addr()).checked_sub(1)?;
        let span = self.spans[at];
        let inside = part.addr() - span.base + part.len() <= span.len;
        if inside { u16::try_from(at).ok() } else { None }
    }

    /// The entries of a read of `parts`: each but the last covers a multiple of `align` bytes, and
    /// at most `extra_max` follow the first.
    pub(super) fn read_ranges(
        &self,
        parts: &[Part],
        align: usize,
        extra_max: usize,
    ) -> EntryRanges {
        let whole = EntryRanges::whole(parts);
        if let [part] = parts {
            return EntryRanges {
                first: EntryRange { fixed: self.find(part), ..whole.first },
                ..whole
            };
        }
        let (mut ranges, mut last, mut at) =
            (Vec::new(), EntryRange { count: 0, ..whole.first }, 0);
        for (first, part) in parts.iter().enumerate() {
            let separate =
                part.len() >= SEPARATE_ENTRY_BYTES_MIN && (at | part.len()).is_multiple_of(align);
            let fixed = if separate { self.find(part) } else { None };
            if last.count > 0 && (fixed.is_some() || last.fixed.is_some()) {
                ranges.push(std::mem::replace(
                    &mut last,
                    EntryRange { first, count: 0, at: at as u64, fixed },
                ));
            }
            last = EntryRange { count: last.count + 1, fixed, ..last };
            at += part.len();
        }
        ranges.push(last);
        // With several parts, a separate part makes at least two ranges, so a single range uses no
        // registered buffer.
        if ranges.len() == 1 || ranges.len() - 1 > extra_max {
            return whole;
        }
        EntryRanges { first: ranges.remove(0), rest: ranges }
    }

    /// Count entries that were made and name buffers of the list.
    pub(super) fn begin_entries(&mut self, entries: usize) {
        self.live += entries;
        #[cfg(test)]
        {
            self.made += entries;
        }
    }

    /// Count such entries that have completed.
    pub(super) fn end_entries(&mut self, entries: usize) {
        self.live -= entries;
    }
}

fn refused(e: Errno, detail: String) -> IoFault {
    let fault = IoFault::of_errno(FaultOp::Register, "", 0, e.raw_os_error());
    limits::named(IoFault { detail, ..fault })
}

/// Whether the kernel accepts this memory, tested by registering it with a temporary ring.
pub(crate) fn may_register(span: MemoryRange) -> Result<(), IoFault> {
    if !span.can_register() {
        let detail =
            format!("memory range is too long to register: base={:#x} len={}", span.base, span.len);
        return Err(IoFault::found(FaultKind::Invalid, FaultOp::Register, "", 0, detail));
    }
    let ring = ring::build(1)?;
    let spans: Vec<MemoryRange> = span.buffers().collect();
    ring::register(&ring, false, &spans)
        .map_err(|e| refused(e, format!("base={:#x} len={}", span.base, span.len)))
}
