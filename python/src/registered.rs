//! Memory registered for repeated reads, until it is released or the Python object is dropped.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::drop_with_gil::DropWithGil;
use crate::errors::raised;
use crate::handle::StoreHandle;
use crate::memory::Memory;
use crate::repr::python_bool;
use crate::sequences::Pieces;
use crate::store::{Store, is_forked};

/// A registration of memory. A context manager.
#[pyclass(frozen, module = "pagelith")]
pub struct Registration {
    state: Mutex<Option<Registered>>,
    used: bool,
    process: u32,
}

struct Registered {
    /// Declared first: dropped before the memory is released.
    _registration: pagelith::Registration,
    /// The exported memory: a buffer cannot be resized meanwhile. The caller keeps plain addresses
    /// valid.
    _memory: DropWithGil<Memory>,
}

impl Registration {
    /// Register one memory with `store`.
    pub fn of(store: &Store, memory: &Bound<'_, PyAny>, process: u32) -> PyResult<Registration> {
        let py = memory.py();
        let memory = Memory::one(Pieces::of(memory.clone()))?;
        let (base, len) = memory.only()?;
        let base = base.as_ptr() as usize;
        let registered =
            store.with(py, |store: &StoreHandle| store.register(base as *const u8, len))?;
        let registration = registered.map_err(|error| raised(&error))?;
        let used = registration.is_used();
        let held = Registered { _registration: registration, _memory: DropWithGil::of(memory) };
        Ok(Registration { state: Mutex::new(Some(held)), used, process })
    }
}

#[pymethods]
impl Registration {
    /// Whether reads use the registration. False if the store is in another process, or has no SSD
    /// tier or no io_uring.
    #[getter]
    fn used(&self) -> bool {
        self.used
    }

    /// End the registration. A second call does nothing.
    fn release(&self, py: Python<'_>) {
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            // The lock of the parent's store may stay held for ever in this process.
            return std::mem::forget(held);
        }
        // The GIL is released: RDMA devices need time for each page.
        py.detach(|| drop(held));
    }

    fn __repr__(&self) -> String {
        let held = self.state.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        format!("Registration(used={}, held={})", python_bool(self.used), python_bool(held))
    }

    fn __enter__(this: Py<Registration>) -> Py<Registration> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) {
        self.release(py);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let held = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            return std::mem::forget(held);
        }
        if held.is_some() {
            Python::attach(|py| py.detach(|| drop(held)));
        }
    }
}
