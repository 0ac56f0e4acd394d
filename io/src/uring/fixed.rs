//! The memory that one ring has registered, and which reads may go by it.
//!
//! A ring's list is changed only while none of its reads by the list is under way, for an entry names its memory by its place in
//! the list. Until then reads go as they do without.

use std::sync::Arc;

use io_uring::IoUring;
use rustix::io::Errno;

use super::ring;
use super::slots::{self, ENTRY_BYTES, IoVec};
use crate::buffer::Part;
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::registered::{Registered, Span};

/// A part this long has a read of its own where an operation has others too, in bytes. What is spared is looking its pages
/// up; what it costs is another entry (docs/decisions/0029).
const APART_MIN: usize = 128 << 10;

/// One ring's.
pub(super) struct Fixed {
    pub(super) registered: Arc<Registered>,
    /// The version that `spans` is of.
    seen: u64,
    /// By address; the place in it is the kernel's index.
    spans: Vec<Span>,
    /// Entries under way that name a place in `spans`.
    pub(super) live: usize,
    /// Entries ever made that did.
    #[cfg(test)]
    pub(super) made: usize,
}

impl Fixed {
    /// Of a ring that has registered nothing yet.
    pub(super) fn new(registered: Arc<Registered>) -> Fixed {
        Fixed {
            registered,
            seen: 0,
            spans: Vec::new(),
            live: 0,
            #[cfg(test)]
            made: 0,
        }
    }

    /// Register with `ring` what is to be, if that has changed and may be done now. Blocks for as long as the kernel takes to
    /// look the pages up. Whether reads may go by the list.
    pub(super) fn follow(&mut self, ring: &IoUring) -> bool {
        if self.seen == self.registered.version() {
            return !self.spans.is_empty();
        }
        if self.live > 0 {
            return false;
        }
        let (seen, spans) = self.registered.stretches();
        let had = !self.spans.is_empty();
        self.seen = seen;
        self.spans = match ring::register(ring, had, &spans) {
            Ok(()) => spans,
            Err(e) => {
                let fault = refused(e, String::new());
                tracing::warn!(
                    %fault,
                    stretches = spans.len(),
                    "memory could not be registered with a ring, its reads cost more"
                );
                Vec::new()
            }
        };
        !self.spans.is_empty()
    }

    /// The place in the list of a part that lies in it as a whole.
    fn find(&self, part: &Part) -> Option<u16> {
        let at = self.spans.partition_point(|span| span.base <= part.addr()).checked_sub(1)?;
        let span = self.spans[at];
        let inside = part.addr() - span.base + part.len() <= span.len;
        if inside { u16::try_from(at).ok() } else { None }
    }

    /// The entries that a read of `parts` is made in: each but the last a multiple of `align` bytes, at most `more` beyond the first.
    pub(super) fn runs(&self, parts: &[Part], align: usize, more: usize) -> Runs {
        let whole = Runs::whole(parts);
        if let [part] = parts {
            return Runs { first: Run { fixed: self.find(part), ..whole.first }, ..whole };
        }
        let (mut runs, mut last, mut at) = (Vec::new(), Run { count: 0, ..whole.first }, 0);
        for (first, part) in parts.iter().enumerate() {
            let apart = part.len() >= APART_MIN && (at | part.len()).is_multiple_of(align);
            let fixed = if apart { self.find(part) } else { None };
            if last.count > 0 && (fixed.is_some() || last.fixed.is_some()) {
                runs.push(std::mem::replace(&mut last, Run { first, count: 0, at: at as u64, fixed }));
            }
            last = Run { count: last.count + 1, fixed, ..last };
            at += part.len();
        }
        runs.push(last);
        // The one part of several that goes by itself is two entries at least, so one entry is all of it.
        if runs.len() == 1 || runs.len() - 1 > more {
            return whole;
        }
        Runs { first: runs.remove(0), rest: runs }
    }

    /// Entries were made that name places in the list.
    pub(super) fn began(&mut self, entries: usize) {
        self.live += entries;
        #[cfg(test)]
        {
            self.made += entries;
        }
    }

    /// Entries that did are under way no more.
    pub(super) fn ended(&mut self, entries: usize) {
        self.live -= entries;
    }
}

fn refused(e: Errno, detail: String) -> IoFault {
    let fault = IoFault::of_errno(FaultOp::Register, "", 0, e.raw_os_error());
    limits::named(IoFault { detail, ..fault })
}

/// Whether the kernel takes this memory for a ring's, found by asking it to.
pub(crate) fn may_register(span: Span) -> Result<(), IoFault> {
    if !span.is_possible() {
        let detail = format!("more than a ring can have: base={:#x} len={}", span.base, span.len);
        return Err(IoFault::found(FaultKind::Invalid, FaultOp::Register, "", 0, detail));
    }
    let ring = ring::build(1)?;
    let spans: Vec<Span> = span.stretches().collect();
    ring::register(&ring, false, &spans)
        .map_err(|e| refused(e, format!("base={:#x} len={}", span.base, span.len)))
}

/// Some of an operation's vectors, of which a read has one for each part, in one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Where it begins, in bytes from the operation's offset.
    pub(super) at: u64,
    /// The place in the ring's list of its only part.
    pub(super) fixed: Option<u16>,
}

/// An operation's entries, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    first: Run,
    rest: Vec<Run>,
}

impl Runs {
    /// All in one, by no registered memory.
    pub(super) fn whole(parts: &[Part]) -> Runs {
        Runs { first: Run { first: 0, count: parts.len(), at: 0, fixed: None }, rest: Vec::new() }
    }

    /// The entries of a write whose vectors are cut where they end.
    pub(super) fn of_cut(vectors: &[IoVec]) -> Runs {
        let most = slots::entries(vectors.iter().map(|vector| vector.len() as u64).sum());
        let none = Run { first: 0, count: 0, at: 0, fixed: None };
        let (mut runs, mut run, mut bytes) = (Vec::with_capacity(most), none, 0);
        for (i, vector) in vectors.iter().enumerate() {
            (run.count, bytes) = (run.count + 1, bytes + vector.len() as u64);
            if bytes % ENTRY_BYTES == 0 && runs.len() + 1 < most {
                runs.push(std::mem::replace(&mut run, Run { first: i + 1, at: bytes, ..none }));
            }
        }
        runs.push(run);
        Runs { first: runs.remove(0), rest: runs }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// How many go by registered memory.
    pub(super) fn fixed(&self) -> usize {
        self.iter().filter(|run| run.fixed.is_some()).count()
    }
}
