//! Memory that gets read into over and over, registered with a store for as long as Python's object, or until it is released.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};

use crate::errors::raised;
use crate::memory::Memory;
use crate::reached::Reached;
use crate::store::{Store, is_forked};

/// Memory that is registered. A context manager.
#[pyclass(frozen, module = "pagelith")]
pub struct Registration {
    held: Mutex<Option<Held>>,
    used: bool,
    process: u32,
}

struct Held {
    /// Dropped before the memory may go.
    _registration: pagelith::Registration,
    _memory: Py<PyAny>,
}

impl Registration {
    /// Register one memory with `store`.
    pub fn of(store: &Store, memory: &Bound<'_, PyAny>, process: u32) -> PyResult<Registration> {
        let py = memory.py();
        // A view of it keeps what has a buffer from being resized; a tensor or an address is the caller's to keep.
        let keep = PyMemoryView::from(memory).map_or_else(|_| memory.clone(), |view| view.into_any());
        let (base, len) = Memory::to_write(std::slice::from_ref(&keep))?.only()?;
        let base = base.as_ptr() as usize;
        let registered = store.with(py, |store: &Reached| store.register(base as *const u8, len))?;
        let registration = registered.map_err(|error| raised(&error))?;
        let used = registration.is_used();
        let held = Held { _registration: registration, _memory: keep.unbind() };
        Ok(Registration { held: Mutex::new(Some(held)), used, process })
    }
}

#[pymethods]
impl Registration {
    /// Whether reads are spared anything: not where the store is another process's, or has no SSD tier or no io_uring.
    #[getter]
    fn used(&self) -> bool {
        self.used
    }

    /// End it. Nothing happens the second time.
    fn release(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            // The list of another process's store: its lock may be held for ever here.
            std::mem::forget(held);
        }
    }

    fn __enter__(this: Py<Registration>) -> Py<Registration> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) {
        self.release();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if is_forked(self.process) {
            std::mem::forget(self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
