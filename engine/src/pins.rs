//! Pins and leases: "not now" to eviction and reclaim.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::NamespaceId;

use self::client::{Client, Totals};
use crate::error::Result;

pub(crate) mod client;

/// A client that pins over a link: the name of its key, or of its process.
pub(crate) type ClientName = Arc<str>;

/// An object to be pinned, and what it keeps in memory with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub fingerprint: u128,
    pub namespace: NamespaceId,
    /// Tells its group in memory, of which it keeps all, from others.
    pub group: u128,
    /// Bytes of the arena that this takes, or would.
    pub bytes: u64,
}

/// Which objects may not leave. By fingerprint: a pin may hold one object too many, never one too few.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    held: HashMap<u128, u32>,
    leases: HashMap<u128, Lease>,
    /// Objects that are held for clients, also among the others.
    clients: BTreeMap<ClientName, Client>,
    all: Totals,
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
        if self.leases.is_empty() || self.leases.remove(&fingerprint).is_none() {
            return;
        }
        let all = &mut self.all;
        self.clients.retain(|_, client| {
            all.take(&client.end_lease(fingerprint));
            !client.holds_nothing()
        });
    }

    /// All objects of a namespace are.
    pub fn end_leases(&mut self, namespace: NamespaceId) {
        let of =
            |(fingerprint, lease): (&u128, &Lease)| (lease.namespace == namespace).then_some(*fingerprint);
        let gone: Vec<u128> = self.leases.iter().filter_map(of).collect();
        gone.into_iter().for_each(|fingerprint| self.end_lease(fingerprint));
    }

    /// Pin for a client, or until `lease`; an error if this client, or all together, would hold more than `most`.
    pub fn hold(
        &mut self,
        name: &ClientName,
        rows: &[Row],
        lease: Option<Mono>,
        most: &Totals,
    ) -> Result<()> {
        let client = self.clients.entry(name.clone()).or_default();
        let more = client.more(rows);
        if let Err(error) = client.totals().check(&more, &most.share_of_client(), "this client") {
            self.forget_idle(name);
            return Err(error);
        }
        if let Err(error) = self.all.check(&more, most, "all clients") {
            self.forget_idle(name);
            return Err(error);
        }
        self.all.add(&more);
        for row in rows {
            client_of(&mut self.clients, name).hold(row, lease);
            match lease {
                Some(until) => self.lease(row.fingerprint, row.namespace, until),
                None => self.pin(row.fingerprint),
            }
        }
        Ok(())
    }

    /// Take pins of a client's back.
    pub fn let_go(&mut self, name: &ClientName, fingerprints: &[u128]) {
        for fingerprint in fingerprints {
            self.unpin(*fingerprint);
            let less = client_of(&mut self.clients, name).let_go(*fingerprint);
            self.all.take(&less);
        }
        self.forget_idle(name);
    }

    fn forget_idle(&mut self, name: &ClientName) {
        if self.clients.get(name).is_some_and(Client::holds_nothing) {
            self.clients.remove(name);
        }
    }

    /// Forget leases that are over.
    pub fn expire(&mut self, now: Mono) {
        self.leases.retain(|_, lease| lease.until > now);
        let all = &mut self.all;
        self.clients.retain(|_, client| {
            all.take(&client.expire(now));
            !client.holds_nothing()
        });
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

fn client_of<'a>(clients: &'a mut BTreeMap<ClientName, Client>, name: &ClientName) -> &'a mut Client {
    clients.entry(name.clone()).or_default()
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

    fn row(fingerprint: u128, group: u128) -> Row {
        Row { fingerprint, namespace: NAMESPACE, group, bytes: 4096 }
    }

    #[test]
    fn leases_of_what_is_gone_are_over() {
        let mut p = Pins::default();
        let (name, most) = (ClientName::from("a"), Totals { objects: 100, bytes: 100 * 4096 });
        for (fingerprint, namespace) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            let row = Row { namespace: NamespaceId([namespace; 16]), ..row(fingerprint, fingerprint) };
            p.hold(&name, &[row], Some(Mono(10)), &most).expect("its share");
        }
        p.end_leases(NAMESPACE);
        p.end_lease(3);
        assert!(p.is_pinned(4) && p.count() == (0, 1));
        assert_eq!(p.all, Totals { objects: 1, bytes: 4096 }, "the client has its share again");
    }

    #[test]
    fn client_holds_its_share_and_all_together_theirs() {
        let mut p = Pins::default();
        let most = Totals { objects: 100, bytes: 40 * 4096 };
        let names: Vec<ClientName> = ["a", "b", "c"].map(Arc::from).into();
        let hold = |p: &mut Pins, client: usize, from: u128, count: u128, lease: Option<u64>| {
            let rows: Vec<Row> = (from..from + count).map(|n| row(n, n)).collect();
            p.hold(&names[client], &rows, lease.map(Mono), &most).is_ok()
        };
        // Half of what all may; the same objects again take nothing more, another client's do.
        assert!(hold(&mut p, 0, 0, 20, None) && !hold(&mut p, 0, 20, 1, None));
        assert!(hold(&mut p, 0, 0, 20, Some(10)) && hold(&mut p, 1, 0, 20, Some(10)));
        assert!(!hold(&mut p, 2, 0, 1, None), "all together");
        // Objects that are let go are leased still, and leases end by themselves.
        p.let_go(&names[0], &(0..20).collect::<Vec<_>>());
        assert!(!hold(&mut p, 2, 0, 1, None) && p.is_pinned(0));
        p.expire(Mono(10));
        assert!(hold(&mut p, 2, 0, 1, None) && p.clients.len() == 1);
        p.let_go(&names[2], &[0]);
        assert_eq!((p.all, p.clients.len(), p.count()), (Totals::default(), 0, (0, 0)));
    }

    #[test]
    fn group_counts_once_and_as_long_as_one_of_it_is_held() {
        let mut p = Pins::default();
        let (name, most) = (ClientName::from("a"), Totals { objects: 100, bytes: 100 * 4096 });
        let big = |fingerprint| Row { fingerprint, namespace: NAMESPACE, group: 1, bytes: 50 * 4096 };
        p.hold(&name, &[big(1)], None, &most).expect("its share");
        p.hold(&name, &[big(2), big(2)], None, &most).expect("no more than the one");
        p.let_go(&name, &[1]);
        assert!(p.hold(&name, &[row(9, 9)], None, &most).is_err(), "all of it is kept by the other");
        p.let_go(&name, &[2]);
        assert!(p.hold(&name, &[row(9, 9)], None, &most).is_err(), "it was pinned twice");
        p.let_go(&name, &[2]);
        p.hold(&name, &[row(9, 9)], None, &most).expect("room");
    }
}
