//! Sequences among a call's arguments. Each is copied before any of its entries is inspected.
//!
//! Inspecting an entry may run Python code (`__dlpack__`, `__buffer__`, `__index__`, `__fspath__`),
//! and Python may then switch to a thread that changes the list. A list walked meanwhile would have
//! a length that it never had, and a put could store a mixture that no thread passed. No Python
//! code runs while the entries of lists and tuples are copied, nested lists included: a call sees
//! them as of one moment.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};

/// The entries of a sequence, not inspected yet. A sequence class written in Python runs its own
/// code here.
pub fn entries<'py>(arg: Borrowed<'_, 'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    arg.extract()
}

/// A sequence in which every entry is a `T`.
pub struct ListOf<T>(pub Vec<T>);

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for ListOf<T> {
    type Error = PyErr;

    fn extract(arg: Borrowed<'_, 'py, PyAny>) -> PyResult<ListOf<T>> {
        let each = entries(arg)?.into_iter().map(|entry| entry.extract::<T>().map_err(Into::into));
        each.collect::<PyResult<_>>().map(ListOf)
    }
}

/// Bytes, or a sequence of numbers from 0 to 255.
pub struct ByteString(pub Vec<u8>);

impl<'py> FromPyObject<'_, 'py> for ByteString {
    type Error = PyErr;

    fn extract(arg: Borrowed<'_, 'py, PyAny>) -> PyResult<ByteString> {
        if arg.is_instance_of::<PyBytes>() || arg.is_instance_of::<PyByteArray>() {
            return arg.extract().map(ByteString);
        }
        let ListOf(numbers) = arg.extract()?;
        Ok(ByteString(numbers))
    }
}

/// The memory argument of one object: one piece, or a list of pieces.
pub enum Pieces<'py> {
    One(Bound<'py, PyAny>),
    Several(Vec<Bound<'py, PyAny>>),
}

impl<'py> Pieces<'py> {
    pub fn of(arg: Bound<'py, PyAny>) -> Pieces<'py> {
        match arg.cast::<PyList>() {
            Ok(list) => Pieces::Several(list.iter().collect()),
            Err(_) => Pieces::One(arg),
        }
    }

    pub fn as_slice(&self) -> &[Bound<'py, PyAny>] {
        match self {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Several(pieces) => pieces,
        }
    }
}

/// The memory arguments of a call, one entry per object.
pub struct Memories<'py>(pub Vec<Pieces<'py>>);

impl<'py> FromPyObject<'_, 'py> for Memories<'py> {
    type Error = PyErr;

    fn extract(arg: Borrowed<'_, 'py, PyAny>) -> PyResult<Memories<'py>> {
        Ok(Memories(entries(arg)?.into_iter().map(Pieces::of).collect()))
    }
}
