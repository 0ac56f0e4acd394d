//! Reads across parallel layouts and host layouts, compared with the tensor model byte by byte.

use std::collections::HashMap;

use pagelith_layouts::geometry::reshard::{ReshardPlan, plan};
use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::shard::{Shard, Slice};
use proptest::prelude::*;
use proptest::sample::Index;

use super::config;
use super::random::{fitting_layout, model, sizes};
use super::tensor_model::{ModelPool, pools};
use pagelith_layouts::geometry::presets;

const PAGES: u64 = 2;

/// A stored page: its objects by component and shard.
type Stored = HashMap<(String, Shard), Vec<u8>>;

/// A rank's buffers, filled with the bytes that the tensor model has at each place.
fn filled(pool: &ModelPool) -> Vec<Vec<u8>> {
    let fill = |buffer: &super::tensor_model::ModelBuffer| {
        let bytes =
            |e: super::tensor_model::Element| (0..buffer.bytes_each).map(move |i| e.place.byte(i));
        buffer.elements(PAGES).into_iter().flat_map(bytes).collect()
    };
    pool.buffers.iter().map(fill).collect()
}

/// The object of a component, gathered from the buffers.
fn gather(extents: &Extents, page: u64, component: usize, buffers: &[Vec<u8>]) -> Vec<u8> {
    let chunks = extents.chunks(page, component).expect("in range");
    chunks
        .flat_map(|c| buffers[c.buffer][c.offset as usize..(c.offset + c.len) as usize].to_vec())
        .collect()
}

/// The objects of one page of a pool that all ranks of a writer store. The first writer of an
/// object wins.
fn store(model: &Model, writer: &Placement, role: Role, name: &str, page: u64) -> Stored {
    let mut stored = Stored::new();
    for pp in 0..writer.pp.of {
        for tp in 0..writer.tp.of {
            let rank = Placement {
                tp: Slice { rank: tp, of: writer.tp.of },
                pp: Slice { rank: pp, of: writer.pp.of },
                dcp: Slice { rank: tp % writer.dcp.of, of: writer.dcp.of },
                ..writer.clone()
            };
            let geometry = Geometry::new(model, &rank).expect("checked");
            let Ok(pool) = geometry.pool(role, name) else { continue };
            if !pool.writes {
                continue;
            }
            let expected = pools(model, &rank)
                .into_iter()
                .find(|p| p.role == role && p.name == name)
                .expect("the pool");
            let (extents, buffers) = (Extents::new(pool, PAGES).expect("small"), filled(&expected));
            for (i, component) in pool.components.iter().enumerate() {
                let object = gather(&extents, page, i, &buffers);
                stored.entry((component.name.clone(), component.shard)).or_insert(object);
            }
        }
    }
    stored
}

/// The reader's component, assembled by the plan; checks that every byte is written once.
fn assemble(plan: &ReshardPlan, bytes: u64, stored: &Stored) -> Vec<u8> {
    let mut out: Vec<Option<u8>> = vec![None; bytes as usize];
    for source in &plan.sources {
        let object = &stored[&(source.component.clone(), source.shard)];
        assert_eq!(object.len() as u64, source.bytes);
        for m in &source.moves {
            for i in 0..m.len {
                let place = &mut out[(m.to + i) as usize];
                assert!(place.is_none(), "written once");
                *place = Some(object[(m.from + i) as usize]);
            }
        }
        for pair in source.moves.windows(2) {
            let touch = pair[0].to + pair[0].len == pair[1].to
                && pair[0].from + pair[0].len == pair[1].from;
            assert!(!touch, "neighbours are one range");
        }
    }
    out.into_iter().map(|byte| byte.expect("no gap")).collect()
}

/// Write a page at one placement, read it at another, and check the reader's buffers against the
/// tensor model.
fn resharded(
    model: &Model,
    writer: &Placement,
    reader: &Placement,
    page: u64,
    role: Role,
    name: &str,
) {
    let geometry = Geometry::new(model, reader).expect("checked");
    let pool = geometry.pool(role, name).expect("the pool");
    let stored = store(model, writer, role, name, page);
    let plans = plan(model, writer, reader, role, name).expect("a plan");
    assert_eq!(plans.len(), pool.components.len());
    let extents = Extents::new(pool, PAGES).expect("small");
    let mut buffers: Vec<Vec<u8>> =
        extents.buffer_bytes().iter().map(|n| vec![0; *n as usize]).collect();
    for (plan, component) in plans.iter().zip(&pool.components) {
        let object = assemble(plan, component.bytes, &stored);
        let mut from = 0;
        for c in extents.chunks(page, plan.component).expect("in range") {
            let place = &mut buffers[c.buffer][c.offset as usize..(c.offset + c.len) as usize];
            place.copy_from_slice(&object[from..from + c.len as usize]);
            from += c.len as usize;
        }
    }
    let expected = pools(model, reader)
        .into_iter()
        .find(|p| p.role == role && p.name == name)
        .expect("the pool");
    for (buffer, bytes) in expected.buffers.iter().zip(&buffers) {
        for element in buffer.elements(PAGES).iter().filter(|e| e.place.page == page) {
            for i in 0..buffer.bytes_each {
                let found = bytes[(element.offset + i) as usize];
                assert_eq!(
                    found,
                    element.place.byte(i),
                    "{writer:?} to {reader:?}: {:?}",
                    element.place
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// For any writer, any reader and any two host layouts, the reader gets the same tensor.
    #[test]
    fn page_resharded_between_any_layouts_is_same_tensor(
        model in model(), write in sizes(), read in sizes(), layouts in any::<(Index, Index)>(), page in 0..PAGES,
    ) {
        let layouts = (fitting_layout(&model, layouts.0), fitting_layout(&model, layouts.1));
        let writer = write.place(&model, layouts.0);
        let reader = read.place(&model, layouts.1);
        for (pool, expected) in Geometry::new(&model, &reader).expect("valid geometry").pools.iter().zip(pools(&model, &reader)) {
            if let Some(reason) = not_shared(&model, (&writer, &reader), &expected) {
                let refused = plan(&model, &writer, &reader, pool.role, &pool.name);
                prop_assert!(matches!(refused, Err(GeometryError::NotHeld { .. })), "{}: {:?}", reason, refused);
            } else {
                resharded(&model, &writer, &reader, page, pool.role, &pool.name);
            }
        }
    }
}

/// The reason why a pool cannot be read from the writer's objects, if there is one.
fn not_shared(
    model: &Model,
    (writer, reader): (&Placement, &Placement),
    expected: &ModelPool,
) -> Option<&'static str> {
    let divided = expected.buffers.iter().any(|b| b.what.contains("of dcp"));
    if divided && writer.dcp.of != reader.dcp.of {
        return Some("other tokens");
    }
    if expected.buffers.iter().any(|b| b.what.contains("of rank")) && writer.tp.of != reader.tp.of {
        return Some("another rank's state");
    }
    let split = |p: &Placement| p.layout == Layout::PageFirstKvSplit;
    let indexer = match expected.role {
        Role::Target => model.indexer.as_ref(),
        Role::Draft => model.draft.as_ref().and_then(|d| d.indexer.as_ref()),
    };
    let mixed = split(writer) != split(reader) && indexer.is_some();
    let reads_indexer = expected.name == "indexer" || expected.name == "kv" && split(reader);
    (mixed && reads_indexer).then_some("an indexer packed otherwise")
}

fn small_heads() -> Model {
    let heads = HeadAttention { layers: 2, kv_heads: 8, k_dim: 3, v_dim: 3, dtype: Dtype::Half };
    let draft = HeadAttention { layers: 1, k_dim: 2, v_dim: 2, ..heads.clone() };
    Model {
        page_tokens: 2,
        attention: Attention::Heads(heads),
        draft: Some(Draft { attention: Attention::Heads(draft), indexer: None, window: None }),
        ..presets::model("llama-3-8b").expect("a preset")
    }
}

/// All writer and reader sizes, replicated heads included, with and without head split, target and
/// draft.
#[test]
fn every_tp_size_reads_pages_of_every_tp_size() {
    let heads = small_heads();
    let latent = presets::model("deepseek-v3").expect("a preset");
    let latent = Model { page_tokens: 2, ..latent };
    for write in [1u16, 2, 4, 8, 16] {
        for read in [1u16, 2, 4, 8, 16] {
            let rank = read - 1;
            for layout in
                [Layout::LayerFirst, Layout::PageFirst, Layout::PageFirstDirect, Layout::PageHead]
            {
                let writer = Placement::tensor_parallel(layout, 0, write);
                let reader = Placement::tensor_parallel(layout, rank, read);
                resharded(&heads, &writer, &reader, 1, Role::Target, "kv");
                resharded(&heads, &writer, &reader, 1, Role::Draft, "kv");
                if write <= 8 && layout == Layout::PageHead {
                    let split = Placement { tp_lcm_size: Some(8), ..writer };
                    resharded(&heads, &split, &reader, 1, Role::Target, "kv");
                    resharded(&heads, &split, &reader, 1, Role::Draft, "kv");
                }
            }
            let at = |rank, of| Placement::tensor_parallel(Layout::PageFirst, rank, of);
            let plans =
                plan(&latent, &at(0, write), &at(rank, read), Role::Target, "kv").expect("a plan");
            let [ReshardPlan { sources, .. }] = &plans[..] else { panic!("one component") };
            let [source] = &sources[..] else { panic!("one object") };
            assert_eq!(source.shard, Shard::Whole);
            let [m] = source.moves[..] else { panic!("one range") };
            assert_eq!((m.from, m.to, m.len), (0, 0, source.bytes), "MLA is the identity");
        }
    }
}

#[test]
fn single_stage_and_pipeline_stages_read_each_others_pages() {
    let model = small_heads();
    let of = |pp, tp| Placement { pp, ..Placement::tensor_parallel(Layout::PageFirst, tp - 1, tp) };
    for (write, read) in [(1, 4), (4, 1), (2, 2)] {
        for rank in [0, 1] {
            let (whole, stage) = (of(Slice::ALL, write), of(Slice { rank, of: 2 }, read));
            resharded(&model, &whole, &stage, 1, Role::Target, "kv");
            resharded(&model, &stage, &whole, 1, Role::Target, "kv");
            resharded(&model, &stage, &whole, 1, Role::Draft, "kv");
        }
    }
}

/// Groups of several heads, with K and V in one object and in separate ones.
#[test]
fn page_unified_and_page_head_read_each_others_pages() {
    let model = small_heads();
    for (lcm, read) in [(2u16, 1u16), (2, 2), (4, 1), (4, 4), (2, 16)] {
        for write in [1u16, 2] {
            let of = |layout, tp: u16| Placement::tensor_parallel(layout, tp - 1, tp);
            let split = Placement { tp_lcm_size: Some(lcm), ..of(Layout::PageUnified, write) };
            for role in [Role::Target, Role::Draft] {
                resharded(&model, &split, &of(Layout::PageHead, read), 0, role, "kv");
                resharded(&model, &of(Layout::PageHead, read), &split, 0, role, "kv");
            }
        }
    }
}

/// The costs in docs/resharding.md: ranges to fill K at TP 1 from TP 8, and at TP 8 from TP
/// 1.
#[test]
fn reshard_has_one_range_per_object_by_heads_else_one_per_row() {
    let model = presets::model("llama-3-70b").expect("a preset");
    let (layers, tokens) = (80, 64);
    for (layout, gathered, cut) in [
        (Layout::PageHead, 1, 1),
        (Layout::PageFirst, layers * tokens, layers * tokens),
        (Layout::PageFirstDirect, layers * tokens, layers * tokens),
    ] {
        let at = |rank, of| Placement::tensor_parallel(layout, rank, of);
        let up = plan(&model, &at(0, 8), &at(0, 1), Role::Target, "kv").expect("a plan");
        assert_eq!(up[0].sources.len(), 8);
        assert!(up[0].sources.iter().all(|s| s.moves.len() == gathered), "{layout}");
        assert!(
            up[0].sources.iter().all(|s| (s.taken(), s.span()) == (s.bytes, 0..s.bytes)),
            "{layout}"
        );
        let down = plan(&model, &at(0, 1), &at(3, 8), Role::Target, "kv").expect("a plan");
        assert_eq!((down[0].sources.len(), down[0].sources[0].moves.len()), (1, cut), "{layout}");
        assert_eq!(down[0].sources[0].taken() * 8, down[0].sources[0].bytes);
        if layout == Layout::PageHead {
            let eighth = 1_310_720;
            assert_eq!(down[0].sources[0].span(), 3 * eighth..4 * eighth);
        }
    }
}

#[test]
fn state_of_other_tp_size_is_refused() {
    let model = presets::model("qwen3-next").expect("a preset");
    let at = |of| Placement::tensor_parallel(Layout::PageFirst, 0, of);
    assert!(plan(&model, &at(2), &at(2), Role::Target, "mamba").is_ok());
    let error = plan(&model, &at(4), &at(2), Role::Target, "mamba")
        .expect_err("other channels")
        .to_string();
    assert!(
        error.contains("pool=mamba component=temporal need_bytes=37748736 found_bytes=0"),
        "{error}"
    );
    let error = plan(&model, &at(1), &at(1), Role::Draft, "kv").expect_err("no draft").to_string();
    assert!(error.contains("no such pool pool=d:kv"), "{error}");
}

#[test]
fn other_decode_context_size_is_refused() {
    let model = presets::model("deepseek-v3").expect("a preset");
    let at = |dcp| Placement {
        dcp: Slice { rank: 0, of: dcp },
        ..Placement::tensor_parallel(Layout::PageFirst, 0, 4)
    };
    assert!(plan(&model, &at(2), &at(2), Role::Target, "kv").is_ok());
    let error =
        plan(&model, &at(2), &at(4), Role::Target, "kv").expect_err("other tokens").to_string();
    assert!(error.contains("found_bytes=0"), "{error}");
    // A draft with heads has complete pages on every rank.
    let model = presets::model("deepseek-v3+llama-3-8b-eagle3").expect("a preset");
    let model = Model { page_tokens: 4, ..model };
    for rank in 0..4 {
        let to = Placement { tp: Slice { rank, of: 4 }, dcp: Slice { rank, of: 4 }, ..at(4) };
        resharded(&model, &at(2), &to, 1, Role::Draft, "kv");
    }
}

/// A component of which the writer has only a part is refused.
#[test]
fn split_rows_without_index_keys_are_refused() {
    let model = presets::model("deepseek-v3.2").expect("a preset");
    let (writer, reader) = (Layout::PageFirst, Layout::PageFirstKvSplit);
    let error =
        plan(&model, &Placement::single(writer), &Placement::single(reader), Role::Target, "kv")
            .expect_err("no index keys")
            .to_string();
    assert!(error.contains("component=k need_bytes=3076352 found_bytes=2561024"), "{error}");
}
