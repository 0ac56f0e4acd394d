//! Memory of what speaks DLPack: tensors of other frameworks, that lie in host memory.
//!
//! The capsule is kept for as long as the memory is used, and with it the tensor: it is never renamed, as a consumer that keeps
//! the tensor would, so that it lets go of it when it is dropped itself.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::InvalidError;

/// `DLDevice` and the structures below: of dlpack.h, which they are the same in since version 0.2.
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
/// What a capsule is called whose tensor nobody has taken.
const UNTAKEN: &CStr = c"dltensor";

/// A tensor's bytes, and what keeps them.
pub struct Exported {
    pub at: NonNull<u8>,
    pub bytes: usize,
    pub keep: Py<PyAny>,
}

/// What `object` exports; `None` if it does not speak DLPack.
pub fn export(object: &Bound<'_, PyAny>) -> PyResult<Option<Exported>> {
    if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
        return Ok(None);
    }
    let (kind, id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if !HOST.contains(&kind) {
        let text = format!("tensor is not in host memory device_type={kind} device_id={id}");
        return Err(InvalidError::new_err(text));
    }
    let capsule = object.call_method0("__dlpack__")?;
    // SAFETY: the capsule is alive, and the interpreter's lock held, by the token of `object`; what is no capsule of this name is
    // answered with null and an error.
    let tensor = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), UNTAKEN.as_ptr()) };
    let Some(tensor) = NonNull::new(tensor.cast::<Tensor>()) else {
        return Err(PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("no tensor")));
    };
    // SAFETY: a capsule of that name holds a `DLManagedTensor`, which begins with its tensor, alive as long as the capsule.
    let tensor = unsafe { tensor.as_ref() };
    if !HOST.contains(&tensor.device.kind) {
        let text = format!("tensor is not in host memory device_type={}", tensor.device.kind);
        return Err(InvalidError::new_err(text));
    }
    let Some(bytes) = tensor.bytes() else {
        return Err(PyBufferError::new_err("tensor is not contiguous, or has parts of bytes for elements"));
    };
    let at =
        (tensor.data as usize).checked_add(tensor.byte_offset as usize).filter(|_| !tensor.data.is_null());
    let at = match at.and_then(|at| NonNull::new(at as *mut u8)) {
        Some(at) => at,
        None if bytes == 0 => NonNull::dangling(),
        None => return Err(PyBufferError::new_err("tensor has no address")),
    };
    Ok(Some(Exported { at, bytes, keep: capsule.unbind() }))
}

impl Tensor {
    /// How long it is, if its elements lie side by side in the order of its indices.
    fn bytes(&self) -> Option<usize> {
        let bits = usize::from(self.dtype.bits) * usize::from(self.dtype.lanes);
        if !bits.is_multiple_of(8) || bits == 0 {
            return None;
        }
        let dims = usize::try_from(self.ndim).ok()?;
        let (mut elements, mut whole) = (1usize, true);
        for dim in (0..dims).rev() {
            // SAFETY: both have `ndim` numbers; strides may be left out of what is contiguous.
            let (length, stride) =
                unsafe { (*self.shape.add(dim), (!self.strides.is_null()).then(|| *self.strides.add(dim))) };
            let length = usize::try_from(length).ok()?;
            let side_by_side = stride.is_none_or(|stride| usize::try_from(stride) == Ok(elements));
            whole &= side_by_side || length <= 1;
            elements = elements.checked_mul(length)?;
        }
        (whole || elements == 0).then(|| elements.checked_mul(bits / 8)).flatten()
    }
}
