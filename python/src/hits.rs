//! Queries for the longest restorable prefix when the state of a page is spread over several pools.

use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pyo3::prelude::*;

use crate::arguments;
use crate::keys::{Key, Page, keys};
use crate::sequences::ListOf;

/// The prefix lengths that a pool allows, as an owned value.
enum Policy {
    AllPages,
    TrailingPages(usize),
    BlockGroups { block_pages: usize, group_pages: usize, keys: Vec<PrefixHash> },
}

/// One pool of a query, besides the anchor: its objects per page, as keys of any page, and the
/// prefix lengths that it allows.
#[pyclass(frozen, module = "pagelith")]
pub struct PoolQuery {
    objects: Vec<ObjectKey>,
    policy: Policy,
}

#[pymethods]
impl PoolQuery {
    /// A length is allowed if all of its pages are stored: KV, draft KV, indexers.
    #[staticmethod]
    fn all_pages(
        #[pyo3(from_py_with = arguments::objects)] objects: Vec<Bound<'_, Key>>,
    ) -> PoolQuery {
        PoolQuery { objects: keys(objects), policy: Policy::AllPages }
    }

    /// A length is allowed if its last `pages` pages are stored: 1 for a Mamba checkpoint, the
    /// window's length for a sliding window.
    #[staticmethod]
    #[pyo3(signature = (objects, pages=1))]
    fn trailing_pages(
        #[pyo3(from_py_with = arguments::objects)] objects: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::page_count)] pages: usize,
    ) -> PoolQuery {
        PoolQuery { objects: keys(objects), policy: Policy::TrailingPages(pages) }
    }

    /// Every length is allowed; the pool has pages of its own, in groups, one group per block of
    /// pages.
    #[staticmethod]
    fn block_groups(
        #[pyo3(from_py_with = arguments::objects)] objects: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::block_pages)] block_pages: usize,
        #[pyo3(from_py_with = arguments::group_pages)] group_pages: usize,
        #[pyo3(from_py_with = arguments::pages)] pages: ListOf<Page>,
    ) -> PoolQuery {
        let pages = pages.0.into_iter().map(|page| page.0).collect();
        PoolQuery {
            objects: keys(objects),
            policy: Policy::BlockGroups { block_pages, group_pages, keys: pages },
        }
    }

    fn __repr__(&self) -> String {
        let objects = self.objects.len();
        match &self.policy {
            Policy::AllPages => format!("PoolQuery(all_pages, objects={objects})"),
            Policy::TrailingPages(pages) => {
                format!("PoolQuery(trailing_pages, objects={objects}, pages={pages})")
            }
            Policy::BlockGroups { block_pages, group_pages, keys } => format!(
                "PoolQuery(block_groups, objects={objects}, block_pages={block_pages}, group_pages={group_pages}, pages={})",
                keys.len()
            ),
        }
    }
}

impl PoolQuery {
    /// The query in the engine's form.
    pub fn borrowed(&self) -> pagelith::PoolQuery<'_> {
        let policy = match &self.policy {
            Policy::AllPages => pagelith::HitPolicy::AllPages,
            Policy::TrailingPages(pages) => pagelith::HitPolicy::TrailingPages(*pages),
            Policy::BlockGroups { block_pages, group_pages, keys } => {
                pagelith::HitPolicy::BlockGroups {
                    block_pages: *block_pages,
                    group_pages: *group_pages,
                    keys,
                }
            }
        };
        pagelith::PoolQuery { objects: &self.objects, policy }
    }
}

/// The longest restorable prefix, in pages.
#[pyclass(frozen, get_all, module = "pagelith")]
pub struct PagesFound {
    /// The longest stop: a number of leading pages that every pool allows; 0 if there is none.
    usable_pages: usize,
    /// Pages of the anchor before the first one that is absent.
    anchor_pages: usize,
    /// For each pool of the query, the longest length up to `anchor_pages` that it allows.
    pool_pages: Vec<usize>,
    /// Every stop from 1 on, ascending.
    stops: Vec<usize>,
}

#[pymethods]
impl PagesFound {
    fn __repr__(&self) -> String {
        let PagesFound { usable_pages, anchor_pages, pool_pages, stops } = self;
        let stops = stops.len();
        format!(
            "PagesFound(usable_pages={usable_pages}, anchor_pages={anchor_pages}, pool_pages={pool_pages:?}, stops={stops})"
        )
    }
}

impl From<pagelith::PagesFound> for PagesFound {
    fn from(found: pagelith::PagesFound) -> PagesFound {
        let pagelith::PagesFound { usable_pages, anchor_pages, pool_pages, stops } = found;
        PagesFound { usable_pages, anchor_pages, pool_pages, stops }
    }
}
