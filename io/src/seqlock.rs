//! Striped sequence locks: a thread reads a table without a lock while another changes it (C.
//! Lameter, "Effective synchronization on Linux/NUMA systems", 2005). Each stripe of the table has
//! a version.
//!
//! The writer, of which there is one at a time, *begins* a stripe before its first change there. It
//! *ends* all stripes that it began when its changes may be seen as a whole. A reader notes the
//! version of each stripe before it reads there. If each version is the same afterwards, there was
//! a moment at which all that it read was current.
//!
//! A reader may read any intermediate state: the data must be atomics, and no value may lead the
//! reader out of bounds. The orderings are those of H. Boehm, "Can seqlocks get along with
//! programming language memory models?", MSPC 2012.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::prefetch;
use crate::sync::{AtomicU32, fence};

/// Versions of the stripes of a table. A version is odd while its stripe is being changed.
pub struct SeqLocks {
    stripes: Box<[AtomicU32]>,
}

/// A stripe and the version that a reader found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadStamp {
    stripe: u32,
    version: u32,
}

impl SeqLocks {
    /// Versions for `stripes` stripes.
    pub fn new(stripes: usize) -> SeqLocks {
        SeqLocks { stripes: (0..stripes).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Number of stripes.
    pub fn len(&self) -> usize {
        self.stripes.len()
    }

    /// Whether there is no stripe.
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// Begin a stripe before the first change in it. False if the writer began it before.
    #[inline]
    pub fn begin(&self, stripe: usize) -> bool {
        let version = self.stripes[stripe].load(Relaxed);
        if version % 2 == 1 {
            return false;
        }
        // With one writer no read-modify-write is needed; it would wait for all earlier stores.
        self.stripes[stripe].store(version | 1, Relaxed);
        // A reader that sees one of the following changes sees this version too.
        fence(Release);
        true
    }

    /// End a stripe: its changes may be seen.
    #[inline]
    pub fn end(&self, stripe: usize) {
        let version = self.stripes[stripe].load(Relaxed);
        // The version wraps around; also then odd becomes even.
        self.stripes[stripe].store(version.wrapping_add(1), Release);
    }

    /// Prefetch a stripe's version.
    #[inline]
    pub fn prefetch(&self, stripe: usize) {
        prefetch::line(&self.stripes[stripe]);
    }

    /// Note a stripe's version before reading in it. `None` while it is being changed: then a read
    /// there is worthless.
    #[inline]
    pub fn stamp(&self, stripe: usize) -> Option<ReadStamp> {
        let version = self.stripes[stripe].load(Acquire);
        // A stripe number must fit 32 bits, else two stripes would share a stamp; there are never
        // that many.
        version.is_multiple_of(2).then_some(ReadStamp { stripe: stripe as u32, version })
    }

    /// Whether none of the stripes has changed since its stamp was taken.
    #[inline]
    pub fn validate(&self, stamps: &[ReadStamp]) -> bool {
        // The writer of a value that was read began its stripe first, and that version is seen
        // after this fence.
        fence(Acquire);
        stamps.iter().all(|mark| self.stripes[mark.stripe as usize].load(Relaxed) == mark.version)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn mark_is_valid_until_stripe_begins() {
        let versions = SeqLocks::new(2);
        let (first, second) = (versions.stamp(0).expect("even"), versions.stamp(1).expect("even"));
        assert!(versions.validate(&[first, second]));
        assert!(versions.begin(0) && !versions.begin(0));
        assert!(versions.stamp(0).is_none());
        assert!(!versions.validate(&[first, second]) && versions.validate(&[second]));
        versions.end(0);
        assert!(!versions.validate(&[first]), "the earlier read is out of date");
        assert!(versions.validate(&[versions.stamp(0).expect("even"), second]));
    }
}
