//! Memory that a call names: an object with a buffer, a tensor in host memory, or an address and a
//! length.
//!
//! A buffer or tensor stays exported while it is used here, so that Python neither frees nor
//! resizes it. The caller guarantees that an address stays valid: it is typically of a host pool
//! that outlives the store.
//!
//! The address and the length of a piece are read once, at its export, so that the values checked
//! are the values used.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{address, prefix_error};
use crate::errors::InvalidError;
use crate::mapped;
use crate::sequences::Pieces as ArgPieces;
use crate::tensor;

/// The structure that `PyObject_GetBuffer` fills. Its layout is the same in every Python from 3.0
/// on, and part of the stable ABI from 3.11 on. pyo3 omits it in a build for 3.10, which has it
/// nevertheless (CPython, `Include/cpython/object.h`).
#[repr(C)]
struct RawBuffer {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_CheckBuffer(obj: *mut ffi::PyObject) -> c_int;
    fn PyObject_GetBuffer(obj: *mut ffi::PyObject, view: *mut RawBuffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawBuffer);
}

/// Contiguous bytes, as `PyBUF_SIMPLE` and `PyBUF_WRITABLE` request them.
const READ: c_int = 0;
const WRITE: c_int = 1;

/// An exported buffer.
struct View(Box<RawBuffer>);

impl View {
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<View> {
        let mut view = Box::new(MaybeUninit::<RawBuffer>::zeroed());
        // SAFETY: the object is alive and the GIL is held, as `object` proves; the view is memory
        // of the size and alignment that the call fills.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(
                PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("no buffer"))
            );
        }
        // SAFETY: the call succeeded, so it filled the view; the zeros it held before are valid
        // values too.
        Ok(View(unsafe { view.assume_init() }))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer`, and released once. The GIL is held: a `Memory` is
        // not `Send`, so it is dropped on the thread that made it, except within a `DropWithGil`,
        // which acquires the GIL.
        unsafe { PyBuffer_Release(&mut *self.0) };
    }
}

/// The pieces of one object: address and length.
type Pieces = Vec<(NonNull<u8>, usize)>;

/// The memory of a call: the pieces of each object, and the exports that keep them valid.
pub struct Memory {
    objects: Vec<Pieces>,
    _views: Vec<View>,
    /// Capsules that keep tensors alive.
    _tensors: Vec<Py<PyAny>>,
}

impl Memory {
    /// Source memory: for each object a buffer, a tensor, an (address, length), or a list of those.
    pub fn to_read(arg: &[ArgPieces<'_>]) -> PyResult<Memory> {
        Memory::of(arg, READ, "sources")
    }

    /// Destination memory. No two pieces overlap.
    pub fn to_write(arg: &[ArgPieces<'_>]) -> PyResult<Memory> {
        let memory = Memory::of(arg, WRITE, "destinations")?;
        let pieces = memory
            .objects
            .iter()
            .enumerate()
            .flat_map(|(n, pieces)| pieces.iter().map(move |piece| (n, piece)));
        // An empty piece between two overlapping ones would hide their overlap.
        let pieces = pieces.filter(|(_, (_, length))| *length > 0);
        let all = pieces.map(|(n, (at, length))| (at.as_ptr() as usize, *length, n)).collect();
        check_overlap(all)?;
        Ok(memory)
    }

    /// One writable memory that is no argument of a put or get.
    pub fn one(arg: ArgPieces<'_>) -> PyResult<Memory> {
        Memory::of(&[arg], WRITE, "memory")
    }

    /// The only piece of the only object.
    pub fn only(&self) -> PyResult<(NonNull<u8>, usize)> {
        match &self.objects[..] {
            [pieces] if pieces.len() == 1 => Ok(pieces[0]),
            _ => Err(InvalidError::new_err(
                "memory must be one buffer, tensor or (address, length), not a list",
            )),
        }
    }

    /// The pieces of each object, for reading.
    ///
    /// # Safety
    /// No thread writes to them while the slices exist: the documentation of each call requires
    /// that.
    pub unsafe fn read(&self) -> Vec<Vec<&[u8]>> {
        let slice = |(at, length): &(NonNull<u8>, usize)| {
            // SAFETY: exported by its object, or valid by the caller's guarantee, for as long as
            // `self` is borrowed; not written meanwhile, as this function requires.
            unsafe { std::slice::from_raw_parts(at.as_ptr().cast_const(), *length) }
        };
        self.objects.iter().map(|pieces| pieces.iter().map(slice).collect()).collect()
    }

    /// The pieces of each object, for writing.
    ///
    /// # Safety
    /// As for `read`, and no thread reads them either. The memory is from [`Memory::to_write`], so
    /// that no pieces overlap.
    pub unsafe fn write(&mut self) -> Vec<Vec<&mut [u8]>> {
        let slice = |(at, length): &(NonNull<u8>, usize)| {
            // SAFETY: as in `read`; exported as writable, without overlap, and not accessed by
            // other threads.
            unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), *length) }
        };
        self.objects.iter().map(|pieces| pieces.iter().map(slice).collect()).collect()
    }

    fn of(arg: &[ArgPieces<'_>], flags: c_int, name: &str) -> PyResult<Memory> {
        let objects = Vec::with_capacity(arg.len());
        let mut memory = Memory { objects, _views: Vec::new(), _tensors: Vec::new() };
        for (n, object) in arg.iter().enumerate() {
            let arg = object.as_slice();
            let mut pieces = Vec::with_capacity(arg.len());
            for (part, piece) in arg.iter().enumerate() {
                memory.piece(piece, flags, &mut pieces).map_err(|error| {
                    prefix_error(piece.py(), &place_of(name, object, n, part), error)
                })?;
            }
            memory.objects.push(pieces);
        }
        Ok(memory)
    }

    fn piece(&mut self, arg: &Bound<'_, PyAny>, flags: c_int, pieces: &mut Pieces) -> PyResult<()> {
        if let Ok(pair) = arg.cast::<PyTuple>() {
            let (address, length) = address(pair)?;
            let wrong = |problem: &str| {
                InvalidError::new_err(format!("{problem} address={address:#x} length={length}"))
            };
            let at =
                NonNull::new(address as *mut u8).filter(|_| address.checked_add(length).is_some());
            let at = at.ok_or_else(|| wrong("is not a valid memory range"))?;
            if let Some(problem) = (length > 0)
                .then(|| mapped::access_problem(arg.py(), address, length, flags == WRITE))
                .flatten()
            {
                return Err(wrong(problem));
            }
            pieces.push((at, length));
            return Ok(());
        }
        // SAFETY: the object is alive, and the GIL is held.
        if unsafe { PyObject_CheckBuffer(arg.as_ptr()) } == 0 {
            let Some(tensor) = tensor::export(arg)? else {
                let kind = arg.get_type().name()?;
                let text = format!(
                    "memory must be a buffer, a tensor, an (address, length), or a list of those, not {kind}"
                );
                return Err(PyTypeError::new_err(text));
            };
            pieces.push((tensor.at, tensor.bytes));
            self._tensors.push(tensor.keep);
            return Ok(());
        }
        let view = View::of(arg, flags)?;
        // An empty buffer may have a null address.
        let at = NonNull::new(view.0.buf.cast()).unwrap_or(NonNull::dangling());
        pieces.push((at, view.0.len as usize));
        self._views.push(view);
        Ok(())
    }
}

/// The place of a piece among the arguments `name` of a call; `memory` is no list.
pub fn place_of(name: &str, object: &ArgPieces<'_>, n: usize, part: usize) -> String {
    let of = if name == "memory" { name.to_owned() } else { format!("{name}[{n}]") };
    match object {
        ArgPieces::One(_) => of,
        ArgPieces::Several(_) => format!("{of}[{part}]"),
    }
}

/// An error if two destinations overlap, each given by its address, its length, and its object.
pub fn check_overlap(mut all: Vec<(usize, usize, usize)>) -> PyResult<()> {
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0) {
        Some(pair) => Err(InvalidError::new_err(format!(
            "destinations must not overlap: destinations[{}] and destinations[{}] address={:#x} length={}",
            pair[0].2, pair[1].2, pair[1].0, pair[1].1
        ))),
        None => Ok(()),
    }
}
