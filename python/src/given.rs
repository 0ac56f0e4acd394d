//! Lists that a call is given, each copied before anything in it is looked at.
//!
//! To look at an entry may run Python (`__dlpack__`, `__buffer__`, `__index__`, `__fspath__`), and Python lets other threads in, which may change the
//! list. A list that is walked meanwhile has a length that it never had, and what is put out of it an object that nobody put. No Python runs between
//! the first and the last entry that is copied of lists and tuples, lists in lists included: a call has what they held at one moment.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};

/// The entries of a sequence, none of which has been looked at. A sequence that is written in Python says itself which they are.
pub fn entries<'py>(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    given.extract()
}

/// A sequence of which every entry is a `T`.
pub struct Listed<T>(pub Vec<T>);

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for Listed<T> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Listed<T>> {
        let each = entries(given)?.into_iter().map(|entry| entry.extract::<T>().map_err(Into::into));
        each.collect::<PyResult<_>>().map(Listed)
    }
}

/// Bytes, or numbers that are some.
pub struct Octets(pub Vec<u8>);

impl<'py> FromPyObject<'_, 'py> for Octets {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Octets> {
        if given.is_instance_of::<PyBytes>() || given.is_instance_of::<PyByteArray>() {
            return given.extract().map(Octets);
        }
        let Listed(numbers) = given.extract()?;
        Ok(Octets(numbers))
    }
}

/// The memory of one object as it was given: one piece, or a list of them.
pub enum Pieces<'py> {
    One(Bound<'py, PyAny>),
    Several(Vec<Bound<'py, PyAny>>),
}

impl<'py> Pieces<'py> {
    pub fn of(given: Bound<'py, PyAny>) -> Pieces<'py> {
        match given.cast::<PyList>() {
            Ok(list) => Pieces::Several(list.iter().collect()),
            Err(_) => Pieces::One(given),
        }
    }

    pub fn as_slice(&self) -> &[Bound<'py, PyAny>] {
        match self {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Several(pieces) => pieces,
        }
    }
}

/// The memory of a call as it was given: of each object its pieces.
pub struct Memories<'py>(pub Vec<Pieces<'py>>);

impl<'py> FromPyObject<'_, 'py> for Memories<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Memories<'py>> {
        Ok(Memories(entries(given)?.into_iter().map(Pieces::of).collect()))
    }
}
