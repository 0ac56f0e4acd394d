//! Gets that ask nobody: what the store tells to lie in memory that it shows is copied from there.
//!
//! Invariants:
//! - A copy is a hit if its checksums are those that were told, what was found holds behind it, and the store had its end of the link then: at that moment it was here.
//! - Of a page, what is asked for together is copied all or asked for all: of objects that come and go together the store says at one moment
//!   whether they are here.
//! - What was copied and is no hit is zeroed before it is asked for.

use std::sync::Arc;

use pagelith_io::fused::{Copier, Stores};
use pagelith_io::shm::{CatalogView, Found};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use rustc_hash::FxHashSet;

use super::STORE;
use crate::batch::Get;
use crate::outcome::{GetDone, GetOutcome, Tier};
use crate::remote::desk::Desk;
use crate::remote::verify;
use crate::scatter;

/// The region that a catalog tells of.
const REGION: u32 = 0;

/// Objects of a batch that lie where this process sees them.
pub(super) struct Direct {
    catalog: Arc<CatalogView>,
    /// Which link it came over: what another one shows is other memory.
    link: u64,
    /// By their number in the batch.
    found: Vec<(usize, Found)>,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Copied {
    /// Objects that are hits, by their number in the batch, and their bytes in all.
    pub hits: Vec<usize>,
    pub bytes: u64,
    /// Those that are to be asked for after all.
    pub lost: Vec<usize>,
}

fn page(key: &ObjectKey) -> (NamespaceId, PrefixHash) {
    (key.namespace(), key.hash())
}

impl Direct {
    /// Those of `gets` that lie in the store's memory as they are wanted, as far as it tells.
    pub fn look(desk: &Desk, gets: &[Get]) -> Option<Direct> {
        let catalog = desk.lines.stands(STORE)?.catalog()?.clone();
        let found = catalog.find(gets.iter().map(|get| &get.key));
        let bytes = |get: &Get| get.destination.0.iter().map(|part| part.len() as u64).sum::<u64>();
        let fits = |get: &Get, found: &Found| get.range.is_none() && bytes(get) == found.length;
        let found: Vec<_> =
            gets.iter().zip(found).map(|(get, found)| found.filter(|found| fits(get, found))).collect();
        let asked: FxHashSet<_> = gets
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.is_none())
            .map(|(get, _)| page(&get.key))
            .collect();
        let whole = |at: usize| asked.is_empty() || !asked.contains(&page(&gets[at].key));
        let found = found.into_iter().enumerate().filter(|(at, _)| whole(*at));
        let found: Vec<_> = found.filter_map(|(at, found)| Some((at, found?))).collect();
        (!found.is_empty()).then(|| Direct { catalog, link: desk.lines.made(), found })
    }

    /// Whether an object is one of them; they are in order.
    pub fn has(&self, at: usize) -> bool {
        self.found.binary_search_by_key(&at, |(at, _)| *at).is_ok()
    }

    /// Copy them to where they are wanted.
    pub fn copy(self, desk: &Desk, done: &mut [GetDone], key: impl Fn(usize) -> ObjectKey) -> Copied {
        let caller = desk.lines.stands(STORE).filter(|_| desk.lines.made() == self.link);
        let bytes = self.found.iter().map(|(_, found)| found.length).sum();
        let mut copier = Copier::new(Stores::of(bytes));
        let mut copied = Vec::with_capacity(self.found.len());
        let view = |found: &Found| caller.and_then(|c| c.view((REGION, found.place), found.length));
        for (at, found) in &self.found {
            let shown = view(found);
            let parts = &mut done[*at].destination.0;
            let sums = shown.and_then(|shown| verify::copied(parts, &(0..found.length), &shown, &mut copier));
            copied.push(sums.is_some_and(|sums| sums == found.sums));
        }
        // Before what was copied is zeroed, too, if it is no hit.
        drop(copier);
        let behind = self.catalog.behind();
        let held = self.found.iter().zip(&copied).map(|((_, found), copied)| *copied && behind.holds(found));
        let mut held: Vec<bool> = held.collect();
        // Behind the looks: what a store that is gone had there was its own until it went.
        if !caller.is_some_and(|caller| caller.is_there()) {
            held.fill(false);
        }
        let changed = self.found.iter().zip(&held).filter(|(_, held)| !**held);
        let changed: FxHashSet<_> = changed.map(|((at, _), _)| page(&key(*at))).collect();
        let mut of = Copied::default();
        for (at, found) in self.found {
            let done = &mut done[at];
            if !changed.is_empty() && changed.contains(&page(&key(at))) {
                scatter::zero(&mut done.destination.0);
                of.lost.push(at);
                continue;
            }
            done.outcome = Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: found.length });
            of.hits.push(at);
            of.bytes += found.length;
        }
        of
    }
}
