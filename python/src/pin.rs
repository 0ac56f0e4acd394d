//! Pins, which end with Python's object, or when they are released.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::reached::Pinned;
use crate::repr::truth;
use crate::store::is_forked;

/// Keeps objects from being evicted and reclaimed. A context manager.
#[pyclass(frozen, module = "pagelith")]
pub struct Pin {
    pin: Mutex<Option<Pinned>>,
    objects: usize,
    process: u32,
}

impl Pin {
    pub fn of(pin: Pinned, process: u32) -> Pin {
        let objects = pin.pinned();
        Pin { pin: Mutex::new(Some(pin)), objects, process }
    }
}

#[pymethods]
impl Pin {
    /// How many of the objects were here.
    #[getter]
    fn objects(&self) -> usize {
        self.objects
    }

    /// Whether they are pinned still. Those of a store process are not once the connection that they were pinned on has ended.
    #[getter]
    fn held(&self, py: Python<'_>) -> bool {
        if is_forked(self.process) {
            return false;
        }
        py.detach(|| {
            let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner);
            pin.as_ref().is_some_and(Pinned::is_held)
        })
    }

    /// Let them go. Nothing happens the second time.
    fn release(&self, py: Python<'_>) {
        let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            // The store of another process: its lock may be held for ever here.
            return std::mem::forget(pin);
        }
        py.detach(|| drop(pin));
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Pin(objects={}, held={})", self.objects, truth(self.held(py)))
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
        if is_forked(self.process) {
            std::mem::forget(self.pin.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
