//! Conversion of Python arguments. Every error names the argument, and for a list also the index of
//! the wrong entry.

use std::path::PathBuf;
use std::time::Duration;

use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::ObjectKey;
use pyo3::PyClass;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyMemoryView, PyString, PyTuple};

use crate::call::{ByteRange, Request};
use crate::errors::InvalidError;
use crate::hits::PoolQuery;
use crate::keys::{Key, Namespace, Page};
use crate::sequences::{ListOf, Memories, Pieces, entries};
use crate::stream::{Stream, driver_number};

/// A `TypeError` that names the argument, the required type and the actual type.
pub fn wrong_type(arg_name: &str, must_be: &str, arg: &Bound<'_, PyAny>) -> PyErr {
    let kind =
        arg.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{arg_name} must be {must_be}, not {kind}"))
}

/// Prefixes the message of an error of one list entry with the position of the entry.
pub fn prefix_error(py: Python<'_>, place: &str, error: PyErr) -> PyErr {
    // Exceptions of the program's own classes may have any constructor, so they pass unchanged.
    let kind = error.get_type(py);
    let is_store_file = kind.is(py.get_type::<InvalidError>());
    if is_store_file
        || kind.getattr("__module__").is_ok_and(|module| module.eq("builtins").unwrap_or(false))
    {
        return PyErr::from_type(kind, format!("{place}: {}", error.value(py)));
    }
    error
}

/// An unsigned integer within the range of `T`; `True` and `False` are refused.
pub fn unsigned<T: TryFrom<u64>>(arg_name: &str, arg: &Bound<'_, PyAny>) -> PyResult<T> {
    let must_be = "a whole number";
    if arg.is_instance_of::<PyBool>() {
        return Err(wrong_type(arg_name, must_be, arg));
    }
    let number = arg.extract::<u64>().map_err(|error| {
        let py = arg.py();
        if error.is_instance_of::<PyTypeError>(py) {
            wrong_type(arg_name, must_be, arg)
        } else if error.is_instance_of::<PyOverflowError>(py) {
            out_of_range::<T>(arg_name, arg)
        } else {
            error
        }
    })?;
    T::try_from(number).map_err(|_| out_of_range::<T>(arg_name, arg))
}

fn out_of_range<T>(arg_name: &str, arg: &Bound<'_, PyAny>) -> PyErr {
    let most = u64::MAX >> (64 - 8 * size_of::<T>().min(8));
    InvalidError::new_err(format!("{arg_name} must be a whole number from 0 to {most}, not {arg}"))
}

/// The error for a number of seconds that is negative, not finite or too large.
pub fn invalid_seconds(arg_name: &str, arg: &dyn std::fmt::Display) -> PyErr {
    InvalidError::new_err(format!(
        "{arg_name} must be a number of seconds, from 0 to {}, not {arg}",
        u64::MAX
    ))
}

/// A duration in seconds.
fn number(arg_name: &str, arg: &Bound<'_, PyAny>) -> PyResult<f64> {
    let must_be = "a number of seconds";
    if arg.is_instance_of::<PyBool>() {
        return Err(wrong_type(arg_name, must_be, arg));
    }
    let number: f64 = arg.extract().map_err(|error: PyErr| {
        let py = arg.py();
        if error.is_instance_of::<PyTypeError>(py) {
            wrong_type(arg_name, must_be, arg)
        } else if error.is_instance_of::<PyOverflowError>(py) {
            invalid_seconds(arg_name, arg)
        } else {
            error
        }
    })?;
    Duration::try_from_secs_f64(number).map(|_| number).map_err(|_| invalid_seconds(arg_name, arg))
}

/// The entries of a list. Strings, bytes and memoryviews are refused: a caller that forgot the list
/// would otherwise pass their characters or bytes as entries.
fn list<'py>(
    arg_name: &str,
    of: &str,
    arg: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let must_be = format!("a list of {of}");
    if arg.is_instance_of::<PyString>()
        || arg.is_instance_of::<PyBytes>()
        || arg.is_instance_of::<PyByteArray>()
        || arg.is_instance_of::<PyMemoryView>()
    {
        return Err(wrong_type(arg_name, &must_be, arg));
    }
    entries(arg.as_borrowed()).map_err(|error| {
        match error.is_instance_of::<PyTypeError>(arg.py()) {
            true => wrong_type(arg_name, &must_be, arg),
            false => error,
        }
    })
}

fn list_of<'py, T>(
    arg_name: &str,
    of: &str,
    arg: &Bound<'py, PyAny>,
    one: impl Fn(&str, Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let each = list(arg_name, of, arg)?.into_iter().enumerate();
    each.map(|(n, entry)| one(&format!("{arg_name}[{n}]"), entry)).collect()
}

/// A list of keys, for the argument `arg_name`.
fn keys_of<'py>(arg_name: &str, arg: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    let each = list(arg_name, "pagelith.Key", arg)?.into_iter().enumerate();
    let one = |(n, entry): (usize, Bound<'py, PyAny>)| {
        entry.cast_into::<Key>().map_err(|error| {
            wrong_type(&format!("{arg_name}[{n}]"), "a pagelith.Key", &error.into_inner())
        })
    };
    each.map(one).collect()
}

pub fn keys<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("keys", arg)
}

pub fn objects<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("objects", arg)
}

pub fn anchor<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("anchor", arg)
}

pub fn required<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Key>>> {
    keys_of("required", arg)
}

/// The argument `required` of a call where it is optional.
pub fn required_or_none<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, Key>>>> {
    (!arg.is_none()).then(|| required(arg)).transpose()
}

fn memories<'py>(arg_name: &str, arg: &Bound<'py, PyAny>) -> PyResult<Memories<'py>> {
    let each = list(arg_name, "memories, one for each key", arg)?;
    Ok(Memories(each.into_iter().map(Pieces::of).collect()))
}

pub fn sources<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Memories<'py>> {
    memories("sources", arg)
}

pub fn destinations<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Memories<'py>> {
    memories("destinations", arg)
}

/// A pair (address, length), the length in bytes.
pub fn address(pair: &Bound<'_, PyTuple>) -> PyResult<(usize, usize)> {
    match pair.len() {
        2 => {
            Ok((unsigned("address", &pair.get_item(0)?)?, unsigned("length", &pair.get_item(1)?)?))
        }
        parts => Err(InvalidError::new_err(format!(
            "memory must be a pair (address, length) parts={parts}"
        ))),
    }
}

/// Item `n` of a pair, as an unsigned integer.
fn pair_item<T: TryFrom<u64>>(place: &str, pair: &Bound<'_, PyTuple>, n: usize) -> PyResult<T> {
    unsigned(&format!("{place}[{n}]"), &pair.get_item(n)?)
}

/// Byte ranges; `None` for an entry selects the whole object.
pub fn ranges(arg: &Bound<'_, PyAny>) -> PyResult<Option<ListOf<ByteRange>>> {
    if arg.is_none() {
        return Ok(None);
    }
    let of = "pairs (from, to) in bytes, or None for all of them";
    let one = |place: &str, entry: Bound<'_, PyAny>| {
        if entry.is_none() {
            return Ok(None);
        }
        let pair = entry.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let pair =
            pair.ok_or_else(|| wrong_type(place, "a pair (from, to) in bytes, or None", &entry))?;
        Ok(Some((pair_item(place, pair, 0)?, pair_item(place, pair, 1)?)))
    };
    list_of("ranges", of, arg, one).map(|ranges| Some(ListOf(ranges)))
}

pub fn pages(arg: &Bound<'_, PyAny>) -> PyResult<ListOf<Page>> {
    let one = |place: &str, entry: Bound<'_, PyAny>| {
        entry.extract().map_err(|error| prefix_error(entry.py(), place, error))
    };
    list_of("pages", "pages' hashes", arg, one).map(ListOf)
}

fn number_or_none(arg_name: &str, arg: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    (!arg.is_none()).then(|| number(arg_name, arg)).transpose()
}

pub fn timeout(arg: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    number_or_none("timeout", arg)
}

pub fn wait(arg: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    number_or_none("wait", arg)
}

pub fn seconds(arg: &Bound<'_, PyAny>) -> PyResult<f64> {
    number("seconds", arg)
}

pub fn seconds_or_none(arg: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    number_or_none("seconds", arg)
}

/// Defines a conversion for each named integer argument.
macro_rules! unsigned_args {
    ($($name:ident: $kind:ty),+ $(,)?) => {$(
        pub fn $name(arg: &Bound<'_, PyAny>) -> PyResult<$kind> {
            unsigned(stringify!($name), arg)
        }
    )+};
}

unsigned_args! {
    depth: u32, page_tokens: u32, layout_version: u32, most: usize, block_pages: usize, group_pages: usize, fd: u32, length: usize,
}

pub fn staging_bytes(arg: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    (!arg.is_none()).then(|| unsigned("staging_bytes", arg)).transpose()
}

pub fn prefill_tokens_per_s(arg: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    (!arg.is_none()).then(|| unsigned("prefill_tokens_per_s", arg)).transpose()
}

pub fn page_count(arg: &Bound<'_, PyAny>) -> PyResult<usize> {
    unsigned("pages", arg)
}

pub fn plain_address(arg: &Bound<'_, PyAny>) -> PyResult<usize> {
    unsigned("address", arg)
}

/// An optional list of pairs.
fn pairs<'py, T>(
    arg_name: &str,
    must_be: &str,
    arg: &Bound<'py, PyAny>,
    one: impl Fn(&str, &Bound<'py, PyTuple>) -> PyResult<T>,
) -> PyResult<Option<ListOf<T>>> {
    if arg.is_none() {
        return Ok(None);
    }
    let one = |place: &str, entry: Bound<'py, PyAny>| match entry.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => one(place, pair),
        _ => Err(wrong_type(place, must_be, &entry)),
    };
    list_of(arg_name, &format!("pairs, each {must_be}"), arg, one).map(|pairs| Some(ListOf(pairs)))
}

pub fn layer_split(arg: &Bound<'_, PyAny>) -> PyResult<Option<ListOf<(u32, u32)>>> {
    let one = |place: &str, pair: &Bound<'_, PyTuple>| {
        Ok((pair_item(place, pair, 0)?, pair_item(place, pair, 1)?))
    };
    pairs("layer_split", "a pair of whole numbers", arg, one)
}

pub fn extra(arg: &Bound<'_, PyAny>) -> PyResult<Option<ListOf<(String, String)>>> {
    let pair_item = |place: &str, pair: &Bound<'_, PyTuple>, n| {
        text_of(&format!("{place}[{n}]"), &pair.get_item(n)?).map(str::to_owned)
    };
    let one = |place: &str, pair: &Bound<'_, PyTuple>| {
        Ok((pair_item(place, pair, 0)?, pair_item(place, pair, 1)?))
    };
    pairs("extra", "a pair of strings", arg, one)
}

/// An instance of one of this package's classes.
fn instance<'py, T: PyClass>(
    arg_name: &str,
    must_be: &str,
    arg: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, T>> {
    arg.cast::<T>().cloned().map_err(|_| wrong_type(arg_name, must_be, arg))
}

pub fn request(arg: &Bound<'_, PyAny>) -> PyResult<Option<pagelith::RequestEpoch>> {
    let one = || instance::<Request>("request", "a pagelith.Request, or None", arg);
    (!arg.is_none()).then(|| one().map(|request| request.get().0)).transpose()
}

pub fn base(arg: &Bound<'_, PyAny>) -> PyResult<Option<ObjectKey>> {
    let one = || instance::<Key>("base", "a pagelith.Key, or None", arg);
    (!arg.is_none()).then(|| one().map(|key| key.get().0)).transpose()
}

pub fn namespace(arg: &Bound<'_, PyAny>) -> PyResult<NamespaceId> {
    instance::<Namespace>("namespace", "a pagelith.Namespace", arg)
        .map(|namespace| namespace.get().0)
}

pub fn pools<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Option<ListOf<Bound<'py, PoolQuery>>>> {
    if arg.is_none() {
        return Ok(None);
    }
    let one =
        |place: &str, entry: Bound<'py, PyAny>| instance(place, "a pagelith.PoolQuery", &entry);
    list_of("pools", "pagelith.PoolQuery", arg, one).map(|pools| Some(ListOf(pools)))
}

/// A string.
pub fn text_of<'a>(arg_name: &str, arg: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    let text = arg.cast::<PyString>().map_err(|_| wrong_type(arg_name, "a string", arg))?;
    let wrong = |error: PyErr| {
        InvalidError::new_err(format!("{arg_name} must be a string in UTF-8: {error}"))
    };
    text.to_str().map_err(wrong)
}

/// Defines a conversion for each named string argument.
macro_rules! text_args {
    ($($name:ident),+ $(,)?) => {$(
        pub fn $name<'a>(arg: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
            text_of(stringify!($name), arg)
        }
    )+};
}

text_args! { model, tenant, revision, dtype, layout, pool, component, shard, text, device }

/// A stream of a device: its number, or an object that has one; the default stream is 0.
pub fn stream(arg: &Bound<'_, PyAny>) -> PyResult<Option<Stream>> {
    let one = || {
        let number = driver_number(stream_number(arg)?);
        Ok(Stream { number, owner: arg.clone().unbind() })
    };
    (!arg.is_none()).then(one).transpose()
}

fn stream_number(arg: &Bound<'_, PyAny>) -> PyResult<usize> {
    if arg.hasattr("__cuda_stream__")? {
        let (_, stream): (u32, usize) = arg.call_method0("__cuda_stream__")?.extract()?;
        return Ok(stream);
    }
    for name in ["cuda_stream", "npu_stream"] {
        if arg.hasattr(name)? {
            return unsigned(name, &arg.getattr(name)?);
        }
    }
    unsigned("stream", arg)
}

fn bool_of(arg_name: &str, arg: &Bound<'_, PyAny>) -> PyResult<bool> {
    arg.extract().map_err(|_| wrong_type(arg_name, "True or False", arg))
}

pub fn draft(arg: &Bound<'_, PyAny>) -> PyResult<bool> {
    bool_of("draft", arg)
}

pub fn may_be_down(arg: &Bound<'_, PyAny>) -> PyResult<bool> {
    bool_of("may_be_down", arg)
}

/// The 16 bytes of a namespace fingerprint.
pub fn id<'a>(arg: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let bytes = arg.cast::<PyBytes>().map_err(|_| wrong_type("id", "16 bytes", arg))?;
    Ok(bytes.as_bytes())
}

/// A path: a string, or an `os.PathLike` object, also one whose path is bytes.
pub fn path(arg_name: &str, must_be: &str, arg: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let py = arg.py();
    if !arg.is_instance_of::<PyString>() && !arg.hasattr("__fspath__")? {
        return Err(wrong_type(arg_name, must_be, arg));
    }
    let decoded = py.import("os")?.call_method1("fsdecode", (arg,));
    let path = decoded.and_then(|text| text.extract());
    path.map_err(|error| match error.is_instance_of::<PyTypeError>(py) {
        true => wrong_type(arg_name, must_be, arg),
        false => error,
    })
}

pub fn directory(arg: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    path("directory", "a path", arg)
}

pub fn subdirectory(arg: &Bound<'_, PyAny>) -> PyResult<Option<PathBuf>> {
    (!arg.is_none())
        .then(|| path("subdirectory", "a name of a directory, or None", arg))
        .transpose()
}
