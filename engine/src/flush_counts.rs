//! Counts that reports of flushes are made of: objects that became durable, were refused or were lost, of the whole store and of namespaces whose clients
//! may hear of nothing else.
//!
//! Invariant: counts only grow, and each reporter remembers what it was told last. So nobody takes a report from anybody else, and who may
//! hear of some namespaces hears of those alone.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::NamespaceId;

use crate::outcome::FlushReport;

/// Most clients that are gone whose last report is remembered: a process may come back over another link.
const GONE_MAX: usize = 1024;

/// Counts, and who was told what of them.
#[derive(Debug, Default)]
pub(crate) struct FlushCounts {
    all: FlushReport,
    /// Of the namespaces that some client is restricted to.
    of: BTreeMap<NamespaceId, FlushReport>,
    /// Counts that the embedding process was told, and those that anybody was told who hears of everything.
    own: FlushReport,
    everything: FlushReport,
    clients: BTreeMap<String, Told>,
    turns: u64,
}

/// Counts that a client was told.
#[derive(Debug)]
struct Told {
    /// Namespaces that it may hear of; `None` for everything.
    namespaces: Option<BTreeSet<NamespaceId>>,
    last: FlushReport,
    links: u32,
    /// When its last link went.
    left: u64,
}

impl FlushCounts {
    /// Objects of a namespace became durable, were refused or were lost.
    pub fn add(&mut self, namespace: NamespaceId, counts: &FlushReport) {
        add(&mut self.all, counts);
        if let Some(of) = self.of.get_mut(&namespace) {
            add(of, counts);
        }
    }

    /// All that happened since the embedding process was told last.
    pub fn report(&mut self) -> FlushReport {
        let since = since(&self.all, &self.own);
        (self.own, self.everything) = (self.all, self.all);
        since
    }

    /// All that happened since anybody was told who hears of everything: for the last report of all.
    pub fn last_report(&mut self) -> FlushReport {
        self.own = self.everything;
        self.report()
    }

    /// A client has a link: it hears of what happens from now on, or since it was told last.
    pub fn link(&mut self, client: &str, namespaces: Option<&BTreeSet<NamespaceId>>) {
        namespaces.into_iter().flatten().for_each(|namespace| _ = self.of.entry(*namespace).or_default());
        let last = self.now(namespaces);
        let told = || Told { namespaces: namespaces.cloned(), last, links: 0, left: 0 };
        self.clients.entry(client.to_owned()).or_insert_with(told).links += 1;
    }

    /// One of its links is gone.
    pub fn unlink(&mut self, client: &str) {
        self.turns += 1;
        let Some(told) = self.clients.get_mut(client) else { return };
        told.links = told.links.saturating_sub(1);
        told.left = self.turns;
        let gone = || self.clients.iter().filter(|(_, told)| told.links == 0);
        if gone().count() > GONE_MAX
            && let Some(oldest) = gone().min_by_key(|(_, told)| told.left).map(|(client, _)| client.clone())
        {
            self.clients.remove(&oldest);
        }
    }

    /// All that happened, of what a client may hear, since it was told last.
    pub fn report_to(&mut self, client: &str) -> FlushReport {
        let namespaces = self.clients.get(client).map(|told| told.namespaces.clone());
        let Some(namespaces) = namespaces else { return FlushReport::default() };
        let now = self.now(namespaces.as_ref());
        let Some(told) = self.clients.get_mut(client) else { return FlushReport::default() };
        let since = since(&now, &std::mem::replace(&mut told.last, now));
        if namespaces.is_none() {
            self.everything = now;
        }
        since
    }

    fn now(&self, namespaces: Option<&BTreeSet<NamespaceId>>) -> FlushReport {
        let Some(namespaces) = namespaces else { return self.all };
        let mut sum = FlushReport::default();
        namespaces.iter().filter_map(|namespace| self.of.get(namespace)).for_each(|of| add(&mut sum, of));
        sum
    }
}

fn add(to: &mut FlushReport, more: &FlushReport) {
    let FlushReport { durable_objects, durable_bytes, refused_objects, lost_objects } = *more;
    to.durable_objects += durable_objects;
    to.durable_bytes += durable_bytes;
    to.refused_objects += refused_objects;
    to.lost_objects += lost_objects;
}

fn since(now: &FlushReport, then: &FlushReport) -> FlushReport {
    FlushReport {
        durable_objects: now.durable_objects.saturating_sub(then.durable_objects),
        durable_bytes: now.durable_bytes.saturating_sub(then.durable_bytes),
        refused_objects: now.refused_objects.saturating_sub(then.refused_objects),
        lost_objects: now.lost_objects.saturating_sub(then.lost_objects),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NamespaceId = NamespaceId([1; 16]);
    const B: NamespaceId = NamespaceId([2; 16]);

    fn lost(objects: u64) -> FlushReport {
        FlushReport { lost_objects: objects, ..FlushReport::default() }
    }

    #[test]
    fn report_to_one_takes_nothing_from_others_and_tells_of_no_foreign_namespace() {
        let mut counts = FlushCounts::default();
        let only = |namespace| BTreeSet::from([namespace]);
        counts.link("a", Some(&only(A)));
        counts.link("b", Some(&only(B)));
        counts.link("all", None);
        counts.add(A, &lost(3));
        counts.add(B, &lost(5));
        for (client, of) in [("a", 3), ("b", 5), ("all", 8)] {
            assert_eq!([counts.report_to(client), counts.report_to(client)], [lost(of), lost(0)], "{client}");
        }
        assert_eq!([counts.report(), counts.report()], [lost(8), lost(0)]);
        assert_eq!(counts.report_to("nobody"), lost(0));
    }

    #[test]
    fn client_hears_from_its_first_link_on_and_of_nothing_twice() {
        let mut counts = FlushCounts::default();
        counts.add(A, &lost(1));
        counts.link("a", None);
        assert_eq!(counts.report_to("a"), lost(0), "that was before it came");
        counts.add(A, &lost(2));
        counts.unlink("a");
        counts.link("a", None);
        counts.link("a", None);
        assert_eq!([counts.report_to("a"), counts.report_to("a")], [lost(2), lost(0)]);
    }

    #[test]
    fn last_report_tells_what_nobody_who_hears_of_everything_was_told() {
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
    fn clients_that_are_gone_are_forgotten_the_oldest_first() {
        let mut counts = FlushCounts::default();
        for n in 0..GONE_MAX + 10 {
            counts.link(&n.to_string(), None);
            counts.unlink(&n.to_string());
        }
        assert_eq!((counts.clients.len(), counts.clients.contains_key("9")), (GONE_MAX, false));
    }
}
