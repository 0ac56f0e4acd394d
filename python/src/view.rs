//! Objects in DRAM, looked at where they lie.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::reached::Viewed;
use crate::repr::truth;
use crate::store::is_forked;

/// An object's bytes in the store's memory, where they stay as they are for as long as this is there, or memory that was taken of it.
#[pyclass(frozen, module = "pagelith")]
pub struct View {
    view: Mutex<Option<Viewed>>,
    address: usize,
    nbytes: usize,
    process: u32,
}

impl View {
    /// `None` if this process could not map it.
    pub fn of(view: Viewed, process: u32) -> Option<View> {
        let (address, nbytes) = (view.address()?, view.len());
        Some(View { view: Mutex::new(Some(view)), address, nbytes, process })
    }
}

#[pymethods]
impl View {
    /// Where the bytes are, for a device's copy: to be read while this is there, and never written.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// How many there are.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The bytes, to be read. It keeps what it is taken of.
    #[getter]
    fn memory<'py>(this: &Bound<'py, View>) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let array = py.import("ctypes")?.getattr("c_ubyte")?.mul(this.get().nbytes)?;
        let array = array.call_method1("from_address", (this.get().address,))?;
        array.setattr("view", this)?;
        let memory = py.import("builtins")?.getattr("memoryview")?.call1((array,))?;
        memory.call_method0("toreadonly")?.call_method1("cast", ("B",))
    }

    /// Whether the bytes are held still. Those of a store process are not once the connection that they were held over has ended: who
    /// has read them asks this afterwards.
    #[getter]
    fn held(&self, py: Python<'_>) -> bool {
        if is_forked(self.process) {
            return false;
        }
        py.detach(|| {
            let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
            view.as_ref().is_some_and(Viewed::is_held)
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("View(address={:#x}, nbytes={}, held={})", self.address, self.nbytes, truth(self.held(py)))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let view = self.view.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            // The store of another process: its lock may be held for ever here.
            return std::mem::forget(view);
        }
        // Another thread may have the store's lock, and wait for the interpreter's.
        Python::attach(|py| py.detach(|| drop(view)));
    }
}
