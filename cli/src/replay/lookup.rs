//! The first step of a request: how much of its prefix is here. Memory only.

use anyhow::Context;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pagelith::{HitPolicy, Options, PagesFound, PagesQuery, PoolQuery};

use super::live::Live;
use super::pages::Pages;
use super::request::{Course, Harness};

/// How far a prefix can be restored.
pub(super) struct Found {
    /// Pages of the longest usable prefix.
    pub(super) usable: usize,
    /// Every length that may be restored, ascending; `usable` is the last.
    pub(super) stops: Vec<usize>,
}

/// Why a page is no prefix hit though all that every page has of it is here: a trailing pool allows to stop
/// neither at it nor behind it.
const NO_STOP: &str = "no_stop";

impl Found {
    /// The longest prefix of at most `pages` that may be restored.
    pub(super) fn stop_within(&self, pages: usize) -> usize {
        self.stops.iter().copied().take_while(|stop| *stop <= pages).last().unwrap_or(0)
    }
}

impl Harness<'_> {
    /// Ask for the longest prefix of these pages, and look for groups that are half visible.
    pub(super) fn look_up(
        &mut self,
        live: &Live,
        hashes: &[PrefixHash],
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<Found> {
        if self.pages().is_hybrid() {
            let found = self.look_up_groups(live, hashes, options, course)?;
            self.look_for_partial_groups(live, hashes, options)?;
            return Ok(found);
        }
        let members = self.pages().base().len();
        let keys: Vec<ObjectKey> = hashes.iter().flat_map(|hash| keys_of(self.pages(), *hash)).collect();
        let (present, _) = self.meter.call(|| live.exists_prefix(&keys, options));
        let present = self.unless_out_of_reach(live, present, 0).context("exists_prefix failed")?;
        self.tally.partial_groups += u64::from(present % members != 0);
        let usable = present / members;
        Ok(Found { usable, stops: (1..=usable).collect() })
    }

    fn look_up_groups(
        &mut self,
        live: &Live,
        hashes: &[PrefixHash],
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<Found> {
        let Some((anchor, others)) = self.pages().pools().split_first() else {
            return Ok(Found { usable: 0, stops: Vec::new() });
        };
        let pools: Vec<PoolQuery<'_>> = others
            .iter()
            .map(|pool| PoolQuery {
                objects: &pool.templates,
                policy: pool.trailing.map_or(HitPolicy::AllPages, HitPolicy::TrailingPages),
            })
            .collect();
        let query = PagesQuery { pages: hashes, anchor: &anchor.templates, pools: &pools };
        let (found, _) = self.meter.call(|| live.exists_groups(&query, options));
        let found =
            self.unless_out_of_reach(live, found, PagesFound::default()).context("exists_groups failed")?;
        let whole = others.iter().zip(&found.pool_pages).filter(|(pool, _)| pool.trailing.is_none());
        let whole = whole.map(|(_, pages)| *pages).fold(found.anchor_pages, usize::min);
        let no_stop = course.causes.iter_mut().take(whole).skip(found.usable_pages);
        no_stop.for_each(|cause| *cause = Some(NO_STOP.to_owned()));
        self.tally.stops.legal += found.stops.len() as u64;
        self.tally.stops.cut_short += u64::from(found.usable_pages < whole);
        Ok(Found { usable: found.usable_pages, stops: found.stops })
    }

    /// Of all pages of the request, with one question, so that nothing comes or goes between two answers.
    fn look_for_partial_groups(
        &mut self,
        live: &Live,
        hashes: &[PrefixHash],
        options: Options,
    ) -> anyhow::Result<()> {
        let pages = self.pages();
        let keys: Vec<ObjectKey> = hashes.iter().flat_map(|hash| keys_of(pages, *hash)).collect();
        let (here, _) = self.meter.call(|| live.exists_batch(&keys, options));
        let here = self.unless_out_of_reach(live, here, Vec::new()).context("exists_batch failed")?;
        self.tally.partial_groups += partial_groups(pages, &here);
        Ok(())
    }
}

/// The keys of all objects that a page can have, the base group's first, then those of each trailing pool.
fn keys_of(pages: &Pages, hash: PrefixHash) -> impl Iterator<Item = ObjectKey> {
    let trailing = pages.pools().iter().filter(|pool| pool.trailing.is_some());
    let objects = pages.base().iter().chain(trailing.flat_map(|pool| &pool.objects));
    objects.map(move |object| object.key(hash))
}

/// Pages of which one answer showed some objects of a group and not others, or something attached without its
/// base; `here` is the answer for the keys of one page after the other.
fn partial_groups(pages: &Pages, here: &[bool]) -> u64 {
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
    here.chunks_exact(base + trailing.iter().sum::<usize>()).filter(is_partial).count() as u64
}

#[cfg(test)]
mod tests {
    use pagelith::layouts::geometry::{Layout, Placement, presets};

    use super::super::pages::Chosen;
    use super::*;

    #[test]
    fn a_group_of_which_a_part_is_here_is_counted() {
        let model = presets::model("qwen3-next").unwrap();
        let placement = Placement::single(Layout::PageFirst);
        let chosen = Chosen { model: &model, placement: &placement, pools: None, scale: 64 };
        let pages = Pages::of_model("chat", 1, &chosen).unwrap();
        let names: Vec<String> =
            keys_of(&pages, PrefixHash([1; 32])).map(|k| format!("{}.{}", k.pool(), k.component())).collect();
        assert_eq!(names, ["kv.k", "kv.v", "mamba.temporal", "mamba.conv_0"]);
        for here in 0..16_u8 {
            let page: Vec<bool> = (0..4).map(|i| here >> i & 1 == 1).collect();
            // Nothing, the base group alone, or all of it.
            let whole = [0b0000, 0b0011, 0b1111].contains(&here);
            assert_eq!(partial_groups(&pages, &page), u64::from(!whole), "{page:?}");
        }
        let two = [[true; 4], [true, true, true, false]].concat();
        assert_eq!(partial_groups(&pages, &two), 1);
    }

    #[test]
    fn a_prefix_stops_where_it_may() {
        let found = Found { usable: 7, stops: vec![2, 5, 7] };
        let stops: Vec<usize> = (0..9).map(|pages| found.stop_within(pages)).collect();
        assert_eq!(stops, [0, 0, 2, 2, 2, 5, 5, 7, 7]);
    }
}
