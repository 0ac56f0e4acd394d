//! The program `pagelith`, run by the interpreter: the wheel installs no second binary.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Run the program with these arguments, without its name. Returns the exit status.
#[pyfunction]
pub fn _program(py: Python<'_>, args: Vec<OsString>) -> u8 {
    let name = OsString::from("pagelith");
    py.detach(|| pagelith_cli::run(std::iter::once(name).chain(args)))
}
