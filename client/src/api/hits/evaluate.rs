//! The hit rules as a pure function of a presence table, linear in pages x pools.

use super::{HitPolicy, PagesFound};

/// Which objects are present. Positions beyond the end of a list are absent.
#[derive(Debug)]
pub struct Residency {
    /// The anchor, by page.
    pub anchor: Vec<bool>,
    /// Each other pool: by page, or by key of its own (block groups).
    pub pools: Vec<Vec<bool>>,
}

/// Apply each pool's policy to the presence table.
pub fn evaluate(residency: &Residency, policies: &[HitPolicy<'_>]) -> PagesFound {
    let anchor_pages = leading(&residency.anchor);
    // Index is length - 1: whether all pools so far allow that length.
    let mut allowed = vec![true; anchor_pages];
    let fold = |(policy, present): (&HitPolicy<'_>, &Vec<bool>)| match *policy {
        HitPolicy::AllPages => trailing(present, usize::MAX, &mut allowed),
        HitPolicy::TrailingPages(pages) => trailing(present, pages.max(1), &mut allowed),
        HitPolicy::BlockGroups { block_pages, group_pages, .. } => {
            present
                .chunks_exact(group_pages.max(1))
                .take_while(|group| leading(group) == group.len())
                .count()
                * block_pages
        }
    };
    let pool_pages = policies.iter().zip(&residency.pools).map(fold).collect();
    let stops: Vec<usize> =
        (1..).zip(allowed).filter_map(|(length, ok)| ok.then_some(length)).collect();
    PagesFound { usable_pages: stops.last().copied().unwrap_or(0), anchor_pages, pool_pages, stops }
}

/// Pages present before the first absent one.
fn leading(present: &[bool]) -> usize {
    present.iter().take_while(|present| **present).count()
}

/// Disallow every length of which the last `window` pages are not all present; returns the longest
/// allowed length. For `AllPages` the window is unbounded.
fn trailing(present: &[bool], window: usize, allowed: &mut [bool]) -> usize {
    let (mut run, mut boundary) = (0, 0);
    for (page, allowed) in allowed.iter_mut().enumerate() {
        run = if present.get(page).copied().unwrap_or(false) { run + 1 } else { 0 };
        let length = page + 1;
        if run >= window.min(length) {
            boundary = length;
        } else {
            *allowed = false;
        }
    }
    boundary
}

#[cfg(test)]
mod tests;
