//! What a store is opened with, and what opening it found.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use pagelith::config::{ConfigFormat, Facts};
use pagelith::io::disk::Side;
use pagelith::io::regular_file::{self, read_text};
use pagelith::layouts::{manifest, names};
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use pagelith::{Config, ValidConfig};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::{Map, Value};

use crate::arguments;
use crate::errors::{InvalidError, raised, refused};
use crate::given::{Octets, entries};
use crate::log;
use crate::reached::Reached;
use crate::repr::truth;

/// Dictionaries and lists within each other: more than any setting has.
const DEPTH_MAX: usize = 16;
/// Longest file of settings, which the configuration itself bounds as well.
const SETTINGS_BYTES_MAX: u64 = 2 << 20;

/// Open the store of these settings, and say what was found.
pub fn open(
    py: Python<'_>,
    given: Option<&Bound<'_, PyAny>>,
    subdirectory: Option<PathBuf>,
) -> PyResult<(Reached, String, Py<OpenReport>)> {
    let config = config(given, subdirectory.as_deref())?;
    let name = format!("dirs={:?}", config.ssd_dirs());
    log::begin(py)?;
    let opened = py.detach(|| pagelith::Store::open(config));
    log::deliver(py)?;
    let store = opened.map_err(|error| raised(&error))?;
    let report = Py::new(py, OpenReport::of(py, store.opened())?)?;
    Ok((Reached::Own(Box::new(store)), name, report))
}

/// Attach to the store process at an address, and say what it is.
pub fn attach(
    py: Python<'_>,
    address: &Bound<'_, PyAny>,
    key: Option<&Bound<'_, PyAny>>,
    may_be_down: bool,
) -> PyResult<(Reached, String)> {
    let wrong = |error: &dyn std::fmt::Display| InvalidError::new_err(error.to_string());
    let address = address_text(address)?;
    let address: Address =
        address.parse().map_err(|error| wrong(&format_args!("{error} address={address:?}")))?;
    let key = key.map(secret).transpose()?.map(|(name, secret)| Key::new(&name, &secret)).transpose();
    let key = key.map_err(|error| wrong(&error))?;
    let name = format!("attached=\"{address}\"");
    log::begin(py)?;
    let attached = py.detach(|| Reached::attach(&address, key.as_ref(), may_be_down));
    log::deliver(py)?;
    attached.map(|store| (store, name)).map_err(|error| raised(&error))
}

/// An address is text; a path is that of a Unix socket.
fn address_text(given: &Bound<'_, PyAny>) -> PyResult<String> {
    if given.is_instance_of::<PyString>() {
        return given.extract();
    }
    let must_be = "unix:PATH, tcp:HOST:PORT, or the path of a socket";
    let path = arguments::path("address", must_be, given)?;
    let path = path.to_str().ok_or_else(|| InvalidError::new_err("address must be a path in UTF-8"))?;
    Ok(format!("unix:{path}"))
}

/// A name and a secret, which no message repeats.
fn secret(given: &Bound<'_, PyAny>) -> PyResult<(String, Vec<u8>)> {
    let wrong = |_| PyTypeError::new_err("key must be a pair of a name and a secret: a string and bytes");
    let (name, Octets(secret)) = given.extract().map_err(wrong)?;
    Ok((name, secret))
}

/// The settings that Python gave, validated: nothing is made before. With `subdirectory` each of the store's directories is the one of that
/// name in what `ssd.dirs` says.
fn config(given: Option<&Bound<'_, PyAny>>, subdirectory: Option<&Path>) -> PyResult<ValidConfig> {
    let (format, text) = match given {
        None => (ConfigFormat::Json, "{}".to_owned()),
        Some(given) if items(given)?.is_some() => (ConfigFormat::Json, value(given, "", 0)?.to_string()),
        Some(given) => {
            let must_be = "a dictionary of settings, or the path of a file of them";
            let path = arguments::path("config", must_be, given)?;
            let format = ConfigFormat::of_path(&path).ok_or_else(|| {
                InvalidError::new_err(format!("is neither .toml nor .json path={}", path.display()))
            })?;
            (format, settings_file(&path)?)
        }
    };
    if let Some(name) = subdirectory {
        let mut parts = name.components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name.as_os_str())
        {
            return Err(InvalidError::new_err(format!("is no name of a directory subdirectory={name:?}")));
        }
    }
    let facts = Facts::of_this_machine().map_err(|error| raised(&error))?;
    let config = Config::builder().file(format, &text).env(std::env::vars_os()).set(|config| {
        for dir in config.ssd.dirs.iter_mut().filter(|dir| !dir.as_os_str().is_empty()) {
            dir.extend(subdirectory);
        }
    });
    config.validate(&facts).map_err(|error| refused(&error))
}

/// Names and values of a dictionary, or of what is as one; copied, as lists are.
fn items<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
    match given.cast::<PyDict>() {
        Ok(dict) => Ok(Some(dict.items())),
        Err(_) => given.cast::<PyMapping>().ok().map(|mapping| mapping.items()).transpose(),
    }
}

/// A value of Python's as one of JSON; what JSON has not is named by its setting.
fn value(given: &Bound<'_, PyAny>, at: &str, depth: usize) -> PyResult<Value> {
    let wrong = |what: &str| {
        let kind = given.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
        InvalidError::new_err(format!(
            "{}: {what}, got={kind}",
            if at.is_empty() { "(settings)" } else { at }
        ))
    };
    if depth > DEPTH_MAX {
        return Err(wrong("no setting lies so deep"));
    }
    if given.is_none() {
        Ok(Value::Null)
    } else if given.is_instance_of::<PyBool>() {
        Ok(Value::Bool(given.extract()?))
    } else if given.is_instance_of::<PyString>() {
        Ok(Value::String(given.extract()?))
    } else if given.is_instance_of::<PyFloat>() {
        let number: f64 = given.extract()?;
        Ok(serde_json::Number::from_f64(number)
            .map_or_else(|| Value::String(number.to_string()), Value::Number))
    } else if let Some(items) = items(given)? {
        let mut table = Map::new();
        for item in items {
            let (key, entry): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let Ok(name) = key.extract::<String>() else {
                return Err(wrong("a name of a setting must be a string"));
            };
            let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            table.insert(name, value(&entry, &at, depth + 1)?);
        }
        Ok(Value::Object(table))
    } else if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        entries(given.as_borrowed())?
            .iter()
            .map(|entry| value(entry, at, depth + 1))
            .collect::<PyResult<_>>()
            .map(Value::Array)
    } else if given.is_instance_of::<PyInt>() || given.hasattr("__index__")? {
        let whole =
            given.extract::<u64>().map(Value::from).or_else(|_| given.extract::<i64>().map(Value::from));
        whole.map_err(|_| wrong("must be a number of at most 64 bits"))
    } else if given.hasattr("__fspath__")? {
        let path = arguments::path(at, "a path", given)?;
        path.to_str().map(Value::from).ok_or_else(|| wrong("must be a path in UTF-8"))
    } else {
        Err(wrong("must be a number, a string, true or false, a list or a dictionary of those"))
    }
}

/// The text of a file of settings; a pipe or a device is refused, and not waited for.
fn settings_file(path: &Path) -> std::io::Result<String> {
    let named =
        |error: std::io::Error| std::io::Error::new(error.kind(), format!("{error} path={}", path.display()));
    read_text(path, SETTINGS_BYTES_MAX).map_err(named)
}

/// How many bytes the store in a directory was made with; `None` if there is none, or none that can be read.
pub fn bytes_in(directory: &Path) -> Option<u64> {
    let read = |name| {
        let mut bytes = Vec::new();
        // What is no regular file is not waited for.
        regular_file::open(&directory.join(name))?.read_to_end(&mut bytes).map(|_| bytes)
    };
    let copies = names::MANIFESTS.map(|name| read(name).unwrap_or_default());
    let (manifest, _) = manifest::decode([&copies[0], &copies[1]]).ok()?;
    Some(manifest.superblock().capacity_bytes)
}

/// What opening a store found.
#[pyclass(frozen, get_all, module = "pagelith")]
pub struct OpenReport {
    /// The store was made just now.
    made: bool,
    /// Seconds that recovery took.
    recovery: f64,
    /// Objects found.
    objects: u64,
    /// `uring` or `blocking`; `None` without an SSD tier.
    side: Option<&'static str>,
    /// Why that side.
    side_reason: String,
    /// Bytes of memory that are allocated, by what for.
    memory: Py<PyDict>,
    /// Segments, and the length of one.
    segments: u32,
    segment_bytes: u64,
    /// Largest object that the store takes.
    object_bytes_max: u64,
    /// A checkpoint shortened recovery.
    from_checkpoint: bool,
    /// Checkpoints that say they are whole and are not.
    refused_checkpoints: u32,
    /// Footers read.
    footers: u32,
    /// Segments read record by record.
    scanned_segments: u32,
    /// Records that a crash tore.
    torn_records: u64,
    /// Manifest blocks mended from the other copy.
    mended_blocks: u32,
}

impl OpenReport {
    pub fn of(py: Python<'_>, report: &pagelith::OpenReport) -> PyResult<OpenReport> {
        // Each field by name: a new one is to be told of here too.
        let pagelith::OpenReport {
            made,
            recovery,
            objects,
            side,
            side_reason,
            memory: plan,
            segments,
            segment_bytes,
            object_bytes_max,
            from_checkpoint,
            refused_checkpoints,
            footers,
            scanned_segments,
            torn_records,
            mended_blocks,
        } = report.clone();
        let memory = PyDict::new(py);
        let parts = [
            ("arena", plan.arena),
            ("staging", plan.staging),
            ("index", plan.index),
            ("headers", plan.headers),
            ("total", plan.total),
        ];
        for (name, bytes) in parts {
            memory.set_item(name, bytes)?;
        }
        Ok(OpenReport {
            made,
            recovery: recovery.as_secs_f64(),
            objects,
            side: side.map(|side| match side {
                Side::Uring => "uring",
                Side::Blocking => "blocking",
                Side::Simulated => "simulated",
            }),
            side_reason,
            memory: memory.unbind(),
            segments,
            segment_bytes,
            object_bytes_max,
            from_checkpoint,
            refused_checkpoints,
            footers,
            scanned_segments,
            torn_records,
            mended_blocks,
        })
    }
}

#[pymethods]
impl OpenReport {
    fn __repr__(&self) -> String {
        let OpenReport { made, objects, side, segments, torn_records, .. } = self;
        let (made, side) = (truth(*made), side.unwrap_or("none"));
        format!(
            "OpenReport(made={made}, objects={objects}, side={side}, segments={segments}, torn_records={torn_records})"
        )
    }
}
