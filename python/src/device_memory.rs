//! Memory of a device that a call names: (device, address, length), a tensor (DLPack), or an object
//! with `__cuda_array_interface__`. All memory of one call is of one device.
//!
//! A tensor or object is kept until the device is done with its memory, also when the call has
//! given up.

use std::sync::{Arc, Mutex};

use pagelith::{CallerStream, DeviceHandle, DeviceRange, DriverKind};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{prefix_error, unsigned};
use crate::cuda_array;
use crate::device::{BoundDevices, Device, device_error};
use crate::drop_with_gil::DropWithGil;
use crate::errors::InvalidError;
use crate::memory::{check_overlap, place_of};
use crate::sequences::Pieces;
use crate::stream::{OF_THREAD, Stream, program_number};
use crate::tensor;

/// `kDLCUDA` and `kDLExtDev`, which Ascend's tensors have.
const TENSORS: [(i32, DriverKind); 2] = [(2, DriverKind::Cuda), (12, DriverKind::Ascend)];

/// What a call says of devices.
pub struct DeviceArgs<'a> {
    /// Those of the store; `None` for a call that takes no memory of devices.
    pub devices: Option<&'a BoundDevices>,
    /// The stream whose work copies wait for.
    pub stream: Option<Stream>,
    /// Another thread begins the copies, after the call has returned.
    pub is_submitted: bool,
}

/// The memory of each object.
pub struct DeviceMemory {
    pub device: DeviceHandle,
    pub after: Option<CallerStream>,
    pub objects: Vec<Vec<DeviceRange>>,
    /// What the program passed as the stream: dropped with the memory, once no copy waits for it.
    _stream: Option<Py<PyAny>>,
}

/// A piece as its object names it.
struct NamedPiece {
    device: DeviceHandle,
    address: u64,
    bytes: usize,
    keep: Option<Py<PyAny>>,
    /// The stream that has its work, if the piece names one.
    stream: Option<usize>,
}

impl DeviceMemory {
    /// The memory of a call; `None` if its first piece is of the host.
    pub fn of(
        objects: &[Pieces<'_>],
        args: &DeviceArgs<'_>,
        writes: bool,
    ) -> PyResult<Option<DeviceMemory>> {
        let first = objects.iter().find_map(|pieces| pieces.as_slice().first());
        let of_device = first.map(is_of_device).transpose()?.unwrap_or(false);
        let devices = match args.devices {
            Some(devices) if of_device => devices.all(),
            _ if args.stream.is_some() => {
                return Err(InvalidError::new_err("stream is for memory of devices"));
            }
            _ => return Ok(None),
        };
        let name = if writes { "destinations" } else { "sources" };
        let stream = args.stream.as_ref().map(|stream| stream.number);
        let (mut found, mut all) = (Found { device: None, stream }, Vec::new());
        let (mut ranges, mut keep) = (Vec::with_capacity(objects.len()), Vec::new());
        for (n, pieces) in objects.iter().enumerate() {
            let mut of_object = Vec::new();
            for (part, piece) in pieces.as_slice().iter().enumerate() {
                let place =
                    |error| prefix_error(piece.py(), &place_of(name, pieces, n, part), error);
                let one = piece_of(piece, &devices, stream, writes).map_err(place)?;
                found.add(&one, args).map_err(place)?;
                if one.bytes > 0 {
                    all.push((one.address as usize, one.bytes, n));
                    of_object.push(one.range().map_err(place)?);
                }
                keep.push(one.keep);
            }
            ranges.push(of_object);
        }
        if writes {
            check_overlap(all)?;
        }
        let (py, owner) = (first.map(Bound::py), args.stream.as_ref().map(|stream| &stream.owner));
        let owner = owner.zip(py).map(|(owner, py)| owner.clone_ref(py));
        Ok(found.device.map(|device| {
            // SAFETY: the caller names a stream that exists, as the documentation of the call
            // requires; the default stream always does.
            let after = found.stream.map(|stream| unsafe { device.caller_stream(stream) });
            DeviceMemory { device, after, objects: ranges, _stream: owner }
        }))
    }
}

/// The device and the stream of a call. A stream that the call names is the one that the caller
/// made wait for the others.
struct Found {
    device: Option<DeviceHandle>,
    stream: Option<usize>,
}

impl Found {
    fn add(&mut self, piece: &NamedPiece, args: &DeviceArgs<'_>) -> PyResult<()> {
        let device = self.device.get_or_insert_with(|| piece.device.clone());
        if !device.is_clone_of(&piece.device) {
            let (one, other) = (device.device(), piece.device.device());
            return Err(InvalidError::new_err(format!(
                "memory of one call must be of one device devices={one},{other}"
            )));
        }
        if args.stream.is_none() {
            self.add_stream(piece)?;
        }
        match self.stream {
            Some(OF_THREAD) if args.is_submitted => Err(InvalidError::new_err(
                "each thread has its own stream 2, and another thread begins the copies; \
                 pass another stream",
            )),
            _ => Ok(()),
        }
    }

    /// The stream of a piece, in a call that names none.
    fn add_stream(&mut self, piece: &NamedPiece) -> PyResult<()> {
        if piece.device.device().driver == DriverKind::Ascend {
            return Err(InvalidError::new_err(
                "memory of an Ascend device requires stream=, the stream that has its work; \
                 0 is the default stream",
            ));
        }
        // Work that no stream is named for is that of CUDA's default stream.
        let stream = Some(piece.stream.unwrap_or(0));
        if self.stream.is_some() && self.stream != stream {
            return Err(InvalidError::new_err(
                "memory of one call must be of one stream; pass stream=, and let it wait for the others",
            ));
        }
        self.stream = stream;
        Ok(())
    }
}

impl NamedPiece {
    fn range(&self) -> PyResult<DeviceRange> {
        let keep = self.keep.as_ref();
        let keep = keep.map(|keep| Python::attach(|py| DropWithGil::of(keep.clone_ref(py))));
        // SAFETY: the object keeps its memory; the caller keeps an address, as the documentation of
        // the class requires.
        let range =
            unsafe { self.device.range(self.address, self.bytes, Arc::new(Mutex::new(keep))) };
        range.map_err(|error| device_error(&error))
    }
}

/// Whether a piece names memory of a device.
fn is_of_device(piece: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(tuple) = piece.cast::<PyTuple>() {
        return Ok(tuple.len() == 3 && tuple.get_item(0)?.is_instance_of::<Device>());
    }
    match tensor::device_of(piece)? {
        Some((kind, _)) => Ok(TENSORS.iter().any(|(of, _)| *of == kind)),
        None => cuda_array::has(piece),
    }
}

fn piece_of(
    piece: &Bound<'_, PyAny>,
    devices: &[DeviceHandle],
    stream: Option<usize>,
    writes: bool,
) -> PyResult<NamedPiece> {
    if let Ok(tuple) = piece.cast::<PyTuple>()
        && tuple.len() == 3
    {
        let device = tuple.get_item(0)?.cast_into::<Device>().map_err(PyErr::from)?;
        let address = unsigned("address", &tuple.get_item(1)?)?;
        let bytes = unsigned("length", &tuple.get_item(2)?)?;
        let device = device.get().handle()?.clone();
        return Ok(NamedPiece { device, address, bytes, keep: None, stream: None });
    }
    if let Some((kind, id)) = tensor::device_of(piece)? {
        let known = TENSORS.iter().find(|(of, _)| *of == kind).ok_or_else(not_of_device)?;
        let wanted = pagelith::Device { driver: known.1, ordinal: id.unsigned_abs() };
        let device = devices.iter().find(|handle| handle.device() == wanted);
        let device = device.ok_or_else(|| not_bound(&wanted.to_string()))?.clone();
        // The tensor lets this stream wait for its own.
        let consumer = (known.1 == DriverKind::Cuda).then_some(program_number(stream.unwrap_or(0)));
        let tensor = tensor::export_of_device(piece, kind, consumer)?;
        let (address, bytes) = (tensor.address as u64, tensor.bytes);
        return Ok(NamedPiece { device, address, bytes, keep: Some(tensor.keep), stream: None });
    }
    if !cuda_array::has(piece)? {
        return Err(not_of_device());
    }
    let array = cuda_array::of(piece)?;
    if writes && array.is_read_only {
        return Err(PyBufferError::new_err("array is read-only"));
    }
    let owns = |handle: &&DeviceHandle| {
        handle.device().driver == DriverKind::Cuda
            && (array.bytes == 0
                // SAFETY: the object keeps its memory, and the range is dropped here.
                || unsafe { handle.range(array.address, array.bytes, Arc::new(())) }.is_ok())
    };
    let device = devices.iter().find(owns).ok_or_else(|| not_bound("the array's device"))?.clone();
    let (address, bytes, keep) = (array.address, array.bytes, Some(piece.clone().unbind()));
    Ok(NamedPiece { device, address, bytes, keep, stream: array.stream })
}

fn not_bound(device: &str) -> PyErr {
    InvalidError::new_err(format!("{device} is not bound to this store: call store.bind_device"))
}

fn not_of_device() -> PyErr {
    PyTypeError::new_err(
        "memory of a call must all be of the host, or all of a device: (device, address, length), \
         a tensor, or an object with __cuda_array_interface__",
    )
}
