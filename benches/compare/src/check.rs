//! Counts what came back wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::contents::Contents;

/// Checks values as they come, in whichever thread has them.
pub(crate) struct Check {
    contents: Arc<Contents>,
    whole: AtomicBool,
    wrong: AtomicU64,
    absent: AtomicU64,
}

impl Check {
    /// Check against these contents.
    pub(crate) fn new(contents: Arc<Contents>) -> Check {
        let (wrong, absent) = (AtomicU64::new(0), AtomicU64::new(0));
        Check { contents, whole: AtomicBool::new(true), wrong, absent }
    }

    /// What should come back.
    pub(crate) fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    /// From now on check every byte, or what a glance sees of values that their engine has verified.
    pub(crate) fn every_byte(&self, whole: bool) {
        self.whole.store(whole, Relaxed);
    }

    /// A value came back.
    pub(crate) fn value(&self, number: u64, value: &[u8]) {
        let right = match self.whole.load(Relaxed) {
            true => self.contents.is_whole(number, value),
            false => self.contents.looks_right(number, value),
        };
        self.wrong.fetch_add(u64::from(!right), Relaxed);
    }

    /// A value was not there.
    pub(crate) fn absent(&self) {
        self.absent.fetch_add(1, Relaxed);
    }

    /// Values that were wrong and that were not there since the last call.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.wrong.swap(0, Relaxed), self.absent.swap(0, Relaxed))
    }
}
