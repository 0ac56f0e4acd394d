//! Python memory that outlives the call that named it.

use pyo3::prelude::*;

/// Python memory owned by a batch or a registration. It is dropped with the GIL held, or leaked.
pub struct DropWithGil<T>(Option<T>);

// SAFETY: exported buffers and tensors are not bound to a thread; dropping them needs only the GIL,
// which `drop` acquires. If the GIL cannot be acquired, they are leaked. Addresses and keys are
// plain data.
unsafe impl<T> Send for DropWithGil<T> {}

impl<T> DropWithGil<T> {
    pub fn of(value: T) -> DropWithGil<T> {
        DropWithGil(Some(value))
    }

    pub fn get(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }
}

impl<T> Drop for DropWithGil<T> {
    fn drop(&mut self) {
        let mut value = self.0.take();
        Python::try_attach(|_| drop(value.take()));
        // The interpreter is shutting down, and frees or abandons its objects itself.
        std::mem::forget(value);
    }
}
