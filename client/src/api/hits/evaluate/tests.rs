//! Tests the rules against a literal reference: a length is allowed if the set of objects it
//! requires is a subset of those present.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// (Pool, page or own key); pool 0 is the anchor.
type Objects = BTreeSet<(usize, usize)>;

/// The objects that a policy requires of pool `pool` for a stop at `length`.
fn demanded(pool: usize, policy: &HitPolicy<'_>, length: usize) -> Objects {
    let pages: Vec<usize> = (0..length).collect();
    let demanded: Vec<usize> = match *policy {
        HitPolicy::AllPages => pages,
        HitPolicy::TrailingPages(0) => pages.into_iter().rev().take(1).collect(),
        HitPolicy::TrailingPages(n) => pages.into_iter().rev().take(n).collect(),
        HitPolicy::BlockGroups { .. } => Vec::new(),
    };
    demanded.into_iter().map(|page| (pool, page)).collect()
}

/// The longest length that satisfies `allowed`, up to `max`.
fn longest(max: usize, allowed: impl Fn(usize) -> bool) -> usize {
    (0..=max).rev().find(|length| allowed(*length)).expect("length 0 requires nothing")
}

fn reference(pages: usize, policies: &[HitPolicy<'_>], present: &Objects) -> PagesFound {
    let anchor = |length: usize| demanded(0, &HitPolicy::AllPages, length).is_subset(present);
    let allows =
        |pool: usize, length| demanded(pool + 1, &policies[pool], length).is_subset(present);
    let anchor_pages = longest(pages, anchor);
    let own = |pool: usize| match policies[pool] {
        HitPolicy::BlockGroups { block_pages, group_pages, .. } => {
            let keys = |blocks: usize| (0..blocks * group_pages).map(|key| (pool + 1, key));
            block_pages
                * longest(pages / block_pages, |blocks| {
                    keys(blocks).all(|key| present.contains(&key))
                })
        }
        _ => longest(anchor_pages, |length| allows(pool, length)),
    };
    let all = 0..policies.len();
    let stops: Vec<usize> =
        (1..=pages).filter(|l| anchor(*l) && all.clone().all(|pool| allows(pool, *l))).collect();
    PagesFound {
        usable_pages: stops.iter().copied().max().unwrap_or(0),
        anchor_pages,
        pool_pages: all.map(own).collect(),
        stops,
    }
}

fn policy() -> impl Strategy<Value = HitPolicy<'static>> {
    let groups = (1..6usize).prop_flat_map(|block| (Just(block), 1..=block)).prop_map(
        |(block_pages, group_pages)| HitPolicy::BlockGroups { block_pages, group_pages, keys: &[] },
    );
    let windows = prop_oneof![0..5usize, Just(usize::MAX)];
    prop_oneof![2 => Just(HitPolicy::AllPages), 4 => windows.prop_map(HitPolicy::TrailingPages), 1 => groups]
}

/// A list with few holes, some, or many; some end early.
fn list(len: usize) -> impl Strategy<Value = Vec<bool>> {
    let weighted = |share: f64| prop::collection::vec(prop::bool::weighted(share), len);
    let holes = prop_oneof![Just(vec![true; len]), weighted(0.97), weighted(0.85), weighted(0.5)];
    let end = prop_oneof![3 => Just(len), 1 => 0..=len];
    (holes, end).prop_map(|(mut list, end)| {
        list.truncate(end);
        list
    })
}

/// Up to 40 pages, and an anchor with up to 4 other pools.
fn case() -> impl Strategy<Value = (usize, Vec<HitPolicy<'static>>, Residency)> {
    (0..=40usize, prop::collection::vec(policy(), 0..=4)).prop_flat_map(|(pages, policies)| {
        let len = |policy: &HitPolicy<'_>| match *policy {
            HitPolicy::BlockGroups { block_pages, group_pages, .. } => {
                pages / block_pages * group_pages
            }
            _ => pages,
        };
        let pools: Vec<_> = policies.iter().map(|policy| list(len(policy))).collect();
        (Just(pages), Just(policies), list(pages), pools).prop_map(
            |(pages, policies, anchor, pools)| (pages, policies, Residency { anchor, pools }),
        )
    })
}

fn as_set(residency: &Residency) -> Objects {
    let lists = std::iter::once(&residency.anchor).chain(&residency.pools).enumerate();
    let present = lists.flat_map(|(pool, list)| {
        list.iter().enumerate().filter(|(_, present)| **present).map(move |(at, _)| (pool, at))
    });
    present.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn rules_match_the_reference((pages, policies, residency) in case()) {
        let present = as_set(&residency);
        prop_assert_eq!(evaluate(&residency, &policies), reference(pages, &policies, &present));
    }
}

fn list_of(text: &str) -> Vec<bool> {
    text.bytes().map(|b| b == b'x').collect()
}

fn found(anchor: &str, pools: &[(HitPolicy<'_>, &str)]) -> PagesFound {
    let residency = Residency {
        anchor: list_of(anchor),
        pools: pools.iter().map(|(_, present)| list_of(present)).collect(),
    };
    evaluate(&residency, &pools.iter().map(|(policy, _)| *policy).collect::<Vec<_>>())
}

const MAMBA: HitPolicy<'_> = HitPolicy::TrailingPages(1);

#[test]
fn anchor_alone_allows_every_length() {
    let expected =
        PagesFound { usable_pages: 3, anchor_pages: 3, pool_pages: vec![], stops: vec![1, 2, 3] };
    assert_eq!(found("xxx-xx", &[]), expected);
    assert_eq!(found("", &[]), PagesFound::default());
    assert_eq!(
        found("-xx", &[(MAMBA, "xxx")]),
        PagesFound { pool_pages: vec![0], ..PagesFound::default() }
    );
}

#[test]
fn trailing_pool_leaves_holes() {
    let mamba = found("xxxxx-", &[(MAMBA, "-x-x-x")]);
    assert_eq!((mamba.usable_pages, mamba.anchor_pages, &mamba.stops[..]), (4, 5, &[2, 4][..]));
    assert_eq!(mamba.pool_pages, [4], "a checkpoint after the anchor's first hole is of no use");
    let no_keys = found("xxxxx-", &[(HitPolicy::TrailingPages(0), "-x-x-x")]);
    assert_eq!(no_keys, mamba, "a window of 0 pages acts as one of 1");
    let window = |present: &str| found("xxxxxx", &[(HitPolicy::TrailingPages(3), present)]).stops;
    assert_eq!(window("xxxxxx"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(window("xx-xxx"), [1, 2, 6], "a window ends at the span's start");
    assert_eq!(window("-xxx-x"), [4]);
}

#[test]
fn mamba_and_window_pools_share_only_some_stops() {
    let swa = HitPolicy::TrailingPages(2);
    let both = found("xxxxxxxx", &[(MAMBA, "-x-xx--x"), (swa, "--xx-xxx")]);
    assert_eq!(both.pool_pages, [8, 8]);
    assert_eq!(both.stops, [4, 8]);
    // Each pool has its own longest length; the shorter one is not allowed by the other pool.
    let apart = found("xxxxxxxx", &[(MAMBA, "-x-xx--x"), (swa, "-xx--xx-")]);
    assert_eq!(
        (&apart.pool_pages[..], apart.usable_pages, &apart.stops[..]),
        (&[8, 7][..], 0, &[][..])
    );
}

#[test]
fn pool_boundary_is_independent_of_other_pools() {
    let pools =
        [(HitPolicy::AllPages, "xx-xxx"), (MAMBA, "xxxxxx"), (HitPolicy::AllPages, "xxxxxx")];
    let all = found("xxxx-x", &pools);
    assert_eq!((all.usable_pages, all.anchor_pages, &all.pool_pages[..]), (2, 4, &[2, 4, 4][..]));
    assert_eq!(all.stops, [1, 2]);
}

#[test]
fn block_groups_report_a_boundary_without_restricting_stops() {
    let groups = HitPolicy::BlockGroups { block_pages: 4, group_pages: 2, keys: &[] };
    for (present, covered) in [("xxxx", 8), ("xxx-", 4), ("x-xx", 0), ("xxx", 4), ("", 0)] {
        let all = found("xx-xxxxx", &[(groups, present), (MAMBA, "-xxxxxxx")]);
        assert_eq!(all.pool_pages, [covered, 2], "{present}");
        assert_eq!(all.stops, [2], "{present}");
    }
}
