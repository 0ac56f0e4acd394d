//! Memory of this process that a store process may map.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use pagelith::io::regular_file;
use pagelith::io::shm::{SharedRegion, seal_length};
use pyo3::prelude::*;

use crate::errors::InvalidError;
use crate::mapped;

/// `length` bytes at `address`, a shared mapping of the memfd `fd` from its first byte on.
pub fn region(py: Python<'_>, fd: u32, address: usize, length: usize) -> PyResult<SharedRegion> {
    let file = py.detach(|| opened(fd));
    let file = file.map_err(|error| {
        InvalidError::new_err(format!("fd is not a descriptor of shared memory fd={fd}: {error}"))
    })?;
    let region = SharedRegion::mapped(file.into(), address, length).map_err(|_| {
        InvalidError::new_err(format!(
            "memory is shorter than length, or fd is not a memfd fd={fd} length={length}"
        ))
    })?;
    match mapped::access_problem(py, address, length, false) {
        Some(problem) => {
            Err(InvalidError::new_err(format!("{problem} address={address:#x} length={length}")))
        }
        None => Ok(region),
    }
}

/// A second descriptor of the same memory, which the caller cannot close. A file that is not
/// regular is refused without waiting for it.
fn opened(fd: u32) -> std::io::Result<File> {
    let of_process = |fd: &dyn std::fmt::Display| PathBuf::from(format!("/proc/self/fd/{fd}"));
    // Read-only: it is passed to the store process.
    let file = regular_file::open(&of_process(&fd))?;
    if let Ok(written) = OpenOptions::new().write(true).open(of_process(&file.as_raw_fd())) {
        seal_length(written.as_fd());
    }
    Ok(file)
}
