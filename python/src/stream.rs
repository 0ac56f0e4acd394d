//! The streams of devices that a program names.

use pyo3::prelude::*;

/// CUDA's legacy default stream, as programs number it; for the driver it is 0.
const LEGACY: usize = 1;
/// CUDA's default stream of the calling thread.
pub const OF_THREAD: usize = 2;

/// The stream argument of a call.
pub struct Stream {
    /// As the driver numbers it.
    pub number: usize,
    /// What the program passed, which may own the stream.
    pub owner: Py<PyAny>,
}

/// The driver's number of a stream that a program numbers so.
pub fn driver_number(number: usize) -> usize {
    if number == LEGACY { 0 } else { number }
}

/// The number by which programs name the stream that the driver numbers so: DLPack has no 0.
pub fn program_number(number: usize) -> usize {
    if number == 0 { LEGACY } else { number }
}
