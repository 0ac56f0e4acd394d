//! Opening a store or attaching to one: the settings, and the report.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use pagelith::config::{ConfigFormat, MachineLimits};
use pagelith::io::disk::IoBackend;
use pagelith::io::regular_file::{self, read_text};
use pagelith::layouts::{manifest, names};
use pagelith::transport::auth::Key;
use pagelith::transport::peer_address::{BulkTransport, PeerAddress};
use pagelith::{Config, ValidConfig, key_file, rdma};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::{Map, Value};

use crate::arguments;
use crate::errors::{InvalidError, raised, refused};
use crate::handle::StoreHandle;
use crate::log;
use crate::repr::python_bool;
use crate::sequences::{ByteString, entries};

/// Deepest nesting of dictionaries and lists in settings; more than any setting needs.
const DEPTH_MAX: usize = 16;
/// Longest settings file; the configuration itself has the same bound.
const SETTINGS_BYTES_MAX: u64 = 2 << 20;

/// Open the store with these settings; returns it with its description and its report.
pub fn open(
    py: Python<'_>,
    arg: Option<&Bound<'_, PyAny>>,
    subdirectory: Option<PathBuf>,
) -> PyResult<(StoreHandle, String, Py<OpenReport>)> {
    let config = config(arg, subdirectory.as_deref())?;
    let name = format!("dirs={:?}", config.ssd_dirs());
    log::begin(py)?;
    let opened = py.detach(|| pagelith::Store::open(config));
    log::deliver(py)?;
    let store = opened.map_err(|error| raised(&error))?;
    let report = Py::new(py, OpenReport::of(py, store.opened())?)?;
    Ok((StoreHandle::embedded(store), name, report))
}

/// Attach to the store process at an address; returns the store and its description.
pub fn attach(
    py: Python<'_>,
    address: &Bound<'_, PyAny>,
    key: Option<&Bound<'_, PyAny>>,
    may_be_down: bool,
    transport: Option<&str>,
) -> PyResult<(StoreHandle, String)> {
    let wrong = |error: &dyn std::fmt::Display| InvalidError::new_err(error.to_string());
    let address = address_text(address)?;
    let mut address: PeerAddress =
        address.parse().map_err(|error| wrong(&format_args!("{error} address={address:?}")))?;
    if let Some(name) = transport {
        let transport = BulkTransport::of_name(name).ok_or_else(|| {
            let names = BulkTransport::NAMES.join(", ");
            wrong(&format_args!("transport must be one of {names}, got={name:?}"))
        })?;
        address = address.with_transport(transport).map_err(|error| wrong(&error))?;
    }
    let key = key.map(key_of).transpose()?;
    let name = format!("attached=\"{address}\"");
    log::begin(py)?;
    let config = rdma::config_of_environment().map_err(|error| refused(&error))?;
    let attached = py.detach(|| {
        let dial = rdma::dial(&address, key.as_ref(), &config)?;
        StoreHandle::attach(dial, may_be_down)
    });
    log::deliver(py)?;
    attached.map(|store| (store, name)).map_err(|error| raised(&error))
}

/// An address is a string; a path object is the path of a Unix socket.
fn address_text(arg: &Bound<'_, PyAny>) -> PyResult<String> {
    if arg.is_instance_of::<PyString>() {
        return arg.extract();
    }
    let must_be = "unix:PATH, tcp:HOST:PORT, rdma:HOST:PORT, or the path of a socket";
    let path = arguments::path("address", must_be, arg)?;
    let path =
        path.to_str().ok_or_else(|| InvalidError::new_err("address must be a path in UTF-8"))?;
    Ok(format!("unix:{path}"))
}

/// A name and a secret, or a name and the path of a key file, not as a string: that could be a
/// secret. No error message contains the secret.
fn key_of(arg: &Bound<'_, PyAny>) -> PyResult<Key> {
    let must_be = "key must be a pair of a name and a secret: a string, and bytes or a path object";
    let wrong = |_| PyTypeError::new_err(must_be);
    let (name, secret): (String, Bound<'_, PyAny>) = arg.extract().map_err(wrong)?;
    if !secret.is_instance_of::<PyString>() && secret.hasattr("__fspath__")? {
        let path = arguments::path("key", "a pair of a name and a path", &secret)?;
        let keys = key_file::ring(&path).map_err(|error| raised(&error))?;
        let named = keys.into_iter().map(|(key, _)| key).find(|key| key.name() == name);
        return named.ok_or_else(|| InvalidError::new_err("the key file has no key of this name"));
    }
    let ByteString(secret) = secret.extract().map_err(wrong)?;
    Key::new(&name, &secret).map_err(|error| InvalidError::new_err(error.to_string()))
}

/// The settings from Python, validated; nothing is created before that. With `subdirectory`, each
/// directory of the store is the one of that name within a directory of `ssd.dirs`.
fn config(arg: Option<&Bound<'_, PyAny>>, subdirectory: Option<&Path>) -> PyResult<ValidConfig> {
    let (format, text) = match arg {
        None => (ConfigFormat::Json, "{}".to_owned()),
        Some(arg) if items(arg)?.is_some() => (ConfigFormat::Json, value(arg, "", 0)?.to_string()),
        Some(arg) => {
            let must_be = "a dictionary of settings, or the path of a file of them";
            let path = arguments::path("config", must_be, arg)?;
            let format = ConfigFormat::of_path(&path).ok_or_else(|| {
                InvalidError::new_err(format!(
                    "config must be the path of a .toml or .json file path={}",
                    path.display()
                ))
            })?;
            (format, settings_file(&path)?)
        }
    };
    if let Some(name) = subdirectory {
        let mut parts = name.components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name.as_os_str())
        {
            return Err(InvalidError::new_err(format!(
                "subdirectory must be the name of one directory subdirectory={name:?}"
            )));
        }
    }
    let facts = MachineLimits::of_this_machine().map_err(|error| raised(&error))?;
    let config = Config::builder().file(format, &text).env(std::env::vars_os()).set(|config| {
        for dir in config.ssd.dirs.iter_mut().filter(|dir| !dir.as_os_str().is_empty()) {
            dir.extend(subdirectory);
        }
    });
    config.validate(&facts).map_err(|error| refused(&error))
}

/// Import the type of mappings. PyO3 imports it at its first use, under a lock: a child that is
/// forked meanwhile would wait for that lock for ever.
pub fn import_types(py: Python<'_>) {
    let _ = py.None().bind(py).cast::<PyMapping>();
}

/// The names and values of a dictionary or another mapping; copied, as lists are.
fn items<'py>(arg: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
    match arg.cast::<PyDict>() {
        Ok(dict) => Ok(Some(dict.items())),
        Err(_) => arg.cast::<PyMapping>().ok().map(|mapping| mapping.items()).transpose(),
    }
}

/// A Python value as a JSON value; an error about a value that JSON cannot express names the
/// setting.
fn value(arg: &Bound<'_, PyAny>, at: &str, depth: usize) -> PyResult<Value> {
    let wrong = |what: &str| {
        let kind = arg.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
        InvalidError::new_err(format!(
            "{}: {what}, got={kind}",
            if at.is_empty() { "(settings)" } else { at }
        ))
    };
    if depth > DEPTH_MAX {
        return Err(wrong("settings are nested too deeply"));
    }
    if arg.is_none() {
        Ok(Value::Null)
    } else if arg.is_instance_of::<PyBool>() {
        Ok(Value::Bool(arg.extract()?))
    } else if arg.is_instance_of::<PyString>() {
        Ok(Value::String(arg.extract()?))
    } else if arg.is_instance_of::<PyFloat>() {
        let number: f64 = arg.extract()?;
        Ok(serde_json::Number::from_f64(number)
            .map_or_else(|| Value::String(number.to_string()), Value::Number))
    } else if let Some(items) = items(arg)? {
        let mut table = Map::new();
        for item in items {
            let (key, entry): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let Ok(name) = key.extract::<String>() else {
                return Err(wrong("setting names must be strings"));
            };
            let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            table.insert(name, value(&entry, &at, depth + 1)?);
        }
        Ok(Value::Object(table))
    } else if arg.is_instance_of::<PyList>() || arg.is_instance_of::<PyTuple>() {
        entries(arg.as_borrowed())?
            .iter()
            .map(|entry| value(entry, at, depth + 1))
            .collect::<PyResult<_>>()
            .map(Value::Array)
    } else if arg.is_instance_of::<PyInt>() || arg.hasattr("__index__")? {
        let whole = arg
            .extract::<u64>()
            .map(Value::from)
            .or_else(|_| arg.extract::<i64>().map(Value::from));
        whole.map_err(|_| wrong("must be a number of at most 64 bits"))
    } else if arg.hasattr("__fspath__")? {
        let path = arguments::path(at, "a path", arg)?;
        path.to_str().map(Value::from).ok_or_else(|| wrong("must be a path in UTF-8"))
    } else {
        Err(wrong("must be a number, a string, true or false, a list or a dictionary of those"))
    }
}

/// The text of a settings file. A pipe or a device is refused without waiting for it.
fn settings_file(path: &Path) -> std::io::Result<String> {
    let named = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("{error} path={}", path.display()))
    };
    read_text(path, SETTINGS_BYTES_MAX).map_err(named)
}

/// The capacity in bytes that the store in a directory was created with; `None` if there is no
/// store, or its manifest cannot be read.
pub fn bytes_in(directory: &Path) -> Option<u64> {
    let read = |name| {
        let mut bytes = Vec::new();
        // Refuses what is not a regular file, which could block.
        regular_file::open(&directory.join(name))?.read_to_end(&mut bytes).map(|_| bytes)
    };
    let copies = names::MANIFESTS.map(|name| read(name).unwrap_or_default());
    let (manifest, _) = manifest::decode([&copies[0], &copies[1]]).ok()?;
    Some(manifest.superblock().capacity_bytes)
}

/// Result of recovery when the store was opened.
#[pyclass(frozen, get_all, module = "pagelith")]
pub struct OpenReport {
    /// The store was created by this call.
    made: bool,
    /// Seconds that recovery took.
    recovery: f64,
    /// Number of objects found.
    objects: u64,
    /// I/O backend, `uring` or `blocking`; `None` without an SSD tier.
    backend: Option<&'static str>,
    /// The reason for that backend.
    backend_reason: String,
    /// Bytes of allocated memory, by purpose.
    memory: Py<PyDict>,
    /// Number of segments.
    segments: u32,
    /// Length of a segment in bytes.
    segment_bytes: u64,
    /// Length in bytes of the largest object that the store accepts.
    object_bytes_max: u64,
    /// Recovery started from a checkpoint.
    from_checkpoint: bool,
    /// Checkpoints marked complete that failed verification.
    refused_checkpoints: u32,
    /// Segment footers read.
    footers: u32,
    /// Segments read record by record.
    scanned_segments: u32,
    /// Records torn by a crash.
    torn_records: u64,
    /// Manifest blocks repaired from the other copy.
    mended_blocks: u32,
}

impl OpenReport {
    pub fn of(py: Python<'_>, report: &pagelith::OpenReport) -> PyResult<OpenReport> {
        let pagelith::OpenReport {
            made,
            recovery,
            objects,
            backend,
            backend_reason,
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
            ..
        } = report.clone();
        let memory = PyDict::new(py);
        let parts = [
            ("arena", plan.arena),
            ("staging", plan.staging),
            ("index", plan.index),
            ("headers", plan.headers),
            ("history", plan.history),
            ("departed", plan.departed),
            ("total", plan.total),
        ];
        for (name, bytes) in parts {
            memory.set_item(name, bytes)?;
        }
        Ok(OpenReport {
            made,
            recovery: recovery.as_secs_f64(),
            objects,
            backend: backend.map(|backend| match backend {
                IoBackend::Uring => "uring",
                IoBackend::Blocking => "blocking",
                IoBackend::Simulated => "simulated",
            }),
            backend_reason,
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
        let OpenReport { made, objects, backend, segments, torn_records, .. } = self;
        let (made, backend) = (python_bool(*made), backend.unwrap_or("none"));
        format!(
            "OpenReport(made={made}, objects={objects}, backend={backend}, segments={segments}, torn_records={torn_records})"
        )
    }
}
