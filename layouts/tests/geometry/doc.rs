//! `docs/geometry.md` has tables from the code. `TEST_PAGELITH_BLESS=1 cargo test -p
//! pagelith-layouts --test geometry doc::tables` rewrites the tables between the page's markers;
//! the prose around them is written by hand.

#![expect(
    clippy::disallowed_methods,
    reason = "a test reads the page it checks itself; nothing here ships"
)]

use std::fmt::Write;
use std::path::PathBuf;

use pagelith_layouts::geometry::presets::DeepSeekV4Layers;
use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/geometry.md")
}

fn page() -> String {
    std::fs::read_to_string(path()).expect("docs/geometry.md is readable")
}

#[test]
fn geometry_page_has_tables_of_code() {
    let mut page = page();
    let blessed = std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1");
    for (name, table) in [("layouts", shapes()), ("presets", sizes())] {
        let begin =
            format!("<!-- {name}: rendered from the code, see layouts/tests/geometry/doc.rs -->\n");
        let end = format!("<!-- end of {name} -->\n");
        let (before, rest) = page.split_once(&begin).expect("the begin marker");
        let (shown, after) = rest.split_once(&end).expect("the end marker");
        let differs = shown.lines().zip(table.lines()).find(|(a, b)| a != b);
        assert!(
            blessed || shown == table,
            "docs/geometry.md is not what the code says of {name}; first difference: {differs:?}"
        );
        page = format!("{before}{begin}{table}{end}{after}");
    }
    if blessed {
        std::fs::write(path(), page).expect("the page can be written");
    }
}

/// The page names every field of a model and a placement.
#[test]
fn geometry_page_names_every_field() {
    let page = page();
    let mut model = presets::model("qwen3-next").expect("a preset");
    model.indexer = presets::model("deepseek-v3.2").expect("a preset").indexer;
    model.window = presets::model("gpt-oss-20b").expect("a preset").window;
    model.draft = presets::model("deepseek-v3+deepseek-v3-mtp").expect("a preset").draft;
    let rows = presets::deepseek_v4(DeepSeekV4Layers { window: 1, c4: 1, c128: 1 }, 128).rows;
    let fp8 = presets::model("deepseek-v3.2").expect("a preset").attention;
    let all = format!("{model:#?}{rows:#?}{fp8:#?}{:#?}", Placement::single(Layout::PageFirst));
    let fields = all.lines().filter_map(|line| Some(line.trim_start().split_once(": ")?.0));
    let mut count = 0;
    for field in fields.filter(|f| !f.starts_with(|c: char| c.is_uppercase())) {
        assert!(page.contains(&format!("`{field}`")), "docs/geometry.md must have `{field}`");
        count += 1;
    }
    assert!(count > 40, "the fields were found");
}

/// A small model of each class, to show a layout's axes.
fn samples() -> Vec<(&'static str, Model, Role, &'static str)> {
    let of = |name: &str| presets::model(name).expect("a preset");
    let mut asymmetric = of("llama-3-8b");
    if let Attention::Heads(heads) = &mut asymmetric.attention {
        heads.v_dim = 64;
    }
    let rows = presets::deepseek_v4(DeepSeekV4Layers { window: 43, c4: 21, c128: 20 }, 128);
    vec![
        ("MHA", of("llama-3-8b"), Role::Target, "kv"),
        ("MHA, `k_dim` not `v_dim`", asymmetric, Role::Target, "kv"),
        ("MLA", of("deepseek-v3"), Role::Target, "kv"),
        ("indexer", of("deepseek-v3.2"), Role::Target, "indexer"),
        ("linear-attention state", of("qwen3-next"), Role::Target, "mamba"),
        ("packed rows", rows, Role::Target, "deepseek_v4_c4"),
    ]
}

fn shape(buffer: &Buffer) -> String {
    let letters: Vec<_> = buffer
        .axes
        .iter()
        .filter(|axis| axis.kind != AxisKind::Kv || axis.count > 1)
        .map(|axis| match axis.kind {
            AxisKind::Page => "pages".to_owned(),
            AxisKind::Kv => "2".into(),
            AxisKind::Layer => "L".into(),
            AxisKind::Token if axis.count == 1 => String::new(),
            AxisKind::Token => "P".into(),
            AxisKind::HeadGroup => "groups".into(),
            AxisKind::Head => "H".into(),
            AxisKind::Element => "D".into(),
        })
        .filter(|letter| !letter.is_empty())
        .collect();
    format!("{} ({})", buffer.name, letters.join(", "))
}

/// One row for all layouts in which a class has the same buffers.
fn shapes() -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for layout in Layout::ALL {
        for (class, model, role, name) in samples() {
            let Ok(geometry) = Geometry::new(&model, &Placement::single(layout)) else { continue };
            let Ok(pool) = geometry.pool(role, name) else { continue };
            let extents = Extents::new(pool, 2).expect("fits");
            let buffers: Vec<_> = pool.buffers.iter().map(shape).collect();
            let layers =
                pool.buffers[0].axes.iter().find(|a| a.kind == AxisKind::Layer).map(|a| a.count);
            let chunks = match extents.chunk_count(0) {
                1 => String::new(),
                n if Some(n) == layers => ", in L chunks".to_owned(),
                n => format!(", in {n} chunks"),
            };
            let row = format!("{class} | {}{chunks}", buffers.join("; "));
            match rows.iter_mut().find(|(other, _)| *other == row) {
                Some((_, layouts)) => layouts.push(format!("`{layout}`")),
                None => rows.push((row, vec![format!("`{layout}`")])),
            }
        }
    }
    let mut out = "layout | pool | buffers\n---|---|---\n".to_owned();
    for (row, layouts) in rows {
        writeln!(out, "{} | {row}", layouts.join(", ")).expect("a string");
    }
    out
}

fn sizes() -> String {
    let mut out = "preset | tp | pool | hit | components | bytes of each\n\
                   ---|---|---|---|---|---\n"
        .to_owned();
    for (name, tp) in [
        ("llama-3-8b", 1),
        ("llama-3-70b", 4),
        ("llama-3-70b", 8),
        ("qwen3-8b", 1),
        ("qwen3-32b", 4),
        ("qwen3-235b", 8),
        ("deepseek-v3", 8),
        ("deepseek-v3+packed-mtp", 8),
        ("deepseek-v3.2+deepseek-v3.2-mtp", 8),
        ("qwen3-next", 1),
        ("qwen3-next", 4),
        ("gpt-oss-20b", 1),
        ("llama-3-8b+llama-3-8b-eagle3", 1),
    ] {
        let model = presets::model(name).expect("a preset");
        let place = Placement::tensor_parallel(Layout::PageFirst, 0, tp);
        for pool in Geometry::new(&model, &place).expect("valid geometry").pools {
            let hit = match pool.hit {
                HitPolicy::AllPages => "all".to_owned(),
                HitPolicy::TrailingPages(n) => format!("last {n}"),
            };
            for alike in pool.components.chunk_by(|a, b| a.bytes == b.bytes) {
                let bytes = alike[0].bytes;
                let aligned = if bytes.is_multiple_of(4096) { "" } else { " (not aligned)" };
                let names: Vec<_> = alike.iter().map(|c| format!("`{}`", c.name)).collect();
                let (pool, names) = (pool.client_name(), names.join(", "));
                writeln!(out, "{name} | {tp} | {pool} | {hit} | {names} | {bytes}{aligned}")
                    .expect("a string");
            }
        }
    }
    out
}
