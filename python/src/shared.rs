//! Memory of this process that a store process is let look at.

use std::os::fd::AsFd;

use pagelith::io::shm::{Region, keep_length};
use pyo3::prelude::*;

use crate::errors::InvalidError;
use crate::mapped;

/// `length` bytes at `address`, which are a shared mapping of the memfd `fd` from its first byte on.
pub fn region(fd: u32, address: usize, length: usize) -> PyResult<Region> {
    // Another descriptor of the same memory, which the caller cannot close.
    let path = format!("/proc/self/fd/{fd}");
    if let Ok(written) = std::fs::OpenOptions::new().write(true).open(&path) {
        keep_length(written.as_fd());
    }
    // One that may only be read: the store has it.
    let file = std::fs::File::open(path);
    let file =
        file.map_err(|error| InvalidError::new_err(format!("not a descriptor of memory fd={fd}: {error}")))?;
    let region = Region::mapped(file.into(), address, length)
        .map_err(|_| InvalidError::new_err(format!("not memory of so many bytes fd={fd} length={length}")))?;
    match mapped::problem(address, length, false) {
        Some(problem) => {
            Err(InvalidError::new_err(format!("{problem} address={address:#x} length={length}")))
        }
        None => Ok(region),
    }
}
