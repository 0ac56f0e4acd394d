//! Calls that do not wait: a batch is handed to threads of its store, and what became of it is asked for, waited for, or awaited.
//!
//! - The memory of a batch is the batch's own: it is let go of when the store has let go of it, where the interpreter's lock is held, whoever has
//!   dropped what meanwhile.
//! - Batches begin in the order in which they were handed over, [`THREADS`] at a time.
//! - A close waits for all of them, and so does the interpreter's end, behind which no thread may ask for its lock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pagelith::io::threads::no_thread;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyList, PyTuple};

use crate::arguments;
use crate::call::seconds;
use crate::errors::{ClosedError, ForkedError, InternalError, raised};
use crate::lent::Lent;
use crate::repr::truth;
use crate::store::is_forked;

/// Batches of one store that are under way at a time; the others wait.
const THREADS: usize = 4;
/// Whoever waits for a batch looks this often whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The queue whose batch this thread makes, by address.
    static WORKS_FOR: Cell<usize> = const { Cell::new(0) };
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The batches of a store that were handed over.
#[derive(Default)]
pub struct Queue(Arc<Work>);

#[derive(Default)]
struct Work {
    state: Mutex<State>,
    came: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
    running: usize,
    closed: bool,
}

impl Queue {
    /// Have a thread do it, after those that came before. `process` is the one whose end waits for it.
    fn push(&self, py: Python<'_>, process: u32, job: Job) -> PyResult<()> {
        if !self.is_used() {
            // Not under the lock, which who has the interpreter's may wait for.
            self.finish_at_exit(py, process)?;
        }
        let mut state = held(&self.0.state);
        if state.closed {
            return Err(ClosedError::new_err("store is closed"));
        }
        if state.idle <= state.waiting.len() && state.threads < THREADS {
            let (work, first) = (self.0.clone(), state.threads == 0);
            let name = format!("pagelith-{}", state.threads);
            let made = std::thread::Builder::new().name(name.clone()).spawn(move || work.go_on());
            match made {
                Ok(_) => state.threads += 1,
                Err(error) if first => return Err(raised(&no_thread(&name, &error).into())),
                Err(_) => {}
            }
        }
        state.waiting.push_back(job);
        self.0.came.notify_one();
        Ok(())
    }

    /// Take no more, and wait until all have ended. Not under the interpreter's lock, which they need.
    pub fn finish(&self) {
        self.0.finish();
    }

    /// Whether anything was ever handed over.
    pub fn is_used(&self) -> bool {
        held(&self.0.state).threads > 0
    }

    fn finish_at_exit(&self, py: Python<'_>, process: u32) -> PyResult<()> {
        let work: Weak<Work> = Arc::downgrade(&self.0);
        let finish = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
            if let (Some(work), false) = (work.upgrade(), is_forked(process)) {
                arguments.py().detach(|| work.finish());
            }
        };
        let finish = PyCFunction::new_closure(py, None, None, finish)?;
        py.import("atexit")?.call_method1("register", (finish,)).map(drop)
    }
}

impl Work {
    /// What a thread does until the queue is closed.
    fn go_on(&self) {
        WORKS_FOR.set(std::ptr::from_ref(self) as usize);
        let mut state = held(&self.state);
        loop {
            if let Some(job) = state.waiting.pop_front() {
                state.running += 1;
                drop(state);
                job();
                state = held(&self.state);
                state.running -= 1;
                self.ended.notify_all();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    fn finish(&self) {
        // Python that runs where a batch ends, such as what is called when its memory goes, does not wait for that batch.
        let mine = usize::from(WORKS_FOR.get() == std::ptr::from_ref(self) as usize);
        let mut state = held(&self.state);
        state.closed = true;
        self.came.notify_all();
        while !state.waiting.is_empty() || state.running > mine {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What became of a batch, and who waits to be told.
#[derive(Default)]
struct Batch {
    told: Mutex<Told>,
    ended: Condvar,
}

#[derive(Default)]
struct Told {
    result: Option<PyResult<Py<PyList>>>,
    waiting: Vec<Waiting>,
}

/// An event loop's future, and the loop.
struct Waiting {
    running: Py<PyAny>,
    future: Py<PyAny>,
}

impl Batch {
    /// What is known, if it has ended.
    fn result(&self, py: Python<'_>) -> Option<PyResult<Py<PyList>>> {
        held(&self.told).result.as_ref().map(|told| copy(py, told))
    }

    /// Whether it has ended, or does within this time.
    fn wait(&self, most: Duration) -> bool {
        let told = held(&self.told);
        let open = |told: &mut Told| told.result.is_none();
        let (told, _) =
            self.ended.wait_timeout_while(told, most, open).unwrap_or_else(PoisonError::into_inner);
        told.result.is_some()
    }

    fn end(&self, py: Python<'_>, result: PyResult<Py<PyList>>) {
        // Before the lock: the first copy of an error makes its exception.
        let kept = copy(py, &result);
        let waiting = {
            let mut told = held(&self.told);
            told.result = Some(kept);
            std::mem::take(&mut told.waiting)
        };
        self.ended.notify_all();
        for one in waiting {
            let told = one.tell(py, &result);
            // A loop that is closed has nobody who waits.
            drop(told);
        }
    }
}

fn copy(py: Python<'_>, result: &PyResult<Py<PyList>>) -> PyResult<Py<PyList>> {
    result.as_ref().map(|list| list.clone_ref(py)).map_err(|error| error.clone_ref(py))
}

impl Waiting {
    /// From another thread than the loop's.
    fn tell(&self, py: Python<'_>, result: &PyResult<Py<PyList>>) -> PyResult<()> {
        let (list, error) = match result {
            Ok(list) => (Some(list.clone_ref(py)), None),
            Err(error) => (None, Some(error.clone_ref(py).into_value(py))),
        };
        let settle = wrap_pyfunction!(settle, py)?;
        self.running.call_method1(py, "call_soon_threadsafe", (settle, &self.future, list, error)).map(drop)
    }
}

/// Tell a future, unless it was cancelled.
#[pyfunction]
fn settle(future: &Bound<'_, PyAny>, list: Option<Py<PyList>>, error: Option<Py<PyAny>>) -> PyResult<()> {
    if future.call_method0("done")?.extract()? {
        return Ok(());
    }
    match error {
        Some(error) => future.call_method1("set_exception", (error,)),
        None => future.call_method1("set_result", (list,)),
    }
    .map(drop)
}

/// A batch that was handed over. It goes on whether or not this is there.
#[pyclass(frozen, module = "pagelith")]
pub struct Submitted {
    batch: Arc<Batch>,
    process: u32,
}

impl Submitted {
    /// Hand `work` over, which needs `lent`, and makes of its outcomes what `told` says. `None` of it is a store that is closed.
    pub fn to<T: 'static, O: Send + 'static, P: for<'py> IntoPyObject<'py> + 'static>(
        queue: &Queue,
        py: Python<'_>,
        process: u32,
        lent: T,
        work: impl FnOnce(&mut T) -> Option<Vec<O>> + Send + 'static,
        told: fn(O) -> P,
    ) -> PyResult<Submitted> {
        let batch = Arc::new(Batch::default());
        let (theirs, mut lent) = (batch.clone(), Lent::of(lent));
        let job = move || {
            let done = catch_unwind(AssertUnwindSafe(|| lent.get().and_then(work)));
            // Nothing where the interpreter is going: what is left is the system's then.
            let _ = Python::try_attach(move |py| {
                let result = match done {
                    Ok(Some(outcomes)) => {
                        let outcomes: Vec<P> = outcomes.into_iter().map(told).collect();
                        PyList::new(py, outcomes).map(Bound::unbind)
                    }
                    Ok(None) => Err(ClosedError::new_err("store is closed")),
                    Err(_) => Err(InternalError::new_err("a batch panicked")),
                };
                // Before anybody is told.
                drop(lent);
                theirs.end(py, result);
            });
        };
        queue.push(py, process, Box::new(job))?;
        Ok(Submitted { batch, process })
    }

    fn check_process(&self) -> PyResult<()> {
        match is_forked(self.process) {
            true => Err(ForkedError::new_err(
                "the batch was handed over before a fork, and is the other process's",
            )),
            false => Ok(()),
        }
    }
}

#[pymethods]
impl Submitted {
    /// Whether it has ended.
    fn done(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(held(&self.batch.told).result.is_some())
    }

    fn __repr__(&self) -> String {
        // Of another process's batch nothing more is heard, and its lock may be held for ever here.
        let done = !is_forked(self.process) && held(&self.batch.told).result.is_some();
        format!("Submitted(done={})", truth(done))
    }

    /// What became of each of its objects, as soon as it has ended. Raises `TimeoutError` if that takes longer than `timeout` seconds, or what a
    /// signal's handler raises; the batch goes on then, and can be asked again.
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
                return Err(PyTimeoutError::new_err("the batch is under way"));
            }
            py.detach(|| self.batch.wait(left.map_or(LOOK, |left| left.min(LOOK))));
            py.check_signals()?;
        }
    }

    /// The same for a task: `await` it. A task that is cancelled meanwhile leaves the batch as it is.
    fn __await__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_process()?;
        let running = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = running.call_method0("create_future")?;
        let waiting = Waiting { running: running.unbind(), future: future.clone().unbind() };
        let ended = {
            let mut told = held(&self.batch.told);
            let ended = told.result.as_ref().map(|result| copy(py, result));
            if ended.is_none() {
                told.waiting.push(waiting);
            }
            ended
        };
        match ended {
            Some(Ok(list)) => future.call_method1("set_result", (list,)).map(drop)?,
            Some(Err(error)) => future.call_method1("set_exception", (error.into_value(py),)).map(drop)?,
            None => {}
        }
        future.call_method0("__await__").map(Bound::unbind)
    }
}
