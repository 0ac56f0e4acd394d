//! Events: objects that were stored in a tier or removed from it.

use pagelith::{Event as StoreEvent, Tier};
use pyo3::prelude::*;

use crate::keys::{Key, Namespace};
use crate::repr::python_bool;

/// A change of one object or one namespace.
#[pyclass(frozen, module = "pagelith")]
pub struct Event(pub StoreEvent);

#[pymethods]
impl Event {
    /// `stored`, `removed`, `cleared` (all objects of a namespace were removed), or `forgot`
    /// (objects were lost from SSD whose keys are unknown).
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.0 {
            StoreEvent::Stored { .. } => "stored",
            StoreEvent::Removed { .. } => "removed",
            StoreEvent::Cleared { .. } => "cleared",
            StoreEvent::Forgot { .. } => "forgot",
            _ => "other",
        }
    }

    /// `dram` or `ssd`; `None` for `cleared`, which concerns both.
    #[getter]
    fn tier(&self) -> Option<&'static str> {
        match &self.0 {
            StoreEvent::Stored { tier, .. }
            | StoreEvent::Removed { tier, .. }
            | StoreEvent::Forgot { tier } => Some(match tier {
                Tier::Memory => "dram",
                Tier::Ssd => "ssd",
                _ => "remote",
            }),
            _ => None,
        }
    }

    /// The key of the object that was stored or removed.
    #[getter]
    fn key(&self) -> Option<Key> {
        match &self.0 {
            StoreEvent::Stored { key, .. } | StoreEvent::Removed { key, .. } => Some(Key(*key)),
            _ => None,
        }
    }

    /// The namespace that was cleared, or that of the object.
    #[getter]
    fn namespace(&self) -> Option<Namespace> {
        match &self.0 {
            StoreEvent::Stored { key, .. } | StoreEvent::Removed { key, .. } => {
                Some(Namespace(key.namespace()))
            }
            StoreEvent::Cleared { namespace } => Some(Namespace(*namespace)),
            _ => None,
        }
    }

    /// The object was stored, and was in no tier before.
    #[getter(new)]
    fn is_new(&self) -> bool {
        matches!(self.0, StoreEvent::Stored { new: true, .. })
    }

    /// The object was removed, and is in no tier any more.
    #[getter]
    fn gone(&self) -> bool {
        matches!(self.0, StoreEvent::Removed { gone: true, .. })
    }

    fn __repr__(&self) -> String {
        match &self.0 {
            StoreEvent::Stored { key, new, .. } => {
                let new = python_bool(*new);
                format!("Event(stored, {}, key={key}, new={new})", self.tier().unwrap_or_default())
            }
            StoreEvent::Removed { key, gone, .. } => {
                let gone = python_bool(*gone);
                format!(
                    "Event(removed, {}, key={key}, gone={gone})",
                    self.tier().unwrap_or_default()
                )
            }
            StoreEvent::Cleared { namespace } => format!("Event(cleared, namespace={namespace})"),
            _ => {
                format!("Event(forgot, {})", self.tier().unwrap_or_default())
            }
        }
    }
}
