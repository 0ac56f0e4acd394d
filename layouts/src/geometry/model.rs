//! Descriptions of a model's state and of its placement on a server: plain data, checked by
//! [`super::Geometry::new`].

use super::layout::Layout;
use crate::key::Role;
use crate::shard::Slice;

/// The pages of a prefix that a pool must have for the prefix to be usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HitPolicy {
    /// Every page.
    AllPages,
    /// The last `n` pages up to the end of the prefix, with `n` at least 1.
    TrailingPages(u32),
}

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
    /// Bytes per element.
    pub fn bytes(self) -> u32 {
        match self {
            Dtype::Byte => 1,
            Dtype::Half => 2,
            Dtype::Single => 4,
        }
    }
}

/// The state of a model over all ranks. Sizes are those of the whole model; a [`Placement`] divides
/// them.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Name, for messages.
    pub name: String,
    /// Tokens per page.
    pub page_tokens: u32,
    /// The pool `kv`.
    pub attention: Attention,
    /// Layers of a draft of the same shape, appended to the target's own in the pools `kv` and
    /// `indexer`.
    pub packed_mtp_layers: u32,
    /// The pool `indexer`.
    pub indexer: Option<Indexer>,
    /// The pool `mamba`.
    pub linear: Option<LinearState>,
    /// The pool `swa`.
    pub window: Option<Window>,
    /// The draft model's pools.
    pub draft: Option<Draft>,
    /// Pools of opaque rows, by name: those of DeepSeek-V4, and any pool that this crate does not
    /// know.
    pub rows: Vec<RowPool>,
}

/// The shape of attention state.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// K and V by heads (MHA, GQA, MQA).
    Heads(HeadAttention),
    /// One compressed row per token and layer, equal on all tensor-parallel ranks (MLA).
    Latent(LatentAttention),
    /// No bytes: the other pools decide whether the page exists (DeepSeek-V4).
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
    /// Element type.
    pub dtype: Dtype,
}

/// Compressed rows.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// Layers that have this state.
    pub layers: u32,
    /// Shape of a row.
    pub row: LatentRow,
}

/// A compressed row.
#[derive(Clone, Debug, PartialEq)]
pub enum LatentRow {
    /// A low-rank part and a rotary part.
    Parts {
        /// Elements of the low-rank part.
        lora_rank: u32,
        /// Elements of the rotary part.
        rope_dim: u32,
        /// Element type.
        dtype: Dtype,
    },
    /// Values, scales and rotary part packed into `bytes` bytes (656 in DeepSeek-V3.2's fp8
    /// format).
    Packed {
        /// Bytes per token and layer.
        bytes: u32,
    },
}

/// The keys of a sparse-attention indexer; equal on all tensor-parallel ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    /// Layers with an indexer; `None` means every layer of its attention.
    pub layers: Option<u32>,
    /// Bytes of a key, per token and layer (128 in DeepSeek-V3.2).
    pub key_bytes: u32,
    /// Bytes of the key's scales, per token and layer (4 in DeepSeek-V3.2; 0 means none).
    pub scale_bytes: u32,
}

/// The recurrent state of a linear-attention model: one checkpoint per page.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearState {
    /// Linear-attention layers.
    pub layers: u32,
    /// The recurrent state of a layer; a dimension of 0 means none.
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

/// Layers that attend only to the last tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Shape of the layers.
    pub attention: Attention,
    /// Tokens of the window.
    pub tokens: u32,
}

/// A draft model with pools of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The pool `draft`; its class is independent of the target's.
    pub attention: Attention,
    /// The pool `draft_indexer`.
    pub indexer: Option<Indexer>,
    /// The pool `draft_swa`.
    pub window: Option<Window>,
}

/// A pool of opaque rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPool {
    /// Target or draft model.
    pub role: Role,
    /// Pool name.
    pub name: String,
    /// Layers with this pool.
    pub layers: u32,
    /// Rows per page and layer.
    pub rows: u32,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// A layer's page is padded to a multiple of this many bytes (1 means none; 576 in
    /// DeepSeek-V4).
    pub page_multiple: u32,
    /// Pages of a prefix that must be present.
    pub hit: HitPolicy,
    /// Whether each tensor-parallel rank has its own rows; otherwise all ranks have equal rows.
    pub per_rank: bool,
}

/// A server's rank in a parallel layout, and the layout of its host buffers.
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
    /// Head groups over all ranks, a common multiple of the tensor-parallel sizes that share pages;
    /// `None` means no head split. SGLang's `tp_lcm_size`.
    pub tp_lcm_size: Option<u16>,
}

impl Placement {
    /// A server without parallelism.
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
