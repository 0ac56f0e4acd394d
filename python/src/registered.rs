//! Memory that gets read into over and over, registered with a store for as long as Python's object, or until it is released.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::raised;
use crate::given::Pieces;
use crate::lent::Lent;
use crate::memory::Memory;
use crate::reached::Reached;
use crate::repr::truth;
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
    /// As it was exported, for as long: a buffer is not resized meanwhile. What an address names is the caller's to keep.
    _memory: Lent<Memory>,
}

impl Registration {
    /// Register one memory with `store`.
    pub fn of(store: &Store, memory: &Bound<'_, PyAny>, process: u32) -> PyResult<Registration> {
        let py = memory.py();
        let memory = Memory::one(Pieces::of(memory.clone()))?;
        let (base, len) = memory.only()?;
        let base = base.as_ptr() as usize;
        let registered = store.with(py, |store: &Reached| store.register(base as *const u8, len))?;
        let registration = registered.map_err(|error| raised(&error))?;
        let used = registration.is_used();
        let held = Held { _registration: registration, _memory: Lent::of(memory) };
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

    fn __repr__(&self) -> String {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        format!("Registration(used={}, held={})", truth(self.used), truth(held))
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
