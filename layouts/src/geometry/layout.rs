//! Host memory layouts: the order of a buffer's axes, and the pools that each layout can hold.

use std::fmt;

/// Layout of the caller's buffers, outermost axis first. The names are those of SGLang's
/// `--hicache-mem-layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Layer, page, token: a page has one contiguous range per layer.
    LayerFirst,
    /// Page, token, layer.
    PageFirst,
    /// Page, layer, token.
    PageFirstDirect,
    /// Page, head, token, layer: a head group is contiguous.
    PageHead,
    /// Page, layer, token, with separate buffers for the two parts of the latent row (and for those
    /// of the indexer).
    PageFirstKvSplit,
    /// Page, head group, layer, K or V, token: K and V are one object.
    PageUnified,
}

/// The class of a pool's rows, which decides the layouts that can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// K and V by heads, of equal width.
    Heads,
    /// K and V by heads, of different widths.
    AsymmetricHeads,
    /// One compressed row per token.
    Latent,
    /// Index keys of a page, packed.
    Indexer,
    /// Linear-attention state, one checkpoint per page.
    State,
    /// Opaque rows.
    Rows,
}

impl Class {
    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Heads => "MHA",
            Class::AsymmetricHeads => "MHA with k_dim != v_dim",
            Class::Latent => "MLA",
            Class::Indexer => "indexer",
            Class::State => "linear-attention state",
            Class::Rows => "packed rows",
        }
    }
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 6] = [
        Layout::LayerFirst,
        Layout::PageFirst,
        Layout::PageFirstDirect,
        Layout::PageHead,
        Layout::PageFirstKvSplit,
        Layout::PageUnified,
    ];

    /// The name in the client's command line.
    pub fn name(self) -> &'static str {
        match self {
            Layout::LayerFirst => "layer_first",
            Layout::PageFirst => "page_first",
            Layout::PageFirstDirect => "page_first_direct",
            Layout::PageHead => "page_head",
            Layout::PageFirstKvSplit => "page_first_kv_split",
            Layout::PageUnified => "page_unified",
        }
    }

    /// The reason why this layout cannot hold a pool of `class`; `None` if it can. The rules are
    /// those of SGLang's host pools, except that `layer_first` is accepted wherever a scatter list
    /// suffices.
    pub(super) fn refuses(self, class: Class) -> Option<&'static str> {
        use Layout::*;
        match (self, class) {
            (PageFirst | PageFirstDirect, _) => None,
            (_, Class::AsymmetricHeads) => Some("must be page_first or page_first_direct"),
            (_, Class::State) => Some("must be page_first or page_first_direct"),
            (PageHead, Class::Latent | Class::Indexer) => {
                Some("page_head holds only MHA: there are no heads")
            }
            (PageFirstKvSplit, Class::Heads) => Some("page_first_kv_split holds only MLA"),
            (PageUnified, Class::Indexer) => {
                Some("must be layer_first, page_first or page_first_direct")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
