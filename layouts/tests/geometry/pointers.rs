//! The pointer arithmetic of CONTRACTS 3.3 at real sizes, with the formulas of that section.

use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::shard::Slice;

const PAGES: u64 = 1000;
const PAGE: u64 = 777;
const P: u64 = 64;

fn extents(model: &Model, place: &Placement, name: &str) -> (Pool, Extents) {
    let geometry = Geometry::new(model, place).expect("valid geometry");
    let pool = geometry.pool(Role::Target, name).expect("the pool").clone();
    let extents = Extents::new(&pool, PAGES).expect("fits");
    (pool, extents)
}

fn chunks(extents: &Extents, component: usize) -> Vec<(usize, u64, u64)> {
    extents
        .chunks(PAGE, component)
        .expect("in range")
        .map(|c| (c.buffer, c.offset, c.len))
        .collect()
}

#[test]
fn pages_of_heads_match_pointer_formulas() {
    let model = presets::model("llama-3-70b").expect("a preset");
    let (l, h, d, it, s, slot) = (80, 1, 128, 2, PAGES * P, PAGE * P);
    for layout in [Layout::PageFirst, Layout::PageFirstDirect, Layout::PageHead] {
        let (_, extents) = extents(&model, &Placement::tensor_parallel(layout, 5, 8), "kv");
        assert_eq!(extents.page_of_slot(slot), Ok(PAGE));
        let (k, size) = (slot * l * h * d * it, l * P * h * d * it);
        assert_eq!(chunks(&extents, 0), [(0, k, size)], "{layout}");
        assert_eq!(chunks(&extents, 1), [(0, k + l * s * h * d * it, size)], "{layout}");
        assert_eq!(extents.buffer_bytes(), [2 * s * l * h * d * it]);
    }
}

/// Chunks of 16 KiB, as in CONTRACTS 3.4.
#[test]
fn layer_first_page_has_one_chunk_per_layer() {
    let model = presets::model("llama-3-70b").expect("a preset");
    let (l, h, d, it, s, slot) = (80, 1, 128, 2, PAGES * P, PAGE * P);
    let (_, of_heads) =
        extents(&model, &Placement::tensor_parallel(Layout::LayerFirst, 5, 8), "kv");
    let k = |layer: u64| slot * h * d * it + layer * s * h * d * it;
    let expected: Vec<_> = (0..l).map(|layer| (0, k(layer), P * h * d * it)).collect();
    assert_eq!(chunks(&of_heads, 0), expected);
    let v: Vec<_> = (0..l).map(|layer| (0, k(layer) + l * s * h * d * it, 16 << 10)).collect();
    assert_eq!(chunks(&of_heads, 1), v);

    let model = presets::model("deepseek-v3").expect("a preset");
    let (_, of_rows) = extents(&model, &Placement::single(Layout::LayerFirst), "kv");
    let expected: Vec<_> =
        (0..61).map(|layer| (0, (layer * s + slot) * 576 * 2, 72 << 10)).collect();
    assert_eq!(chunks(&of_rows, 0), expected);
}

#[test]
fn page_head_groups_match_pointer_formulas() {
    let model = presets::model("llama-3-8b").expect("a preset");
    let (l, h, d, it, s, slot, f) = (32, 4, 128, 2, PAGES * P, PAGE * P, 4);
    let split =
        Placement { tp_lcm_size: Some(8), ..Placement::tensor_parallel(Layout::PageHead, 1, 2) };
    let (pool, extents) = extents(&model, &split, "kv");
    assert_eq!(pool.components.len(), 8);
    let (page, size) = (slot * l * h * d * it, l * P * h * d * it / f);
    for group in 0..f {
        let k = page + group * P * l * d * it;
        let first = group as usize * 2;
        assert_eq!(chunks(&extents, first), [(0, k, size)]);
        assert_eq!(chunks(&extents, first + 1), [(0, k + l * s * h * d * it, size)]);
        for (component, name) in pool.components[first..first + 2].iter().zip(["k", "v"]) {
            let shard = format!("heads{}of8.layers0to32", 4 + group);
            assert_eq!((component.name.as_str(), component.shard.to_string()), (name, shard));
        }
    }
}

#[test]
fn head_group_shard_has_layers_of_its_stage() {
    let model = presets::model("llama-3-8b+packed-mtp").expect("a preset");
    for layout in [Layout::PageHead, Layout::PageUnified] {
        let stage =
            Placement { pp: Slice { rank: 1, of: 2 }, ..Placement::tensor_parallel(layout, 1, 2) };
        let (pool, _) = extents(&model, &Placement { tp_lcm_size: Some(4), ..stage }, "kv");
        let mut shards: Vec<_> = pool.components.iter().map(|c| c.shard.to_string()).collect();
        shards.dedup();
        assert_eq!(shards, ["heads2of4.layers16to33", "heads3of4.layers16to33"]);
    }
}

#[test]
fn decode_context_rank_has_share_of_page() {
    let model = presets::model("deepseek-v3").expect("a preset");
    let place = Placement {
        dcp: Slice { rank: 1, of: 2 },
        ..Placement::tensor_parallel(Layout::PageFirst, 3, 4)
    };
    let (pool, extents) = extents(&model, &place, "kv");
    let (l, c, it, logical_slot) = (61, 576, 2, PAGE * P);
    assert_eq!(extents.page_of_slot(logical_slot), Ok(PAGE));
    assert_eq!(chunks(&extents, 0), [(0, logical_slot / 2 * l * c * it, l * P / 2 * c * it)]);
    assert_eq!(
        (pool.components[0].shard.to_string(), pool.writes),
        ("rank.dcp1of2".to_owned(), false)
    );
    let writer = Placement { tp: Slice { rank: 1, of: 4 }, ..place };
    assert!(Geometry::new(&model, &writer).expect("valid geometry").pools[0].writes);
}

#[test]
fn state_checkpoint_has_one_slot_per_page() {
    let model = presets::model("qwen3-next").expect("a preset");
    let (pool, extents) =
        extents(&model, &Placement::tensor_parallel(Layout::PageFirst, 0, 4), "mamba");
    assert_eq!(extents.page_of_slot(PAGE), Ok(PAGE));
    let names: Vec<_> = pool.components.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["temporal", "conv_0"]);
    assert_eq!(chunks(&extents, 0), [(0, PAGE * 36 * (8 * 128 * 128) * 4, 18_874_368)]);
    assert_eq!(chunks(&extents, 1), [(1, PAGE * 36 * (2048 * 3) * 2, 442_368)]);
}

/// Up to four buffers under one key; the packed fp8 format has no V.
#[test]
fn split_latent_rows_have_separate_buffers() {
    let model = Model {
        indexer: Some(Indexer { layers: Some(21), key_bytes: 128, scale_bytes: 4 }),
        ..presets::model("deepseek-v3").expect("a preset")
    };
    let place = Placement::single(Layout::PageFirstKvSplit);
    let (pool, of_parts) = extents(&model, &place, "kv");
    let sizes = [61 * P * 512 * 2, 61 * P * 64 * 2, 21 * P * 128, 21 * P * 4];
    let expected: Vec<_> =
        sizes.iter().enumerate().map(|(i, size)| (i, PAGE * size, *size)).collect();
    assert_eq!(chunks(&of_parts, 0), expected);
    let names: Vec<_> = pool.buffers.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names, ["k", "v", "index_k", "index_scale"]);
    assert!(
        Geometry::new(&model, &place)
            .expect("valid geometry")
            .pool(Role::Target, "indexer")
            .is_err()
    );

    let fp8 = presets::model("deepseek-v3.2").expect("a preset");
    let (pool, packed) = extents(&fp8, &place, "kv");
    let sizes = [61 * P * 656, 61 * P * 128, 61 * P * 4];
    let expected: Vec<_> =
        sizes.iter().enumerate().map(|(i, size)| (i, PAGE * size, *size)).collect();
    assert_eq!(chunks(&packed, 0), expected);
    assert_eq!(pool.components[0].bytes, sizes.iter().sum::<u64>());
}

#[test]
fn model_without_recurrent_state_has_only_convolutions() {
    let mut model = presets::model("qwen3-next").expect("a preset");
    let linear = model.linear.as_mut().expect("linear layers");
    linear.temporal.dims = vec![0, 128, 128];
    let (pool, extents) = extents(&model, &Placement::single(Layout::PageFirst), "mamba");
    assert_eq!(pool.components.len(), 1);
    assert_eq!((pool.components[0].name.as_str(), extents.buffer_bytes().len()), ("conv_0", 1));
}

#[test]
fn last_stage_stores_draft() {
    let mut model = presets::model("llama-3-8b+llama-3-8b-eagle3").expect("a preset");
    let stage =
        |rank| Placement { pp: Slice { rank, of: 2 }, ..Placement::single(Layout::PageFirst) };
    let count = |model: &Model, rank| {
        Geometry::new(model, &stage(rank)).expect("valid geometry").pools.len()
    };
    assert_eq!((count(&model, 0), count(&model, 1)), (1, 2));
    (model.draft, model.packed_mtp_layers) = (None, 1);
    let bytes = |rank| {
        Geometry::new(&model, &stage(rank)).expect("valid geometry").pools[0].components[0].bytes
    };
    assert_eq!((bytes(0), bytes(1)), (16 * 131_072, 17 * 131_072));
}

#[test]
fn pool_has_client_name() {
    let mut model = presets::model("deepseek-v3.2+deepseek-v3.2-mtp").expect("a preset");
    let draft = model.draft.as_mut().expect("a draft");
    draft.window = Some(Window { attention: draft.attention.clone(), tokens: 65 });
    let geometry =
        Geometry::new(&model, &Placement::single(Layout::PageFirst)).expect("valid geometry");
    let names: Vec<_> = geometry.pools.iter().map(Pool::client_name).collect();
    assert_eq!(names, ["kv", "indexer", "draft", "draft_indexer", "draft_swa"]);
    let swa = geometry.pool(Role::Draft, "swa").expect("the pool");
    assert_eq!(swa.hit, HitPolicy::TrailingPages(2));
    assert_eq!((swa.components.len(), swa.components[0].name.as_str()), (1, "data"));
}
