//! Removals and clears under way, for who is about to make visible here what a peer had a moment ago.
//!
//! A removal is invisible here at once, and at the peer when that has answered. Until then the peer may send what is removed, and what it
//! sent may be on its way still when the removal has ended. So what a peer sent is kept only if no removal was under way when it was asked
//! for, nor began or ended since.

use std::sync::atomic::Ordering::SeqCst;

use pagelith_io::sync::{Arc, AtomicU64};

/// How many are under way, and how often one began or ended.
#[derive(Default)]
pub(crate) struct Removals {
    under_way: AtomicU64,
    turns: AtomicU64,
}

/// A moment at which none was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quiet(u64);

/// One that is under way until it is dropped.
pub(crate) struct Removing(Arc<Removals>);

impl Removals {
    /// One begins: before anything of it is done under the core's lock.
    pub fn begin(self: &Arc<Self>) -> Removing {
        self.under_way.fetch_add(1, SeqCst);
        self.turns.fetch_add(1, SeqCst);
        Removing(self.clone())
    }

    /// This moment, if none is under way.
    pub fn quiet(&self) -> Option<Quiet> {
        let turns = self.turns.load(SeqCst);
        (self.under_way.load(SeqCst) == 0).then_some(Quiet(turns))
    }

    /// Whether none began or ended since, and none is under way. Under the core's lock: what begins later finds what was made visible
    /// before.
    pub fn none_since(&self, then: Quiet) -> bool {
        self.quiet() == Some(then)
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        self.0.turns.fetch_add(1, SeqCst);
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_ends_every_quiet_moment_before_its_end() {
        let removals = Arc::new(Removals::default());
        let before = removals.quiet().expect("none is under way");
        assert!(removals.none_since(before));
        let removing = removals.begin();
        assert!(removals.quiet().is_none() && !removals.none_since(before));
        let other = removals.begin();
        drop(removing);
        assert!(removals.quiet().is_none());
        drop(other);
        assert!(!removals.none_since(before), "it has ended, and what was asked for before may come still");
        let after = removals.quiet().expect("none is under way");
        assert!(removals.none_since(after));
    }
}
