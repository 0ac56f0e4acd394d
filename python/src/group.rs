//! Groups that are put in several calls.

use pagelith::layouts::key::ObjectKey;
use pagelith::{Group as Open, GroupId, Options};
use pyo3::prelude::*;

use crate::errors::{UnavailableError, raised};
use crate::keys::Key;
use crate::outcome::PutOutcome;
use crate::store::{Request, Store, put_options, puts};

/// A group that was begun: its objects become visible together when it is committed.
#[pyclass(frozen, module = "pagelith")]
pub struct Group {
    store: Py<Store>,
    id: GroupId,
}

impl Group {
    pub fn begin(store: &Bound<'_, Store>, required: Vec<ObjectKey>, options: Options) -> PyResult<Group> {
        let id = store.get().with(store.py(), |store| {
            let own = store.own("groups in several calls")?;
            own.begin_group(&required, options).map(|group| group.id())
        })?;
        let id = id.map_err(|error| raised(&error))?;
        Ok(Group { store: store.clone().unbind(), id })
    }

    /// Do something with the group, unless it is over.
    fn with<R: Send>(&self, py: Python<'_>, body: impl FnOnce(Open<'_>) -> R + Send) -> PyResult<R> {
        let done =
            self.store.get().with(py, |store| store.own("groups").ok()?.open_group(self.id).map(body))?;
        done.ok_or_else(|| {
            UnavailableError::new_err("the group is over: committed, aborted, or past its deadline")
        })
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
        keys: Vec<Bound<'_, Key>>,
        sources: Vec<Bound<'_, PyAny>>,
        request: Option<&Bound<'_, Request>>,
        depth: u32,
        timeout: Option<f64>,
        wait: Option<f64>,
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
        request: Option<&Bound<'_, Request>>,
        depth: u32,
        timeout: Option<f64>,
        wait: Option<f64>,
    ) -> PyResult<PutOutcome> {
        let options = put_options(request, depth, timeout, wait)?;
        self.with(py, |group| PutOutcome(group.commit(options)))
    }

    /// Drop what was put of it.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |group| group.abort())
    }
}
