//! A store in this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::ObjectKey;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::arguments;
use crate::call::{Gets, Puts, Request, Span, options, put_options, put_pages, puts, seconds, together};
use crate::closing::{Held, close_once, end, is_closed};
use crate::errors::{InternalError, UnavailableError, raised};
use crate::events::Event;
use crate::given::{Listed, Memories};
use crate::group::Group;
use crate::hits::{PagesFound, PoolQuery};
use crate::keys::{Key, Page, keys};
use crate::log;
use crate::opening::{self, OpenReport};
use crate::outcome::{CloseReport, FlushReport, GetOutcome, PutOutcome};
use crate::pin::Pin;
use crate::reached::Reached;
use crate::registered::Registration;
use crate::repr::truth;
use crate::shared;
use crate::submitted::{Queue, Submitted};
use crate::view::View;

/// A store in this process: memory, and SSD if it is configured; or another process's that this one is attached to. Any
/// thread may call it.
#[pyclass(frozen, module = "pagelith")]
pub struct Store {
    pub(super) store: Arc<Held>,
    pub(super) submitted: Queue,
    pub(super) process: u32,
    /// What it is, as it shows itself.
    pub(super) name: String,
    pub(super) report: Option<Py<OpenReport>>,
}

/// Whether this is a fork of the process in which something was opened: its threads are not here.
pub fn is_forked(process: u32) -> bool {
    std::process::id() != process
}

#[pymethods]
impl Store {
    /// Open a store. `config` is a dictionary of settings, or a path of a file of them (.toml or .json); variables
    /// PAGELITH_... of the environment go before both. With `subdirectory` it lies in the directories of that name below `ssd.dirs`.
    #[new]
    #[pyo3(signature = (config=None, *, subdirectory=None))]
    fn new(
        py: Python<'_>,
        config: Option<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::subdirectory)] subdirectory: Option<PathBuf>,
    ) -> PyResult<Store> {
        let (reached, name, report) = opening::open(py, config.as_ref(), subdirectory)?;
        Store::of(py, reached, name, Some(report))
    }

    /// What opening the store found; `None` of another process's.
    #[getter]
    fn opened(&self) -> Option<&Py<OpenReport>> {
        self.report.as_ref()
    }

    /// With how many bytes (`ssd.bytes`) the store was made that lies in a directory; `None` if there is none.
    #[staticmethod]
    fn bytes_in(#[pyo3(from_py_with = arguments::directory)] directory: PathBuf) -> Option<u64> {
        opening::bytes_in(&directory)
    }

    /// Attach to the store of another process, at `unix:PATH` (or a path) or `tcp:HOST:PORT`, which knows this one by `key`, a name and a
    /// secret, where it demands one. With `may_be_down` also if nobody answers there: calls fail with UnavailableError until it is up.
    #[staticmethod]
    #[pyo3(signature = (address, *, key=None, may_be_down=false))]
    fn attach(
        py: Python<'_>,
        address: Bound<'_, PyAny>,
        key: Option<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::may_be_down)] may_be_down: bool,
    ) -> PyResult<Store> {
        let (reached, name) = opening::attach(py, &address, key.as_ref(), may_be_down)?;
        Store::of(py, reached, name, None)
    }

    /// Let the store process that this is attached to look at `length` bytes at `address`, which are a shared mapping of the memfd `fd`
    /// from its first byte on: what is put from there is copied once, and not sent. A memfd that allows seals (MFD_ALLOW_SEALING) is sealed
    /// against becoming shorter, so that any store can map it: `pagelith serve` maps other memory, too.
    fn share(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::fd)] fd: u32,
        #[pyo3(from_py_with = arguments::address_alone)] address: usize,
        #[pyo3(from_py_with = arguments::length)] length: usize,
    ) -> PyResult<()> {
        let region = shared::region(py, fd, address, length)?;
        self.with(py, |store| store.share(region))?.map_err(|error| raised(&error))
    }

    /// Say that gets will read into this memory over and over, such as a host pool: a buffer, a tensor, or an (address, length).
    /// Reads from SSD then need not look its pages up. Until it is released the memory has to stay mapped as it is now.
    fn register(this: &Bound<'_, Store>, memory: &Bound<'_, PyAny>) -> PyResult<Registration> {
        Registration::of(this.get(), memory, this.get().process)
    }

    /// Begin a request: calls that carry it count as equally recent.
    fn begin_request(&self, py: Python<'_>) -> PyResult<Request> {
        self.with(py, |store| Request(store.begin_request()))
    }

    /// Put objects, each by itself, and say of each what became of it. Nobody may write their memory until it returns.
    /// For room in a full store it waits `wait` seconds, by default until its `timeout`.
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
        puts(keys, &sources, |objects| self.with(py, |store| store.put(&objects.slices(), options)))
    }

    /// Put the objects of one page together: visible together or not at all. One outcome for all of them.
    #[pyo3(signature = (keys, sources, *, base=None, request=None, depth=0, timeout=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put_group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::base)] base: Option<ObjectKey>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<PutOutcome> {
        let options = put_options(request, depth, timeout, wait)?;
        let outcomes = puts(keys, &sources, |objects| {
            self.with(py, |store| store.put_pages(base, &[&objects.slices()], options))
        })?;
        let none = || InternalError::new_err("a group was put and has no outcome");
        outcomes.into_iter().next().ok_or_else(none)
    }

    /// Put objects of several pages, those of a page next to each other: visible together or not at all. With `base`, a key
    /// of any page, they are visible only with that object of their page; with `required`, keys of any page, they are parts
    /// of groups that consist of those objects, and a page is visible once its last part is put. One outcome a page.
    #[pyo3(signature = (keys, sources, *, base=None, required=None, request=None, depth=0, timeout=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put_pages(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::base)] base: Option<ObjectKey>,
        #[pyo3(from_py_with = arguments::required_or_none)] required: Option<Vec<Bound<'_, Key>>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<Vec<PutOutcome>> {
        let options = put_options(request, depth, timeout, wait)?;
        let (base, required) = together(base, required)?;
        puts(keys, &sources, |objects| {
            self.with(py, |store| put_pages(store, &objects, base, required.as_deref(), options))
        })
    }

    /// Begin a group that is put in several calls, or join it.
    #[pyo3(signature = (required, *, request=None, depth=0, timeout=None))]
    fn begin_group(
        this: &Bound<'_, Store>,
        #[pyo3(from_py_with = arguments::required)] required: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Group> {
        Group::begin(this, keys(required), options(request, depth, timeout)?)
    }

    /// Get objects, or ranges (from, to) of their bytes, each into its memory; that holds anything unless it is a hit. Nobody
    /// may read or write the memory until it returns.
    #[pyo3(signature = (keys, destinations, *, ranges=None, request=None, depth=0, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::destinations)] destinations: Memories<'_>,
        #[pyo3(from_py_with = arguments::ranges)] ranges: Option<Listed<Span>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<GetOutcome>> {
        let options = options(request, depth, timeout)?;
        let mut gets = Gets::of(keys, &destinations, ranges)?;
        let mut lent = gets.lend();
        let outcomes = self.with(py, |store| lent.get(store, options))?;
        Ok(outcomes.into_iter().map(GetOutcome).collect())
    }

    /// Hand a batch of gets to a thread of the store's own, and go on at once: what became of it is asked of what this returns. The memory is
    /// held until the batch has ended, whether or not anybody asks; nobody may read or write it until then. `timeout` counts from when a
    /// thread begins it.
    #[pyo3(signature = (keys, destinations, *, ranges=None, request=None, depth=0, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn submit_get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::destinations)] destinations: Memories<'_>,
        #[pyo3(from_py_with = arguments::ranges)] ranges: Option<Listed<Span>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Submitted> {
        let options = options(request, depth, timeout)?;
        let gets = Gets::of(keys, &destinations, ranges)?;
        self.submit(py, gets, move |store, gets| gets.lend().get(store, options), GetOutcome)
    }

    /// The same of a batch of puts. Nobody may write its memory until it has ended.
    #[pyo3(signature = (keys, sources, *, request=None, depth=0, timeout=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn submit_put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<Submitted> {
        let options = put_options(request, depth, timeout, wait)?;
        let puts = Puts::of(keys, &sources)?;
        self.submit(py, puts, move |store, puts| store.put(&puts.lend().slices(), options), PutOutcome)
    }

    /// The same of pages, as `put_pages` puts them.
    #[pyo3(signature = (keys, sources, *, base=None, required=None, request=None, depth=0, timeout=None, wait=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn submit_put_pages(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::base)] base: Option<ObjectKey>,
        #[pyo3(from_py_with = arguments::required_or_none)] required: Option<Vec<Bound<'_, Key>>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
    ) -> PyResult<Submitted> {
        let options = put_options(request, depth, timeout, wait)?;
        let (base, required) = together(base, required)?;
        let puts = Puts::of(keys, &sources)?;
        let put = move |store: &Reached, puts: &mut Puts| {
            put_pages(store, &puts.lend(), base, required.as_deref(), options)
        };
        self.submit(py, puts, put, PutOutcome)
    }

    /// Which objects are here.
    #[pyo3(signature = (keys, *, request=None, depth=0, timeout=None))]
    fn exists(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        let (keys, options) = (crate::keys::keys(keys), options(request, depth, timeout)?);
        self.with(py, |store| store.exists(&keys, options))?.map_err(|error| raised(&error))
    }

    /// How many of `keys` are here before the first that is not.
    #[pyo3(signature = (keys, *, request=None, depth=0, timeout=None))]
    fn exists_prefix(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (keys, options) = (crate::keys::keys(keys), options(request, depth, timeout)?);
        self.with(py, |store| store.exists_prefix(&keys, options))?.map_err(|error| raised(&error))
    }

    /// How long a prefix of `pages` can be restored when a page's state lies in several pools.
    #[pyo3(signature = (pages, anchor, pools=None, *, request=None, depth=0, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn exists_groups(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::pages)] pages: Listed<Page>,
        #[pyo3(from_py_with = arguments::anchor)] anchor: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::pools)] pools: Option<Listed<Bound<'_, PoolQuery>>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<PagesFound> {
        let (anchor, options) = (keys(anchor), options(request, depth, timeout)?);
        let pages: Vec<_> = pages.0.into_iter().map(|page| page.0).collect();
        let pools: Vec<_> = pools.iter().flat_map(|pools| &pools.0).map(|pool| pool.get().lent()).collect();
        let query = pagelith::PagesQuery { pages: &pages, anchor: &anchor, pools: &pools };
        let found = self.with(py, |store| store.exists_groups(&query, options))?;
        found.map(PagesFound::from).map_err(|error| raised(&error))
    }

    /// Remove objects, with the others of their groups; how many were here. They stay gone.
    #[pyo3(signature = (keys, *, timeout=None))]
    fn remove(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (keys, options) = (crate::keys::keys(keys), options(None, 0, timeout)?);
        self.with(py, |store| store.remove(&keys, options))?.map_err(|error| raised(&error))
    }

    /// Make everything in a namespace invisible for ever; its new generation.
    #[pyo3(signature = (namespace, *, timeout=None))]
    fn clear(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::namespace)] namespace: NamespaceId,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<u64> {
        let options = options(None, 0, timeout)?;
        let cleared = self.with(py, |store| store.clear(namespace, options))?;
        cleared.map(|generation| generation.0).map_err(|error| raised(&error))
    }

    /// Make everything put so far durable.
    #[pyo3(signature = (*, timeout=None))]
    fn flush(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<FlushReport> {
        let options = options(None, 0, timeout)?;
        let report = self.with(py, |store| store.flush(options))?;
        log::deliver(py)?;
        report.map(FlushReport::from).map_err(|error| raised(&error))
    }

    /// Keep objects from being evicted and reclaimed until the pin is released.
    #[pyo3(signature = (keys, *, timeout=None))]
    fn pin(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Pin> {
        let keys = crate::keys::keys(keys);
        let options = options(None, 0, timeout)?;
        let pin = self.with(py, |store| store.pin(&keys, options))?;
        pin.map(|pin| Pin::of(pin, self.process)).map_err(|error| raised(&error))
    }

    /// The same for some seconds; how many of the objects are here.
    #[pyo3(signature = (keys, seconds, *, timeout=None))]
    fn lease(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::seconds)] seconds: f64,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let keys = crate::keys::keys(keys);
        let options = options(None, 0, timeout)?;
        let wrong = |_| arguments::no_time("seconds", &seconds);
        let duration = Duration::try_from_secs_f64(seconds).map_err(wrong)?;
        let here = self.with(py, |store| store.lease(&keys, duration, options))?;
        here.map_err(|error| raised(&error))
    }

    /// Look at objects where they lie in DRAM, without a copy; `None` for what is not there. They stay there as long as somebody has a
    /// view, or memory that was taken of it; of a store process those of one call until the last of them goes.
    #[pyo3(signature = (keys, *, timeout=None))]
    fn view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<Option<View>>> {
        let keys = crate::keys::keys(keys);
        let options = options(None, 0, timeout)?;
        let views = self.with(py, |store| store.view(&keys, options))?.map_err(|error| raised(&error))?;
        Ok(views.into_iter().map(|view| view.and_then(|view| View::of(view, self.process))).collect())
    }

    /// Say that these objects will be asked for soon: what is on SSD and not in DRAM is read into DRAM in the background; how many
    /// that are. Objects that were put together go together: name all of them. A hint promises nothing; what is not begun within
    /// `timeout` seconds is not read any more.
    #[pyo3(signature = (keys, *, request=None, depth=0, timeout=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::Request>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let keys = crate::keys::keys(keys);
        let options = options(request, depth, timeout)?;
        let taken = self.with(py, |store| store.prefetch(&keys, options))?;
        taken.map_err(|error| raised(&error))
    }

    /// Counters, by name; docs/operations.md says what each of them is.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.with(py, |store| store.stats())?.map_err(|error| raised(&error))?;
        py.import("json")?.call_method1("loads", (PyBytes::new(py, stats.as_bytes()),))
    }

    /// What came and went since it was asked last: at most `most` events, the oldest first, and how many before them were dropped
    /// because nobody took them in time. None is noted unless the setting `events.max` says how many to keep. Of another process's
    /// store: since the first call, which brings none; a process that was started again counts as one that was dropped.
    #[pyo3(signature = (most=65536, *, timeout=None))]
    fn take_events(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::most)] most: usize,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<(Vec<Event>, u64)> {
        let options = options(None, 0, timeout)?;
        let told =
            self.with(py, |store| store.take_events(most, options))?.map_err(|error| raised(&error))?;
        Ok((told.events.into_iter().map(Event).collect(), told.lost))
    }

    /// Flush, close and release everything, once every call under way has returned and every batch handed over has ended. What comes
    /// then takes at most `timeout` seconds, or the setting close_timeout_ms; the report says what is not durable. `None` if it was
    /// closed before, or is another process's, which goes on.
    #[pyo3(signature = (*, timeout=None))]
    fn close(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Option<CloseReport>> {
        self.check_process()?;
        let timeout = seconds("timeout", timeout)?;
        let closed = py.detach(|| {
            self.submitted.finish();
            close_once(&self.store, timeout)
        });
        log::deliver(py)?;
        Ok(closed.map(CloseReport::from))
    }

    fn __repr__(&self) -> String {
        let closed = is_forked(self.process) || is_closed(&self.store);
        format!("Store({}, closed={})", self.name, truth(closed))
    }

    fn __enter__(this: Py<Store>) -> Py<Store> {
        this
    }

    /// Close it. UnavailableError if something is not durable, unless another exception is on its way.
    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        let report = self.close(py, None)?;
        let loss = report.as_ref().and_then(CloseReport::loss);
        match loss {
            Some(why) if raised.get_item(0).is_ok_and(|kind| kind.is_none()) => {
                Err(UnavailableError::new_err(format!("not everything is durable: {why}")))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        end(&self.store, &self.submitted, self.process);
    }
}
