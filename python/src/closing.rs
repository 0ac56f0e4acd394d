//! The end of a store whose owner says nothing: it is closed with its last reference, or with the interpreter.

use std::sync::{Arc, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCFunction, PyDict, PyTuple};

use crate::reached::Reached;
use crate::store::is_forked;
use crate::submitted::Queue;

/// What this is attached to, or has opened, until it is closed.
pub type Held = RwLock<Option<Reached>>;

/// Close it, unless that was done.
pub fn close_once(held: &Held, timeout: Option<Duration>) -> Option<pagelith::CloseReport> {
    let store = held.write().unwrap_or_else(PoisonError::into_inner).take();
    store.and_then(|store| store.close(timeout))
}

/// Whether it is closed, or about to be, without waiting for calls under way.
pub fn is_closed(held: &Held) -> bool {
    match held.try_read() {
        Ok(store) => store.is_none(),
        Err(TryLockError::Poisoned(store)) => store.into_inner().is_none(),
        Err(TryLockError::WouldBlock) => true,
    }
}

/// Have the interpreter close it at its end, if nobody has by then.
pub fn close_at_exit(py: Python<'_>, held: &Arc<Held>, process: u32) -> PyResult<()> {
    let held = Arc::downgrade(held);
    let close = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
        if let (Some(held), false) = (held.upgrade(), is_forked(process)) {
            arguments.py().detach(|| close_once(&held, None));
        }
    };
    let close = PyCFunction::new_closure(py, None, None, close)?;
    // A child that multiprocessing has forked ends without what is registered there.
    if !py.import("multiprocessing.process")?.call_method0("parent_process")?.is_none() {
        let priority = [("exitpriority", 0)].into_py_dict(py)?;
        py.import("multiprocessing.util")?.call_method("Finalize", (py.None(), &close), Some(&priority))?;
    }
    py.import("atexit")?.call_method1("register", (close,)).map(drop)
}

/// The last reference goes: close it, unless that was done.
pub fn end(held: &Arc<Held>, submitted: &Queue, process: u32) {
    if is_forked(process) {
        // Its threads are not here to be waited for, and its files are the other process's.
        std::mem::forget(held.clone());
    } else if held.read().unwrap_or_else(PoisonError::into_inner).is_some() {
        // What is under way needs the interpreter's lock when it ends.
        let close = || {
            submitted.finish();
            close_once(held, None);
        };
        Python::attach(|py| py.detach(close));
    }
}
