//! Objects that eviction and reclaim must keep: pinned until the pin is released, or leased until a
//! given time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::NamespaceId;

use self::client::{ClientPins, PinTotals};
use self::early::EarlyLeases;
use crate::api::error::Result;

pub(crate) mod client;
pub(crate) mod early;

/// A client that pins over a connection: the name of its key, or of its process.
pub(crate) type ClientName = Arc<str>;

/// An object to be pinned, and the memory that the pin keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PinTarget {
    pub fingerprint: u128,
    pub namespace: NamespaceId,
    /// Identifies its group in memory: a pin keeps the whole group.
    pub group: u128,
    /// Arena bytes that this group takes, or would take.
    pub bytes: u64,
}

/// Least time between two examinations of all leases.
const EXPIRY_STEP: Duration = Duration::from_millis(100);

/// Pinned and leased objects. Keyed by fingerprint: a collision may keep one object too many, never
/// one too few.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    pin_counts: HashMap<u128, u32>,
    leases: HashMap<u128, Lease>,
    /// When [`Pins::expire_due`] looks at the leases next.
    expiry: Option<Mono>,
    /// It does not before this.
    not_before: Mono,
    /// Leases of objects that are not stored yet.
    pub early: EarlyLeases,
    /// Objects pinned or leased for clients. They are also counted in `pin_counts` and `leases`.
    clients: BTreeMap<ClientName, ClientPins>,
    /// Sum over `clients`.
    clients_total: PinTotals,
}

/// An object's lease.
#[derive(Debug)]
struct Lease {
    until: Mono,
    namespace: NamespaceId,
}

impl Pins {
    /// Add a pin.
    pub fn pin(&mut self, fingerprint: u128) {
        *self.pin_counts.entry(fingerprint).or_insert(0) += 1;
    }

    /// Remove a pin.
    pub fn unpin(&mut self, fingerprint: u128) {
        if let Some(count) = self.pin_counts.get_mut(&fingerprint) {
            *count -= 1;
            if *count == 0 {
                self.pin_counts.remove(&fingerprint);
            }
        }
    }

    /// Lease until `deadline`, unless a longer lease exists.
    pub fn lease(&mut self, fingerprint: u128, namespace: NamespaceId, deadline: Mono) {
        let lease = self.leases.entry(fingerprint).or_insert(Lease { until: deadline, namespace });
        lease.until = lease.until.max(deadline);
        let at = deadline.max(self.not_before);
        self.expiry = Some(self.expiry.map_or(at, |expiry| expiry.min(at)));
    }

    /// An object was removed: end its lease.
    pub fn end_lease(&mut self, fingerprint: u128) {
        if self.leases.is_empty() || self.leases.remove(&fingerprint).is_none() {
            return;
        }
        let total = &mut self.clients_total;
        self.clients.retain(|_, client| {
            total.subtract(&client.end_lease(fingerprint));
            !client.is_empty()
        });
    }

    /// A namespace was cleared: end the leases of its objects.
    pub fn end_leases(&mut self, namespace: NamespaceId) {
        let in_namespace = |(fingerprint, lease): (&u128, &Lease)| {
            (lease.namespace == namespace).then_some(*fingerprint)
        };
        let ended: Vec<u128> = self.leases.iter().filter_map(in_namespace).collect();
        ended.into_iter().for_each(|fingerprint| self.end_lease(fingerprint));
        self.early.end(namespace);
    }

    /// Pin for a client, or lease until `lease`. An error if this client would exceed its share of
    /// `most`, or all clients together would exceed `most`.
    pub fn pin_for_client(
        &mut self,
        name: &ClientName,
        targets: &[PinTarget],
        lease: Option<Mono>,
        most: &PinTotals,
    ) -> Result<()> {
        let client = self.clients.entry(name.clone()).or_default();
        let additional = client.additional(targets);
        if let Err(error) =
            client.totals().check(&additional, &most.share_of_client(), "this client")
        {
            self.remove_idle(name);
            return Err(error);
        }
        if let Err(error) = self.clients_total.check(&additional, most, "all clients") {
            self.remove_idle(name);
            return Err(error);
        }
        self.clients_total.add(&additional);
        for target in targets {
            client_entry(&mut self.clients, name).keep(target, lease);
            match lease {
                Some(until) => self.lease(target.fingerprint, target.namespace, until),
                None => self.pin(target.fingerprint),
            }
        }
        Ok(())
    }

    /// Remove pins of a client.
    pub fn release_for_client(&mut self, name: &ClientName, fingerprints: &[u128]) {
        for fingerprint in fingerprints {
            self.unpin(*fingerprint);
            let released = client_entry(&mut self.clients, name).unpin(*fingerprint);
            self.clients_total.subtract(&released);
        }
        self.remove_idle(name);
    }

    fn remove_idle(&mut self, name: &ClientName) {
        if self.clients.get(name).is_some_and(ClientPins::is_empty) {
            self.clients.remove(name);
        }
    }

    /// End expired leases.
    pub fn expire(&mut self, now: Mono) {
        self.leases.retain(|_, lease| lease.until > now);
        let next = self.leases.values().map(|lease| lease.until).min();
        self.not_before = now.after(EXPIRY_STEP);
        self.expiry = next.map(|until| until.max(self.not_before));
        self.early.expire(now);
        let total = &mut self.clients_total;
        self.clients.retain(|_, client| {
            total.subtract(&client.expire(now));
            !client.is_empty()
        });
    }

    /// As [`Pins::expire`], at most once in a step of time: all leases are examined.
    pub fn expire_step(&mut self, now: Mono) {
        if now >= self.not_before {
            self.expire(now);
        }
    }

    /// End expired leases before memory is needed, so that their objects do not outlast others: not
    /// at each call, because all leases are examined. Without leases it needs no time.
    pub fn expire_due(&mut self, now: impl FnOnce() -> Mono) {
        let Some(expiry) = self.expiry else { return };
        let now = now();
        if expiry <= now {
            self.expire(now);
        }
    }

    /// Numbers of pinned objects and of leased objects.
    pub fn count(&self) -> (usize, usize) {
        (self.pin_counts.len(), self.leases.len())
    }

    /// Whether any object is pinned or leased.
    pub fn any(&self) -> bool {
        !(self.pin_counts.is_empty() && self.leases.is_empty())
    }

    /// Whether an object must be kept. A lease counts until [`Pins::expire`] ends it.
    pub fn is_pinned(&self, fingerprint: u128) -> bool {
        self.pin_counts.contains_key(&fingerprint) || self.leases.contains_key(&fingerprint)
    }
}

fn client_entry<'a>(
    clients: &'a mut BTreeMap<ClientName, ClientPins>,
    name: &ClientName,
) -> &'a mut ClientPins {
    clients.entry(name.clone()).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

    #[test]
    fn pin_until_last_unpin_keeps_object() {
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
    fn longest_lease_counts_and_expires() {
        let mut p = Pins::default();
        p.lease(7, NAMESPACE, Mono(10));
        p.lease(7, NAMESPACE, Mono(5));
        p.expire(Mono(9));
        assert!(p.is_pinned(7));
        p.expire(Mono(10));
        assert!(!p.is_pinned(7));
    }

    #[test]
    fn due_leases_end_at_most_once_in_a_step() {
        let (mut p, step) = (Pins::default(), EXPIRY_STEP.as_nanos() as u64);
        p.expire_due(|| panic!("without leases no time is needed"));
        p.lease(1, NAMESPACE, Mono(10));
        p.lease(2, NAMESPACE, Mono(20));
        p.expire_due(|| Mono(9));
        assert_eq!(p.count(), (0, 2));
        p.expire_due(|| Mono(10));
        assert_eq!(p.count(), (0, 1));
        p.lease(3, NAMESPACE, Mono(15));
        p.expire_due(|| Mono(20));
        assert_eq!(p.count(), (0, 2), "examined a moment ago");
        p.expire_due(|| Mono(10 + step));
        assert_eq!((p.count(), p.expiry), ((0, 0), None));
    }

    fn target(fingerprint: u128, group: u128) -> PinTarget {
        PinTarget { fingerprint, namespace: NAMESPACE, group, bytes: 4096 }
    }

    #[test]
    fn removal_of_leased_object_ends_lease() {
        let mut p = Pins::default();
        let (name, most) = (ClientName::from("a"), PinTotals { objects: 100, bytes: 100 * 4096 });
        for (fingerprint, namespace) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            let namespace = NamespaceId([namespace; 16]);
            let target = PinTarget { namespace, ..target(fingerprint, fingerprint) };
            p.pin_for_client(&name, &[target], Some(Mono(10)), &most)
                .expect("within the client's share");
        }
        p.end_leases(NAMESPACE);
        p.end_lease(3);
        assert!(p.is_pinned(4) && p.count() == (0, 1));
        assert_eq!(
            p.clients_total,
            PinTotals { objects: 1, bytes: 4096 },
            "the client's share is released"
        );
    }

    #[test]
    fn client_and_total_limits_are_enforced() {
        let mut p = Pins::default();
        let most = PinTotals { objects: 100, bytes: 40 * 4096 };
        let names: Vec<ClientName> = ["a", "b", "c"].map(Arc::from).into();
        let keep = |p: &mut Pins, client: usize, from: u128, count: u128, lease: Option<u64>| {
            let targets: Vec<PinTarget> = (from..from + count).map(|n| target(n, n)).collect();
            p.pin_for_client(&names[client], &targets, lease.map(Mono), &most).is_ok()
        };
        // Half of the limit for all. The same objects again count once for a client, and again for
        // another client.
        assert!(keep(&mut p, 0, 0, 20, None) && !keep(&mut p, 0, 20, 1, None));
        assert!(keep(&mut p, 0, 0, 20, Some(10)) && keep(&mut p, 1, 0, 20, Some(10)));
        assert!(!keep(&mut p, 2, 0, 1, None), "the limit for all clients");
        // Unpinned objects stay leased until the lease expires.
        p.release_for_client(&names[0], &(0..20).collect::<Vec<_>>());
        assert!(!keep(&mut p, 2, 0, 1, None) && p.is_pinned(0));
        p.expire(Mono(10));
        assert!(keep(&mut p, 2, 0, 1, None) && p.clients.len() == 1);
        p.release_for_client(&names[2], &[0]);
        assert_eq!(
            (p.clients_total, p.clients.len(), p.count()),
            (PinTotals::default(), 0, (0, 0))
        );
    }

    #[test]
    fn group_counts_once_while_any_member_is_pinned() {
        let mut p = Pins::default();
        let (name, most) = (ClientName::from("a"), PinTotals { objects: 100, bytes: 100 * 4096 });
        let big = |fingerprint| PinTarget {
            fingerprint,
            namespace: NAMESPACE,
            group: 1,
            bytes: 50 * 4096,
        };
        p.pin_for_client(&name, &[big(1)], None, &most).expect("within the client's share");
        p.pin_for_client(&name, &[big(2), big(2)], None, &most)
            .expect("the group is counted already");
        p.release_for_client(&name, &[1]);
        assert!(
            p.pin_for_client(&name, &[target(9, 9)], None, &most).is_err(),
            "object 2 still keeps the whole group"
        );
        p.release_for_client(&name, &[2]);
        assert!(
            p.pin_for_client(&name, &[target(9, 9)], None, &most).is_err(),
            "object 2 was pinned twice"
        );
        p.release_for_client(&name, &[2]);
        p.pin_for_client(&name, &[target(9, 9)], None, &most).expect("within the limit");
    }
}
