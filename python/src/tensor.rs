//! Memory of objects that implement DLPack: tensors of other frameworks.
//!
//! The capsule, and with it the tensor, is kept while the memory is used. It is not renamed, as a
//! consumer that takes ownership would rename it, so the capsule's own destructor releases the
//! tensor.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::InvalidError;

/// `DLDevice` and the structures below are those of dlpack.h, unchanged there since version 0.2.
#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    _id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    _code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `kDLCPU`, `kDLCUDAHost` and `kDLROCMHost`: host memory, the latter two pinned.
const HOST: [i32; 3] = [1, 3, 11];
/// Name of a capsule whose tensor has not been consumed.
const UNCONSUMED: &CStr = c"dltensor";

/// The bytes of a tensor in host memory, and the capsule that keeps them valid.
pub struct Exported {
    pub at: NonNull<u8>,
    pub bytes: usize,
    pub keep: Py<PyAny>,
}

/// The bytes of a tensor on a device, and the capsule that keeps them valid.
pub struct OnDevice {
    pub address: usize,
    pub bytes: usize,
    pub keep: Py<PyAny>,
}

/// Kind and number of the device of a tensor; `None` if the object does not implement DLPack.
pub fn device_of(object: &Bound<'_, PyAny>) -> PyResult<Option<(i32, i32)>> {
    if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
        return Ok(None);
    }
    object.call_method0("__dlpack_device__")?.extract().map(Some)
}

/// Export the tensor of `object`; `None` if it does not implement DLPack.
pub fn export(object: &Bound<'_, PyAny>) -> PyResult<Option<Exported>> {
    let Some((kind, id)) = device_of(object)? else { return Ok(None) };
    if !HOST.contains(&kind) {
        let text = format!("tensor is not in host memory device_type={kind} device_id={id}");
        return Err(InvalidError::new_err(text));
    }
    let capsule = object.call_method0("__dlpack__")?;
    let (device, at, bytes) = read(&capsule)?;
    if !HOST.contains(&device.kind) {
        let text = format!("tensor is not in host memory device_type={}", device.kind);
        return Err(InvalidError::new_err(text));
    }
    let at = match NonNull::new(at as *mut u8) {
        Some(at) => at,
        None if bytes == 0 => NonNull::dangling(),
        None => return Err(PyBufferError::new_err("tensor has no address")),
    };
    Ok(Some(Exported { at, bytes, keep: capsule.unbind() }))
}

/// Export a tensor of a device of this kind. The stream `consumer` is made to wait for the work
/// that the tensor has.
pub fn export_of_device(
    object: &Bound<'_, PyAny>,
    kind: i32,
    consumer: Option<usize>,
) -> PyResult<OnDevice> {
    let named = PyDict::new(object.py());
    if let Some(consumer) = consumer {
        named.set_item("stream", consumer)?;
    }
    let capsule = object.call_method("__dlpack__", (), Some(&named))?;
    let (device, address, bytes) = read(&capsule)?;
    if device.kind != kind {
        let text = format!("tensor is not on its device device_type={}", device.kind);
        return Err(InvalidError::new_err(text));
    }
    if address == 0 && bytes > 0 {
        return Err(PyBufferError::new_err("tensor has no address"));
    }
    Ok(OnDevice { address, bytes, keep: capsule.unbind() })
}

/// Device, address (0 for none) and length in bytes of a capsule's tensor.
fn read(capsule: &Bound<'_, PyAny>) -> PyResult<(Device, usize, usize)> {
    // SAFETY: the capsule is alive and the GIL is held, as `capsule` proves; for an object that is
    // no capsule of this name the call returns null and sets an error.
    let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), UNCONSUMED.as_ptr()) };
    let Some(tensor) = NonNull::new(tensor.cast::<Tensor>()) else {
        let error = PyErr::take(capsule.py());
        return Err(error.unwrap_or_else(|| PyBufferError::new_err("no tensor")));
    };
    // SAFETY: a capsule of that name holds a `DLManagedTensor`, which begins with its tensor and
    // lives as long as the capsule.
    let tensor = unsafe { tensor.as_ref() };
    let Some(bytes) = tensor.bytes() else {
        return Err(PyBufferError::new_err(
            "tensor is not contiguous, or its elements are not whole bytes",
        ));
    };
    let at = (tensor.data as usize)
        .checked_add(tensor.byte_offset as usize)
        .filter(|_| !tensor.data.is_null());
    Ok((tensor.device, at.unwrap_or(0), bytes))
}

impl Tensor {
    /// Length in bytes, if the elements are contiguous in the order of their indices.
    fn bytes(&self) -> Option<usize> {
        let bits = usize::from(self.dtype.bits) * usize::from(self.dtype.lanes);
        if !bits.is_multiple_of(8) || bits == 0 {
            return None;
        }
        let dims = usize::try_from(self.ndim).ok()?;
        let (mut elements, mut whole) = (1usize, true);
        for dim in (0..dims).rev() {
            // SAFETY: both arrays have `ndim` entries; strides may be null for a contiguous tensor.
            let (length, stride) = unsafe {
                (*self.shape.add(dim), (!self.strides.is_null()).then(|| *self.strides.add(dim)))
            };
            let length = usize::try_from(length).ok()?;
            let side_by_side = stride.is_none_or(|stride| usize::try_from(stride) == Ok(elements));
            whole &= side_by_side || length <= 1;
            elements = elements.checked_mul(length)?;
        }
        (whole || elements == 0).then(|| elements.checked_mul(bits / 8)).flatten()
    }
}
