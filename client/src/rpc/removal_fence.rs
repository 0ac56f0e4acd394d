//! Rejects objects that arrive from peers while a removal or clear is in progress.
//!
//! A removal takes effect in this store at once, and at a peer when the peer has answered. Until
//! then the peer may still send removed objects, and such a transfer may arrive after the removal
//! ended. So an object from a peer is kept only if no removal was in progress when it was
//! requested, and none began or ended since.

use std::sync::atomic::Ordering::SeqCst;

use pagelith_io::sync::{Arc, AtomicU64};

/// Removals in progress, and the version: how often one began or ended.
#[derive(Default)]
pub struct RemovalFence {
    in_progress: AtomicU64,
    version: AtomicU64,
}

/// A version at which no removal was in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceVersion(u64);

/// A removal in progress; dropping it ends the removal.
pub struct RemovalGuard(Arc<RemovalFence>);

impl RemovalFence {
    /// Begin a removal. Call this before any of its changes under the core's lock.
    pub fn begin(self: &Arc<Self>) -> RemovalGuard {
        self.in_progress.fetch_add(1, SeqCst);
        self.version.fetch_add(1, SeqCst);
        RemovalGuard(self.clone())
    }

    /// The current version, if no removal is in progress.
    pub fn version_without_removal(&self) -> Option<FenceVersion> {
        let version = self.version.load(SeqCst);
        (self.in_progress.load(SeqCst) == 0).then_some(FenceVersion(version))
    }

    /// Whether no removal began or ended since `then`, and none is in progress. Call this under the
    /// core's lock: a later removal then finds the objects that were made visible before it.
    pub fn is_unchanged_since(&self, then: FenceVersion) -> bool {
        self.version_without_removal() == Some(then)
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        self.0.version.fetch_add(1, SeqCst);
        self.0.in_progress.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_invalidates_every_earlier_epoch() {
        let removals = Arc::new(RemovalFence::default());
        let before = removals.version_without_removal().expect("no removal is in progress");
        assert!(removals.is_unchanged_since(before));
        let removing = removals.begin();
        assert!(
            removals.version_without_removal().is_none() && !removals.is_unchanged_since(before)
        );
        let other = removals.begin();
        drop(removing);
        assert!(removals.version_without_removal().is_none());
        drop(other);
        assert!(
            !removals.is_unchanged_since(before),
            "transfers requested before the removal may still arrive"
        );
        let after = removals.version_without_removal().expect("no removal is in progress");
        assert!(removals.is_unchanged_since(after));
    }
}
