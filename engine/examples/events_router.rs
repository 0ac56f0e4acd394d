//! A router sends each request to the worker whose store has the longest prefix. It follows the
//! events of the stores, and looks nothing up in them.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::collections::HashSet;
use std::error::Error;

use pagelith::layouts::{
    ids::PrefixHash,
    key::{ObjectKey, Role},
    namespace::Namespace,
    shard::Shard,
};
use pagelith::{Event, Options, PageStore, Store};

/// Most events of one call.
const EVENTS_MAX: usize = 1024;

/// The objects of one worker's store.
#[derive(Default)]
struct Worker(HashSet<ObjectKey>);

impl Worker {
    /// Apply the events since the last call.
    fn follow(&mut self, store: &dyn PageStore) -> pagelith::Result<()> {
        let taken = store.take_events(EVENTS_MAX, Options::default())?;
        for event in taken.events {
            match event {
                Event::Stored { key, .. } => _ = self.0.insert(key),
                Event::Removed { key, gone: true, .. } => _ = self.0.remove(&key),
                Event::Cleared { namespace } => self.0.retain(|key| key.namespace() != namespace),
                // It left one tier of several, or was lost with the tier: a get finds that out.
                _ => {}
            }
        }
        if taken.lost > 0 {
            // Events were not taken in time: ask the store which objects it has.
            let known: Vec<ObjectKey> = self.0.iter().copied().collect();
            let present = store.exists_batch(&known, Options::default())?;
            self.0 = known
                .into_iter()
                .zip(present)
                .filter_map(|(key, here)| here.then_some(key))
                .collect();
        }
        Ok(())
    }

    fn prefix(&self, pages: &[ObjectKey]) -> usize {
        pages.iter().take_while(|page| self.0.contains(page)).count()
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let open = || Store::builder().dram("8MiB").set(|config| config.events.max = 4096).open();
    let stores = [open()?, open()?];
    let mut workers = [Worker::default(), Worker::default()];
    let model =
        Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
    let key = |page| {
        ObjectKey::new(model, PrefixHash([page; 32]), Role::Target, "kv", "kv", Shard::Whole)
    };
    let pages: Vec<ObjectKey> = (0..8).map(key).collect::<Result<_, _>>()?;

    pages[..3]
        .iter()
        .try_for_each(|page| stores[0].put_one(*page, b"x", Options::default()).map(drop))?;
    pages[..5]
        .iter()
        .try_for_each(|page| stores[1].put_one(*page, b"x", Options::default()).map(drop))?;
    let mut route = || -> pagelith::Result<Vec<usize>> {
        workers.iter_mut().zip(&stores).try_for_each(|(worker, store)| worker.follow(store))?;
        Ok(workers.iter().map(|worker| worker.prefix(&pages)).collect())
    };
    let prefixes = route()?;
    println!("prefixes at the workers: {prefixes:?}");
    assert_eq!(prefixes, [3, 5]);
    stores[1].remove(&pages[1..2], Options::default())?;
    assert_eq!(route()?, [3, 1]);
    Ok(())
}
