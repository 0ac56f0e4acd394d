//! Pins and leases: "not now" to eviction and reclaim.

use std::collections::HashMap;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::NamespaceId;

/// Which objects may not leave. By fingerprint: a pin may hold one object too many, never one too few.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    held: HashMap<u128, u32>,
    leases: HashMap<u128, Lease>,
}

/// Until when an object is leased, and whose it is.
#[derive(Debug)]
struct Lease {
    until: Mono,
    namespace: NamespaceId,
}

impl Pins {
    /// Pin once more.
    pub fn pin(&mut self, fingerprint: u128) {
        *self.held.entry(fingerprint).or_insert(0) += 1;
    }

    /// Take one pin back.
    pub fn unpin(&mut self, fingerprint: u128) {
        if let Some(count) = self.held.get_mut(&fingerprint) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&fingerprint);
            }
        }
    }

    /// Pin until `deadline`, or longer if it is leased longer.
    pub fn lease(&mut self, fingerprint: u128, namespace: NamespaceId, deadline: Mono) {
        let lease = self.leases.entry(fingerprint).or_insert(Lease { until: deadline, namespace });
        lease.until = lease.until.max(deadline);
    }

    /// An object is gone for good.
    pub fn end_lease(&mut self, fingerprint: u128) {
        if !self.leases.is_empty() {
            self.leases.remove(&fingerprint);
        }
    }

    /// All objects of a namespace are.
    pub fn end_leases(&mut self, namespace: NamespaceId) {
        self.leases.retain(|_, lease| lease.namespace != namespace);
    }

    /// Forget leases that are over.
    pub fn expire(&mut self, now: Mono) {
        self.leases.retain(|_, lease| lease.until > now);
    }

    /// How many objects are pinned, and how many leased.
    pub fn count(&self) -> (usize, usize) {
        (self.held.len(), self.leases.len())
    }

    /// Whether anything is pinned or leased.
    pub fn are_any(&self) -> bool {
        !(self.held.is_empty() && self.leases.is_empty())
    }

    /// Whether an object may not leave. Leases count until [`Pins::expire`] has seen their end.
    pub fn is_pinned(&self, fingerprint: u128) -> bool {
        self.held.contains_key(&fingerprint) || self.leases.contains_key(&fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

    #[test]
    fn every_pin_is_taken_back_by_itself() {
        let mut p = Pins::default();
        p.pin(7);
        p.pin(7);
        p.unpin(7);
        assert!(p.is_pinned(7));
        p.unpin(7);
        assert!(!p.is_pinned(7));
        p.unpin(7);
    }

    #[test]
    fn a_lease_ends_by_itself_and_the_longest_counts() {
        let mut p = Pins::default();
        p.lease(7, NAMESPACE, Mono(10));
        p.lease(7, NAMESPACE, Mono(5));
        p.expire(Mono(9));
        assert!(p.is_pinned(7));
        p.expire(Mono(10));
        assert!(!p.is_pinned(7));
    }

    #[test]
    fn leases_of_what_is_gone_are_over() {
        let mut p = Pins::default();
        for (fingerprint, namespace) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            p.lease(fingerprint, NamespaceId([namespace; 16]), Mono(10));
        }
        p.end_leases(NAMESPACE);
        p.end_lease(3);
        assert!(p.is_pinned(4) && p.count() == (0, 1));
    }
}
