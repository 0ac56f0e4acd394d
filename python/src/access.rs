//! Access to the store of a Python object: only in the process that opened it, only until it is
//! closed, and with the GIL released.

use std::sync::{Arc, PoisonError, RwLock};

use pyo3::prelude::*;

use crate::closing::{close_at_exit, is_closed};
use crate::device::BoundDevices;
use crate::device_memory::DeviceArgs;
use crate::errors::{ClosedError, ForkedError};
use crate::handle::StoreHandle;
use crate::opening::OpenReport;
use crate::store::{Store, is_forked};
use crate::stream::Stream;
use crate::submitted::{Queue, Submitted};

impl Store {
    pub(super) fn of(
        py: Python<'_>,
        reached: StoreHandle,
        name: String,
        report: Option<Py<OpenReport>>,
    ) -> PyResult<Store> {
        let store = Arc::new(RwLock::new(Some(reached)));
        let process = std::process::id();
        close_at_exit(py, &store, process)?;
        Ok(Store {
            store,
            devices: BoundDevices::default(),
            submitted: Queue::default(),
            process,
            name,
            report,
        })
    }

    /// Calls `body` with the store, with the GIL released.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&StoreHandle) -> R + Send,
    ) -> PyResult<R> {
        self.check_process()?;
        let done = py.detach(|| {
            self.store.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(body)
        });
        done.ok_or_else(closed)
    }

    /// Runs `work` on a thread of the queue, and converts each of its outcomes with `to_python`.
    pub(super) fn submit<T: 'static, O: Send + 'static, P: for<'py> IntoPyObject<'py> + 'static>(
        &self,
        py: Python<'_>,
        memory: T,
        work: impl FnOnce(&StoreHandle, &mut T) -> Vec<O> + Send + 'static,
        to_python: fn(O) -> P,
    ) -> PyResult<Submitted> {
        self.check_process()?;
        let store = self.store.clone();
        let work = move |memory: &mut T| {
            let store = store.read().unwrap_or_else(PoisonError::into_inner);
            store.as_ref().map(|store| work(store, memory))
        };
        Submitted::start(&self.submitted, py, self.process, memory, work, to_python)
    }

    /// What a call says of devices. Their memory is inspected only of a usable store: a forked
    /// child must not call their drivers.
    pub(super) fn with_devices(&self, stream: Option<Stream>) -> PyResult<DeviceArgs<'_>> {
        self.check_process()?;
        if is_closed(&self.store) {
            return Err(closed());
        }
        Ok(DeviceArgs { devices: Some(&self.devices), stream, is_submitted: false })
    }

    /// The same for a submitted batch.
    pub(super) fn with_devices_later(&self, stream: Option<Stream>) -> PyResult<DeviceArgs<'_>> {
        Ok(DeviceArgs { is_submitted: true, ..self.with_devices(stream)? })
    }

    pub(super) fn check_process(&self) -> PyResult<()> {
        if is_forked(self.process) {
            let (pid, opened_in) = (std::process::id(), self.process);
            let text = "the store was opened before a fork; open one in this process, or attach to a store process";
            return Err(ForkedError::new_err(format!("{text} pid={pid} opened_in={opened_in}")));
        }
        Ok(())
    }
}

fn closed() -> PyErr {
    ClosedError::new_err("store is closed")
}
