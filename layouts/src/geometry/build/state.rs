//! Builds pools of linear-attention checkpoints.

use super::super::buffer::{AxisKind, StateKind};
use super::super::error::GeometryError;
use super::super::model::{HitPolicy, LinearState, StateShape};
use super::super::names;
use super::super::pool::Pool;
use super::{Builder, Layers, axes, too_large};
use crate::key::Role;

impl Builder<'_> {
    /// The pool with one checkpoint of all linear layers per page; a prefix needs only the last
    /// page's.
    pub(super) fn state(&self, linear: &LinearState) -> Result<Pool, GeometryError> {
        let mut pool = self.pool(Role::Target, "mamba", HitPolicy::TrailingPages(1));
        pool.slots_per_page = 1;
        let conv = (0..).zip(&linear.conv).map(|(i, shape)| (format!("conv_{i}"), shape));
        let states = [(names::TEMPORAL.to_owned(), &linear.temporal)].into_iter().chain(conv);
        for (index, (name, shape)) in states.enumerate() {
            self.add_state(&mut pool, linear.layers, index, &name, shape)?;
        }
        Ok(pool)
    }

    fn add_state(
        &self,
        pool: &mut Pool,
        layers: u32,
        index: usize,
        name: &str,
        shape: &StateShape,
    ) -> Result<(), GeometryError> {
        let all = shape.dims.iter().try_fold(1u64, |n, dim| n.checked_mul((*dim).into()));
        let mine = all.ok_or_else(|| too_large("mamba"))? / u64::from(self.placement.tp.of);
        if mine == 0 {
            return Ok(());
        }
        let (first_layer, layers) = self.stage(layers, Layers::Staged { packed: 0 });
        let order = [AxisKind::Page, AxisKind::Layer, AxisKind::Element];
        let counted = axes(&order, |kind| match kind {
            AxisKind::Layer => layers,
            AxisKind::Element => mine,
            _ => 1,
        });
        let buffer = pool.add_buffer(name, counted, shape.dtype.bytes().into());
        let state = StateKind::State { index, tp: self.placement.tp };
        let part = pool
            .all_of(state, buffer, |kind| if kind == AxisKind::Layer { first_layer } else { 0 });
        pool.add_component(name, self.ranked(), vec![part])
    }
}
