//! Counts that reports of flushes are made of: objects that became durable, were refused or were lost, of the whole store and of namespaces whose clients
//! may hear of nothing else.
//!
//! Invariant: counts only grow, and each reporter remembers what it was told last. So nobody takes a report from anybody else, and who may
//! hear of some namespaces hears of those alone.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::NamespaceId;

use crate::outcome::FlushReport;

/// Most clients of a key that are gone whose last report is remembered: a process may come back over another link. Each key has its own, since
/// a client chooses by which process it is called, and not by which key.
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
    /// By key, then by process.
    clients: BTreeMap<String, BTreeMap<String, Told>>,
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
        let (key, process) = parts(client);
        let of_key = self.clients.entry(key.to_owned()).or_default();
        of_key.entry(process.to_owned()).or_insert_with(told).links += 1;
    }

    /// One of its links is gone.
    pub fn unlink(&mut self, client: &str) {
        self.turns += 1;
        let (key, process) = parts(client);
        let Some(of_key) = self.clients.get_mut(key) else { return };
        let Some(told) = of_key.get_mut(process) else { return };
        told.links = told.links.saturating_sub(1);
        told.left = self.turns;
        let gone = || of_key.iter().filter(|(_, told)| told.links == 0);
        if gone().count() > GONE_MAX
            && let Some(oldest) = gone().min_by_key(|(_, told)| told.left).map(|(process, _)| process.clone())
        {
            of_key.remove(&oldest);
        }
    }

    /// All that happened, of what a client may hear, since it was told last.
    pub fn report_to(&mut self, client: &str) -> FlushReport {
        let namespaces = self.told(client).map(|told| told.namespaces.clone());
        let Some(namespaces) = namespaces else { return FlushReport::default() };
        let now = self.now(namespaces.as_ref());
        let Some(told) = self.told(client) else { return FlushReport::default() };
        let since = since(&now, &std::mem::replace(&mut told.last, now));
        if namespaces.is_none() {
            self.everything = now;
        }
        since
    }

    fn told(&mut self, client: &str) -> Option<&mut Told> {
        let (key, process) = parts(client);
        self.clients.get_mut(key)?.get_mut(process)
    }

    fn now(&self, namespaces: Option<&BTreeSet<NamespaceId>>) -> FlushReport {
        let Some(namespaces) = namespaces else { return self.all };
        let mut sum = FlushReport::default();
        namespaces.iter().filter_map(|namespace| self.of.get(namespace)).for_each(|of| add(&mut sum, of));
        sum
    }
}

/// The key of a client and its process, which stands behind the last slash.
fn parts(client: &str) -> (&str, &str) {
    client.rsplit_once('/').unwrap_or(("", client))
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
    fn clients_of_one_key_that_are_gone_push_out_none_of_another_key() {
        let mut counts = FlushCounts::default();
        let only = |namespace| BTreeSet::from([namespace]);
        for client in ["a/1", "a/b/1", "/1"] {
            counts.link(client, Some(&only(A)));
            counts.unlink(client);
        }
        counts.add(A, &lost(3));
        for n in 0..GONE_MAX + 10 {
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
    fn clients_that_are_gone_are_forgotten_the_oldest_first() {
        let mut counts = FlushCounts::default();
        for n in 0..GONE_MAX + 10 {
            counts.link(&n.to_string(), None);
            counts.unlink(&n.to_string());
        }
        let of_key = &counts.clients[""];
        assert_eq!((of_key.len(), of_key.contains_key("9")), (GONE_MAX, false));
    }
}
