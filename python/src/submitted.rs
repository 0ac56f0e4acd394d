//! Submitted batches: they run on threads of their store, and their outcomes are polled, waited
//! for, or awaited.
//!
//! - The batch owns its memory: it is released with the GIL held, after the store has finished with
//!   it, whatever the program has dropped meanwhile.
//! - Batches start in the order of their submission, at most [`THREADS`] at a time.
//! - A close waits for all batches. So does the exit of the interpreter, after which no thread may
//!   acquire the GIL.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pagelith::io::threads::thread_start_fault;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyList, PyTuple};

use crate::arguments;
use crate::call::seconds;
use crate::drop_with_gil::DropWithGil;
use crate::errors::{ClosedError, ForkedError, InternalError, raised};
use crate::repr::python_bool;
use crate::store::is_forked;

/// Most batches of one store in progress at a time; further ones are queued.
const THREADS: usize = 4;
/// Interval at which a thread that waits for a batch checks for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Address of the queue whose batch this thread runs.
    static CURRENT_QUEUE: Cell<usize> = const { Cell::new(0) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue of a store's submitted batches.
#[derive(Default)]
pub struct Queue(Arc<WorkQueue>);

#[derive(Default)]
struct WorkQueue {
    state: Mutex<QueueState>,
    job_added: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
    running: usize,
    closed: bool,
}

impl Queue {
    /// Add a job to the end of the queue. The exit of `process` waits for it.
    fn push(&self, py: Python<'_>, process: u32, job: Job) -> PyResult<()> {
        if !self.is_used() {
            // Not with the queue locked: a thread that holds the GIL may wait for that lock.
            self.finish_at_exit(py, process)?;
        }
        let mut state = lock(&self.0.state);
        if state.closed {
            return Err(ClosedError::new_err("store is closed"));
        }
        if state.idle <= state.waiting.len() && state.threads < THREADS {
            let (work, first) = (self.0.clone(), state.threads == 0);
            let name = format!("pagelith-{}", state.threads);
            let spawned =
                std::thread::Builder::new().name(name.clone()).spawn(move || work.run_jobs());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(error) if first => {
                    return Err(raised(&thread_start_fault(&name, &error).into()));
                }
                Err(_) => {}
            }
        }
        state.waiting.push_back(job);
        self.0.job_added.notify_one();
        Ok(())
    }

    /// Refuse further batches, and wait until all have ended. The GIL must be released: batches
    /// need it.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// Whether any batch was ever submitted.
    pub fn is_used(&self) -> bool {
        lock(&self.0.state).threads > 0
    }

    fn finish_at_exit(&self, py: Python<'_>, process: u32) -> PyResult<()> {
        let work: Weak<WorkQueue> = Arc::downgrade(&self.0);
        let finish = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            if let (Some(work), false) = (work.upgrade(), is_forked(process)) {
                arguments.py().detach(|| work.finish());
            }
        };
        let finish = PyCFunction::new_closure(py, None, None, finish)?;
        py.import("atexit")?.call_method1("register", (finish,)).map(drop)
    }
}

impl WorkQueue {
    /// Body of a worker thread: runs jobs until the queue is closed.
    fn run_jobs(&self) {
        CURRENT_QUEUE.set(std::ptr::from_ref(self) as usize);
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.waiting.pop_front() {
                state.running += 1;
                drop(state);
                job();
                state = lock(&self.state);
                state.running -= 1;
                self.ended.notify_all();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.job_added.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn finish(&self) {
        // A close called from within a batch's completion, such as by a finalizer of its memory,
        // does not wait for that batch.
        let mine = usize::from(CURRENT_QUEUE.get() == std::ptr::from_ref(self) as usize);
        let mut state = lock(&self.state);
        state.closed = true;
        self.job_added.notify_all();
        while !state.waiting.is_empty() || state.running > mine {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The completion of a batch.
#[derive(Default)]
struct Batch {
    completion: Mutex<Completion>,
    ended: Condvar,
}

#[derive(Default)]
struct Completion {
    result: Option<PyResult<Py<PyList>>>,
    waiters: Vec<Waiter>,
}

/// A future to be resolved, and its event loop.
struct Waiter {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
}

impl Batch {
    /// The result, if the batch has ended.
    fn result(&self, py: Python<'_>) -> Option<PyResult<Py<PyList>>> {
        lock(&self.completion).result.as_ref().map(|result| copy(py, result))
    }

    /// Waits at most `most` for the batch to end. Returns whether it has.
    fn wait(&self, most: Duration) -> bool {
        let completion = lock(&self.completion);
        let open = |completion: &mut Completion| completion.result.is_none();
        let (completion, _) = self
            .ended
            .wait_timeout_while(completion, most, open)
            .unwrap_or_else(PoisonError::into_inner);
        completion.result.is_some()
    }

    fn end(&self, py: Python<'_>, result: PyResult<Py<PyList>>) {
        // Before the lock: the first copy of an error creates its exception object.
        let stored = copy(py, &result);
        let waiters = {
            let mut completion = lock(&self.completion);
            completion.result = Some(stored);
            std::mem::take(&mut completion.waiters)
        };
        self.ended.notify_all();
        for waiter in waiters {
            let notified = waiter.notify(py, &result);
            // A closed event loop has no waiting task, so its error is dropped.
            drop(notified);
        }
    }
}

fn copy(py: Python<'_>, result: &PyResult<Py<PyList>>) -> PyResult<Py<PyList>> {
    result.as_ref().map(|list| list.clone_ref(py)).map_err(|error| error.clone_ref(py))
}

impl Waiter {
    /// Called on a worker thread, not on the thread of the event loop.
    fn notify(&self, py: Python<'_>, result: &PyResult<Py<PyList>>) -> PyResult<()> {
        let (list, error) = match result {
            Ok(list) => (Some(list.clone_ref(py)), None),
            Err(error) => (None, Some(error.clone_ref(py).into_value(py))),
        };
        let resolve_future = wrap_pyfunction!(resolve_future, py)?;
        self.event_loop
            .call_method1(py, "call_soon_threadsafe", (resolve_future, &self.future, list, error))
            .map(drop)
    }
}

/// Resolve a future, unless it was cancelled.
#[pyfunction]
fn resolve_future(
    future: &Bound<'_, PyAny>,
    list: Option<Py<PyList>>,
    error: Option<Py<PyAny>>,
) -> PyResult<()> {
    if future.call_method0("done")?.extract()? {
        return Ok(());
    }
    match error {
        Some(error) => future.call_method1("set_exception", (error,)),
        None => future.call_method1("set_result", (list,)),
    }
    .map(drop)
}

/// A submitted batch. It continues if this object is dropped.
#[pyclass(frozen, module = "pagelith")]
pub struct Submitted {
    batch: Arc<Batch>,
    process: u32,
}

impl Submitted {
    /// Submit `work`, which uses `memory`; `to_python` converts its outcomes. `work` returns `None`
    /// if the store is closed.
    pub fn start<T: 'static, O: Send + 'static, P: for<'py> IntoPyObject<'py> + 'static>(
        queue: &Queue,
        py: Python<'_>,
        process: u32,
        memory: T,
        work: impl FnOnce(&mut T) -> Option<Vec<O>> + Send + 'static,
        to_python: fn(O) -> P,
    ) -> PyResult<Submitted> {
        let batch = Arc::new(Batch::default());
        let (job_batch, mut memory) = (batch.clone(), DropWithGil::of(memory));
        let job = move || {
            let done = catch_unwind(AssertUnwindSafe(|| memory.get().and_then(work)));
            // If the interpreter is shutting down, no result is delivered, and the process frees
            // the memory.
            let _ = Python::try_attach(move |py| {
                let result = match done {
                    Ok(Some(outcomes)) => {
                        let outcomes: Vec<P> = outcomes.into_iter().map(to_python).collect();
                        PyList::new(py, outcomes).map(Bound::unbind)
                    }
                    Ok(None) => Err(ClosedError::new_err("store is closed")),
                    Err(_) => Err(InternalError::new_err("a batch panicked")),
                };
                // The memory is released before the completion is visible.
                drop(memory);
                job_batch.end(py, result);
            });
        };
        queue.push(py, process, Box::new(job))?;
        Ok(Submitted { batch, process })
    }

    fn check_process(&self) -> PyResult<()> {
        match is_forked(self.process) {
            true => Err(ForkedError::new_err(
                "the batch was submitted before a fork and belongs to the parent process",
            )),
            false => Ok(()),
        }
    }
}

#[pymethods]
impl Submitted {
    /// Whether the batch has ended.
    fn done(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(lock(&self.batch.completion).result.is_some())
    }

    fn __repr__(&self) -> String {
        // In a forked child the batch never ends, and its lock may stay held for ever.
        let done = !is_forked(self.process) && lock(&self.batch.completion).result.is_some();
        format!("Submitted(done={})", python_bool(done))
    }

    /// The outcome of each object, once the batch has ended. Raises `TimeoutError` after `timeout`
    /// seconds, or the exception of a signal handler; the batch then continues, and this may be
    /// called again.
    #[pyo3(signature = (timeout=None))]
    fn result(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Py<PyList>> {
        self.check_process()?;
        let until = seconds("timeout", timeout)?.and_then(|most| Instant::now().checked_add(most));
        loop {
            if let Some(result) = self.batch.result(py) {
                return result;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(PyTimeoutError::new_err("the batch has not ended yet"));
            }
            py.detach(|| self.batch.wait(left.map_or(SIGNAL_POLL, |left| left.min(SIGNAL_POLL))));
            py.check_signals()?;
        }
    }

    /// The same for a task: `await` it. Cancelling the task leaves the batch running.
    fn __await__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_process()?;
        let running = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = running.call_method0("create_future")?;
        let waiter = Waiter { event_loop: running.unbind(), future: future.clone().unbind() };
        let ended = {
            let mut completion = lock(&self.batch.completion);
            let ended = completion.result.as_ref().map(|result| copy(py, result));
            if ended.is_none() {
                completion.waiters.push(waiter);
            }
            ended
        };
        match ended {
            Some(Ok(list)) => future.call_method1("set_result", (list,)).map(drop)?,
            Some(Err(error)) => {
                future.call_method1("set_exception", (error.into_value(py),)).map(drop)?
            }
            None => {}
        }
        future.call_method0("__await__").map(Bound::unbind)
    }
}
