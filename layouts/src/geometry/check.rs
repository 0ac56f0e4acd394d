//! Checks that a model and a placement are valid and match. All problems are collected, so that a
//! caller can fix them at once.

mod attentions;
mod model;
mod placement;

use super::error::Problems;
use super::model::{Model, Placement};

/// Add every problem to `problems`.
pub(super) fn check(model: &Model, placement: &Placement, problems: &mut Problems) {
    let slices_ok = placement::slices(placement, problems);
    model::check(model, problems);
    // Divisibility can be checked only if every slice is valid.
    if slices_ok {
        placement::division(model, placement, problems);
    }
    placement::layout(model, placement, problems);
}
