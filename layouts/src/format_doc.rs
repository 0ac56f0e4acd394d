//! Renders the field tables for the pages `docs/format.md` and `docs/protocol.md`.

use std::fmt::Write;

use crate::format::{STRUCTURES, Structure};
use crate::wire;

/// Every structure of the format as a Markdown section with its field table. `docs/format.md` has
/// this text between its markers, and a test compares it, so that the page cannot drift from the
/// code.
pub fn render_structures() -> String {
    render(STRUCTURES)
}

/// As [`render_structures`], for the structures of the wire protocol in `docs/protocol.md`.
pub fn render_wire_structures() -> String {
    render(wire::STRUCTURES)
}

fn render(structures: &[Structure]) -> String {
    let mut out = String::new();
    for s in structures {
        // Writing to a String cannot fail.
        let _ = write!(out, "### {}: {} bytes\n\n{}\n\n", s.name, s.size, s.doc.trim());
        out.push_str(
            "| offset | bytes | field | type | meaning |\n| ---: | ---: | --- | --- | --- |\n",
        );
        for f in s.fields {
            let _ = writeln!(
                out,
                "| {} | {} | `{}` | `{}` | {} |",
                f.offset,
                f.size,
                f.name,
                f.ty,
                f.doc.trim().replace('|', "\\|")
            );
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_page_has_every_structure_and_field() {
        let page = render_structures();
        for s in STRUCTURES {
            assert!(page.contains(&format!("### {}: {} bytes\n", s.name, s.size)), "{}", s.name);
            for f in s.fields {
                let row = format!("| {} | {} | `{}` |", f.offset, f.size, f.name);
                assert!(page.contains(&row), "{}.{}", s.name, f.name);
            }
        }
    }
}
