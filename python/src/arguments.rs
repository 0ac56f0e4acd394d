//! What Python gives as arguments, each with its name in what is said of it: an error says which argument is wrong, and which of several.

use std::path::PathBuf;
use std::time::Duration;

use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::ObjectKey;
use pyo3::PyClass;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyMemoryView, PyString, PyTuple};

use crate::call::{Request, Span};
use crate::errors::InvalidError;
use crate::given::{Listed, Memories, Pieces, entries};
use crate::hits::PoolQuery;
use crate::keys::{Key, Namespace, Page};

/// What is wrong with a value by its type.
pub fn wrong_type(what: &str, must_be: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let kind = given.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{what} must be {must_be}, not {kind}"))
}

/// The same error of a part: where it is stands before what it says.
pub fn at(py: Python<'_>, place: &str, error: PyErr) -> PyErr {
    // Of those that a program's own code raises nothing is known.
    let kind = error.get_type(py);
    let is_ours = kind.is(py.get_type::<InvalidError>());
    if is_ours || kind.getattr("__module__").is_ok_and(|module| module.eq("builtins").unwrap_or(false)) {
        return PyErr::from_type(kind, format!("{place}: {}", error.value(py)));
    }
    error
}

/// A whole number that fits, and no truth value.
pub fn whole<T: TryFrom<u64>>(what: &str, given: &Bound<'_, PyAny>) -> PyResult<T> {
    let must_be = "a whole number";
    if given.is_instance_of::<PyBool>() {
        return Err(wrong_type(what, must_be, given));
    }
    let number = given.extract::<u64>().map_err(|error| {
        let py = given.py();
        if error.is_instance_of::<PyTypeError>(py) {
            wrong_type(what, must_be, given)
        } else if error.is_instance_of::<PyOverflowError>(py) {
            out_of_range::<T>(what, given)
        } else {
            error
        }
    })?;
    T::try_from(number).map_err(|_| out_of_range::<T>(what, given))
}

fn out_of_range<T>(what: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let most = u64::MAX >> (64 - 8 * size_of::<T>().min(8));
    InvalidError::new_err(format!("{what} must be a whole number from 0 to {most}, not {given}"))
}

/// A time in seconds that is none.
pub fn no_time(what: &str, given: &dyn std::fmt::Display) -> PyErr {
    InvalidError::new_err(format!("{what} must be a number of seconds, from 0 to {}, not {given}", u64::MAX))
}

/// A time in seconds.
fn number(what: &str, given: &Bound<'_, PyAny>) -> PyResult<f64> {
    let must_be = "a number of seconds";
    if given.is_instance_of::<PyBool>() {
        return Err(wrong_type(what, must_be, given));
    }
    let number: f64 = given.extract().map_err(|error: PyErr| {
        let py = given.py();
        if error.is_instance_of::<PyTypeError>(py) {
            wrong_type(what, must_be, given)
        } else if error.is_instance_of::<PyOverflowError>(py) {
            no_time(what, given)
        } else {
            error
        }
    })?;
    Duration::try_from_secs_f64(number).map(|_| number).map_err(|_| no_time(what, given))
}

/// The entries of a list; one thing that should have been in a list is no list of its parts.
fn list<'py>(what: &str, of: &str, given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let must_be = format!("a list of {of}");
    if given.is_instance_of::<PyString>()
        || given.is_instance_of::<PyBytes>()
        || given.is_instance_of::<PyByteArray>()
        || given.is_instance_of::<PyMemoryView>()
    {
        return Err(wrong_type(what, &must_be, given));
    }
    entries(given.as_borrowed()).map_err(|error| match error.is_instance_of::<PyTypeError>(given.py()) {
        true => wrong_type(what, &must_be, given),
        false => error,
    })
}

fn listed<'py, T>(
    what: &str,
    of: &str,
    given: &Bound<'py, PyAny>,
    one: impl Fn(&str, Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let each = list(what, of, given)?.into_iter().enumerate();
    each.map(|(n, entry)| one(&format!("{what}[{n}]"), entry)).collect()
}

/// Keys, and which argument they are.
fn keys_of<'py>(what: &str, given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    let each = list(what, "pagelith.Key", given)?.into_iter().enumerate();
    let one = |(n, entry): (usize, Bound<'py, PyAny>)| {
        entry
            .cast_into::<Key>()
            .map_err(|error| wrong_type(&format!("{what}[{n}]"), "a pagelith.Key", &error.into_inner()))
    };
    each.map(one).collect()
}

pub fn keys<'py>(given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("keys", given)
}

pub fn objects<'py>(given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("objects", given)
}

pub fn anchor<'py>(given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("anchor", given)
}

pub fn required<'py>(given: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("required", given)
}

/// The same where it may be left out.
pub fn required_or_none<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, Key>>>> {
    (!given.is_none()).then(|| required(given)).transpose()
}

fn memories<'py>(what: &str, given: &Bound<'py, PyAny>) -> PyResult<Memories<'py>> {
    let each = list(what, "memories, one for each key", given)?;
    Ok(Memories(each.into_iter().map(Pieces::of).collect()))
}

pub fn sources<'py>(given: &Bound<'py, PyAny>) -> PyResult<Memories<'py>> {
    memories("sources", given)
}

pub fn destinations<'py>(given: &Bound<'py, PyAny>) -> PyResult<Memories<'py>> {
    memories("destinations", given)
}

/// An address and a length in bytes.
pub fn address(pair: &Bound<'_, PyTuple>) -> PyResult<(usize, usize)> {
    match pair.len() {
        2 => Ok((whole("address", &pair.get_item(0)?)?, whole("length", &pair.get_item(1)?)?)),
        parts => Err(InvalidError::new_err(format!(
            "memory by its address is a pair (address, length) parts={parts}"
        ))),
    }
}

/// A whole number in a pair.
fn part<T: TryFrom<u64>>(place: &str, pair: &Bound<'_, PyTuple>, n: usize) -> PyResult<T> {
    whole(&format!("{place}[{n}]"), &pair.get_item(n)?)
}

/// Spans of bytes; `None` of one is all of it.
pub fn ranges(given: &Bound<'_, PyAny>) -> PyResult<Option<Listed<Span>>> {
    if given.is_none() {
        return Ok(None);
    }
    let of = "pairs (from, to) in bytes, or None for all of them";
    let one = |place: &str, entry: Bound<'_, PyAny>| {
        if entry.is_none() {
            return Ok(None);
        }
        let pair = entry.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let pair = pair.ok_or_else(|| wrong_type(place, "a pair (from, to) in bytes, or None", &entry))?;
        Ok(Some((part(place, pair, 0)?, part(place, pair, 1)?)))
    };
    listed("ranges", of, given, one).map(|ranges| Some(Listed(ranges)))
}

pub fn pages(given: &Bound<'_, PyAny>) -> PyResult<Listed<Page>> {
    let one =
        |place: &str, entry: Bound<'_, PyAny>| entry.extract().map_err(|error| at(entry.py(), place, error));
    listed("pages", "pages' hashes", given, one).map(Listed)
}

fn number_or_none(what: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    (!given.is_none()).then(|| number(what, given)).transpose()
}

pub fn timeout(given: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    number_or_none("timeout", given)
}

pub fn wait(given: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    number_or_none("wait", given)
}

pub fn seconds(given: &Bound<'_, PyAny>) -> PyResult<f64> {
    number("seconds", given)
}

/// Whole numbers by their names.
macro_rules! wholes {
    ($($name:ident: $kind:ty),+ $(,)?) => {$(
        pub fn $name(given: &Bound<'_, PyAny>) -> PyResult<$kind> {
            whole(stringify!($name), given)
        }
    )+};
}

wholes! {
    depth: u32, page_tokens: u32, layout_version: u32, most: usize, block_pages: usize, group_pages: usize, fd: u32, length: usize,
}

pub fn page_count(given: &Bound<'_, PyAny>) -> PyResult<usize> {
    whole("pages", given)
}

pub fn address_alone(given: &Bound<'_, PyAny>) -> PyResult<usize> {
    whole("address", given)
}

/// Pairs of a list that may be left out.
fn pairs<'py, T>(
    what: &str,
    must_be: &str,
    given: &Bound<'py, PyAny>,
    one: impl Fn(&str, &Bound<'py, PyTuple>) -> PyResult<T>,
) -> PyResult<Option<Listed<T>>> {
    if given.is_none() {
        return Ok(None);
    }
    let one = |place: &str, entry: Bound<'py, PyAny>| match entry.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => one(place, pair),
        _ => Err(wrong_type(place, must_be, &entry)),
    };
    listed(what, &format!("pairs, each {must_be}"), given, one).map(|pairs| Some(Listed(pairs)))
}

pub fn layer_split(given: &Bound<'_, PyAny>) -> PyResult<Option<Listed<(u32, u32)>>> {
    let one = |place: &str, pair: &Bound<'_, PyTuple>| Ok((part(place, pair, 0)?, part(place, pair, 1)?));
    pairs("layer_split", "a pair of whole numbers", given, one)
}

pub fn extra(given: &Bound<'_, PyAny>) -> PyResult<Option<Listed<(String, String)>>> {
    let part = |place: &str, pair: &Bound<'_, PyTuple>, n| {
        text_of(&format!("{place}[{n}]"), &pair.get_item(n)?).map(str::to_owned)
    };
    let one = |place: &str, pair: &Bound<'_, PyTuple>| Ok((part(place, pair, 0)?, part(place, pair, 1)?));
    pairs("extra", "a pair of strings", given, one)
}

/// An object of one of this package's classes.
fn instance<'py, T: PyClass>(
    what: &str,
    must_be: &str,
    given: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, T>> {
    given.cast::<T>().cloned().map_err(|_| wrong_type(what, must_be, given))
}

pub fn request(given: &Bound<'_, PyAny>) -> PyResult<Option<pagelith::Request>> {
    let one = || instance::<Request>("request", "a pagelith.Request, or None", given);
    (!given.is_none()).then(|| one().map(|request| request.get().0)).transpose()
}

pub fn base(given: &Bound<'_, PyAny>) -> PyResult<Option<ObjectKey>> {
    let one = || instance::<Key>("base", "a pagelith.Key, or None", given);
    (!given.is_none()).then(|| one().map(|key| key.get().0)).transpose()
}

pub fn namespace(given: &Bound<'_, PyAny>) -> PyResult<NamespaceId> {
    instance::<Namespace>("namespace", "a pagelith.Namespace", given).map(|namespace| namespace.get().0)
}

pub fn pools<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Listed<Bound<'py, PoolQuery>>>> {
    if given.is_none() {
        return Ok(None);
    }
    let one = |place: &str, entry: Bound<'py, PyAny>| instance(place, "a pagelith.PoolQuery", &entry);
    listed("pools", "pagelith.PoolQuery", given, one).map(|pools| Some(Listed(pools)))
}

/// A string.
pub fn text_of<'a>(what: &str, given: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    let text = given.cast::<PyString>().map_err(|_| wrong_type(what, "a string", given))?;
    let wrong = |error: PyErr| InvalidError::new_err(format!("{what} must be a string in UTF-8: {error}"));
    text.to_str().map_err(wrong)
}

/// Texts by their names.
macro_rules! texts {
    ($($name:ident),+ $(,)?) => {$(
        pub fn $name<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
            text_of(stringify!($name), given)
        }
    )+};
}

texts! { model, tenant, revision, dtype, layout, pool, component, shard, text }

fn truth_of(what: &str, given: &Bound<'_, PyAny>) -> PyResult<bool> {
    given.extract().map_err(|_| wrong_type(what, "True or False", given))
}

pub fn draft(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    truth_of("draft", given)
}

pub fn may_be_down(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    truth_of("may_be_down", given)
}

/// The bytes of a namespace's fingerprint.
pub fn id<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let bytes = given.cast::<PyBytes>().map_err(|_| wrong_type("id", "16 bytes", given))?;
    Ok(bytes.as_bytes())
}

/// A path: a string, or what names one (`os.PathLike`), be that in bytes.
pub fn path(what: &str, must_be: &str, given: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let py = given.py();
    if !given.is_instance_of::<PyString>() && !given.hasattr("__fspath__")? {
        return Err(wrong_type(what, must_be, given));
    }
    let decoded = py.import("os")?.call_method1("fsdecode", (given,));
    let path = decoded.and_then(|text| text.extract());
    path.map_err(|error| match error.is_instance_of::<PyTypeError>(py) {
        true => wrong_type(what, must_be, given),
        false => error,
    })
}

pub fn directory(given: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    path("directory", "a path", given)
}

pub fn subdirectory(given: &Bound<'_, PyAny>) -> PyResult<Option<PathBuf>> {
    (!given.is_none()).then(|| path("subdirectory", "a name of a directory, or None", given)).transpose()
}
