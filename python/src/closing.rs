//! Implicit close: a store that the program does not close is closed when its last reference is
//! dropped, or when the interpreter exits.

use std::sync::{Arc, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCFunction, PyDict, PyTuple};

use crate::handle::StoreHandle;
use crate::store::is_forked;
use crate::submitted::Queue;

/// The store, embedded or attached; `None` once it is closed.
pub type StoreCell = RwLock<Option<StoreHandle>>;

/// Closes the store, unless it is closed already.
pub fn close_once(cell: &StoreCell, timeout: Option<Duration>) -> Option<pagelith::CloseReport> {
    let store = cell.write().unwrap_or_else(PoisonError::into_inner).take();
    store.and_then(|store| store.close(timeout))
}

/// Whether the store is closed or closing. Does not wait for calls in progress.
pub fn is_closed(cell: &StoreCell) -> bool {
    match cell.try_read() {
        Ok(store) => store.is_none(),
        Err(TryLockError::Poisoned(store)) => store.into_inner().is_none(),
        Err(TryLockError::WouldBlock) => true,
    }
}

/// Registers an exit handler with the interpreter that closes the store if it is still open.
pub fn close_at_exit(py: Python<'_>, cell: &Arc<StoreCell>, process: u32) -> PyResult<()> {
    let cell = Arc::downgrade(cell);
    let close = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
        if let (Some(cell), false) = (cell.upgrade(), is_forked(process)) {
            arguments.py().detach(|| close_once(&cell, None));
        }
    };
    let close = PyCFunction::new_closure(py, None, None, close)?;
    // A child that multiprocessing forked does not run `atexit` handlers, only its own finalizers.
    if !py.import("multiprocessing.process")?.call_method0("parent_process")?.is_none() {
        let priority = [("exitpriority", 0)].into_py_dict(py)?;
        py.import("multiprocessing.util")?.call_method(
            "Finalize",
            (py.None(), &close),
            Some(&priority),
        )?;
    }
    py.import("atexit")?.call_method1("register", (close,)).map(drop)
}

/// Closes the store when its last reference is dropped, unless it is closed already.
pub fn close_on_drop(cell: &Arc<StoreCell>, submitted: &Queue, process: u32) {
    if is_forked(process) {
        // The store's threads do not exist in this process, and its files belong to the parent.
        std::mem::forget(cell.clone());
    } else if cell.read().unwrap_or_else(PoisonError::into_inner).is_some() {
        // Batches in progress need the GIL to complete.
        let close = || {
            submitted.finish();
            close_once(cell, None);
        };
        Python::attach(|py| py.detach(close));
    }
}
