//! Random models and placements. Sizes that are divided are powers of two, so that every model fits
//! every placement, except for the host layout.

use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::shard::Slice;
use proptest::option;
use proptest::prelude::*;

fn power(max: u32) -> impl Strategy<Value = u32> {
    (0..=max.ilog2()).prop_map(|n| 1 << n)
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::Byte), Just(Dtype::Half), Just(Dtype::Single)]
}

/// Layers that two stages can share.
fn layers() -> impl Strategy<Value = u32> {
    (1..3u32).prop_map(|n| n * 2)
}

fn heads() -> impl Strategy<Value = Attention> {
    (layers(), power(8), 1..4u32, option::weighted(0.2, 1..4u32), dtype()).prop_map(
        |(layers, kv_heads, k_dim, other, dtype)| {
            let v_dim = other.unwrap_or(k_dim);
            Attention::Heads(HeadAttention { layers, kv_heads, k_dim, v_dim, dtype })
        },
    )
}

fn latent() -> impl Strategy<Value = Attention> {
    let parts = (1..4u32, 0..3u32, dtype())
        .prop_map(|(lora_rank, rope_dim, dtype)| LatentRow::Parts { lora_rank, rope_dim, dtype });
    let row = prop_oneof![parts, (1..5u32).prop_map(|bytes| LatentRow::Packed { bytes })];
    (layers(), row).prop_map(|(layers, row)| Attention::Latent(LatentAttention { layers, row }))
}

fn indexer() -> impl Strategy<Value = Indexer> {
    (any::<bool>(), 1..4u32, 0..3u32).prop_map(|(fewer, key_bytes, scale_bytes)| Indexer {
        layers: fewer.then_some(2),
        key_bytes,
        scale_bytes,
    })
}

fn window() -> impl Strategy<Value = Window> {
    (prop_oneof![heads(), latent()], 1..20u32)
        .prop_map(|(attention, tokens)| Window { attention, tokens })
}

fn linear() -> impl Strategy<Value = LinearState> {
    let shape = |least: u32| {
        (least..3u32, 1..3u32, dtype())
            .prop_map(|(n, inner, dtype)| StateShape { dims: vec![n * 16, inner], dtype })
    };
    (layers(), shape(0), prop::collection::vec(shape(1), 1..3))
        .prop_map(|(layers, temporal, conv)| LinearState { layers, temporal, conv })
}

fn draft() -> impl Strategy<Value = Draft> {
    (
        prop_oneof![heads(), latent()],
        option::weighted(0.3, indexer()),
        option::weighted(0.3, window()),
    )
        .prop_map(|(attention, indexer, window)| Draft { attention, indexer, window })
}

fn rows(i: usize) -> impl Strategy<Value = RowPool> {
    let hit = prop_oneof![Just(HitPolicy::AllPages), (1..4u32).prop_map(HitPolicy::TrailingPages)];
    (any::<bool>(), layers(), 1..4u32, 1..4u32, 1..6u32, hit, any::<bool>()).prop_map(
        move |(draft, layers, rows, row_bytes, page_multiple, hit, per_rank)| RowPool {
            role: if draft { Role::Draft } else { Role::Target },
            name: format!("unseen-{i}"),
            layers,
            rows,
            row_bytes,
            page_multiple,
            hit,
            per_rank,
        },
    )
}

pub fn model() -> impl Strategy<Value = Model> {
    let attention = prop_oneof![4 => heads(), 4 => latent(), 1 => Just(Attention::Anchor)];
    let rare = (
        option::weighted(0.3, indexer()),
        option::weighted(0.2, linear()),
        option::weighted(0.3, window()),
        option::weighted(0.4, draft()),
    );
    let rows = (0..3usize).prop_flat_map(|n| (0..n).map(rows).collect::<Vec<_>>());
    (power(4), attention, rare, rows, 0..2u32).prop_map(
        |(tokens, attention, (indexer, linear, window, draft), mut rows, packed)| {
            let anchor = attention == Attention::Anchor;
            if anchor {
                // Some pool must decide whether the page exists.
                for pool in &mut rows {
                    pool.hit = HitPolicy::AllPages;
                }
            }
            let mut indexer = indexer;
            if anchor && rows.is_empty() {
                indexer = indexer.or(Some(Indexer { layers: None, key_bytes: 1, scale_bytes: 0 }));
            }
            if let Some(indexer) = indexer.as_mut().filter(|_| anchor) {
                indexer.layers = Some(2);
            }
            let packed_mtp_layers = if anchor || draft.is_some() { 0 } else { packed };
            let (name, page_tokens) = ("random".to_owned(), tokens * 2);
            Model {
                name,
                page_tokens,
                attention,
                packed_mtp_layers,
                indexer,
                linear,
                window,
                draft,
                rows,
            }
        },
    )
}

pub fn layout() -> impl Strategy<Value = Layout> {
    prop::sample::select(Layout::ALL.to_vec())
}

/// Sizes of a placement: (tp, pp, dcp), in powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub tp: u16,
    pub pp: u16,
    pub dcp: u16,
    pub lcm: Option<u16>,
    rank: u16,
}

pub fn sizes() -> impl Strategy<Value = Sizes> {
    (power(16), power(2), power(2), option::weighted(0.5, power(8)), any::<u16>()).prop_map(
        |(tp, pp, dcp, lcm, rank)| {
            let small = |n: u32| u16::try_from(n).expect("small");
            Sizes { tp: small(tp), pp: small(pp), dcp: small(dcp), lcm: lcm.map(small), rank }
        },
    )
}

impl Sizes {
    /// A placement with these sizes, reduced to the ones that the model allows: decode-context
    /// parallelism only with MLA, a head split only into whole heads and in a layout that can hold
    /// it.
    pub fn place(&self, model: &Model, layout: Layout) -> Placement {
        let latent = matches!(model.attention, Attention::Latent(_));
        let dcp = if latent && self.dcp <= self.tp { self.dcp } else { 1 };
        let by_heads = matches!(layout, Layout::PageHead | Layout::PageUnified);
        let fewest = fewest_heads(model);
        let lcm = self
            .lcm
            .map(|lcm| lcm.max(self.tp))
            .filter(|lcm| by_heads && u32::from(*lcm) <= fewest);
        let tp = self.rank % self.tp;
        Placement {
            layout,
            tp: Slice { rank: tp, of: self.tp },
            pp: Slice { rank: (self.rank >> 8) % self.pp, of: self.pp },
            cp: Slice::ALL,
            dcp: Slice { rank: tp % dcp, of: dcp },
            tp_lcm_size: lcm,
        }
    }
}

fn attentions(model: &Model) -> Vec<&Attention> {
    let mut all = vec![&model.attention];
    all.extend(model.window.iter().map(|w| &w.attention));
    if let Some(draft) = &model.draft {
        all.push(&draft.attention);
        all.extend(draft.window.iter().map(|w| &w.attention));
    }
    all
}

fn fewest_heads(model: &Model) -> u32 {
    let heads = attentions(model).into_iter().filter_map(|a| match a {
        Attention::Heads(h) => Some(h.kv_heads),
        _ => None,
    });
    heads.min().unwrap_or(u32::MAX)
}

/// Whether CONTRACTS 3.2 and 3.5 define a buffer for every pool of the model in this layout.
pub fn fits(model: &Model, layout: Layout) -> bool {
    let attention = |a: &Attention| match a {
        Attention::Heads(h) if h.k_dim != h.v_dim => {
            matches!(layout, Layout::PageFirst | Layout::PageFirstDirect)
        }
        Attention::Heads(_) => layout != Layout::PageFirstKvSplit,
        Attention::Latent(_) => layout != Layout::PageHead,
        Attention::Anchor => true,
    };
    let indexer = |a: &Attention| match layout {
        Layout::LayerFirst | Layout::PageFirst | Layout::PageFirstDirect => true,
        Layout::PageFirstKvSplit => matches!(a, Attention::Latent(_)),
        Layout::PageHead | Layout::PageUnified => false,
    };
    attentions(model).into_iter().all(attention)
        && (model.indexer.is_none() || indexer(&model.attention))
        && model.draft.iter().all(|d| d.indexer.is_none() || indexer(&d.attention))
        && (model.linear.is_none() || matches!(layout, Layout::PageFirst | Layout::PageFirstDirect))
}

/// A layout that can hold the model; `page_first` always can.
pub fn fitting_layout(model: &Model, choice: prop::sample::Index) -> Layout {
    let all: Vec<Layout> = Layout::ALL.into_iter().filter(|layout| fits(model, *layout)).collect();
    *choice.get(&all)
}
