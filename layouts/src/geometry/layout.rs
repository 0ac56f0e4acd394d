//! Host memory layouts: the order of a buffer's axes, and the pools that each layout can hold.

use std::fmt;
use std::str::FromStr;

use super::error::GeometryError;

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

impl FromStr for Layout {
    type Err = GeometryError;

    /// Parse a layout's exact name; the error for any other text suggests a similar one.
    fn from_str(text: &str) -> Result<Layout, GeometryError> {
        let exact = Layout::ALL.into_iter().find(|layout| layout.name() == text);
        exact.ok_or_else(|| GeometryError::UnknownLayout { name: text.into(), near: near(text) })
    }
}

/// The layout whose name differs in at most three letters, ignoring case and reading `-` as `_`.
fn near(text: &str) -> Option<Layout> {
    const LONGEST: usize = 64;
    if text.len() > LONGEST {
        return None;
    }
    let plain = text.to_ascii_lowercase().replace('-', "_");
    let (distance, layout) = Layout::ALL
        .into_iter()
        .map(|l| (distance(l.name().as_bytes(), plain.as_bytes()), l))
        .min()?;
    (distance <= 3).then_some(layout)
}

/// Levenshtein distance: letters to change, insert or delete.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let best = (diagonal + usize::from(x != y)).min(*cell + 1).min(left + 1);
            diagonal = std::mem::replace(cell, best);
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_name_round_trips() {
        for layout in Layout::ALL {
            assert_eq!(layout.name().parse(), Ok(layout));
        }
    }

    #[test]
    fn misspelt_layout_error_suggests_similar_name() {
        for (text, right) in [
            ("page_first_kv_spilt", "page_first_kv_split"),
            ("Page_First", "page_first"),
            ("page-head", "page_head"),
            ("layer_frist", "layer_first"),
            ("page_unifed", "page_unified"),
        ] {
            let error = text.parse::<Layout>().expect_err("misspelt").to_string();
            assert!(error.contains(&format!("did you mean {right}?")), "{error}");
            assert!(error.contains(&format!("layout={text:?}")), "{error}");
        }
        let error = "row_major".parse::<Layout>().expect_err("no such layout").to_string();
        assert!(Layout::ALL.iter().all(|l| error.contains(l.name())), "{error}");
        let error = "x".repeat(1 << 20).parse::<Layout>().expect_err("no such layout").to_string();
        assert!(!error.contains("did you mean"), "texts above the length limit are not compared");
    }

    #[test]
    fn levenshtein_distance_counts_edits() {
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(
            (distance(b"", b"abc"), distance(b"abc", b""), distance(b"ab", b"ab")),
            (3, 3, 0)
        );
    }
}
