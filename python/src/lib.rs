//! The Python package `pagelith`: a store, its keys and its outcomes, as Python objects.
//!
//! One Python call is one batch of the store. The GIL is released while the store works. The memory
//! that a call names stays exported for the whole call: the store uses it no longer once the call
//! has returned, also when it failed. The memory of a submitted batch stays exported until the
//! batch has ended.

#![allow(
    clippy::disallowed_methods,
    reason = "reads a configuration file, and starts threads for submitted batches"
)]

mod access;
mod arguments;
mod call;
mod closing;
mod cuda_array;
mod device;
mod device_memory;
mod drop_with_gil;
mod errors;
mod events;
mod group;
mod handle;
mod hint;
mod hits;
mod keys;
mod log;
mod mapped;
mod memory;
mod opening;
mod outcome;
mod pin;
mod program;
mod registered;
mod repr;
mod sequences;
mod shared;
mod store;
mod stream;
mod submitted;
mod tensor;
mod view;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Runs in a forked child: releases the files of the stores that the parent has open.
#[pyfunction]
fn release_after_fork() {
    pagelith::io::fork::release_after_fork();
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    opening::import_types(module.py());
    errors::add(module)?;
    module.add_class::<keys::Namespace>()?;
    module.add_class::<keys::Key>()?;
    module.add_class::<outcome::GetOutcome>()?;
    module.add_class::<outcome::PutOutcome>()?;
    module.add_class::<outcome::FlushReport>()?;
    module.add_class::<outcome::CloseReport>()?;
    module.add_class::<events::Event>()?;
    module.add_class::<hits::PoolQuery>()?;
    module.add_class::<hits::PagesFound>()?;
    module.add_class::<call::Request>()?;
    module.add_class::<opening::OpenReport>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<device::Device>()?;
    module.add_class::<submitted::Submitted>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<pin::Pin>()?;
    module.add_class::<registered::Registration>()?;
    module.add_class::<view::View>()?;
    // Set as attributes: `add_function` would add them to `__all__`.
    module.setattr("_log_begin", wrap_pyfunction!(log::_log_begin, module)?)?;
    module.setattr("_log_wake", wrap_pyfunction!(log::_log_wake, module)?)?;
    module.setattr("_log_take", wrap_pyfunction!(log::_log_take, module)?)?;
    module.setattr("_log_forked", wrap_pyfunction!(log::_log_forked, module)?)?;
    module.setattr("_program", wrap_pyfunction!(program::_program, module)?)?;
    let at_fork = PyDict::new(module.py());
    at_fork.set_item("after_in_child", wrap_pyfunction!(release_after_fork, module)?)?;
    module.py().import("os")?.call_method("register_at_fork", (), Some(&at_fork))?;
    Ok(())
}
