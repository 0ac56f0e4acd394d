//! The engine's log events, kept until Python takes them as records of the logger `pagelith`.
//!
//! An event may happen on any thread, also while Python code waits for a call of the store, or while the interpreter ends. So nothing here asks for
//! the interpreter's lock: an event is put into a bounded queue, and `pagelith/_log.py` takes it from there. What finds the queue full is
//! counted.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

/// Most events that wait for Python: some 2 MiB.
const WAITING_MAX: usize = 8192;

/// Python's numbers of the levels.
const DEBUG: u8 = 10;
const INFO: u8 = 20;

/// The least level that is kept, as Python counts them.
static LEAST: AtomicU8 = AtomicU8::new(INFO);

/// Most forks in a row whose children each log: what is deeper shares the last queue.
const FORKS_MAX: usize = 16;

/// A queue for this process and one for each child that it may fork, that child's child, and so on: another thread may hold the
/// parent's at the moment of a fork, and in the child nobody lets go of it. A lock that is held over a fork instead would be held
/// while other hooks of Python wait for the interpreter's lock.
static QUEUES: [Mutex<Waiting>; FORKS_MAX] =
    [const { Mutex::new(Waiting { records: VecDeque::new(), dropped: 0, wake: None }) }; FORKS_MAX];

/// How many forks lie between this process and the first one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

struct Waiting {
    records: VecDeque<Record>,
    dropped: u64,
    /// Wakes the thread that takes them.
    wake: Option<UnixStream>,
}

struct Record {
    level: u8,
    target: &'static str,
    file: Option<&'static str>,
    line: u32,
    /// Seconds since 1970.
    at: f64,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

enum Value {
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
}

fn waiting() -> MutexGuard<'static, Waiting> {
    QUEUES[FORKS.load(Ordering::Relaxed)].lock().unwrap_or_else(PoisonError::into_inner)
}

fn python_level(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => INFO,
        Level::DEBUG => DEBUG,
        Level::TRACE => 5,
    }
}

/// Keeps events; spans are nothing to Python's records.
struct Keeper;

impl Keeper {
    fn keeps(metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && python_level(metadata.level()) >= LEAST.load(Ordering::Relaxed)
    }
}

impl Subscriber for Keeper {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Keeper::keeps(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEAST.load(Ordering::Relaxed) {
            INFO => LevelFilter::INFO,
            DEBUG.. => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Keeper::keeps(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut record = Record {
            level: python_level(metadata.level()),
            target: metadata.target(),
            file: metadata.file(),
            line: metadata.line().unwrap_or_default(),
            at,
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut record);
        let mut waiting = waiting();
        if waiting.records.len() == WAITING_MAX {
            waiting.dropped += 1;
            return;
        }
        waiting.records.push_back(record);
        if waiting.records.len() == 1 {
            // A full socket wakes it as well.
            let _ = waiting.wake.as_ref().map(|mut wake| wake.write(&[0]));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Record {
    fn put(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Record {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::Float(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::Unsigned(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::Text(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.put(field, Value::Text(format!("{value:?}")));
        }
    }
}

impl<'py> IntoPyObject<'py> for Value {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Value::Signed(value) => value.into_pyobject(py)?.into_any(),
            Value::Unsigned(value) => value.into_pyobject(py)?.into_any(),
            Value::Float(value) => value.into_pyobject(py)?.into_any(),
            Value::Text(value) => value.into_pyobject(py)?.into_any(),
        })
    }
}

/// Level, target, file and line, time, message, and fields.
type Taken<'py> = (u8, &'static str, Option<&'static str>, u32, f64, String, Bound<'py, PyDict>);

/// Keep events from now on, and no others than those of this level and above.
#[pyfunction]
pub fn _log_begin(level: u8) {
    // Only the first of this process is taken, which is one of these.
    let _ = tracing::subscriber::set_global_default(Keeper);
    if LEAST.swap(level.min(INFO), Ordering::Relaxed) != level.min(INFO) {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// A descriptor from which a byte can be read once there is something to take; it is the caller's.
#[pyfunction]
pub fn _log_wake() -> PyResult<RawFd> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut waiting = waiting();
    if !waiting.records.is_empty() {
        let _ = (&ours).write(&[0]);
    }
    waiting.wake = Some(ours);
    Ok(theirs.into_raw_fd())
}

/// What waits, and how many events before the last of them were dropped.
#[pyfunction]
pub fn _log_take(py: Python<'_>) -> PyResult<(Vec<Taken<'_>>, u64)> {
    let (records, dropped) = {
        let mut waiting = waiting();
        (std::mem::take(&mut waiting.records), std::mem::take(&mut waiting.dropped))
    };
    let taken = records.into_iter().map(|record| {
        let fields = PyDict::new(py);
        for (name, value) in record.fields {
            fields.set_item(name, value)?;
        }
        let Record { level, target, file, line, at, message, .. } = record;
        Ok((level, target, file, line, at, message, fields))
    });
    Ok((taken.collect::<PyResult<_>>()?, dropped))
}

/// This process is a child that was just forked: it begins with nothing, what waits is the parent's to tell.
#[pyfunction]
pub fn _log_forked() {
    FORKS.store((FORKS.load(Ordering::Relaxed) + 1).min(FORKS_MAX - 1), Ordering::Relaxed);
}

/// Have Python log what waits, on this thread: what a call gave rise to is logged when it returns. An error is one of a signal's handler.
pub fn deliver(py: Python<'_>) -> PyResult<()> {
    py.import("pagelith._log")?.call_method0("deliver").map(drop)
}

/// Have Python hear of what happens from now on.
pub fn begin(py: Python<'_>) -> PyResult<()> {
    py.import("pagelith._log")?.call_method0("begin").map(drop)
}
