//! Refused descriptions: the error names the field, the value and the rule.

use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::shard::Slice;

fn heads() -> Model {
    presets::model("llama-3-8b").expect("a preset")
}

fn latent() -> Model {
    presets::model("deepseek-v3").expect("a preset")
}

fn refusal(model: &Model, place: &Placement) -> String {
    Geometry::new(model, place).expect_err("refused").to_string()
}

fn page_first() -> Placement {
    Placement::single(Layout::PageFirst)
}

fn with_heads(change: impl FnOnce(&mut HeadAttention)) -> Model {
    let mut model = heads();
    if let Attention::Heads(heads) = &mut model.attention {
        change(heads);
    }
    model
}

#[test]
fn inconsistent_model_is_refused_by_field() {
    let draft =
        |model: &Model| Draft { attention: model.attention.clone(), indexer: None, window: None };
    let window = |attention| Some(Window { attention, tokens: 128 });
    let rows = |name: &str| RowPool {
        role: Role::Target,
        name: name.into(),
        layers: 1,
        rows: 1,
        row_bytes: 1,
        page_multiple: 1,
        hit: HitPolicy::AllPages,
        per_rank: false,
    };
    let none = with_heads(|h| h.layers = 0).attention;
    let linear = presets::model("qwen3-next").expect("a preset").linear.expect("linear layers");
    let cases = [
        (with_heads(|h| h.layers = 0), "attention.layers must be at least 1 value=0"),
        (with_heads(|h| h.kv_heads = 0), "attention.kv_heads must be at least 1 value=0"),
        (with_heads(|h| h.v_dim = 0), "attention.v_dim must be at least 1 value=0"),
        (Model { page_tokens: 0, ..heads() }, "page_tokens must be at least 1 value=0"),
        (
            Model { window: window(none), ..heads() },
            "window.attention.layers must be at least 1 value=0",
        ),
        (
            Model { window: window(Attention::Anchor), ..heads() },
            "window.attention of a window must have bytes",
        ),
        (
            Model { packed_mtp_layers: 1, draft: Some(draft(&heads())), ..heads() },
            "packed_mtp_layers must be 0 if draft is set: draft layers are either packed or in pools of their own value=1",
        ),
        (
            Model { attention: Attention::Anchor, ..heads() },
            "attention has no bytes and needs another pool with hit policy AllPages",
        ),
        (
            Model {
                indexer: Some(Indexer { layers: Some(62), key_bytes: 128, scale_bytes: 4 }),
                ..latent()
            },
            "indexer.layers must not be above the layers of its attention value=62",
        ),
        (
            Model { linear: Some(LinearState { layers: 0, ..linear.clone() }), ..heads() },
            "linear.layers must be at least 1 value=0",
        ),
        (
            Model {
                linear: Some(LinearState {
                    temporal: StateShape { dims: vec![0], dtype: Dtype::Half },
                    conv: vec![],
                    ..linear
                }),
                ..heads()
            },
            "linear.conv must not be empty if temporal has no elements",
        ),
        (
            Model {
                draft: Some(Draft { attention: Attention::Anchor, ..draft(&heads()) }),
                ..heads()
            },
            "draft must have attention, indexer or window",
        ),
        (
            Model { rows: vec![rows("a/b")], ..heads() },
            "rows[0].name must be 1 to 30 of A-Z a-z 0-9 _ - . value=\"a/b\"",
        ),
        (Model { rows: vec![rows("kv")], ..heads() }, "rows must not name a pool twice value=kv"),
        (
            Model { rows: vec![rows("draft")], draft: Some(draft(&heads())), ..heads() },
            "rows must not name a pool twice value=draft",
        ),
        (
            Model { rows: vec![RowPool { rows: 0, ..rows("x") }], ..heads() },
            "rows[0].rows must be at least 1 value=0",
        ),
        (
            Model {
                rows: vec![RowPool { hit: HitPolicy::TrailingPages(0), ..rows("x") }],
                ..heads()
            },
            "rows[0].hit must be at least 1 value=0",
        ),
    ];
    for (model, expected) in cases {
        let error = refusal(&model, &page_first());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn placement_that_does_not_fit_model_is_refused() {
    let tp = |rank, of| Placement::tensor_parallel(Layout::PageFirst, rank, of);
    let pp = |of| Placement { pp: Slice { rank: 0, of }, ..page_first() };
    let dcp = |tp: Placement, rank, of| Placement { dcp: Slice { rank, of }, ..tp };
    let cases = [
        (heads(), tp(8, 8), "placement.tp rank must be below size value=8of8"),
        (heads(), tp(0, 0), "placement.tp rank must be below size value=0of0"),
        (
            heads(),
            tp(0, 3),
            "attention.kv_heads must be a multiple of the tp size 3, or divide it (replicated heads) value=8",
        ),
        (heads(), tp(0, 12), "attention.kv_heads must be a multiple of the tp size 12"),
        (heads(), pp(3), "attention.layers must be a multiple of the pp size 3 value=32"),
        (latent(), pp(2), "attention.layers must be a multiple of the pp size 2 value=61"),
        (heads(), dcp(tp(0, 2), 0, 2), "placement.dcp above 1 needs MLA attention value=0of2"),
        (latent(), dcp(tp(0, 3), 0, 2), "placement.dcp size must divide the tp size value=0of2"),
        (
            latent(),
            dcp(tp(1, 4), 0, 2),
            "placement.dcp rank must be the tp rank modulo its size value=0of2",
        ),
        (latent(), dcp(tp(0, 3), 0, 3), "page_tokens must be a multiple of the dcp size value=64"),
        (
            presets::model("qwen3-next").expect("a preset"),
            tp(0, 64),
            "linear.temporal.dims[0] must be a multiple of the tp size 64 value=32",
        ),
    ];
    for (model, place, expected) in cases {
        let error = refusal(&model, &place);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn head_split_that_does_not_divide_is_refused() {
    let split = |rank, of, lcm| Placement {
        tp_lcm_size: Some(lcm),
        ..Placement::tensor_parallel(Layout::PageHead, rank, of)
    };
    let finer = "attention.kv_heads must be a multiple of tp_lcm_size 16: no head group is finer than a head value=8";
    let with_draft = presets::model("llama-3-8b+llama-3-8b-eagle3").expect("a preset");
    let few =
        Draft { attention: with_heads(|h| h.kv_heads = 4).attention, indexer: None, window: None };
    let cases = [
        (
            heads(),
            split(0, 4, 6),
            "placement.tp_lcm_size must be a multiple of the tp size 4 value=6",
        ),
        (
            heads(),
            split(0, 4, 2),
            "placement.tp_lcm_size must be a multiple of the tp size 4 value=2",
        ),
        (
            heads(),
            split(0, 4, 0),
            "placement.tp_lcm_size must be a multiple of the tp size 4 value=0",
        ),
        (heads(), split(0, 4, 16), finer),
        (
            heads(),
            Placement { cp: Slice { rank: 0, of: 2 }, ..split(0, 4, 8) },
            "placement.cp must be 1 with tp_lcm_size value=2",
        ),
        (
            Model { draft: Some(few), ..with_draft },
            split(0, 4, 8),
            "draft.attention.kv_heads must be a multiple of tp_lcm_size 8",
        ),
        (
            heads(),
            Placement { layout: Layout::PageFirst, ..split(0, 4, 8) },
            "placement.layout must be page_head or page_unified with tp_lcm_size 8 value=page_first",
        ),
        (
            with_heads(|h| h.layers = 1 << 16),
            split(0, 4, 8),
            "attention.layers must be below 2^16 with tp_lcm_size, packed ones included value=65536",
        ),
    ];
    for (model, place, expected) in cases {
        let error = refusal(&model, &place);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn layout_that_cannot_hold_pool_is_refused() {
    let asymmetric = with_heads(|h| h.v_dim = 64);
    let linear = presets::model("qwen3-next").expect("a preset");
    let indexed = presets::model("deepseek-v3.2").expect("a preset");
    let mut draft = presets::model("deepseek-v3+llama-3-8b-eagle3").expect("a preset");
    draft.name = "a draft of another class than its target".into();
    let cases = [
        (latent(), Layout::PageHead, "pool=kv class=MLA: page_head holds only MHA"),
        (
            heads(),
            Layout::PageFirstKvSplit,
            "pool=kv class=MHA: page_first_kv_split holds only MLA",
        ),
        (
            asymmetric.clone(),
            Layout::PageHead,
            "pool=kv class=MHA with k_dim != v_dim: must be page_first or page_first_direct",
        ),
        (asymmetric, Layout::LayerFirst, "must be page_first or page_first_direct"),
        (
            linear.clone(),
            Layout::LayerFirst,
            "pool=mamba class=linear-attention state: must be page_first",
        ),
        (linear, Layout::PageHead, "pool=mamba class=linear-attention state: must be page_first"),
        (
            indexed,
            Layout::PageUnified,
            "pool=indexer class=indexer: must be layer_first, page_first",
        ),
        (draft.clone(), Layout::PageHead, "pool=kv class=MLA: page_head holds only MHA"),
        (
            draft,
            Layout::PageFirstKvSplit,
            "pool=draft class=MHA: page_first_kv_split holds only MLA",
        ),
    ];
    for (model, layout, rule) in cases {
        let error = refusal(&model, &Placement::single(layout));
        assert!(error.contains("placement.layout cannot hold "), "{error}");
        assert!(error.contains(rule) && error.contains(&format!("value={layout}")), "{error}");
    }
    for layout in [Layout::LayerFirst, Layout::PageFirst, Layout::PageUnified] {
        assert!(Geometry::new(&heads(), &Placement::single(layout)).is_ok(), "{layout}");
        assert!(Geometry::new(&latent(), &Placement::single(layout)).is_ok(), "{layout}");
    }
}

#[test]
fn all_problems_are_reported_together() {
    let mut model = with_heads(|h| (h.layers, h.kv_heads) = (0, 5));
    model.window = Some(Window { attention: Attention::Anchor, tokens: 0 });
    let place = Placement {
        pp: Slice { rank: 2, of: 2 },
        ..Placement::tensor_parallel(Layout::PageFirstKvSplit, 0, 4)
    };
    let error = refusal(&model, &place);
    for part in [
        "attention.layers must be at least 1 value=0",
        "window.tokens must be at least 1 value=0",
        "window.attention of a window must have bytes value=Anchor",
        "placement.pp rank must be below size value=2of2",
        "placement.layout cannot hold pool=kv",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Divisibility is checked only if the slices are valid.
    let error = refusal(&model, &Placement { pp: Slice::ALL, ..place });
    assert!(error.contains("attention.kv_heads must be a multiple of the tp size 4"), "{error}");
}

#[test]
fn page_or_component_out_of_range_is_refused() {
    let geometry = Geometry::new(&heads(), &page_first()).expect("valid geometry");
    let pool = &geometry.pools[0];
    let extents = Extents::new(pool, 10).expect("fits");
    for page in [10, 11, u64::MAX / 2, u64::MAX] {
        let error = extents.chunks(page, 0).expect_err("not there").to_string();
        assert_eq!(
            error,
            format!("page must be below the pool's pages pool=kv page={page} pages=10")
        );
    }
    assert!(extents.chunks(9, 1).is_ok());
    let error = extents.chunks(9, 2).expect_err("not there").to_string();
    assert_eq!(
        error,
        "component must be below the pool's components pool=kv component=2 components=2"
    );
    assert_eq!(
        extents.page_of_slot(65).expect_err("inside a page").to_string(),
        "slot must be a multiple of the slots of a page pool=kv slot=65 slots_per_page=64"
    );
    assert!(extents.page_of_slot(640).is_err() && extents.page_of_slot(576) == Ok(9));
    let none = Extents::new(pool, 0).expect("an empty pool");
    assert!(none.chunks(0, 0).is_err() && none.buffer_bytes() == [0]);
}

#[test]
fn pointer_list_of_wrong_length_is_refused() {
    let geometry = Geometry::new(&heads(), &page_first()).expect("valid geometry");
    let pool = &geometry.pools[0];
    assert_eq!(pool.check_lengths(1, [4_194_000, 304]), Ok(()));
    let cases =
        [(vec![4_194_304, 1], 4_194_305), (vec![], 0), (vec![u64::MAX, 4_194_305], u64::MAX)];
    for (list, sum) in cases {
        let error = pool.check_lengths(1, list).expect_err("another length").to_string();
        let expected = format!("pool=kv component=v list_bytes={sum} component_bytes=4194304");
        assert!(error.ends_with(&expected), "{error}");
    }
    assert!(pool.check_lengths(2, [1]).is_err());
}

/// No product wraps: a size that does not fit 64 bits is an error, and so is a plan with more
/// ranges than the limit.
#[test]
fn sizes_beyond_64_bits_are_refused() {
    let max = u32::MAX;
    let attention = Attention::Heads(HeadAttention {
        layers: max,
        kv_heads: max,
        k_dim: max,
        v_dim: max,
        dtype: Dtype::Single,
    });
    let absurd = Model { attention, page_tokens: max, ..heads() };
    assert_eq!(refusal(&absurd, &page_first()), "size does not fit 64 bits pool=kv what=page");
    let row = LatentRow::Parts { lora_rank: max, rope_dim: max, dtype: Dtype::Single };
    let attention = Attention::Latent(LatentAttention { layers: max, row });
    assert!(
        refusal(&Model { attention, ..heads() }, &page_first())
            .contains("size does not fit 64 bits")
    );
    let shape = StateShape { dims: vec![max; 3], dtype: Dtype::Half };
    let linear = LinearState { layers: 1, temporal: shape, conv: vec![] };
    assert!(
        refusal(&Model { linear: Some(linear), ..heads() }, &page_first()).contains("pool=mamba")
    );
    let rows = RowPool {
        role: Role::Target,
        name: "x".into(),
        layers: max,
        rows: max,
        row_bytes: max,
        page_multiple: max,
        hit: HitPolicy::AllPages,
        per_rank: false,
    };
    assert!(refusal(&Model { rows: vec![rows], ..heads() }, &page_first()).contains("pool=x"));

    let geometry = Geometry::new(&heads(), &page_first()).expect("valid geometry");
    let error =
        Extents::new(&geometry.pools[0], u64::MAX / 1000).expect_err("no such pool").to_string();
    assert_eq!(error, "size does not fit 64 bits pool=kv what=buffer");

    let wide = with_heads(|h| (h.layers, h.kv_heads) = (1 << 20, 2));
    let at = |rank, of| Placement::tensor_parallel(Layout::PageFirst, rank, of);
    let error = reshard::plan(&wide, &at(0, 2), &at(0, 1), Role::Target, "kv")
        .expect_err("too many")
        .to_string();
    assert_eq!(error, "too many ranges, at most 16777216 are allowed pool=kv");
}

#[test]
fn unknown_preset_is_refused() {
    for name in [
        "llama",
        "",
        "+",
        "llama-3-8b+",
        "llama-3-8b+x",
        "deepseek-v3-mtp",
        "llama-3-8b+packed-mtp+packed-mtp",
    ] {
        let error = presets::model(name).expect_err("no such preset").to_string();
        assert!(
            error.contains(&format!("preset={name:?}")) && error.contains("qwen3-next"),
            "{error}"
        );
    }
}
