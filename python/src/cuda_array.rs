//! Memory of objects with `__cuda_array_interface__`, of version 2 or 3.

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::InvalidError;
use crate::stream::driver_number;

const NAME: &str = "__cuda_array_interface__";

/// The memory of an array.
pub struct Array {
    pub address: u64,
    pub bytes: usize,
    pub is_read_only: bool,
    /// The stream that has its work, if the array names one, as the driver numbers it.
    pub stream: Option<usize>,
}

/// Whether the object has the interface.
pub fn has(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(NAME)
}

/// The memory of an array, whose elements are contiguous.
pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Array> {
    let attribute = object.getattr(NAME)?;
    let dict = attribute.cast::<PyDict>().map_err(PyErr::from)?;
    let entry = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(dict.get_item(name)?.filter(|value| !value.is_none()))
    };
    let wanted = |name: &str| {
        entry(name)?.ok_or_else(|| InvalidError::new_err(format!("{NAME} has no {name}")))
    };
    if entry("mask")?.is_some() {
        return Err(PyBufferError::new_err("array has a mask"));
    }
    let typestr: String = wanted("typestr")?.extract()?;
    let digits = typestr.trim_start_matches(|c: char| !c.is_ascii_digit());
    let item: usize = digits.parse().map_err(|_| {
        InvalidError::new_err(format!("{NAME} has an invalid typestr, got={typestr:?}"))
    })?;
    let shape: Vec<usize> = wanted("shape")?.extract()?;
    let strides: Option<Vec<isize>> = entry("strides")?.map(|value| value.extract()).transpose()?;
    let bytes = contiguous(item, &shape, strides.as_deref())
        .ok_or_else(|| PyBufferError::new_err("array is not contiguous"))?;
    let (address, is_read_only): (u64, bool) = wanted("data")?.extract()?;
    let stream: Option<usize> = entry("stream")?.map(|value| value.extract()).transpose()?;
    Ok(Array { address, bytes, is_read_only, stream: stream.map(driver_number) })
}

/// Length in bytes, if the elements are contiguous in the order of their indices.
fn contiguous(item: usize, shape: &[usize], strides: Option<&[isize]>) -> Option<usize> {
    let (mut bytes, mut whole) = (item, true);
    for (dim, length) in shape.iter().enumerate().rev() {
        let stride = strides.map(|strides| strides.get(dim).copied());
        let side_by_side = stride.is_none_or(|stride| stride == isize::try_from(bytes).ok());
        whole &= side_by_side || *length <= 1;
        bytes = bytes.checked_mul(*length)?;
    }
    (whole || bytes == 0).then_some(bytes)
}
