//! Views of objects in DRAM, without a copy.

use std::sync::{Mutex, PoisonError};

use pagelith::PageView;
use pyo3::prelude::*;

use crate::repr::python_bool;
use crate::store::is_forked;

/// Read-only bytes of an object in the store's memory. They stay valid and unchanged while this
/// view, or memory taken from it, exists.
#[pyclass(frozen, module = "pagelith")]
pub struct View {
    view: Mutex<Option<Box<dyn PageView>>>,
    address: usize,
    nbytes: usize,
    process: u32,
}

impl View {
    /// `None` if this process could not map the memory.
    pub fn of(view: Box<dyn PageView>, process: u32) -> Option<View> {
        let (address, nbytes) = (view.address()? as usize, view.length());
        Some(View { view: Mutex::new(Some(view)), address, nbytes, process })
    }
}

#[pymethods]
impl View {
    /// Address of the bytes, for a device copy: readable while the view exists, never writable.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// Length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The bytes, as a read-only memoryview that keeps this view alive.
    #[getter]
    fn memory<'py>(this: &Bound<'py, View>) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let array = py.import("ctypes")?.getattr("c_ubyte")?.mul(this.get().nbytes)?;
        let array = array.call_method1("from_address", (this.get().address,))?;
        array.setattr("view", this)?;
        let memory = py.import("builtins")?.getattr("memoryview")?.call1((array,))?;
        memory.call_method0("toreadonly")?.call_method1("cast", ("B",))
    }

    /// Whether the bytes are still held. Those of a store process are released when the connection
    /// ends, so a reader checks this after reading.
    #[getter]
    fn held(&self, py: Python<'_>) -> bool {
        if is_forked(self.process) {
            return false;
        }
        py.detach(|| {
            let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
            view.as_ref().is_some_and(|view| view.is_held())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "View(address={:#x}, nbytes={}, held={})",
            self.address,
            self.nbytes,
            python_bool(self.held(py))
        )
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let view = self.view.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if is_forked(self.process) {
            // The lock of the parent's store may stay held for ever in this process.
            return std::mem::forget(view);
        }
        // The GIL is released: a thread that holds the store's lock may wait for the GIL.
        Python::attach(|py| py.detach(|| drop(view)));
    }
}
