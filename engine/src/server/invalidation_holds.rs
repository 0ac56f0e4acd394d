//! Invalidation holds. While a store notifies its peers of a removal, each peer keeps no objects
//! that arrive from stores, as during a removal of its own ([`crate::rpc::removal_fence`]). So a
//! store cannot get a removed object back from a peer that was not notified yet.
//!
//! Invariants:
//! - A hold belongs to its connection and ends with it, or at the deadline of its request. The
//!   reply to a release tells whether the hold lasted until then.
//! - A hold that arrives after a removal with a higher operation number is refused: an object may
//!   have been kept in between. Links keep the order of frames; this check does not rely on it.
//! - A name is used once: a repeated request does not renew a released hold.

use std::collections::BTreeMap;

use pagelith_io::clock::Mono;
use pagelith_io::sync::Arc;
use pagelith_layouts::ids::OpId;
use pagelith_mutants::{self as mutant, Mutant};

use crate::api::error::{Error, ErrorKind, Result};
use crate::rpc::removal_fence::{RemovalFence, RemovalGuard};
use crate::state::shared::Shared;

/// Maximum number of holds of a connection. A store needs one at a time and may leave one
/// unreleased.
pub(crate) const HOLDS_MAX: usize = 16;

/// The holds of a connection.
#[derive(Default)]
pub(crate) struct InvalidationHolds {
    all: BTreeMap<u64, (Mono, RemovalGuard)>,
    /// The highest name so far.
    last_name: u64,
    /// The highest operation number of a removal so far.
    last_removal: Option<OpId>,
}

impl InvalidationHolds {
    /// Records that operation `id` removes or clears something.
    pub fn note_removal(&mut self, id: OpId) {
        self.last_removal = self.last_removal.max(Some(id));
    }

    /// Begins a hold for operation `id`; the number in its outcome is 0.
    pub fn begin(&mut self, shared: &Shared, id: OpId, name: u64, deadline: Mono) -> Result<u64> {
        shared.check_open()?;
        self.expire(shared.now());
        if name <= self.last_name {
            let last = self.last_name;
            return Err(Error::invalid(format!(
                "hold name was used before on this link name={name} last={last}"
            )));
        }
        if self.last_removal.is_some_and(|removed| removed > id) {
            return Err(Error::new(ErrorKind::Unavailable, "removal arrived before its hold"));
        }
        if self.all.len() >= HOLDS_MAX {
            return Err(Error::busy(format!("too many holds on this link max={HOLDS_MAX}")));
        }
        let detached = || Arc::new(RemovalFence::default());
        let removals = if mutant::on(Mutant::HoldDropped) {
            detached()
        } else {
            shared.remote.removal_fence.clone()
        };
        self.all.insert(name, (deadline, removals.begin()));
        self.last_name = name;
        Ok(0)
    }

    /// Ends a hold; returns 1 if it lasted until now, else 0.
    pub fn release(&mut self, name: u64, now: Mono) -> u64 {
        self.expire(now);
        self.all.remove(&name).map_or(0, |_| 1)
    }

    /// Ends the holds whose deadline is over.
    pub fn expire(&mut self, now: Mono) {
        self.all.retain(|_, (deadline, _)| now < *deadline);
    }

    /// Whether no hold is active.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Ends all holds: the connection has ended.
    pub fn release_all(&mut self) {
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, MachineLimits};
    use crate::store::embedded::Store;

    fn store() -> Store {
        let mut config = Config::default();
        config.dram.bytes = crate::Size::mib(1);
        config.index.max_objects = Some(100);
        Store::open(
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"),
        )
        .expect("opened")
    }

    fn has_no_removal(store: &Store) -> bool {
        store.shared.remote.removal_fence.version_without_removal().is_some()
    }

    #[test]
    fn hold_blocks_fills_until_release_or_disconnect() {
        let store = store();
        let (shared, mut holds) = (&store.shared, InvalidationHolds::default());
        let later = shared.now().after(Duration::from_secs(60));
        let before =
            shared.remote.removal_fence.version_without_removal().expect("nothing is under way");
        for (id, name) in [(1, 5), (2, 7)] {
            assert_eq!(holds.begin(shared, OpId(id), name, later), Ok(0));
        }
        assert_eq!((holds.release(5, shared.now()), has_no_removal(&store)), (1, false));
        assert_eq!((holds.release(7, shared.now()), has_no_removal(&store)), (1, true));
        assert!(
            !shared.remote.removal_fence.is_unchanged_since(before),
            "objects in transit are not kept either"
        );
        // Released and unknown names give the same result.
        assert_eq!((holds.release(7, shared.now()), holds.release(8, shared.now())), (0, 0));
        assert_eq!(holds.begin(shared, OpId(3), 9, later), Ok(0));
        holds.release_all();
        assert_eq!((has_no_removal(&store), holds.release(9, shared.now())), (true, 0));
    }

    #[test]
    fn expired_hold_ends_and_its_release_returns_zero() {
        let store = store();
        let (shared, mut holds) = (&store.shared, InvalidationHolds::default());
        let deadline = shared.now().after(Duration::from_secs(60));
        assert_eq!(holds.begin(shared, OpId(1), 1, deadline), Ok(0));
        holds.expire(Mono(deadline.0 - 1));
        assert!(!has_no_removal(&store));
        assert_eq!(
            (holds.release(1, deadline), has_no_removal(&store), holds.is_empty()),
            (0, true, true)
        );
    }

    #[test]
    fn hold_repeated_out_of_order_or_beyond_the_maximum_is_refused() {
        let store = store();
        let (shared, mut holds) = (&store.shared, InvalidationHolds::default());
        let later = shared.now().after(Duration::from_secs(60));
        let mut refused =
            |id, name| holds.begin(shared, OpId(id), name, later).err().map(|error| error.kind);
        assert_eq!(
            (refused(1, 4), refused(1, 4), refused(2, 3)),
            (None, Some(ErrorKind::Invalid), Some(ErrorKind::Invalid))
        );
        holds.note_removal(OpId(9));
        holds.note_removal(OpId(8));
        let mut refused =
            |id, name| holds.begin(shared, OpId(id), name, later).err().map(|error| error.kind);
        assert_eq!((refused(8, 5), refused(10, 5)), (Some(ErrorKind::Unavailable), None));
        let many =
            (0..HOLDS_MAX as u64).map(|n| refused(11 + n, 6 + n)).filter(Option::is_none).count();
        assert_eq!((many, refused(99, 99)), (HOLDS_MAX - 2, Some(ErrorKind::Busy)));
        // The name of a released hold may not be used again.
        assert_eq!(holds.release(4, shared.now()), 1);
        assert!(holds.begin(shared, OpId(100), 4, later).is_err());
    }
}
