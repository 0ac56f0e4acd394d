//! Memory of this process that a store process is let look at.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use pagelith::io::regular_file;
use pagelith::io::shm::{Region, keep_length};
use pyo3::prelude::*;

use crate::errors::InvalidError;
use crate::mapped;

/// `length` bytes at `address`, which are a shared mapping of the memfd `fd` from its first byte on.
pub fn region(py: Python<'_>, fd: u32, address: usize, length: usize) -> PyResult<Region> {
    let file = py.detach(|| opened(fd));
    let file =
        file.map_err(|error| InvalidError::new_err(format!("not a descriptor of memory fd={fd}: {error}")))?;
    let region = Region::mapped(file.into(), address, length).map_err(|_| {
        InvalidError::new_err(format!("is shorter than length, or no file in memory fd={fd} length={length}"))
    })?;
    match mapped::problem(py, address, length, false) {
        Some(problem) => {
            Err(InvalidError::new_err(format!("{problem} address={address:#x} length={length}")))
        }
        None => Ok(region),
    }
}

/// Another descriptor of the same memory, which the caller cannot close. What is no regular file is refused, and not waited for.
fn opened(fd: u32) -> std::io::Result<File> {
    let of_process = |fd: &dyn std::fmt::Display| PathBuf::from(format!("/proc/self/fd/{fd}"));
    // One that may only be read: the store has it.
    let file = regular_file::open(&of_process(&fd))?;
    if let Ok(written) = OpenOptions::new().write(true).open(of_process(&file.as_raw_fd())) {
        keep_length(written.as_fd());
    }
    Ok(file)
}
