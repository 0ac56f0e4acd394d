//! The engine's log events, queued until Python takes them as records of the logger `pagelith`.
//!
//! An event may occur on any thread, also while Python code waits for a call of the store, or while
//! the interpreter exits. So this module never acquires the GIL to record one: it pushes the event
//! into a bounded queue, and `pagelith/_log.py` pops it. Events that find the queue full are
//! counted and dropped.

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

/// Most events queued for Python: about 2 MiB.
const QUEUED_EVENTS_MAX: usize = 8192;

/// Python's numbers for the levels.
const DEBUG: u8 = 10;
const INFO: u8 = 20;

/// Lowest level that is recorded, as a Python level number.
static MIN_LEVEL: AtomicU8 = AtomicU8::new(INFO);

/// Most nested forks with a queue of their own; deeper children share the last queue.
const FORK_DEPTH_MAX: usize = 16;

/// One queue for this process, one for a child that it forks, one for the child's child, and so on.
/// Another thread may hold the parent's queue lock at the moment of a fork, and no thread of the
/// child would ever release it. Holding the lock across the fork instead could deadlock with other
/// fork hooks of Python, which wait for the GIL.
static QUEUES: [Mutex<LogQueue>; FORK_DEPTH_MAX] =
    [const { Mutex::new(LogQueue { records: VecDeque::new(), dropped: 0, wake: None }) };
        FORK_DEPTH_MAX];

/// Number of forks between the first process and this one.
static FORK_DEPTH: AtomicUsize = AtomicUsize::new(0);

struct LogQueue {
    records: VecDeque<Record>,
    dropped: u64,
    /// Wakes the thread that pops the queue.
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

fn lock_queue() -> MutexGuard<'static, LogQueue> {
    QUEUES[FORK_DEPTH.load(Ordering::Relaxed)].lock().unwrap_or_else(PoisonError::into_inner)
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

/// Queues events; spans have no equivalent in Python's log records and are ignored.
struct Collector;

impl Collector {
    fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && python_level(metadata.level()) >= MIN_LEVEL.load(Ordering::Relaxed)
    }
}

impl Subscriber for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Collector::wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match MIN_LEVEL.load(Ordering::Relaxed) {
            INFO => LevelFilter::INFO,
            DEBUG.. => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Collector::wants(metadata)
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
        let mut queue = lock_queue();
        if queue.records.len() == QUEUED_EVENTS_MAX {
            queue.dropped += 1;
            return;
        }
        queue.records.push_back(record);
        if queue.records.len() == 1 {
            // A write to a full socket fails, but the reader is woken anyway.
            let _ = queue.wake.as_ref().map(|mut wake| wake.write(&[0]));
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
type RecordTuple<'py> =
    (u8, &'static str, Option<&'static str>, u32, f64, String, Bound<'py, PyDict>);

/// Start to record events of this level and above.
#[pyfunction]
pub fn _log_begin(level: u8) {
    // Only the first subscriber of a process is accepted; a repeated call passes an equal one.
    let _ = tracing::subscriber::set_global_default(Collector);
    if MIN_LEVEL.swap(level.min(INFO), Ordering::Relaxed) != level.min(INFO) {
        tracing::callsite::rebuild_interest_cache();
    }
}

/// A descriptor that becomes readable once an event is queued; the caller owns it.
#[pyfunction]
pub fn _log_wake() -> PyResult<RawFd> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut queue = lock_queue();
    if !queue.records.is_empty() {
        let _ = (&ours).write(&[0]);
    }
    queue.wake = Some(ours);
    Ok(theirs.into_raw_fd())
}

/// The queued events, and the number of events that were dropped since the last call.
#[pyfunction]
pub fn _log_take(py: Python<'_>) -> PyResult<(Vec<RecordTuple<'_>>, u64)> {
    let (records, dropped) = {
        let mut queue = lock_queue();
        (std::mem::take(&mut queue.records), std::mem::take(&mut queue.dropped))
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

/// Called in a child right after a fork: it starts with an empty queue; queued events belong to the
/// parent.
#[pyfunction]
pub fn _log_forked() {
    FORK_DEPTH
        .store((FORK_DEPTH.load(Ordering::Relaxed) + 1).min(FORK_DEPTH_MAX - 1), Ordering::Relaxed);
}

/// Make Python log the queued events, on this thread: events that a call caused are logged before
/// it returns. Fails only with an exception raised by a signal handler.
pub fn deliver(py: Python<'_>) -> PyResult<()> {
    py.import("pagelith._log")?.call_method0("deliver").map(drop)
}

/// Make Python start to record events.
pub fn begin(py: Python<'_>) -> PyResult<()> {
    py.import("pagelith._log")?.call_method0("begin").map(drop)
}
