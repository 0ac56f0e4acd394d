//! Sizes of every row of CONTRACTS 3.4, exact to the byte.

use pagelith_layouts::geometry::presets::DeepSeekV4Layers;
use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;

const MIB: f64 = (1 << 20) as f64;

/// One row: components of one pool, bytes of a page on a rank, and on all ranks that store it.
struct Row {
    preset: &'static str,
    tp: u16,
    pool: &'static str,
    components: &'static [(&'static str, u64)],
    page_mib: f64,
    all_mib: f64,
    aligned: bool,
}

const fn row(
    (preset, tp, pool): (&'static str, u16, &'static str),
    components: &'static [(&'static str, u64)],
    (page_mib, all_mib): (f64, f64),
    aligned: bool,
) -> Row {
    Row { preset, tp, pool, components, page_mib, all_mib, aligned }
}

const ROWS: [Row; 14] = [
    row(("llama-3-8b", 1, "kv"), &[("k", 4_194_304), ("v", 4_194_304)], (8.0, 8.0), true),
    row(("llama-3-70b", 8, "kv"), &[("k", 1_310_720), ("v", 1_310_720)], (2.5, 20.0), true),
    row(("llama-3-70b", 4, "kv"), &[("k", 2_621_440), ("v", 2_621_440)], (5.0, 20.0), true),
    row(("qwen3-8b", 1, "kv"), &[("k", 4_718_592), ("v", 4_718_592)], (9.0, 9.0), true),
    row(("qwen3-32b", 4, "kv"), &[("k", 2_097_152), ("v", 2_097_152)], (4.0, 16.0), true),
    row(("qwen3-235b", 8, "kv"), &[("k", 1_540_096), ("v", 1_540_096)], (2.94, 23.5), true),
    row(("deepseek-v3", 8, "kv"), &[("k", 4_497_408)], (4.29, 4.29), true),
    row(("deepseek-v3+packed-mtp", 8, "kv"), &[("k", 4_571_136)], (4.36, 4.36), true),
    row(("deepseek-v3.2", 8, "kv"), &[("k", 2_561_024)], (2.44, 2.44), false),
    row(("deepseek-v3.2", 8, "indexer"), &[("data", 515_328)], (0.49, 0.49), false),
    row(("qwen3-next", 1, "kv"), &[("k", 786_432), ("v", 786_432)], (1.5, 1.5), true),
    row(
        ("qwen3-next", 1, "mamba"),
        &[("temporal", 75_497_472), ("conv_0", 1_769_472)],
        (73.7, 73.7),
        true,
    ),
    row(
        ("qwen3-next", 4, "mamba"),
        &[("temporal", 18_874_368), ("conv_0", 442_368)],
        (18.4, 73.7),
        true,
    ),
    // Not in the table: 12 layers of 8 heads of 64 elements in bf16.
    row(("gpt-oss-20b", 1, "swa"), &[("k", 786_432), ("v", 786_432)], (1.5, 1.5), true),
];

fn pool(model: &Model, layout: Layout, rank: u16, of: u16, name: &str) -> Pool {
    let geometry = Geometry::new(model, &Placement::tensor_parallel(layout, rank, of))
        .expect("valid geometry");
    geometry.pool(Role::Target, name).expect("the pool").clone()
}

#[test]
fn preset_sizes_equal_client_table() {
    for row in &ROWS {
        let model = presets::model(row.preset).expect("a preset");
        let ranks: Vec<Pool> = (0..row.tp)
            .map(|rank| pool(&model, Layout::PageFirst, rank, row.tp, row.pool))
            .collect();
        let what = format!("{} tp={} {}", row.preset, row.tp, row.pool);
        for rank in &ranks {
            let found: Vec<_> =
                rank.components.iter().map(|c| (c.name.as_str(), c.bytes)).collect();
            assert_eq!(found, row.components, "{what}");
            let aligned = rank.components.iter().all(|c| c.bytes.is_multiple_of(4096));
            assert_eq!(aligned, row.aligned, "{what}");
        }
        let near = |bytes: u64, mib: f64| (bytes as f64 / MIB - mib).abs() < 0.051;
        let all: u64 = ranks.iter().filter(|p| p.writes).map(Pool::page_bytes).sum();
        assert!(near(ranks[0].page_bytes(), row.page_mib), "{what}: {}", ranks[0].page_bytes());
        assert!(near(all, row.all_mib), "{what}: {all}");
    }
}

#[test]
fn unaligned_component_sizes_have_expected_remainders() {
    let of = |name| {
        pool(&presets::model("deepseek-v3.2").expect("a preset"), Layout::PageFirst, 0, 1, name)
    };
    assert_eq!((of("kv").page_bytes() % 4096, of("indexer").page_bytes() % 4096), (1024, 3328));
    assert_eq!((4_497_408 / 4096, 18_874_368 / 4096, 442_368 / 4096), (1098, 4608, 108));
}

/// Of four heads on eight ranks, half of the stored objects equal the other half.
#[test]
fn replicated_heads_are_equal_on_ranks() {
    let model = presets::model("qwen3-235b").expect("a preset");
    let at = |rank, of| Placement::tensor_parallel(Layout::PageFirst, rank, of);
    let plans = reshard::plan(&model, &at(0, 8), &at(0, 1), Role::Target, "kv").expect("a plan");
    let ranks: Vec<_> = plans[0].sources.iter().map(|s| s.shard.to_string()).collect();
    assert_eq!(ranks, ["rank.tp0of8", "rank.tp2of8", "rank.tp4of8", "rank.tp6of8"]);
}

#[test]
fn fp8_heads_have_half_of_bf16_bytes() {
    let mut model = presets::model("llama-3-8b").expect("a preset");
    let Attention::Heads(heads) = &mut model.attention else { panic!("heads") };
    heads.dtype = Dtype::Byte;
    assert_eq!(pool(&model, Layout::PageFirst, 0, 1, "kv").components[0].bytes, 2_097_152);
}

/// Bytes per layer of DeepSeek-V4, whose logical `kv` has none.
#[test]
fn compressed_pools_are_padded_per_layer() {
    let model = presets::deepseek_v4(DeepSeekV4Layers { window: 43, c4: 21, c128: 20 }, 128);
    for layout in [Layout::LayerFirst, Layout::PageFirst] {
        let geometry = Geometry::new(&model, &Placement::tensor_parallel(layout, 3, 8))
            .expect("valid geometry");
        let facts: Vec<_> = geometry
            .pools
            .iter()
            .map(|p| (p.name.as_str(), p.page_bytes(), p.hit, p.writes))
            .collect();
        let (all, last) = (HitPolicy::AllPages, HitPolicy::TrailingPages(1));
        assert_eq!(
            facts,
            [
                ("kv", 0, all, true),
                ("swa", 43 * 149_760, last, false),
                ("deepseek_v4_c4", 21 * 37_440, all, false),
                ("deepseek_v4_c4_indexer", 21 * 64 * 132, all, false),
                ("deepseek_v4_c128", 20 * 1_728, all, false),
            ]
        );
        assert!(geometry.pools[0].components.is_empty() && geometry.pools[0].buffers.is_empty());
        let extents = Extents::new(&geometry.pools[4], 10).expect("fits");
        let chunks: Vec<_> =
            extents.chunks(3, 0).expect("in range").map(|c| (c.offset, c.len)).collect();
        let scattered: Vec<_> = (0..20).map(|layer| ((layer * 10 + 3) * 1_728, 1_728)).collect();
        assert_eq!(
            chunks,
            if layout == Layout::LayerFirst { scattered } else { vec![(3 * 34_560, 34_560)] }
        );
    }
}

#[test]
fn every_preset_with_every_draft_has_geometry() {
    for name in presets::NAMES {
        let model = presets::model(name).expect("a preset");
        assert!(Geometry::new(&model, &Placement::single(Layout::PageFirst)).is_ok(), "{name}");
        for draft in presets::DRAFTS {
            let both = presets::model(&format!("{name}+{draft}")).expect("a preset with a draft");
            let geometry = Geometry::new(&both, &Placement::single(Layout::PageFirst))
                .expect("valid geometry");
            let drafts = geometry.pools.iter().filter(|p| p.role == Role::Draft).count();
            assert_eq!(
                drafts,
                [1, 2, 1, 0][presets::DRAFTS.iter().position(|d| *d == draft).expect("listed")]
            );
            assert!(geometry.page_bytes() > 0);
        }
    }
}
