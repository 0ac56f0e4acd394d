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
mod layout_name;
mod model;
pub mod names;
mod pool;
pub mod presets;
pub mod reshard;

pub use buffer::{Axis, AxisKind, Buffer};
pub use error::{GeometryError, Problem, Problems};
pub use extents::{Chunk, Chunks, Extents};
pub use layout::Layout;
pub use model::{
    Attention, Draft, Dtype, HeadAttention, HitPolicy, Indexer, LatentAttention, LatentRow,
    LinearState, Model, Placement, RowPool, StateShape, Window,
};
pub use pool::{Component, Pool};

use crate::key::Role;

/// All pools of a model on one rank, in one host layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The pools: target before draft, `kv` first.
    pub pools: Vec<Pool>,
}

impl Geometry {
    /// The geometry of a model at a placement. An error lists every problem of the two.
    pub fn new(model: &Model, placement: &Placement) -> Result<Geometry, GeometryError> {
        let mut problems = Problems::default();
        check::check(model, placement, &mut problems);
        problems.into_result()?;
        Ok(Geometry { pools: build::pools(model, placement)? })
    }

    /// A pool by role and name.
    pub fn pool(&self, role: Role, name: &str) -> Result<&Pool, GeometryError> {
        self.pools.iter().find(|p| p.role == role && p.name == name).ok_or_else(|| {
            let mark = if role == Role::Draft { "d:" } else { "" };
            GeometryError::UnknownPool { pool: format!("{mark}{name}") }
        })
    }

    /// Bytes of a page over all pools. Pools with `HitPolicy::TrailingPages` count in full.
    pub fn page_bytes(&self) -> u64 {
        self.pools.iter().map(Pool::page_bytes).sum()
    }
}
