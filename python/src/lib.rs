//! The Python package `pagelith`: a store, its keys and what comes back, as Python objects.
//!
//! One call of Python is one batch of the store. The interpreter's lock is given up for as long as the store works, and the
//! memory that a call names is held for as long as the call: the store has let go of it when the call returns, whatever
//! came of it. Of a batch that is handed over it is held until that has ended.

#![allow(
    clippy::disallowed_methods,
    reason = "reads the configuration file that it is given, and has threads for batches that are handed over"
)]

mod arguments;
mod call;
mod closing;
mod errors;
mod events;
mod given;
mod group;
mod hits;
mod keys;
mod lent;
mod log;
mod mapped;
mod memory;
mod opening;
mod outcome;
mod pin;
mod reached;
mod registered;
mod repr;
mod shared;
mod store;
mod submitted;
mod tensor;
mod using;
mod view;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// In a child: the files of stores that its parent has open are let go.
#[pyfunction]
fn leave_files() {
    pagelith::io::forked::leave_files();
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
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
    module.add_class::<submitted::Submitted>()?;
    module.add_class::<group::Group>()?;
    module.add_class::<pin::Pin>()?;
    module.add_class::<registered::Registration>()?;
    module.add_class::<view::View>()?;
    // Not by `add_function`, which would export them.
    module.setattr("_log_begin", wrap_pyfunction!(log::_log_begin, module)?)?;
    module.setattr("_log_wake", wrap_pyfunction!(log::_log_wake, module)?)?;
    module.setattr("_log_take", wrap_pyfunction!(log::_log_take, module)?)?;
    module.setattr("_log_forked", wrap_pyfunction!(log::_log_forked, module)?)?;
    let at_fork = PyDict::new(module.py());
    at_fork.set_item("after_in_child", wrap_pyfunction!(leave_files, module)?)?;
    module.py().import("os")?.call_method("register_at_fork", (), Some(&at_fork))?;
    Ok(())
}
