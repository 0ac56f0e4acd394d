//! Pins: released by a call, or with the Python object.

use std::sync::{Mutex, PoisonError};

use pagelith::PagePin;
use pyo3::prelude::*;

use crate::repr::python_bool;
use crate::store::is_forked;

/// Protects objects from eviction and reclaim. A context manager.
#[pyclass(frozen, module = "pagelith")]
pub struct Pin {
    pin: Mutex<Option<Box<dyn PagePin>>>,
    objects: usize,
    process: u32,
}

impl Pin {
    pub fn of(pin: Box<dyn PagePin>, process: u32) -> Pin {
        let objects = pin.pinned();
        Pin { pin: Mutex::new(Some(pin)), objects, process }
    }
}

#[pymethods]
impl Pin {
    /// Number of objects that were stored, and so were pinned.
    #[getter]
    fn objects(&self) -> usize {
        self.objects
    }

    /// Whether the objects are still pinned. Pins in a store process end with the connection they
    /// were made on.
    #[getter]
    fn held(&self, py: Python<'_>) -> bool {
        if is_forked(self.process) {
            return false;
        }
        py.detach(|| {
            let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner);
            pin.as_ref().is_some_and(|pin| pin.is_held())
        })
    }

    /// Release the pin. A second call does nothing.
    fn release(&self, py: Python<'_>) {
        let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            // The lock of the parent's store may stay held for ever in this process.
            return std::mem::forget(pin);
        }
        py.detach(|| drop(pin));
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Pin(objects={}, held={})", self.objects, python_bool(self.held(py)))
    }

    fn __enter__(this: Py<Pin>) -> Py<Pin> {
        this
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.release(py);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let pin = self.pin.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            return std::mem::forget(pin);
        }
        if pin.is_some() {
            // The GIL is released: a store process may answer late.
            Python::attach(|py| py.detach(|| drop(pin)));
        }
    }
}
