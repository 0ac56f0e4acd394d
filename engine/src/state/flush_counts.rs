//! Counts for flush reports: objects that became durable, were refused or were lost. They are kept
//! for the whole store, and for each namespace to which some client is restricted.
//!
//! Invariant: counts only grow, and each reporter remembers the counts of its last report. So a
//! report to one reporter takes nothing from another, and a restricted client learns about its own
//! namespaces only.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::NamespaceId;

use crate::api::outcome::FlushReport;

/// Most disconnected clients of one key whose last report is remembered: a process may return over
/// another connection. The limit is per key, because a client chooses its process name but not its
/// key.
const DISCONNECTED_MAX: usize = 1024;

/// The counts, and the last report to each reporter.
#[derive(Debug, Default)]
pub(crate) struct FlushCounts {
    all: FlushReport,
    /// Counts of each namespace to which some client is restricted.
    by_namespace: BTreeMap<NamespaceId, FlushReport>,
    /// Counts last reported to the embedding process, and to any reporter that sees all namespaces.
    to_embedder: FlushReport,
    to_unrestricted: FlushReport,
    /// Clients, by key and then by process name.
    clients: BTreeMap<String, BTreeMap<String, Reporter>>,
    unlinks: u64,
}

/// A client that receives reports.
#[derive(Debug)]
struct Reporter {
    /// Namespaces that it may see; `None` for all.
    namespaces: Option<BTreeSet<NamespaceId>>,
    last: FlushReport,
    links: u32,
    /// Value of `FlushCounts::unlinks` when its last connection closed.
    unlinked_at: u64,
}

impl FlushCounts {
    /// Add objects of a namespace that became durable, were refused or were lost.
    pub fn add(&mut self, namespace: NamespaceId, counts: &FlushReport) {
        add(&mut self.all, counts);
        if let Some(of) = self.by_namespace.get_mut(&namespace) {
            add(of, counts);
        }
    }

    /// All counts since the last report to the embedding process.
    pub fn report(&mut self) -> FlushReport {
        let since = since(&self.all, &self.to_embedder);
        (self.to_embedder, self.to_unrestricted) = (self.all, self.all);
        since
    }

    /// All counts since the last report to any unrestricted reporter: the last report of a store.
    pub fn last_report(&mut self) -> FlushReport {
        self.to_embedder = self.to_unrestricted;
        self.report()
    }

    /// A client connects: its reports begin now, or at its last report if it is remembered.
    pub fn link(&mut self, client: &str, namespaces: Option<&BTreeSet<NamespaceId>>) {
        namespaces
            .into_iter()
            .flatten()
            .for_each(|namespace| _ = self.by_namespace.entry(*namespace).or_default());
        let last = self.now(namespaces);
        let reporter =
            || Reporter { namespaces: namespaces.cloned(), last, links: 0, unlinked_at: 0 };
        let (key, process) = parts(client);
        let of_key = self.clients.entry(key.to_owned()).or_default();
        of_key.entry(process.to_owned()).or_insert_with(reporter).links += 1;
    }

    /// One of a client's connections closed.
    pub fn unlink(&mut self, client: &str) {
        self.unlinks += 1;
        let (key, process) = parts(client);
        let Some(of_key) = self.clients.get_mut(key) else { return };
        let Some(reporter) = of_key.get_mut(process) else { return };
        reporter.links = reporter.links.saturating_sub(1);
        reporter.unlinked_at = self.unlinks;
        let disconnected = || of_key.iter().filter(|(_, reporter)| reporter.links == 0);
        if disconnected().count() > DISCONNECTED_MAX
            && let Some(oldest) = disconnected()
                .min_by_key(|(_, reporter)| reporter.unlinked_at)
                .map(|(process, _)| process.clone())
        {
            of_key.remove(&oldest);
        }
    }

    /// The counts that a client may see, since its last report.
    pub fn report_to(&mut self, client: &str) -> FlushReport {
        let namespaces = self.reporter(client).map(|reporter| reporter.namespaces.clone());
        let Some(namespaces) = namespaces else { return FlushReport::default() };
        let now = self.now(namespaces.as_ref());
        let Some(reporter) = self.reporter(client) else { return FlushReport::default() };
        let since = since(&now, &std::mem::replace(&mut reporter.last, now));
        if namespaces.is_none() {
            self.to_unrestricted = now;
        }
        since
    }

    fn reporter(&mut self, client: &str) -> Option<&mut Reporter> {
        let (key, process) = parts(client);
        self.clients.get_mut(key)?.get_mut(process)
    }

    fn now(&self, namespaces: Option<&BTreeSet<NamespaceId>>) -> FlushReport {
        let Some(namespaces) = namespaces else { return self.all };
        let mut sum = FlushReport::default();
        namespaces
            .iter()
            .filter_map(|namespace| self.by_namespace.get(namespace))
            .for_each(|of| add(&mut sum, of));
        sum
    }
}

/// The key of a client and its process name, which follows the last slash.
fn parts(client: &str) -> (&str, &str) {
    client.rsplit_once('/').unwrap_or(("", client))
}

fn add(to: &mut FlushReport, more: &FlushReport) {
    to.durable_objects += more.durable_objects;
    to.durable_bytes += more.durable_bytes;
    to.refused_objects += more.refused_objects;
    to.lost_objects += more.lost_objects;
}

fn since(now: &FlushReport, then: &FlushReport) -> FlushReport {
    let mut grown = *now;
    let fall = |count: &mut u64, by: u64| *count = count.saturating_sub(by);
    fall(&mut grown.durable_objects, then.durable_objects);
    fall(&mut grown.durable_bytes, then.durable_bytes);
    fall(&mut grown.refused_objects, then.refused_objects);
    fall(&mut grown.lost_objects, then.lost_objects);
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NamespaceId = NamespaceId([1; 16]);
    const B: NamespaceId = NamespaceId([2; 16]);

    fn lost(objects: u64) -> FlushReport {
        FlushReport::lost(objects)
    }

    #[test]
    fn report_has_only_namespaces_of_its_client_and_leaves_other_reports() {
        let mut counts = FlushCounts::default();
        let only = |namespace| BTreeSet::from([namespace]);
        counts.link("a", Some(&only(A)));
        counts.link("b", Some(&only(B)));
        counts.link("all", None);
        counts.add(A, &lost(3));
        counts.add(B, &lost(5));
        for (client, of) in [("a", 3), ("b", 5), ("all", 8)] {
            assert_eq!(
                [counts.report_to(client), counts.report_to(client)],
                [lost(of), lost(0)],
                "{client}"
            );
        }
        assert_eq!([counts.report(), counts.report()], [lost(8), lost(0)]);
        assert_eq!(counts.report_to("unknown"), lost(0));
    }

    #[test]
    fn losses_after_first_link_are_reported_to_client_once() {
        let mut counts = FlushCounts::default();
        counts.add(A, &lost(1));
        counts.link("a", None);
        assert_eq!(counts.report_to("a"), lost(0), "added before the client connected");
        counts.add(A, &lost(2));
        counts.unlink("a");
        counts.link("a", None);
        counts.link("a", None);
        assert_eq!([counts.report_to("a"), counts.report_to("a")], [lost(2), lost(0)]);
    }

    #[test]
    fn last_report_has_losses_not_reported_to_an_unrestricted_client() {
        let mut counts = FlushCounts::default();
        counts.link("all", None);
        counts.link("a", Some(&BTreeSet::from([A])));
        counts.add(A, &lost(1));
        counts.report_to("all");
        counts.add(A, &lost(2));
        counts.report_to("a");
        assert_eq!(counts.last_report(), lost(2));
    }

    #[test]
    fn disconnected_clients_of_one_key_evict_none_of_another_key() {
        let mut counts = FlushCounts::default();
        let only = |namespace| BTreeSet::from([namespace]);
        for client in ["a/1", "a/b/1", "/1"] {
            counts.link(client, Some(&only(A)));
            counts.unlink(client);
        }
        counts.add(A, &lost(3));
        for n in 0..DISCONNECTED_MAX + 10 {
            let client = format!("b/{n}");
            counts.link(&client, Some(&only(B)));
            counts.unlink(&client);
        }
        for client in ["a/1", "a/b/1", "/1"] {
            counts.link(client, Some(&only(A)));
            assert_eq!(counts.report_to(client), lost(3), "{client}");
        }
    }

    #[test]
    fn oldest_disconnected_client_is_forgotten_first() {
        let mut counts = FlushCounts::default();
        for n in 0..DISCONNECTED_MAX + 10 {
            counts.link(&n.to_string(), None);
            counts.unlink(&n.to_string());
        }
        let of_key = &counts.clients[""];
        assert_eq!((of_key.len(), of_key.contains_key("9")), (DISCONNECTED_MAX, false));
    }
}
