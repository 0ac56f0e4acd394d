//! Counts wrong and absent values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::contents::Contents;

/// Checks values as they arrive, on any thread.
pub(crate) struct Check {
    contents: Arc<Contents>,
    whole: AtomicBool,
    wrong: AtomicU64,
    absent: AtomicU64,
}

impl Check {
    /// A checker for these contents.
    pub(crate) fn new(contents: Arc<Contents>) -> Check {
        let (wrong, absent) = (AtomicU64::new(0), AtomicU64::new(0));
        Check { contents, whole: AtomicBool::new(true), wrong, absent }
    }

    /// The expected contents.
    pub(crate) fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    /// Sets whether every byte is checked from now on, or only samples, for engines that verify
    /// values themselves.
    pub(crate) fn every_byte(&self, whole: bool) {
        self.whole.store(whole, Relaxed);
    }

    /// Checks a returned value.
    pub(crate) fn value(&self, number: u64, value: &[u8]) {
        let right = match self.whole.load(Relaxed) {
            true => self.contents.is_whole(number, value),
            false => self.contents.samples_match(number, value),
        };
        self.wrong.fetch_add(u64::from(!right), Relaxed);
    }

    /// Counts a missing value.
    pub(crate) fn absent(&self) {
        self.absent.fetch_add(1, Relaxed);
    }

    /// Wrong and absent values since the last call.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.wrong.swap(0, Relaxed), self.absent.swap(0, Relaxed))
    }
}
