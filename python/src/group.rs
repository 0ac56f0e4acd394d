//! Groups that are put in several calls.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, Options, PageGroup, Result};
use pyo3::prelude::*;

use crate::arguments;
use crate::call::{PutBatch, put_options, puts};
use crate::device_memory::DeviceArgs;
use crate::errors::{UnavailableError, raised};
use crate::handle::StoreHandle;
use crate::keys::Key;
use crate::outcome::PutOutcome;
use crate::repr::python_bool;
use crate::sequences::Memories;
use crate::store::{Store, is_forked};

/// An open group: its objects become visible together when it is committed.
#[pyclass(frozen, module = "pagelith")]
pub struct Group {
    store: Py<Store>,
    /// Its number in the store.
    number: u64,
    /// This object committed or aborted the group. The store would still answer calls for it, with
    /// the state that is visible now.
    is_over: AtomicBool,
    process: u32,
}

/// The store says that the group has ended, or the link that it was begun on has ended, or the
/// store process did not respond in time.
fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

impl Group {
    pub fn begin(
        store: &Bound<'_, Store>,
        required: Vec<ObjectKey>,
        options: Options,
    ) -> PyResult<Group> {
        let number = store.get().with(store.py(), |store| store.begin(&required, options))?;
        let number = number.map_err(|error| raised(&error))?;
        let (store, is_over) = (store.clone().unbind(), AtomicBool::new(false));
        Ok(Group { store, number, is_over, process: std::process::id() })
    }

    /// Calls `body` with the group, unless the group has ended.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&dyn PageGroup) -> Result<R> + Send,
    ) -> PyResult<R> {
        let group =
            |store: &StoreHandle| store.group(self.number).filter(|_| !self.is_over.load(Relaxed));
        let done = self.store.get().with(py, |store| group(store).map(|group| body(&*group)))?;
        let done = done.ok_or_else(|| {
            UnavailableError::new_err("the group is closed: committed, or aborted")
        })?;
        done.map_err(|error| raised(&error))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if is_forked(self.process) {
            return; // The link belongs to the parent process.
        }
        // The GIL is released: a thread that holds the store's lock may wait for the GIL.
        Python::attach(|py| {
            let store = self.store.get();
            // A store that was closed meanwhile has no groups.
            let _ = store.with(py, |store| store.release_group(self.number));
        });
    }
}

#[pymethods]
impl Group {
    /// Put some objects of the group. Their state is `waiting` until the group is committed.
    #[pyo3(signature = (keys, sources, *, request=None, depth=0, timeout=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<Vec<PutOutcome>> {
        let options = put_options(request, depth, timeout, wait)?;
        let put = |objects: PutBatch<'_>| {
            self.with(py, |group| {
                let outcomes = group.put(&objects.slices(), options);
                // Raised if every object failed for this reason.
                match outcomes.iter().all(is_unavailable) {
                    true => outcomes.into_iter().map(|outcome| outcome.map(Ok)).collect(),
                    false => Ok(outcomes),
                }
            })
        };
        puts(keys, &sources, &DeviceArgs { devices: None, stream: None, is_submitted: false }, put)
    }

    /// The keys of the objects that are still to be put.
    fn missing(&self, py: Python<'_>) -> PyResult<Vec<Key>> {
        let missing = self.with(py, |group| group.missing(Options::default()))?;
        Ok(missing.into_iter().map(Key).collect())
    }

    /// Make the group visible. The state is `waiting` if an object is missing.
    #[pyo3(signature = (*, request=None, depth=0, timeout=None, wait=None))]
    fn commit(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<PutOutcome> {
        let options = put_options(request, depth, timeout, wait)?;
        let outcome = self.with(py, |group| {
            let outcome = group.commit(options);
            if is_unavailable(&outcome) { outcome.map(Ok) } else { Ok(outcome) }
        })?;
        if matches!(
            outcome,
            Ok(pagelith::PutOutcome::Stored | pagelith::PutOutcome::AlreadyPresent)
        ) {
            self.is_over.store(true, Relaxed);
        }
        Ok(PutOutcome(outcome))
    }

    fn __repr__(&self) -> String {
        format!("Group(over={})", python_bool(self.is_over.load(Relaxed)))
    }

    /// Drop the objects that were put into the group.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |group| group.abort())?;
        self.is_over.store(true, Relaxed);
        Ok(())
    }
}
