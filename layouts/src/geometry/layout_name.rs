//! Parsing of layout names, with a suggestion for a misspelt one.

use std::str::FromStr;

use super::error::GeometryError;
use super::layout::Layout;

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
