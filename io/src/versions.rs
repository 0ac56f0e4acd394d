//! Reading a table without a lock while one thread changes it: a sequence lock (C. Lameter, "Effective synchronization on
//! Linux/NUMA systems", 2005) for each stripe of the table.
//!
//! The writer, of which there is one at a time, *begins* a stripe before its first change there and *ends* all it began
//! when what it does may be seen as a whole. A reader notes the version of each stripe before it reads there, and believes
//! what it read if every version is the same afterwards: then there was a moment at which all of it was so.
//!
//! What is read meanwhile may be anything that lay there: it has to be of atomics, and must not lead the reader astray.
//! The orderings are those of H. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::prefetch;
use crate::sync::{AtomicU32, fence};

/// Versions of the stripes of a table: odd while a stripe is being changed.
pub struct Versions {
    stripes: Box<[AtomicU32]>,
}

/// A stripe and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    stripe: u32,
    version: u32,
}

impl Versions {
    /// Of so many stripes.
    pub fn new(stripes: usize) -> Versions {
        Versions { stripes: (0..stripes).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Number of stripes.
    pub fn len(&self) -> usize {
        self.stripes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// The writer is about to change something in a stripe. False if it began it before.
    #[inline]
    pub fn begin(&self, stripe: usize) -> bool {
        let version = self.stripes[stripe].load(Relaxed);
        if version % 2 == 1 {
            return false;
        }
        // Not in one operation: there is one writer, and it would wait for all that it has written so far.
        self.stripes[stripe].store(version | 1, Relaxed);
        // Whoever sees one of the changes that follow sees this.
        fence(Release);
        true
    }

    /// What the writer changed in a stripe that it began may be seen.
    #[inline]
    pub fn end(&self, stripe: usize) {
        let version = self.stripes[stripe].load(Relaxed);
        // It wraps around, from odd to even too.
        self.stripes[stripe].store(version.wrapping_add(1), Release);
    }

    /// Start bringing a stripe's version into the cache.
    #[inline]
    pub fn prefetch(&self, stripe: usize) {
        prefetch::line(&self.stripes[stripe]);
    }

    /// A reader is about to read in a stripe. `None` if it is being changed: what is read there says nothing.
    #[inline]
    pub fn mark(&self, stripe: usize) -> Option<Mark> {
        let version = self.stripes[stripe].load(Acquire);
        // At most 2^32 stripes, or the version wraps sooner than it should: there are never that many.
        version.is_multiple_of(2).then_some(Mark { stripe: stripe as u32, version })
    }

    /// Whether nothing has changed in any of the stripes since they were marked.
    #[inline]
    pub fn hold(&self, marks: &[Mark]) -> bool {
        // Whoever changed something that was read had begun its stripe, and that is seen behind this.
        fence(Acquire);
        marks.iter().all(|mark| self.stripes[mark.stripe as usize].load(Relaxed) == mark.version)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_holds_until_it_is_begun_and_is_new_when_it_has_ended() {
        let versions = Versions::new(2);
        let (first, second) = (versions.mark(0).expect("even"), versions.mark(1).expect("even"));
        assert!(versions.hold(&[first, second]));
        assert!(versions.begin(0) && !versions.begin(0));
        assert!(versions.mark(0).is_none());
        assert!(!versions.hold(&[first, second]) && versions.hold(&[second]));
        versions.end(0);
        assert!(!versions.hold(&[first]), "what was read before is not so any more");
        assert!(versions.hold(&[versions.mark(0).expect("even"), second]));
    }
}
