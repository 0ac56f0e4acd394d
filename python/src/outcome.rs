//! The outcome of each object of a call.

use pagelith::{Error, Result, Tier};
use pyo3::prelude::*;

use crate::errors::raised;

/// The outcome of a get. True if every byte is in the destination and verified. Otherwise it has
/// the cause of the miss, or the error.
#[pyclass(frozen, module = "pagelith")]
pub struct GetOutcome(pub Result<pagelith::GetOutcome>);

#[pymethods]
impl GetOutcome {
    fn __bool__(&self) -> bool {
        self.0.as_ref().is_ok_and(pagelith::GetOutcome::is_hit)
    }

    /// The tier of a hit: `dram`, `ssd` or `remote`.
    #[getter]
    fn tier(&self) -> Option<&'static str> {
        match &self.0 {
            Ok(pagelith::GetOutcome::Hit { tier, .. }) => Some(match tier {
                Tier::Memory => "dram",
                Tier::Ssd => "ssd",
                _ => "remote",
            }),
            Ok(pagelith::GetOutcome::Miss(_)) | Err(_) => None,
        }
    }

    /// Bytes delivered; 0 unless it is a hit.
    #[getter]
    fn bytes(&self) -> u64 {
        match &self.0 {
            Ok(pagelith::GetOutcome::Hit { bytes, .. }) => *bytes,
            Ok(pagelith::GetOutcome::Miss(_)) | Err(_) => 0,
        }
    }

    /// Cause of a miss: `absent`, `damaged`, `unreadable`, `gone` (it left while it was read),
    /// `late` or `slow` (it can be computed sooner).
    #[getter]
    fn cause(&self) -> Option<String> {
        match &self.0 {
            Ok(pagelith::GetOutcome::Miss(cause)) => Some(cause.to_string()),
            Ok(pagelith::GetOutcome::Hit { .. }) | Err(_) => None,
        }
    }

    /// The error of an invalid request or a busy store: an exception instance that was not raised.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        error(&self.0, py)
    }

    fn __repr__(&self) -> String {
        match &self.0 {
            Ok(pagelith::GetOutcome::Hit { bytes, .. }) => {
                format!("GetOutcome(tier={}, bytes={bytes})", self.tier().unwrap_or_default())
            }
            Ok(pagelith::GetOutcome::Miss(cause)) => format!("GetOutcome(cause={cause})"),
            Err(error) => format!("GetOutcome(error={error})"),
        }
    }
}

/// The outcome of a put. True if the object is stored now, by this put or an earlier one.
#[pyclass(frozen, module = "pagelith")]
pub struct PutOutcome(pub Result<pagelith::PutOutcome>);

#[pymethods]
impl PutOutcome {
    fn __bool__(&self) -> bool {
        match &self.0 {
            Ok(pagelith::PutOutcome::Stored | pagelith::PutOutcome::AlreadyPresent) => true,
            Ok(_) | Err(_) => false,
        }
    }

    /// `stored`, `present` (an earlier put), `waiting` (for other objects of its group), `refused`
    /// (by policy or a limit) or `error`.
    #[getter]
    fn state(&self) -> &'static str {
        match &self.0 {
            Ok(pagelith::PutOutcome::Stored) => "stored",
            Ok(pagelith::PutOutcome::AlreadyPresent) => "present",
            Ok(pagelith::PutOutcome::Waiting) => "waiting",
            Ok(_) => "refused",
            Err(_) => "error",
        }
    }

    /// The error of an invalid request or a busy store: an exception instance that was not raised.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        error(&self.0, py)
    }

    fn __repr__(&self) -> String {
        match &self.0 {
            Ok(_) => format!("PutOutcome(state={})", self.state()),
            Err(error) => format!("PutOutcome(error={error})"),
        }
    }
}

fn error<T>(outcome: &std::result::Result<T, Error>, py: Python<'_>) -> Option<Py<PyAny>> {
    outcome.as_ref().err().map(|error| raised(error).into_value(py).into_any())
}

/// The report of a close: the fields of a flush report, and the objects that are not durable.
#[pyclass(frozen, get_all, module = "pagelith")]
pub struct CloseReport {
    /// Objects that became durable.
    durable_objects: u64,
    /// Their bytes.
    durable_bytes: u64,
    /// Objects that the SSD tier refused, by policy or a limit.
    refused_objects: u64,
    /// Objects that were put and cannot be made durable any more.
    lost_objects: u64,
    /// Objects that are not durable.
    unsaved_objects: u64,
    /// Their bytes.
    unsaved_bytes: u64,
    /// Why; `None` if the close itself succeeded.
    error: Option<String>,
}

#[pymethods]
impl CloseReport {
    fn __repr__(&self) -> String {
        let (durable, unsaved, bytes) =
            (self.durable_objects, self.unsaved_objects, self.unsaved_bytes);
        let error =
            self.error.as_ref().map(|error| format!(", error={error:?}")).unwrap_or_default();
        format!(
            "CloseReport(durable_objects={durable}, unsaved_objects={unsaved}, unsaved_bytes={bytes}{error})"
        )
    }
}

impl CloseReport {
    /// The reason why some objects are not durable; `None` if all are.
    pub fn loss(&self) -> Option<&str> {
        let is_whole = self.unsaved_objects == 0 && self.lost_objects == 0;
        (!is_whole).then(|| self.error.as_deref().unwrap_or("objects could not be written"))
    }
}

impl From<pagelith::CloseReport> for CloseReport {
    fn from(report: pagelith::CloseReport) -> CloseReport {
        let pagelith::CloseReport { flushed, unsaved_objects, unsaved_bytes, error, .. } = report;
        let pagelith::FlushReport {
            durable_objects,
            durable_bytes,
            refused_objects,
            lost_objects,
            ..
        } = flushed;
        let error = error.map(|error| error.message);
        CloseReport {
            durable_objects,
            durable_bytes,
            refused_objects,
            lost_objects,
            unsaved_objects,
            unsaved_bytes,
            error,
        }
    }
}

/// The objects that became durable since the previous report, and those that did not.
#[pyclass(frozen, get_all, module = "pagelith")]
pub struct FlushReport {
    /// Objects that became durable.
    durable_objects: u64,
    /// Their bytes.
    durable_bytes: u64,
    /// Objects that the SSD tier refused, by policy or a limit.
    refused_objects: u64,
    /// Objects that were put and cannot be made durable any more.
    lost_objects: u64,
}

#[pymethods]
impl FlushReport {
    fn __repr__(&self) -> String {
        let FlushReport { durable_objects, durable_bytes, refused_objects, lost_objects } = self;
        format!(
            "FlushReport(durable_objects={durable_objects}, durable_bytes={durable_bytes}, refused_objects={refused_objects}, \
             lost_objects={lost_objects})"
        )
    }
}

impl From<pagelith::FlushReport> for FlushReport {
    fn from(report: pagelith::FlushReport) -> FlushReport {
        let pagelith::FlushReport {
            durable_objects,
            durable_bytes,
            refused_objects,
            lost_objects,
            ..
        } = report;
        FlushReport { durable_objects, durable_bytes, refused_objects, lost_objects }
    }
}
