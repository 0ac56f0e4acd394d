//! Which bytes a page is: the pools of a model on one rank, and where they lie in the caller's buffers.
//!
//! A [`Model`] is described in data, a [`Placement`] says which rank this is and how its host buffers are laid
//! out. [`Geometry::new`] checks both and gives the [`Pool`]s: components, their bytes, shards and keys.
//! [`Extents::new`] gives, for a pool of so many pages, the (buffer, offset, length) list of any page;
//! [`reshard`] the ranged reads with which a rank of another parallel layout takes its heads.
//!
//! `docs/geometry.md` has the fields, the layouts' shapes and the formulas, and a table of presets that a test
//! compares with the code.

mod buffer;
mod build;
mod check;
mod error;
mod extents;
mod layout;
mod model;
mod pool;
pub mod presets;
pub mod reshard;

pub use buffer::{Axis, AxisKind, Buffer};
pub use error::{GeometryError, Problem, Problems};
pub use extents::{Chunk, Chunks, Extents};
pub use layout::Layout;
pub use model::{
    Attention, Draft, Dtype, HeadAttention, Indexer, LatentAttention, LatentRow, LinearState, Model,
    Placement, RowPool, StateShape, Window,
};
pub use pool::{Component, Geometry, HitPolicy, Pool};

/// Component names. A pool whose client key has no component name has the one component [`names::DATA`].
pub mod names {
    /// K rows, and MLA's compressed rows.
    pub const K: &str = "k";
    /// V rows.
    pub const V: &str = "v";
    /// K and V of a head group in one object (`page_unified`).
    pub const KV: &str = "kv";
    /// A linear-attention model's recurrent state; its convolution states are `conv_0`, `conv_1`, ...
    pub const TEMPORAL: &str = "temporal";
    /// Everything: indexer, MLA-class sliding window, rows.
    pub const DATA: &str = "data";
}
