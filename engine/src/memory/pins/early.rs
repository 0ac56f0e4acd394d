//! Leases of objects that are not stored yet: each begins when its object is.

use std::collections::HashMap;
use std::sync::Arc;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::NamespaceId;

use crate::api::error::{Error, Result};

/// Objects in all, and those of one client. An object takes some 100 bytes.
pub(crate) const OBJECTS_MAX: usize = 65_536;
pub(crate) const CLIENT_OBJECTS_MAX: usize = OBJECTS_MAX / 4;

/// A lease that begins when its object is stored.
#[derive(Clone, Debug)]
pub(crate) struct EarlyLease {
    /// Name of its client.
    pub client: Arc<str>,
    pub until: Mono,
    namespace: NamespaceId,
}

/// Leases of absent objects, by fingerprint. Of several leases of one object the first holder's
/// counts, for the longest of their times.
#[derive(Debug, Default)]
pub(crate) struct EarlyLeases {
    leases: HashMap<u128, EarlyLease>,
    of_clients: HashMap<Arc<str>, usize>,
}

impl EarlyLeases {
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// `Busy` if leases of these objects would be too many.
    pub fn check(&self, client: &Arc<str>, fingerprints: &[u128]) -> Result<()> {
        let is_new = |fingerprint: &&u128| !self.leases.contains_key(fingerprint);
        let more = fingerprints.iter().filter(is_new).count();
        let own = self.of_clients.get(client).copied().unwrap_or(0) + more;
        let all = self.leases.len() + more;
        if more > 0 && (own > CLIENT_OBJECTS_MAX || all > OBJECTS_MAX) {
            return Err(Error::busy(format!(
                "too many objects are retained before their put more_objects={more} client_objects={own} client_max={CLIENT_OBJECTS_MAX} objects={all} max={OBJECTS_MAX}"
            )));
        }
        Ok(())
    }

    /// Add leases of objects of one namespace, within the bounds of [`EarlyLeases::check`].
    pub fn add(
        &mut self,
        client: &Arc<str>,
        namespace: NamespaceId,
        fingerprints: &[u128],
        until: Mono,
    ) {
        for fingerprint in fingerprints {
            let new = || EarlyLease { client: client.clone(), until, namespace };
            let before = self.leases.len();
            let lease = self.leases.entry(*fingerprint).or_insert_with(new);
            lease.until = lease.until.max(until);
            if self.leases.len() > before {
                *self.of_clients.entry(client.clone()).or_default() += 1;
            }
        }
    }

    /// An object is stored: take its lease, unless it has expired.
    pub fn take(&mut self, fingerprint: u128, now: Mono) -> Option<EarlyLease> {
        let lease = self.leases.remove(&fingerprint)?;
        self.released(&lease.client);
        Some(lease).filter(|lease| lease.until > now)
    }

    /// Drop expired leases.
    pub fn expire(&mut self, now: Mono) {
        self.retain(|lease| lease.until > now);
    }

    /// Drop the leases of a namespace.
    pub fn end(&mut self, namespace: NamespaceId) {
        self.retain(|lease| lease.namespace != namespace);
    }

    fn retain(&mut self, mut stays: impl FnMut(&EarlyLease) -> bool) {
        let ended: Vec<u128> =
            self.leases.iter().filter(|(_, lease)| !stays(lease)).map(|(key, _)| *key).collect();
        for fingerprint in ended {
            if let Some(lease) = self.leases.remove(&fingerprint) {
                self.released(&lease.client);
            }
        }
    }

    fn released(&mut self, client: &Arc<str>) {
        if let Some(count) = self.of_clients.get_mut(client) {
            *count -= 1;
            if *count == 0 {
                self.of_clients.remove(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 16]);

    impl EarlyLeases {
        fn try_add(&mut self, client: &Arc<str>, fingerprints: &[u128], until: u64) -> Result<()> {
            self.check(client, fingerprints)?;
            self.add(client, NAMESPACE, fingerprints, Mono(until));
            Ok(())
        }
    }

    #[test]
    fn lease_is_taken_once_and_not_after_its_time() {
        let (mut early, client) = (EarlyLeases::default(), Arc::<str>::from("a"));
        early.try_add(&client, &[1, 2], 10).expect("few");
        early.try_add(&Arc::<str>::from("b"), &[2], 20).expect("few");
        assert!(early.take(1, Mono(9)).is_some() && early.take(1, Mono(9)).is_none());
        let lease = early.take(2, Mono(15)).expect("the longer time");
        assert_eq!((&*lease.client, lease.until), ("a", Mono(20)));
        early.try_add(&client, &[3], 10).expect("few");
        assert!(early.take(3, Mono(10)).is_none());
        assert!(early.is_empty() && early.of_clients.is_empty());
    }

    #[test]
    fn leases_end_with_their_time_or_namespace() {
        let (mut early, client) = (EarlyLeases::default(), Arc::<str>::from("a"));
        for (fingerprint, namespace, until) in [(1, 1, 10), (2, 1, 20), (3, 2, 20)] {
            let namespace = NamespaceId([namespace; 16]);
            early.add(&client, namespace, &[fingerprint], Mono(until));
        }
        early.expire(Mono(10));
        assert!(early.take(1, Mono(0)).is_none());
        early.end(NAMESPACE);
        assert!(early.take(2, Mono(0)).is_none() && early.take(3, Mono(0)).is_some());
    }

    #[test]
    fn leases_beyond_the_bounds_are_refused_whole() {
        let mut early = EarlyLeases::default();
        let most = CLIENT_OBJECTS_MAX as u128;
        let objects = |from: u128, count: u128| (from..from + count).collect::<Vec<_>>();
        for client in 0..4 {
            let name = Arc::<str>::from(client.to_string());
            let from = client * most;
            early.try_add(&name, &objects(from, most), 10).expect("a quarter");
            let refused = early.try_add(&name, &objects(from, most + 1), 10);
            assert!(refused.is_err(), "one more");
            early.try_add(&name, &objects(from, most), 10).expect("the same again");
        }
        let fifth = Arc::<str>::from("fifth");
        assert!(early.try_add(&fifth, &objects(4 * most, 1), 10).is_err(), "all");
        early.expire(Mono(10));
        early.try_add(&fifth, &objects(4 * most, 1), 20).expect("room");
    }
}
