//! The first step of a request: the lookup of the longest stored prefix. It uses memory only.

use anyhow::Context;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pagelith::{HitPolicy, Options, PagesFound, PagesQuery, PoolQuery};

use super::pages::Pages;
use super::request::{RequestRunner, RequestState};
use super::target::OpenTarget;

/// The result of a lookup.
pub(super) struct PrefixLookup {
    /// Pages of the longest usable prefix.
    pub(super) usable: usize,
    /// Every permitted prefix length, ascending; `usable` is the last.
    pub(super) stops: Vec<usize>,
}

/// Miss cause of a page whose base group is present: no trailing pool permits a prefix that ends at
/// the page or after it.
const NO_STOP: &str = "no_stop";

impl PrefixLookup {
    /// The longest permitted prefix of at most `pages`.
    pub(super) fn stop_within(&self, pages: usize) -> usize {
        self.stops.iter().copied().take_while(|stop| *stop <= pages).last().unwrap_or(0)
    }
}

impl RequestRunner<'_> {
    /// Look up the longest prefix of these pages, and check for partly visible groups.
    pub(super) fn look_up(
        &mut self,
        target: &OpenTarget,
        hashes: &[PrefixHash],
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<PrefixLookup> {
        if self.pages().is_hybrid() {
            let found = self.look_up_groups(target, hashes, options, state)?;
            self.check_partial_groups(target, hashes, options)?;
            return Ok(found);
        }
        let members = self.pages().base().len();
        let keys: Vec<ObjectKey> =
            hashes.iter().flat_map(|hash| keys_of(self.pages(), *hash)).collect();
        let (present, _) = self.meter.call(|| target.pages().exists_prefix(&keys, options));
        let present = self.or_if_unreachable(target, present, 0).context("exists_prefix failed")?;
        self.tally.partial_groups += u64::from(present % members != 0);
        let usable = present / members;
        Ok(PrefixLookup { usable, stops: (1..=usable).collect() })
    }

    fn look_up_groups(
        &mut self,
        target: &OpenTarget,
        hashes: &[PrefixHash],
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<PrefixLookup> {
        let Some((anchor, others)) = self.pages().pools().split_first() else {
            return Ok(PrefixLookup { usable: 0, stops: Vec::new() });
        };
        let pools: Vec<PoolQuery<'_>> = others
            .iter()
            .map(|pool| PoolQuery {
                objects: &pool.templates,
                policy: pool.trailing.map_or(HitPolicy::AllPages, HitPolicy::TrailingPages),
            })
            .collect();
        let query = PagesQuery { pages: hashes, anchor: &anchor.templates, pools: &pools };
        let (found, _) = self.meter.call(|| target.pages().exists_groups(&query, options));
        let found = self
            .or_if_unreachable(target, found, PagesFound::default())
            .context("exists_groups failed")?;
        let whole =
            others.iter().zip(&found.pool_pages).filter(|(pool, _)| pool.trailing.is_none());
        let whole = whole.map(|(_, pages)| *pages).fold(found.anchor_pages, usize::min);
        let no_stop = state.causes.iter_mut().take(whole).skip(found.usable_pages);
        no_stop.for_each(|cause| *cause = Some(NO_STOP.to_owned()));
        self.tally.stops.legal += found.stops.len() as u64;
        self.tally.stops.cut_short += u64::from(found.usable_pages < whole);
        Ok(PrefixLookup { usable: found.usable_pages, stops: found.stops })
    }

    /// Check all pages of the request with one call, so that nothing changes between two results.
    fn check_partial_groups(
        &mut self,
        target: &OpenTarget,
        hashes: &[PrefixHash],
        options: Options,
    ) -> anyhow::Result<()> {
        let pages = self.pages();
        let keys: Vec<ObjectKey> = hashes.iter().flat_map(|hash| keys_of(pages, *hash)).collect();
        let (present, _) = self.meter.call(|| target.pages().exists_batch(&keys, options));
        let present =
            self.or_if_unreachable(target, present, Vec::new()).context("exists_batch failed")?;
        self.tally.partial_groups += partial_groups(pages, &present);
        Ok(())
    }
}

/// The keys of all objects that a page can have: those of the base group, then those of each
/// trailing pool.
fn keys_of(pages: &Pages, hash: PrefixHash) -> impl Iterator<Item = ObjectKey> {
    let trailing = pages.pools().iter().filter(|pool| pool.trailing.is_some());
    let objects = pages.base().iter().chain(trailing.flat_map(|pool| &pool.objects));
    objects.map(move |object| object.key(hash))
}

/// Number of pages with a partly visible group, or with attached objects without their base.
/// `present` is the result of one call for the keys of all pages in order.
fn partial_groups(pages: &Pages, present: &[bool]) -> u64 {
    let base = pages.base().len();
    let trailing: Vec<usize> =
        pages.pools().iter().filter(|p| p.trailing.is_some()).map(|p| p.objects.len()).collect();
    let is_partial = |page: &&[bool]| {
        let (base, mut rest) = page.split_at(base);
        let part_of = |group: &[bool]| group.contains(&true) && group.contains(&false);
        let mut partial = part_of(base);
        for objects in &trailing {
            let (group, after) = rest.split_at(*objects);
            partial |= part_of(group) || (group.contains(&true) && base.contains(&false));
            rest = after;
        }
        partial
    };
    present.chunks_exact(base + trailing.iter().sum::<usize>()).filter(is_partial).count() as u64
}

#[cfg(test)]
mod tests {
    use pagelith::layouts::geometry::{Layout, Placement, presets};

    use super::super::pages::ModelChoice;
    use super::*;

    #[test]
    fn partly_visible_group_is_counted() {
        let model = presets::model("qwen3-next").unwrap();
        let placement = Placement::single(Layout::PageFirst);
        let chosen = ModelChoice { model: &model, placement: &placement, pools: None, scale: 64 };
        let pages = Pages::of_model("chat", 1, &chosen).unwrap();
        let names: Vec<String> = keys_of(&pages, PrefixHash([1; 32]))
            .map(|k| format!("{}.{}", k.pool(), k.component()))
            .collect();
        assert_eq!(names, ["kv.k", "kv.v", "mamba.temporal", "mamba.conv_0"]);
        for present in 0..16_u8 {
            let page: Vec<bool> = (0..4).map(|i| present >> i & 1 == 1).collect();
            // Nothing, only the base group, or everything.
            let whole = [0b0000, 0b0011, 0b1111].contains(&present);
            assert_eq!(partial_groups(&pages, &page), u64::from(!whole), "{page:?}");
        }
        let two = [[true; 4], [true, true, true, false]].concat();
        assert_eq!(partial_groups(&pages, &two), 1);
    }

    #[test]
    fn prefix_ends_at_the_last_permitted_length() {
        let found = PrefixLookup { usable: 7, stops: vec![2, 5, 7] };
        let stops: Vec<usize> = (0..9).map(|pages| found.stop_within(pages)).collect();
        assert_eq!(stops, [0, 0, 2, 2, 2, 5, 5, 7, 7]);
    }
}
