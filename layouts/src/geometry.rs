//! Page geometry: the pools of a model on one rank, and the location of their bytes in the caller's
//! buffers.
//!
//! A [`Model`] is plain data. A [`Placement`] names the rank and the layout of its host buffers.
//! [`Geometry::new`] checks both and returns the [`Pool`]s: components, their bytes, shards and
//! keys. [`Extents::new`] returns, for a pool with a given number of pages, the (buffer, offset,
//! length) list of any page. [`reshard`] computes the ranged reads with which a rank of another
//! parallel layout reads its heads.
//!
//! `docs/geometry.md` has the fields, the layouts' shapes and the formulas, and a table of presets
//! that a test compares with the code.

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
    Attention, Draft, Dtype, HeadAttention, Indexer, LatentAttention, LatentRow, LinearState,
    Model, Placement, RowPool, StateShape, Window,
};
pub use pool::{Component, Geometry, HitPolicy, Pool};

/// Component names. A pool whose client key has no component name has a single component
/// [`names::DATA`].
pub mod names {
    /// K rows, and MLA's compressed rows.
    pub const K: &str = "k";
    /// V rows.
    pub const V: &str = "v";
    /// K and V of a head group in one object (`page_unified`).
    pub const KV: &str = "kv";
    /// Recurrent state of a linear-attention model; its convolution states are `conv_0`, `conv_1`,
    /// ...
    pub const TEMPORAL: &str = "temporal";
    /// The only component of an indexer, an MLA-class sliding window or a row pool.
    pub const DATA: &str = "data";
}
