//! Memory that a call names: what has a buffer, a tensor in host memory, or an address and a length.
//!
//! A buffer or tensor is exported for as long as it is used here, so that Python neither frees nor resizes it. An address is the
//! caller's word: a host pool that outlives its store.
//!
//! Where a piece lies and how long it is is asked once, when it is exported: what is checked is what is used.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{address, at};
use crate::errors::InvalidError;
use crate::given::Pieces as Given;
use crate::mapped;
use crate::tensor;

/// What `PyObject_GetBuffer` fills. It is the same in every Python from 3.0 on, and part of the stable ABI from 3.11 on; pyo3
/// leaves it out of a build for 3.10, which has it all the same (CPython, `Include/cpython/object.h`).
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

/// Bytes side by side, to be read, as `PyBUF_SIMPLE` and `PyBUF_WRITABLE` have it.
const READ: c_int = 0;
const WRITE: c_int = 1;

/// A buffer that its object has exported.
struct View(Box<RawBuffer>);

impl View {
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<View> {
        let mut view = Box::new(MaybeUninit::<RawBuffer>::zeroed());
        // SAFETY: the object is alive and the interpreter's lock is held, which the token of `object` says; the view is
        // memory of the size and alignment that is filled.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::take(object.py()).unwrap_or_else(|| PyBufferError::new_err("no buffer")));
        }
        // SAFETY: it was filled, since the call succeeded; and zeros, which it was before, are a value of its fields too.
        Ok(View(unsafe { view.assume_init() }))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer` and released once; memory is dropped where the interpreter's lock is held, since it does not
        // leave the thread that made it (it is not `Send`) but as a batch's (`submitted::Lent`), which takes the lock.
        unsafe { PyBuffer_Release(&mut *self.0) };
    }
}

/// The pieces of one object.
type Pieces = Vec<(NonNull<u8>, usize)>;

/// The memory of a call: each object's pieces, and what keeps them.
pub struct Memory {
    objects: Vec<Pieces>,
    _views: Vec<View>,
    /// What keeps tensors.
    _tensors: Vec<Py<PyAny>>,
}

impl Memory {
    /// Memory to be read: for each object a buffer, an (address, length), or a list of those.
    pub fn to_read(given: &[Given<'_>]) -> PyResult<Memory> {
        Memory::of(given, READ, |n| format!("sources[{n}]"))
    }

    /// Memory to be written, of which no byte is named twice.
    pub fn to_write(given: &[Given<'_>]) -> PyResult<Memory> {
        let memory = Memory::of(given, WRITE, |n| format!("destinations[{n}]"))?;
        let pieces = memory
            .objects
            .iter()
            .enumerate()
            .flat_map(|(n, pieces)| pieces.iter().map(move |piece| (n, piece)));
        // An empty piece is no byte of anybody's, and would hide that its neighbours meet.
        let pieces = pieces.filter(|(_, (_, length))| *length > 0);
        let mut all: Vec<_> = pieces.map(|(n, (at, length))| (at.as_ptr() as usize, *length, n)).collect();
        all.sort_unstable();
        match all.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            Some(pair) => Err(InvalidError::new_err(format!(
                "memory is named twice, by destinations[{}] and destinations[{}] address={:#x} length={}",
                pair[0].2, pair[1].2, pair[1].0, pair[1].1
            ))),
            None => Ok(memory),
        }
    }

    /// One memory to be written, which is no call's.
    pub fn one(given: Given<'_>) -> PyResult<Memory> {
        Memory::of(&[given], WRITE, |_| "memory".to_owned())
    }

    /// The only piece of the only object.
    pub fn only(&self) -> PyResult<(NonNull<u8>, usize)> {
        match &self.objects[..] {
            [pieces] if pieces.len() == 1 => Ok(pieces[0]),
            _ => Err(InvalidError::new_err("one memory is asked for, and no list")),
        }
    }

    /// Each object's pieces, to be read.
    ///
    /// # Safety
    /// Nobody writes them while the slices are used: it is what the documentation of each call asks.
    pub unsafe fn read(&self) -> Vec<Vec<&[u8]>> {
        let slice = |(at, length): &(NonNull<u8>, usize)| {
            // SAFETY: exported by its object, or memory by the caller's word, for as long as this is borrowed; and not
            // written, by the promise above.
            unsafe { std::slice::from_raw_parts(at.as_ptr().cast_const(), *length) }
        };
        self.objects.iter().map(|pieces| pieces.iter().map(slice).collect()).collect()
    }

    /// Each object's pieces, to be written.
    ///
    /// # Safety
    /// As for `read`, and nobody reads them either; the memory is of [`Memory::to_write`], so that none is named twice.
    pub unsafe fn write(&mut self) -> Vec<Vec<&mut [u8]>> {
        let slice = |(at, length): &(NonNull<u8>, usize)| {
            // SAFETY: as in `read`; exported as writable, apart from each other, and used by nobody else.
            unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), *length) }
        };
        self.objects.iter().map(|pieces| pieces.iter().map(slice).collect()).collect()
    }

    fn of(given: &[Given<'_>], flags: c_int, place: impl Fn(usize) -> String) -> PyResult<Memory> {
        let objects = Vec::with_capacity(given.len());
        let mut memory = Memory { objects, _views: Vec::new(), _tensors: Vec::new() };
        for (n, object) in given.iter().enumerate() {
            let given = object.as_slice();
            let mut pieces = Vec::with_capacity(given.len());
            for (part, piece) in given.iter().enumerate() {
                let place = || match object {
                    Given::One(_) => place(n),
                    Given::Several(_) => format!("{}[{part}]", place(n)),
                };
                memory.piece(piece, flags, &mut pieces).map_err(|error| at(piece.py(), &place(), error))?;
            }
            memory.objects.push(pieces);
        }
        Ok(memory)
    }

    fn piece(&mut self, given: &Bound<'_, PyAny>, flags: c_int, pieces: &mut Pieces) -> PyResult<()> {
        if let Ok(pair) = given.cast::<PyTuple>() {
            let (address, length) = address(pair)?;
            let wrong = |problem: &str| {
                InvalidError::new_err(format!("{problem} address={address:#x} length={length}"))
            };
            let at = NonNull::new(address as *mut u8).filter(|_| address.checked_add(length).is_some());
            let at = at.ok_or_else(|| wrong("is no memory"))?;
            if let Some(problem) =
                (length > 0).then(|| mapped::problem(given.py(), address, length, flags == WRITE)).flatten()
            {
                return Err(wrong(problem));
            }
            pieces.push((at, length));
            return Ok(());
        }
        // SAFETY: the object is alive, and the interpreter's lock held.
        if unsafe { PyObject_CheckBuffer(given.as_ptr()) } == 0 {
            let Some(tensor) = tensor::export(given)? else {
                let kind = given.get_type().name()?;
                let text = format!(
                    "memory is a buffer, a tensor, an (address, length), or a list of those, not {kind}"
                );
                return Err(PyTypeError::new_err(text));
            };
            pieces.push((tensor.at, tensor.bytes));
            self._tensors.push(tensor.keep);
            return Ok(());
        }
        let view = View::of(given, flags)?;
        // An empty buffer may have no address.
        let at = NonNull::new(view.0.buf.cast()).unwrap_or(NonNull::dangling());
        pieces.push((at, view.0.len as usize));
        self._views.push(view);
        Ok(())
    }
}
