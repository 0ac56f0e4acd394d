//! The tensor model: the buffer shapes of CONTRACTS 3.2 as strings; every element is visited one at
//! a time in row-major order. It shares only plain data types with the code under test.
//!
//! Letters: K k or v, L layer, S token slot, G page, P token of a page, U head group, H head, D
//! element.

use pagelith_layouts::geometry::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::shard::{Shard, Slice};

/// Coordinates of an element in the model. Elements that buffers of two ranks share have equal
/// coordinates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub what: String,
    pub page: u64,
    pub kv: u64,
    pub layer: u64,
    pub token: u64,
    pub head: u64,
    pub element: u64,
}

impl Place {
    /// Byte `i` of the element at these coordinates.
    pub fn byte(&self, i: u64) -> u8 {
        let text = self.what.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let numbers = [self.page, self.kv, self.layer, self.token, self.head, self.element, i];
        let mixed = numbers.into_iter().fold(text, |h, n| {
            (h ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_add(n)
        });
        (mixed >> 32) as u8
    }
}

/// One buffer and the meaning of its elements.
#[derive(Clone, Debug)]
pub struct ModelBuffer {
    /// Letters, outermost first.
    pub shape: &'static str,
    pub bytes_each: u64,
    pub what: String,
    counts: Counts,
    /// Component of an element in K and V (0 and 1), before its head group.
    components: [usize; 2],
}

/// The length of each axis, and its first index in the model.
#[derive(Clone, Debug, Default)]
struct Counts {
    kv: u64,
    kv_from: u64,
    layers: u64,
    layer_from: u64,
    tokens: u64,
    groups: u64,
    heads: u64,
    head_from: u64,
    elements: u64,
    element_from: u64,
}

#[derive(Clone, Debug)]
pub struct ModelPool {
    pub role: Role,
    pub name: String,
    pub hit: HitPolicy,
    pub writes: bool,
    pub components: Vec<(String, Shard)>,
    pub buffers: Vec<ModelBuffer>,
}

/// A visited element.
pub struct Element {
    pub component: usize,
    pub offset: u64,
    pub place: Place,
}

impl ModelBuffer {
    /// All elements of a buffer of `pages` pages, in row-major order.
    pub fn elements(&self, pages: u64) -> Vec<Element> {
        let c = &self.counts;
        let sizes: Vec<u64> = self
            .shape
            .chars()
            .map(|letter| match letter {
                'K' => c.kv,
                'L' => c.layers,
                'S' => pages * c.tokens,
                'G' => pages,
                'P' => c.tokens,
                'U' => c.groups,
                'H' if self.shape.contains('U') => c.heads / c.groups,
                'H' => c.heads,
                'D' => c.elements,
                other => panic!("{other}"),
            })
            .collect();
        let total: u64 = sizes.iter().product();
        let mut index = vec![0u64; sizes.len()];
        let mut all = Vec::new();
        for n in 0..total {
            all.push(self.element(n * self.bytes_each, &index));
            for (i, size) in index.iter_mut().zip(&sizes).rev() {
                *i += 1;
                if *i < *size {
                    break;
                }
                *i = 0;
            }
        }
        all
    }

    fn element(&self, offset: u64, index: &[u64]) -> Element {
        let c = &self.counts;
        let at = |letter| self.shape.find(letter).map(|i| index[i]);
        let mut place = Place { what: self.what.clone(), kv: c.kv_from, ..Place::default() };
        place.kv += at('K').unwrap_or(0);
        place.layer = c.layer_from + at('L').expect("every shape has layers");
        (place.page, place.token) = match at('S') {
            Some(slot) => (slot / c.tokens, slot % c.tokens),
            None => (at('G').expect("pages"), at('P').unwrap_or(0)),
        };
        let per_group = c.heads / c.groups.max(1);
        let local_head = match (at('U'), at('H')) {
            (Some(group), Some(head)) => group * per_group + head,
            (None, Some(head)) => head,
            _ => 0,
        };
        place.head = c.head_from + local_head;
        place.element = c.element_from + at('D').expect("elements");
        let group = local_head.checked_div(per_group).unwrap_or(0) as usize;
        let [k, v] = self.components;
        let component = if place.kv == 0 { k } else { v };
        // Components of the next group follow those of this one.
        let per_group_components = if k == v { 1 } else { 2 };
        Element { component: component + group * per_group_components, offset, place }
    }
}

/// All pools of a rank, by CONTRACTS 2.2 and 3.2.
pub fn pools(model: &Model, p: &Placement) -> Vec<ModelPool> {
    let tokens = u64::from(model.page_tokens);
    let mine = tokens / u64::from(p.dcp.of);
    let last = p.pp.rank == p.pp.of - 1;
    let packed = if last { u64::from(model.packed_mtp_layers) } else { 0 };
    let window_pages = |w: &Window| {
        let enough = (1..).find(|pages| pages * model.page_tokens >= w.tokens);
        HitPolicy::TrailingPages(enough.expect("small"))
    };
    let split = p.layout == Layout::PageFirstKvSplit;
    let divides = |a: &Attention| matches!(a, Attention::Latent(_));
    let mut all = Vec::new();
    let target = Kind {
        role: Role::Target,
        name: "kv",
        hit: HitPolicy::AllPages,
        tokens: if divides(&model.attention) { mine } else { tokens },
        packed,
        staged: true,
        divided: divides(&model.attention),
    };
    all.push(attention(&model.attention, model.indexer.as_ref().filter(|_| split), target, p));
    if let Some(indexer) = model.indexer.as_ref().filter(|_| !split) {
        all.push(packed_indexer(&model.attention, indexer, target, p));
    }
    if let Some(linear) = &model.linear {
        all.push(state(linear, p));
    }
    if let Some(w) = &model.window {
        let kind =
            Kind { name: "swa", hit: window_pages(w), tokens, packed: 0, divided: false, ..target };
        all.push(attention(&w.attention, None, kind, p));
    }
    all.extend(model.rows.iter().filter(|r| r.role == Role::Target).map(|r| rows(r, p)));
    if let Some(draft) = model.draft.as_ref().filter(|_| last) {
        let divided = divides(&draft.attention);
        let tokens_there = if divided { mine } else { tokens };
        let kind = Kind {
            role: Role::Draft,
            packed: 0,
            staged: false,
            divided,
            tokens: tokens_there,
            ..target
        };
        if draft.attention != Attention::Anchor {
            all.push(attention(
                &draft.attention,
                draft.indexer.as_ref().filter(|_| split),
                kind,
                p,
            ));
        }
        if let Some(indexer) = draft.indexer.as_ref().filter(|_| !split) {
            all.push(packed_indexer(&draft.attention, indexer, kind, p));
        }
        if let Some(w) = &draft.window {
            let kind = Kind { name: "swa", hit: window_pages(w), tokens, divided: false, ..kind };
            all.push(attention(&w.attention, None, kind, p));
        }
    }
    all.extend(model.rows.iter().filter(|r| r.role == Role::Draft && last).map(|r| rows(r, p)));
    all
}

#[derive(Clone, Copy)]
struct Kind {
    role: Role,
    name: &'static str,
    hit: HitPolicy,
    tokens: u64,
    packed: u64,
    staged: bool,
    divided: bool,
}

/// (first layer, layers) of the rank's stage.
fn stage(layers: u32, kind: Kind, p: &Placement) -> (u64, u64) {
    if !kind.staged {
        return (0, layers.into());
    }
    let each = u64::from(layers) / u64::from(p.pp.of);
    (each * u64::from(p.pp.rank), each + kind.packed)
}

fn shared(p: &Placement) -> Shard {
    match (p.pp.of, p.cp.of, p.dcp.of) {
        (1, 1, 1) => Shard::Whole,
        _ => Shard::Rank { tp: Slice { rank: 0, of: 1 }, pp: p.pp, cp: p.cp, dcp: p.dcp },
    }
}

fn own(p: &Placement) -> Shard {
    Shard::Rank { tp: p.tp, pp: p.pp, cp: p.cp, dcp: p.dcp }
}

fn attention(of: &Attention, indexer_of: Option<&Indexer>, kind: Kind, p: &Placement) -> ModelPool {
    let mut pool = ModelPool {
        role: kind.role,
        name: kind.name.into(),
        hit: kind.hit,
        writes: true,
        components: Vec::new(),
        buffers: Vec::new(),
    };
    match of {
        Attention::Heads(h) => heads(&mut pool, h, kind, p),
        Attention::Latent(l) => latent(&mut pool, l, indexer_of, kind, p),
        Attention::Anchor => {}
    }
    pool
}

fn heads(pool: &mut ModelPool, h: &HeadAttention, kind: Kind, p: &Placement) {
    let (layer_from, layers) = stage(h.layers, kind, p);
    // Rank r of t has the heads that r's share of the range 0..heads touches.
    let (rank, of, all) = (u64::from(p.tp.rank), u64::from(p.tp.of), u64::from(h.kv_heads));
    let mine: Vec<u64> =
        (0..all).filter(|i| i * of < (rank + 1) * all && (i + 1) * of > rank * all).collect();
    let groups = p.tp_lcm_size.map_or(1, |lcm| u64::from(lcm / p.tp.of));
    let counts = Counts {
        kv: 2,
        layers,
        layer_from,
        tokens: kind.tokens,
        groups,
        heads: mine.len() as u64,
        head_from: mine[0],
        elements: h.k_dim.into(),
        ..Counts::default()
    };
    let unified = p.layout == Layout::PageUnified;
    for group in 0..groups {
        let shard = match p.tp_lcm_size {
            None => own(p),
            Some(lcm) => Shard::Heads {
                group: Slice { rank: p.tp.rank * (lcm / p.tp.of) + group as u16, of: lcm },
                layer_from: layer_from as u16,
                layer_to: (layer_from + layers) as u16,
            },
        };
        let names: &[&str] = if unified { &["kv"] } else { &["k", "v"] };
        pool.components.extend(names.iter().map(|name| ((*name).to_owned(), shard)));
    }
    let bytes_each = h.dtype.bytes().into();
    let mut buffer = |shape, counts, components| {
        pool.buffers.push(ModelBuffer {
            shape,
            bytes_each,
            what: "heads".into(),
            counts,
            components,
        });
    };
    if h.k_dim != h.v_dim {
        let shape = if p.layout == Layout::PageFirst { "SLHD" } else { "GLPHD" };
        buffer(shape, Counts { kv: 1, ..counts.clone() }, [0, 1]);
        buffer(shape, Counts { kv: 1, kv_from: 1, elements: h.v_dim.into(), ..counts }, [0, 1]);
        return;
    }
    let shape = match p.layout {
        Layout::LayerFirst => "KLSHD",
        Layout::PageFirst => "KSLHD",
        Layout::PageFirstDirect => "KGLPHD",
        Layout::PageHead => "KGHPLD",
        Layout::PageUnified => "GULKPHD",
        Layout::PageFirstKvSplit => panic!("not for heads"),
    };
    buffer(shape, counts, if unified { [0, 0] } else { [0, 1] });
}

fn latent(
    pool: &mut ModelPool,
    l: &LatentAttention,
    indexer_of: Option<&Indexer>,
    kind: Kind,
    p: &Placement,
) {
    pool.writes = p.tp.rank == p.dcp.rank;
    pool.components = vec![(if kind.name == "kv" { "k" } else { "data" }.into(), shared(p))];
    let shape = match p.layout {
        Layout::LayerFirst => "LSD",
        Layout::PageFirst => "SLD",
        _ => "GLPD",
    };
    let (from, of) = stage(l.layers, kind, p);
    let mut add = |what: &str, (layer_from, layers), element_from, elements: u32, bytes_each| {
        let counts = Counts {
            layers,
            layer_from,
            tokens: kind.tokens,
            elements: elements.into(),
            element_from,
            ..Counts::default()
        };
        pool.buffers.push(ModelBuffer {
            shape,
            bytes_each,
            what: what.into(),
            counts,
            components: [0, 0],
        });
    };
    let latent = format!("latent{}", share(kind, p));
    match (&l.row, p.layout) {
        (LatentRow::Parts { lora_rank, rope_dim, dtype }, Layout::PageFirstKvSplit) => {
            add(&latent, (from, of), 0, *lora_rank, dtype.bytes().into());
            if *rope_dim > 0 {
                add(&latent, (from, of), (*lora_rank).into(), *rope_dim, dtype.bytes().into());
            }
        }
        (LatentRow::Parts { lora_rank, rope_dim, dtype }, _) => {
            add(&latent, (from, of), 0, lora_rank + rope_dim, dtype.bytes().into());
        }
        (LatentRow::Packed { bytes }, _) => add(&latent, (from, of), 0, *bytes, 1),
    }
    if let Some(indexer) = indexer_of {
        let layers = stage(indexer.layers.unwrap_or(l.layers), kind, p);
        add(&format!("index_k{}", share(kind, p)), layers, 0, indexer.key_bytes, 1);
        if indexer.scale_bytes > 0 {
            add(&format!("index_scale{}", share(kind, p)), layers, 0, indexer.scale_bytes, 1);
        }
    }
}

/// A text for the decode-context rank that owns the tokens, if decode-context ranks divide a page.
fn share(kind: Kind, p: &Placement) -> String {
    if kind.divided { format!(" of dcp {}of{}", p.dcp.rank, p.dcp.of) } else { String::new() }
}

fn packed_indexer(of: &Attention, indexer: &Indexer, kind: Kind, p: &Placement) -> ModelPool {
    let below = match of {
        Attention::Heads(h) => h.layers,
        Attention::Latent(l) => l.layers,
        Attention::Anchor => 0,
    };
    let layers = stage(indexer.layers.unwrap_or(below), kind, p);
    let bytes = u64::from(indexer.key_bytes + indexer.scale_bytes) * kind.tokens;
    let name = "indexer".to_owned();
    opaque(
        kind,
        name,
        kind.hit,
        format!("indexer{}", share(kind, p)),
        layers,
        bytes,
        p.tp.rank == p.dcp.rank,
        shared(p),
        p,
    )
}

fn rows(of: &RowPool, p: &Placement) -> ModelPool {
    let kind = Kind {
        role: of.role,
        name: "",
        hit: of.hit,
        tokens: 0,
        packed: 0,
        staged: of.role == Role::Target,
        divided: false,
    };
    let mut bytes = u64::from(of.rows * of.row_bytes);
    while !bytes.is_multiple_of(of.page_multiple.into()) {
        bytes += 1;
    }
    let what = if of.per_rank { format!("rows of rank {}", p.tp.rank) } else { "rows".into() };
    let shard = if of.per_rank { own(p) } else { shared(p) };
    let writes = of.per_rank || p.tp.rank == p.dcp.rank;
    opaque(kind, of.name.clone(), of.hit, what, stage(of.layers, kind, p), bytes, writes, shard, p)
}

#[expect(clippy::too_many_arguments, reason = "a list of facts, used twice")]
fn opaque(
    kind: Kind,
    name: String,
    hit: HitPolicy,
    what: String,
    (layer_from, layers): (u64, u64),
    elements: u64,
    writes: bool,
    shard: Shard,
    p: &Placement,
) -> ModelPool {
    let shape = if p.layout == Layout::LayerFirst { "LGD" } else { "GLD" };
    let counts = Counts { layers, layer_from, elements, ..Counts::default() };
    let buffers = vec![ModelBuffer { shape, bytes_each: 1, what, counts, components: [0, 0] }];
    ModelPool {
        role: kind.role,
        name,
        hit,
        writes,
        components: vec![("data".into(), shard)],
        buffers,
    }
}

fn state(linear: &LinearState, p: &Placement) -> ModelPool {
    let each = u64::from(linear.layers) / u64::from(p.pp.of);
    let layer_from = each * u64::from(p.pp.rank);
    let (mut components, mut buffers) = (Vec::new(), Vec::new());
    let conv = linear.conv.iter().enumerate().map(|(i, shape)| (format!("conv_{i}"), shape));
    for (name, shape) in [("temporal".to_owned(), &linear.temporal)].into_iter().chain(conv) {
        let elements =
            shape.dims.iter().map(|d| u64::from(*d)).product::<u64>() / u64::from(p.tp.of);
        if elements > 0 {
            let counts = Counts { layers: each, layer_from, elements, ..Counts::default() };
            let what = format!("{name} of rank {}", p.tp.rank);
            let bytes_each = shape.dtype.bytes().into();
            let at = components.len();
            buffers.push(ModelBuffer {
                shape: "GLD",
                bytes_each,
                what,
                counts,
                components: [at, at],
            });
            components.push((name, own(p)));
        }
    }
    let hit = HitPolicy::TrailingPages(1);
    ModelPool { role: Role::Target, name: "mamba".into(), hit, writes: true, components, buffers }
}
