//! `docs/protocol.md` has the field tables of the code. `TEST_PAGELITH_BLESS=1 cargo test -p
//! pagelith-layouts --test protocol_doc tables` rewrites them between the page's markers. It must
//! run alone, since the other tests read the page. The prose around the tables is written by hand.

#![expect(
    clippy::disallowed_methods,
    reason = "a test reads the page it checks itself; nothing here ships"
)]

use std::path::PathBuf;

use pagelith_layouts::format_doc::render_wire_structures;
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::{self, FrameKind, outcome};

const BEGIN: &str =
    "<!-- structures: rendered from the code, see layouts/tests/protocol_doc.rs -->\n";
const END: &str = "<!-- end of structures -->\n";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md")
}

fn page() -> String {
    std::fs::read_to_string(path()).expect("docs/protocol.md is readable")
}

#[test]
fn protocol_page_has_field_tables_of_code() {
    let page = page();
    let (before, rest) = page.split_once(BEGIN).expect("the begin marker");
    let (shown, after) = rest.split_once(END).expect("the end marker");
    let rendered = format!("\n{}", render_wire_structures());
    if std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(path(), format!("{before}{BEGIN}{rendered}{END}{after}"))
            .expect("the page can be written");
        return;
    }
    let differs = shown.lines().zip(rendered.lines()).find(|(a, b)| a != b);
    assert!(
        shown == rendered,
        "docs/protocol.md differs from the code; first difference: {differs:?}"
    );
}

/// Limits that the page's prose states.
#[test]
fn protocol_page_states_limits_of_code() {
    let page = page();
    for (what, number) in [
        ("body of a greeting", wire::GREETING_BODY_MAX.into()),
        ("least control body", wire::CONTROL_BODY_LEAST.into()),
        ("longest control body", wire::CONTROL_BODY_MAX.into()),
        ("least data body", wire::DATA_BODY_LEAST.into()),
        ("longest data body", wire::DATA_BODY_MAX.into()),
        ("longest object", OBJECT_BYTES_MAX),
        ("text of a failure", outcome::TEXT_MAX as u64),
    ] {
        let row = format!("\n{what} | {number} | ");
        assert!(page.contains(&row), "docs/protocol.md must say: {row}");
    }
    assert!(page.starts_with("# The wire protocol\n\nVersion 1."));
    assert_eq!(
        (wire::VERSION_MIN, wire::VERSION_MAX),
        (1, 1),
        "the page's first line names the version"
    );
}

/// Rows of the table of features.
#[test]
fn protocol_page_names_every_feature() {
    let page = page();
    for feature in Feature::ALL {
        let row = format!("\n{} | `{}` | ", feature.bit().trailing_zeros(), feature.name());
        assert!(page.contains(&row), "docs/protocol.md must say: {row}");
    }
}

/// Tags that the field tables name.
#[test]
fn protocol_page_names_every_kind_and_error() {
    let page = page().replace("\n", " ");
    for kind in FrameKind::ALL {
        let tag = format!("{} {}", kind as u8, format!("{kind:?}").to_lowercase());
        assert!(page.contains(&tag), "docs/protocol.md must say: {tag}");
    }
    for error in outcome::ErrorTag::ALL {
        let name = format!("{error:?}").replace("NoSpace", "no space").to_lowercase();
        assert!(
            page.contains(&format!("{} {name}", error as u8)),
            "docs/protocol.md must say: {name}"
        );
    }
}
