//! Memory of Python's that outlives the call that named it.

use pyo3::prelude::*;

/// Memory of Python's that a batch or a registration has. It is let go of where the interpreter's lock is held, or never.
pub struct Lent<T>(Option<T>);

// SAFETY: what keeps buffers and tensors belongs to no thread, and asks of whoever drops it for the interpreter's lock alone, which `drop` takes; where
// there is none to be had, nothing is dropped. Addresses and keys are plain.
unsafe impl<T> Send for Lent<T> {}

impl<T> Lent<T> {
    pub fn of(lent: T) -> Lent<T> {
        Lent(Some(lent))
    }

    pub fn get(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let mut lent = self.0.take();
        Python::try_attach(|_| drop(lent.take()));
        // The interpreter is going, and whom it belonged to.
        std::mem::forget(lent);
    }
}
