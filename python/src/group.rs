//! Groups that are put in several calls.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, OpenGroupId, Options, PutSlice, Result, client};
use pyo3::prelude::*;

use crate::arguments;
use crate::call::{put_options, puts};
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
    /// `None` only while the group is dropped.
    id: Option<GroupName>,
    /// This object committed or aborted the group. A store process would still answer calls for it,
    /// with the state that is visible now.
    is_over: AtomicBool,
    process: u32,
}

/// The name of a group within its store.
enum GroupName {
    Embedded(OpenGroupId),
    Attached(client::OpenGroupId),
}

/// A group, resolved in the store that it belongs to.
enum OpenGroup<'a> {
    Embedded(pagelith::Group<'a>),
    Attached(client::Group<'a>),
}

impl GroupName {
    fn begin(store: &StoreHandle, required: &[ObjectKey], options: Options) -> Result<GroupName> {
        match store {
            StoreHandle::Embedded(store) => {
                store.begin_group(required, options).map(|group| GroupName::Embedded(group.id()))
            }
            StoreHandle::Attached(store) => {
                store.begin_group(required, options).map(|group| GroupName::Attached(group.id()))
            }
        }
    }

    /// `None` if the group has ended, as far as this process knows.
    fn open<'a>(&self, store: &'a StoreHandle) -> Option<OpenGroup<'a>> {
        match (self, store) {
            (GroupName::Embedded(id), StoreHandle::Embedded(store)) => {
                store.open_group(*id).map(OpenGroup::Embedded)
            }
            (GroupName::Attached(id), StoreHandle::Attached(store)) => {
                store.open_group(id).map(OpenGroup::Attached)
            }
            (GroupName::Embedded(_), StoreHandle::Attached(_))
            | (GroupName::Attached(_), StoreHandle::Embedded(_)) => None,
        }
    }
}

impl OpenGroup<'_> {
    fn put(
        &self,
        objects: &[PutSlice<'_>],
        options: Options,
    ) -> Result<Vec<Result<pagelith::PutOutcome>>> {
        match self {
            OpenGroup::Embedded(group) => Ok(group.put(objects, options)),
            OpenGroup::Attached(group) => {
                let outcomes = group.put(objects, options);
                // Raised if every object failed for this reason, as an embedded store raises it
                // when it finds the group ended before the put.
                match outcomes.iter().all(is_unavailable) {
                    true => outcomes.into_iter().map(|outcome| outcome.map(Ok)).collect(),
                    false => Ok(outcomes),
                }
            }
        }
    }

    fn missing(&self) -> Result<Vec<ObjectKey>> {
        match self {
            OpenGroup::Embedded(group) => Ok(group.missing()),
            OpenGroup::Attached(group) => group.missing(Options::default()),
        }
    }

    fn commit(&self, options: Options) -> Result<PutOutcome> {
        match self {
            OpenGroup::Embedded(group) => Ok(PutOutcome(group.commit(options))),
            OpenGroup::Attached(group) => {
                let outcome = group.commit(options);
                if is_unavailable(&outcome) {
                    outcome.map(|put| PutOutcome(Ok(put)))
                } else {
                    Ok(PutOutcome(outcome))
                }
            }
        }
    }

    fn abort(self) -> Result<()> {
        match self {
            OpenGroup::Embedded(group) => {
                group.abort();
                Ok(())
            }
            OpenGroup::Attached(group) => group.abort(),
        }
    }
}

/// The store process says that the group has ended, or the link that it was begun on has ended, or
/// the store process did not respond in time.
fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

impl Group {
    pub fn begin(
        store: &Bound<'_, Store>,
        required: Vec<ObjectKey>,
        options: Options,
    ) -> PyResult<Group> {
        let id =
            store.get().with(store.py(), |store| GroupName::begin(store, &required, options))?;
        let id = Some(id.map_err(|error| raised(&error))?);
        let (store, is_over) = (store.clone().unbind(), AtomicBool::new(false));
        Ok(Group { store, id, is_over, process: std::process::id() })
    }

    fn name(&self) -> Option<&GroupName> {
        self.id.as_ref().filter(|_| !self.is_over.load(Relaxed))
    }

    /// Calls `body` with the group, unless the group has ended.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(OpenGroup<'_>) -> Result<R> + Send,
    ) -> PyResult<R> {
        let done = self
            .store
            .get()
            .with(py, |store| self.name().and_then(|id| id.open(store)).map(body))?
            .ok_or_else(|| {
                UnavailableError::new_err(
                    "the group is closed: committed, aborted, or past its deadline",
                )
            })?;
        done.map_err(|error| raised(&error))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if is_forked(self.process) {
            // The link belongs to the parent process.
            std::mem::forget(self.id.take());
        }
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
        puts(keys, &sources, |objects| self.with(py, |group| group.put(&objects.slices(), options)))
    }

    /// The keys of the objects that are still to be put.
    fn missing(&self, py: Python<'_>) -> PyResult<Vec<Key>> {
        let missing = self.with(py, |group| group.missing())?;
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
        let outcome = self.with(py, |group| group.commit(options))?;
        if matches!(
            outcome.0,
            Ok(pagelith::PutOutcome::Stored | pagelith::PutOutcome::AlreadyPresent)
        ) {
            self.is_over.store(true, Relaxed);
        }
        Ok(outcome)
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
