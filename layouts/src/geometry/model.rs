//! A model as far as its state is concerned, and where a server keeps it: plain data, checked by
//! [`super::Geometry::new`].

use super::layout::Layout;
use super::pool::HitPolicy;
use crate::key::Role;
use crate::shard::Slice;

/// Type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 1 byte: any 8-bit float or integer, or a packed byte.
    Byte,
    /// 2 bytes: bf16 or fp16.
    Half,
    /// 4 bytes: fp32.
    Single,
}

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> u32 {
        match self {
            Dtype::Byte => 1,
            Dtype::Half => 2,
            Dtype::Single => 4,
        }
    }
}

/// What state a model has, over all ranks. Sizes are the whole model's; a [`Placement`] divides them.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Name, for messages.
    pub name: String,
    /// Tokens a page.
    pub page_tokens: u32,
    /// The pool `kv`.
    pub attention: Attention,
    /// Layers of a draft of the same shape, packed behind the target's own in the pools `kv` and `indexer`.
    pub packed_mtp_layers: u32,
    /// The pool `indexer`.
    pub indexer: Option<Indexer>,
    /// The pool `mamba`.
    pub linear: Option<LinearState>,
    /// The pool `swa`.
    pub window: Option<Window>,
    /// The draft model's pools.
    pub draft: Option<Draft>,
    /// Pools of rows that nobody looks into, by name: DeepSeek-V4's, and any that this crate has not heard of.
    pub rows: Vec<RowPool>,
}

/// The shape of attention state.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// K and V by heads (MHA, GQA, MQA).
    Heads(HeadAttention),
    /// One compressed row a token and layer, the same on every tensor-parallel rank (MLA).
    Latent(LatentAttention),
    /// No bytes: existence is decided by the other pools (DeepSeek-V4).
    Anchor,
}

/// K and V by heads.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadAttention {
    /// Layers that have this state.
    pub layers: u32,
    /// KV heads over all ranks.
    pub kv_heads: u32,
    /// Elements of a K row.
    pub k_dim: u32,
    /// Elements of a V row.
    pub v_dim: u32,
    /// Their type.
    pub dtype: Dtype,
}

/// Compressed rows.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Layers that have this state.
    pub layers: u32,
    /// One row.
    pub row: LatentRow,
}

/// A compressed row.
#[derive(Clone, Debug, PartialEq)]
pub enum LatentRow {
    /// The low-rank part and the rotary part beside it.
    Parts {
        /// Elements of the low-rank part.
        lora_rank: u32,
        /// Elements of the rotary part.
        rope_dim: u32,
        /// Their type.
        dtype: Dtype,
    },
    /// Values, scales and rotary part packed into so many bytes (656 in DeepSeek-V3.2's fp8 format).
    Packed {
        /// Bytes a token and layer.
        bytes: u32,
    },
}

/// A sparse-attention indexer's keys; the same on every tensor-parallel rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    /// Layers that have one; `None` is every layer of the attention it belongs to.
    pub layers: Option<u32>,
    /// Bytes of a key, a token and layer (128 in DeepSeek-V3.2).
    pub key_bytes: u32,
    /// Bytes of its scales, a token and layer (4 in DeepSeek-V3.2; 0 is none).
    pub scale_bytes: u32,
}

/// A linear-attention model's recurrent state: one checkpoint a page.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearState {
    /// Linear-attention layers.
    pub layers: u32,
    /// The recurrent state of a layer; with a dimension of 0 there is none.
    pub temporal: StateShape,
    /// The convolution states of a layer.
    pub conv: Vec<StateShape>,
}

/// The shape of one state over all ranks; tensor parallelism divides the first dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct StateShape {
    /// Dimensions, outermost first.
    pub dims: Vec<u32>,
    /// Element type.
    pub dtype: Dtype,
}

/// Layers that attend to the last tokens only.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Their shape.
    pub attention: Attention,
    /// Tokens of the window.
    pub tokens: u32,
}

/// A draft model with pools of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The pool `draft`, by its own class, whatever the target's is.
    pub attention: Attention,
    /// The pool `draft_indexer`.
    pub indexer: Option<Indexer>,
    /// The pool `draft_swa`.
    pub window: Option<Window>,
}

/// A pool of rows that nobody looks into.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPool {
    /// Whose state.
    pub role: Role,
    /// Pool name.
    pub name: String,
    /// Layers that have it.
    pub layers: u32,
    /// Rows a page and layer.
    pub rows: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// A layer's page is padded to a multiple of so many bytes (1 is none; 576 in DeepSeek-V4).
    pub page_multiple: u32,
    /// Which pages of a prefix must be there.
    pub hit: HitPolicy,
    /// Whether each tensor-parallel rank has rows of its own; otherwise all have the same.
    pub per_rank: bool,
}

/// Where in a parallel layout a server is, and how its host buffers are laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Host layout of every pool.
    pub layout: Layout,
    /// Tensor parallel.
    pub tp: Slice,
    /// Pipeline parallel; draft and packed layers are on the last stage.
    pub pp: Slice,
    /// Context parallel.
    pub cp: Slice,
    /// Decode context parallel: each rank has an equal share of a page's tokens. MLA only.
    pub dcp: Slice,
    /// Head groups over all ranks, a common multiple of the tensor-parallel sizes that share pages; `None` is no
    /// head split. SGLang's `tp_lcm_size`.
    pub tp_lcm_size: Option<u16>,
}

impl Placement {
    /// One rank of everything.
    pub fn single(layout: Layout) -> Placement {
        Placement {
            layout,
            tp: Slice::ALL,
            pp: Slice::ALL,
            cp: Slice::ALL,
            dcp: Slice::ALL,
            tp_lcm_size: None,
        }
    }

    /// Tensor-parallel rank `rank` of `of`.
    pub fn tensor_parallel(layout: Layout, rank: u16, of: u16) -> Placement {
        Placement { tp: Slice { rank, of }, ..Placement::single(layout) }
    }
}
