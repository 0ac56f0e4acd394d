//! `docs/format.md` has the field tables of the code. `TEST_PAGELITH_BLESS=1 cargo test -p
//! pagelith-layouts --test format_doc tables` rewrites them between the page's markers. It must run
//! alone, since the other tests read the page. The prose around the tables is written by hand.

#![expect(
    clippy::disallowed_methods,
    reason = "a test reads the page it checks itself; nothing here ships"
)]

use std::path::PathBuf;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::{BLOCK_BYTES, BLOCK_BYTES_MAX};
use pagelith_layouts::format_doc::render_structures;
use pagelith_layouts::record::{HEADER_BYTES_MAX, MEMBERS_MAX, OBJECT_BYTES_MAX};
use pagelith_layouts::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use pagelith_layouts::{checkpoint, manifest, names};

const BEGIN: &str =
    "<!-- structures: rendered from the code, see layouts/tests/format_doc.rs -->\n";
const END: &str = "<!-- end of structures -->\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/format.md")
}

fn page() -> String {
    std::fs::read_to_string(path()).expect("docs/format.md is readable")
}

#[test]
fn format_page_has_field_tables_of_code() {
    let page = page();
    let (before, rest) = page.split_once(BEGIN).expect("the begin marker");
    let (shown, after) = rest.split_once(END).expect("the end marker");
    let rendered = format!("\n{}", render_structures());
    if std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(path(), format!("{before}{BEGIN}{rendered}{END}{after}"))
            .expect("the page can be written");
        return;
    }
    let differs = shown.lines().zip(rendered.lines()).find(|(a, b)| a != b);
    assert!(
        shown == rendered,
        "docs/format.md differs from the code; first difference: {differs:?}"
    );
}

/// Limits that the page's prose states.
#[test]
fn format_page_states_limits_of_code() {
    let page = page();
    for (what, number) in [
        ("unit of alignment", ALIGN),
        ("shortest segment", SEGMENT_BYTES_MIN),
        ("longest segment", SEGMENT_BYTES_MAX),
        ("longest object", OBJECT_BYTES_MAX),
        ("longest record header", HEADER_BYTES_MAX),
        ("members of a record", MEMBERS_MAX as u64),
        ("default block", BLOCK_BYTES.into()),
        ("largest block", BLOCK_BYTES_MAX.into()),
        ("facts of a manifest block", manifest::FACTS as u64),
        ("checkpoint chunk", checkpoint::CHUNK_BYTES as u64),
        ("items of a chunk", checkpoint::CHUNK_ITEMS as u64),
    ] {
        let row = format!("\n{what} | {number}\n");
        assert!(page.contains(&row), "docs/format.md must say: {row}");
    }
}

#[test]
fn format_page_names_every_file() {
    let page = page();
    let names = [names::LOCK, names::CREATING, names::SEGMENTS];
    for name in names.into_iter().chain(names::MANIFESTS).chain(names::CHECKPOINTS) {
        assert!(page.contains(&format!("\n`{name}` | ")), "{name}");
    }
}
