//! A fence between removals (or clears) and objects that arrive from peers.
//!
//! A removal takes effect in this store at once, and at a peer when the peer has answered. Until
//! then the peer may still send removed objects, and such a transfer may arrive after the removal
//! ended. So an object from a peer is kept only if no removal was in progress when it was
//! requested, and none began or ended since.

use std::sync::atomic::Ordering::SeqCst;

use pagelith_io::sync::{Arc, AtomicU64};

/// Removals in progress, and the epoch: how often one began or ended.
#[derive(Default)]
pub(crate) struct Removals {
    in_progress: AtomicU64,
    epoch: AtomicU64,
}

/// An epoch in which no removal was in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quiet(u64);

/// A removal in progress; dropping it ends the removal.
pub(crate) struct Removing(Arc<Removals>);

impl Removals {
    /// Begin a removal. Call this before any of its changes under the core's lock.
    pub fn begin(self: &Arc<Self>) -> Removing {
        self.in_progress.fetch_add(1, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
        Removing(self.clone())
    }

    /// The current epoch, if no removal is in progress.
    pub fn quiet(&self) -> Option<Quiet> {
        let epoch = self.epoch.load(SeqCst);
        (self.in_progress.load(SeqCst) == 0).then_some(Quiet(epoch))
    }

    /// Whether no removal began or ended since `then`, and none is in progress. Call this under the
    /// core's lock: a later removal then finds what was made visible before it.
    pub fn none_since(&self, then: Quiet) -> bool {
        self.quiet() == Some(then)
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        self.0.epoch.fetch_add(1, SeqCst);
        self.0.in_progress.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_invalidates_every_earlier_epoch() {
        let removals = Arc::new(Removals::default());
        let before = removals.quiet().expect("no removal is in progress");
        assert!(removals.none_since(before));
        let removing = removals.begin();
        assert!(removals.quiet().is_none() && !removals.none_since(before));
        let other = removals.begin();
        drop(removing);
        assert!(removals.quiet().is_none());
        drop(other);
        assert!(!removals.none_since(before), "transfers requested before the removal may still arrive");
        let after = removals.quiet().expect("no removal is in progress");
        assert!(removals.none_since(after));
    }
}
