//! Groups that are put in several calls.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, GroupId, Options, PutSlice, Result, attach};
use pyo3::prelude::*;

use crate::arguments;
use crate::call::{put_options, puts};
use crate::errors::{UnavailableError, raised};
use crate::given::Memories;
use crate::keys::Key;
use crate::outcome::PutOutcome;
use crate::reached::Reached;
use crate::repr::truth;
use crate::store::{Store, is_forked};

/// A group that was begun: its objects become visible together when it is committed.
#[pyclass(frozen, module = "pagelith")]
pub struct Group {
    store: Py<Store>,
    /// `None` only while it is dropped.
    id: Option<Id>,
    /// It was committed or given up here. A store process answers all the same, of what is visible now.
    over: AtomicBool,
    process: u32,
}

/// What names a group to its store.
enum Id {
    Own(GroupId),
    Attached(attach::GroupId),
}

/// A group, to whom it is open.
enum Open<'a> {
    Own(pagelith::Group<'a>),
    Attached(attach::Group<'a>),
}

impl Id {
    fn begin(store: &Reached, required: &[ObjectKey], options: Options) -> Result<Id> {
        match store {
            Reached::Own(store) => store.begin_group(required, options).map(|group| Id::Own(group.id())),
            Reached::Attached(store) => {
                store.begin_group(required, options).map(|group| Id::Attached(group.id()))
            }
        }
    }

    /// `None` if it is over, as far as is known here.
    fn open<'a>(&self, store: &'a Reached) -> Option<Open<'a>> {
        match (self, store) {
            (Id::Own(id), Reached::Own(store)) => store.open_group(*id).map(Open::Own),
            (Id::Attached(id), Reached::Attached(store)) => store.open_group(id).map(Open::Attached),
            (Id::Own(_), Reached::Attached(_)) | (Id::Attached(_), Reached::Own(_)) => None,
        }
    }
}

impl Open<'_> {
    fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Result<Vec<Result<pagelith::PutOutcome>>> {
        match self {
            Open::Own(group) => Ok(group.put(objects, options)),
            Open::Attached(group) => {
                let outcomes = group.put(objects, options);
                // Raised where there is nothing else to say, as where its end is known beforehand.
                match outcomes.iter().all(is_unavailable) {
                    true => outcomes.into_iter().map(|outcome| outcome.map(Ok)).collect(),
                    false => Ok(outcomes),
                }
            }
        }
    }

    fn missing(&self) -> Result<Vec<ObjectKey>> {
        match self {
            Open::Own(group) => Ok(group.missing()),
            Open::Attached(group) => group.missing(Options::default()),
        }
    }

    fn commit(&self, options: Options) -> Result<PutOutcome> {
        match self {
            Open::Own(group) => Ok(PutOutcome(group.commit(options))),
            Open::Attached(group) => {
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
            Open::Own(group) => {
                group.abort();
                Ok(())
            }
            Open::Attached(group) => group.abort(),
        }
    }
}

/// The group is over, by the store process's word, or with the link that it was begun on; or the process did not answer in time.
fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

impl Group {
    pub fn begin(store: &Bound<'_, Store>, required: Vec<ObjectKey>, options: Options) -> PyResult<Group> {
        let id = store.get().with(store.py(), |store| Id::begin(store, &required, options))?;
        let id = Some(id.map_err(|error| raised(&error))?);
        let (store, over) = (store.clone().unbind(), AtomicBool::new(false));
        Ok(Group { store, id, over, process: std::process::id() })
    }

    fn name(&self) -> Option<&Id> {
        self.id.as_ref().filter(|_| !self.over.load(Relaxed))
    }

    /// Do something with the group, unless it is over.
    fn with<R: Send>(&self, py: Python<'_>, body: impl FnOnce(Open<'_>) -> Result<R> + Send) -> PyResult<R> {
        let done = self
            .store
            .get()
            .with(py, |store| self.name().and_then(|id| id.open(store)).map(body))?
            .ok_or_else(|| {
                UnavailableError::new_err("the group is over: committed, aborted, or past its deadline")
            })?;
        done.map_err(|error| raised(&error))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if is_forked(self.process) {
            // The link of another process.
            std::mem::forget(self.id.take());
        }
    }
}

#[pymethods]
impl Group {
    /// Put some of its objects. `waiting` is what becomes of them, until the group is committed.
    #[pyo3(signature = (keys, sources, *, request=None, depth=0, timeout=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<Vec<PutOutcome>> {
        let options = put_options(request, depth, timeout, wait)?;
        puts(keys, &sources, |objects| self.with(py, |group| group.put(&objects.slices(), options)))
    }

    /// What is still to be put.
    fn missing(&self, py: Python<'_>) -> PyResult<Vec<Key>> {
        let missing = self.with(py, |group| group.missing())?;
        Ok(missing.into_iter().map(Key).collect())
    }

    /// Make it visible. `waiting` if something is missing.
    #[pyo3(signature = (*, request=None, depth=0, timeout=None, wait=None))]
    fn commit(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<PutOutcome> {
        let options = put_options(request, depth, timeout, wait)?;
        let outcome = self.with(py, |group| group.commit(options))?;
        if matches!(outcome.0, Ok(pagelith::PutOutcome::Stored | pagelith::PutOutcome::AlreadyPresent)) {
            self.over.store(true, Relaxed);
        }
        Ok(outcome)
    }

    fn __repr__(&self) -> String {
        format!("Group(over={})", truth(self.over.load(Relaxed)))
    }

    /// Drop what was put of it.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |group| group.abort())?;
        self.over.store(true, Relaxed);
        Ok(())
    }
}
