//! Hints by their names in Python.

use std::time::Duration;

use pagelith::{Hint, Priority};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::arguments;
use crate::call;
use crate::errors::InvalidError;

/// How a name becomes a hint.
enum Kind {
    Plain(Hint),
    Timed(fn(Duration) -> Hint),
}

const KINDS: [(&str, Kind); 6] = [
    ("session_ended", Kind::Plain(Hint::SessionEnded)),
    ("demote", Kind::Plain(Hint::Demote)),
    ("retain", Kind::Timed(Hint::Retain)),
    ("expected_back", Kind::Timed(Hint::ExpectedBack)),
    ("low_priority", Kind::Plain(Hint::Priority(Priority::Low))),
    ("high_priority", Kind::Plain(Hint::Priority(Priority::High))),
];

/// The argument `hint`.
pub fn name(arg: &Bound<'_, PyAny>) -> PyResult<String> {
    if !arg.is_instance_of::<PyString>() {
        return Err(arguments::wrong_type("hint", "the name of a hint", arg));
    }
    arguments::text_of("hint", arg).map(str::to_owned)
}

/// The hint with this name; `seconds` for hints that last so long.
pub fn of(name: &str, seconds: Option<f64>) -> PyResult<Hint> {
    let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == name) else {
        let known = KINDS.map(|(known, _)| known).join(", ");
        return Err(InvalidError::new_err(format!("hint must be one of {known}, not {name:?}")));
    };
    match (kind, call::seconds("seconds", seconds)?) {
        (Kind::Plain(hint), None) => Ok(*hint),
        (Kind::Timed(hint), Some(duration)) => Ok(hint(duration)),
        (Kind::Plain(_), Some(_)) => {
            Err(InvalidError::new_err(format!("the hint {name:?} takes no seconds")))
        }
        (Kind::Timed(_), None) => {
            Err(InvalidError::new_err(format!("the hint {name:?} requires seconds")))
        }
    }
}
