//! How calls use the store that a Python object stands for: in its own process, until it is closed, and without the interpreter's lock.

use std::sync::{Arc, PoisonError, RwLock};

use pyo3::prelude::*;

use crate::closing::close_at_exit;
use crate::errors::{ClosedError, ForkedError};
use crate::opening::OpenReport;
use crate::reached::Reached;
use crate::store::{Store, is_forked};
use crate::submitted::{Queue, Submitted};

impl Store {
    pub(super) fn of(
        py: Python<'_>,
        reached: Reached,
        name: String,
        report: Option<Py<OpenReport>>,
    ) -> PyResult<Store> {
        let store = Arc::new(RwLock::new(Some(reached)));
        let process = std::process::id();
        close_at_exit(py, &store, process)?;
        Ok(Store { store, submitted: Queue::default(), process, name, report })
    }

    /// Do something with the store, without the interpreter's lock.
    pub fn with<R: Send>(&self, py: Python<'_>, body: impl FnOnce(&Reached) -> R + Send) -> PyResult<R> {
        self.check_process()?;
        let done = py.detach(|| self.store.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(body));
        done.ok_or_else(|| ClosedError::new_err("store is closed"))
    }

    /// Have a thread of the queue do `work`, and make of each of its outcomes what Python is told.
    pub(super) fn submit<T: 'static, O: Send + 'static, P: for<'py> IntoPyObject<'py> + 'static>(
        &self,
        py: Python<'_>,
        lent: T,
        work: impl FnOnce(&Reached, &mut T) -> Vec<O> + Send + 'static,
        told: fn(O) -> P,
    ) -> PyResult<Submitted> {
        self.check_process()?;
        let store = self.store.clone();
        let work = move |lent: &mut T| {
            let store = store.read().unwrap_or_else(PoisonError::into_inner);
            store.as_ref().map(|store| work(store, lent))
        };
        Submitted::to(&self.submitted, py, self.process, lent, work, told)
    }

    pub(super) fn check_process(&self) -> PyResult<()> {
        if is_forked(self.process) {
            let (here, there) = (std::process::id(), self.process);
            let text =
                "the store was opened before a fork; open one in this process, or attach to a store process";
            return Err(ForkedError::new_err(format!("{text} pid={here} opened_in={there}")));
        }
        Ok(())
    }
}
