//! What is told of objects that come and go.

use pagelith::{Event as Told, Tier};
use pyo3::prelude::*;

use crate::keys::{Key, Namespace};
use crate::repr::truth;

/// What happened to an object.
#[pyclass(frozen, module = "pagelith")]
pub struct Event(pub Told);

#[pymethods]
impl Event {
    /// `stored`, `removed`, `cleared` (all of a namespace is gone), or `forgot` (objects are gone from SSD that cannot be named).
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.0 {
            Told::Stored { .. } => "stored",
            Told::Removed { .. } => "removed",
            Told::Cleared { .. } => "cleared",
            Told::Forgot { .. } => "forgot",
        }
    }

    /// `dram` or `ssd`; `None` of what was cleared, which is both.
    #[getter]
    fn tier(&self) -> Option<&'static str> {
        match &self.0 {
            Told::Stored { tier, .. } | Told::Removed { tier, .. } | Told::Forgot { tier } => {
                Some(match tier {
                    Tier::Memory => "dram",
                    Tier::Ssd => "ssd",
                    Tier::Remote => "remote",
                })
            }
            Told::Cleared { .. } => None,
        }
    }

    /// Which object was stored or removed.
    #[getter]
    fn key(&self) -> Option<Key> {
        match &self.0 {
            Told::Stored { key, .. } | Told::Removed { key, .. } => Some(Key(*key)),
            Told::Cleared { .. } | Told::Forgot { .. } => None,
        }
    }

    /// The namespace that was cleared, or the object's.
    #[getter]
    fn namespace(&self) -> Option<Namespace> {
        match &self.0 {
            Told::Stored { key, .. } | Told::Removed { key, .. } => Some(Namespace(key.namespace())),
            Told::Cleared { namespace } => Some(Namespace(*namespace)),
            Told::Forgot { .. } => None,
        }
    }

    /// It was stored and in no tier before.
    #[getter(new)]
    fn is_new(&self) -> bool {
        matches!(self.0, Told::Stored { new: true, .. })
    }

    /// It was removed and is in no tier any more.
    #[getter]
    fn gone(&self) -> bool {
        matches!(self.0, Told::Removed { gone: true, .. })
    }

    fn __repr__(&self) -> String {
        match &self.0 {
            Told::Stored { key, new, .. } => {
                let new = truth(*new);
                format!("Event(stored, {}, key={key}, new={new})", self.tier().unwrap_or_default())
            }
            Told::Removed { key, gone, .. } => {
                let gone = truth(*gone);
                format!("Event(removed, {}, key={key}, gone={gone})", self.tier().unwrap_or_default())
            }
            Told::Cleared { namespace } => format!("Event(cleared, namespace={namespace})"),
            Told::Forgot { .. } => format!("Event(forgot, {})", self.tier().unwrap_or_default()),
        }
    }
}
