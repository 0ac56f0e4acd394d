//! The Python class `Store`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::ObjectKey;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::arguments;
use crate::call::{
    ByteRange, GetArgs, PutArgs, PutKind, Request, get_options, group_options, options,
    put_options, puts, seconds,
};
use crate::closing::{StoreCell, close_on_drop, close_once, is_closed};
use crate::device::{self, BoundDevices, Device};
use crate::errors::{InternalError, UnavailableError, raised};
use crate::events::Event;
use crate::group::Group;
use crate::handle::StoreHandle;
use crate::hint;
use crate::hits::{PagesFound, PoolQuery};
use crate::keys::{Key, Page, keys};
use crate::log;
use crate::opening::{self, OpenReport};
use crate::outcome::{CloseReport, FlushReport, GetOutcome, PutOutcome};
use crate::pin::Pin;
use crate::registered::Registration;
use crate::repr::python_bool;
use crate::sequences::{ListOf, Memories};
use crate::shared;
use crate::stream::Stream;
use crate::submitted::{Queue, Submitted};
use crate::view::View;

/// A store: embedded in this process with memory and, if configured, SSD; or that of a store
/// process that this process is attached to. Any thread may call it, and other threads run during a
/// call.
///
///     with pagelith.Store({"dram": {"bytes": "1GiB"}}) as store:
///         space = pagelith.Namespace("my-model", dtype="bf16", page_tokens=64)
///         keys = [pagelith.Key(space, f"page {n}") for n in range(32)]
///         assert all(store.put(keys, [bytes(65536) for _ in keys]))
///         into = [bytearray(65536) for _ in keys]
///         assert all(store.get(keys, into))
///
/// Arguments that calls share:
///
/// - `keys`: n keys. `sources` and `destinations`: n memories, one for each key. A memory is an
///   object with a contiguous buffer, a tensor in host memory, an (address, length in bytes), or
///   a list of those for an object in pieces. An object has 1 to `opened.object_bytes_max` bytes.
/// - `request`: see `begin_request`. `depth`: pages before the first key in its prompt, which
///   rank it when pages are evicted.
/// - `timeout`: longest duration in seconds, 30 by default (`deadline_ms`).
///
/// `Store(...)` takes a dictionary of settings, or a settings file (.toml, .json); variables
/// PAGELITH_... override them. It raises InvalidError with all problems of the settings,
/// DeniedError if another process has the store open, and IncompatibleError if it was created with
/// other sizes.
///
/// Results are in the order of `keys`. An error of one object is in its outcome. A call raises
/// TypeError, BufferError or InvalidError for an argument that is wrong, ClosedError after `close`,
/// ForkedError in a forked child, and UnavailableError if a device failed or a store process does
/// not answer.
#[pyclass(frozen, module = "pagelith")]
pub struct Store {
    pub(super) store: Arc<StoreCell>,
    pub(super) devices: BoundDevices,
    pub(super) submitted: Queue,
    pub(super) process: u32,
    /// Description of the store, for `repr`.
    pub(super) name: String,
    pub(super) report: Option<Py<OpenReport>>,
}

/// Whether this process is a fork of `process`, and so lacks that process's threads.
pub fn is_forked(process: u32) -> bool {
    std::process::id() != process
}

#[pymethods]
impl Store {
    /// Open a store with a dictionary of settings, or a settings file (.toml, .json); variables
    /// PAGELITH_... override them. `subdirectory` selects directories within `ssd.dirs`. Raises
    /// InvalidError with all problems of the settings, DeniedError if another process has the store
    /// open, IncompatibleError if it was created with other sizes, and NoSpaceError.
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

    /// The report of the open; `None` for an attached store.
    #[getter]
    fn opened(&self) -> Option<&Py<OpenReport>> {
        self.report.as_ref()
    }

    /// The capacity in bytes (`ssd.bytes`) of the store in a directory; `None` without a store.
    #[staticmethod]
    fn bytes_in(#[pyo3(from_py_with = arguments::directory)] directory: PathBuf) -> Option<u64> {
        opening::bytes_in(&directory)
    }

    /// Attach to a store process at `unix:PATH` (or a path), `tcp:HOST:PORT` or `rdma:HOST:PORT`,
    /// authenticated by `key` where it requires that: a name, and a secret or the path of a key
    /// file. `rdma:` is TCP with the transport "rdma": registered memory is moved by RDMA, and a
    /// store without it is an error; with the transport "auto" it is used where both ends have it.
    /// With `may_be_down` it need not be running yet: calls fail with UnavailableError until it is
    /// up.
    ///
    /// Raises UnavailableError if it does not answer, and DeniedError if it refuses the key.
    ///
    ///     store = pagelith.Store.attach("unix:/run/pagelith/socket")
    #[staticmethod]
    #[pyo3(signature = (address, *, key=None, may_be_down=false, transport=None))]
    fn attach(
        py: Python<'_>,
        address: Bound<'_, PyAny>,
        key: Option<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::may_be_down)] may_be_down: bool,
        transport: Option<&str>,
    ) -> PyResult<Store> {
        let (reached, name) = opening::attach(py, &address, key.as_ref(), may_be_down, transport)?;
        Store::of(py, reached, name, None)
    }

    /// Let the attached store process map `length` bytes at `address`, a shared mapping of the
    /// memfd `fd` from its first byte on: puts from there are copied once, and not sent. A memfd
    /// that allows seals (MFD_ALLOW_SEALING) is sealed against shrinking, so that any store can map
    /// it; `pagelith serve` maps other memory, too.
    fn share(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::fd)] fd: u32,
        #[pyo3(from_py_with = arguments::plain_address)] address: usize,
        #[pyo3(from_py_with = arguments::length)] length: usize,
    ) -> PyResult<()> {
        let region = shared::region(py, fd, address, length)?;
        self.with(py, |store| store.share(region))?.map_err(|error| raised(&error))
    }

    /// Register a buffer, tensor or (address, length) for repeated calls: reads from SSD save page
    /// lookups, and a store attached over RDMA reads and writes it directly. It must stay mapped
    /// unchanged until the registration is released, which no call that uses it may outlast.
    fn register(this: &Bound<'_, Store>, memory: &Bound<'_, PyAny>) -> PyResult<Registration> {
        Registration::of(this.get(), memory, this.get().process)
    }

    /// Bind a device that the program has initialised (`torch.cuda.init`), by its name, `cuda:N` or
    /// `npu:N`: puts and gets may then name memory of it, as (device, address, length), a tensor,
    /// or an object with `__cuda_array_interface__`. They begin after the work that `stream` has
    /// then, by default CUDA's default stream, and return when the device is done. Memory of an
    /// Ascend device requires `stream`. An attached store copies through `staging_bytes` of
    /// page-locked memory, 64 MiB by default, which all its devices share.
    #[pyo3(signature = (device, *, staging_bytes=None))]
    fn bind_device(
        &self,
        py: Python<'_>,
        device: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::staging_bytes)] staging_bytes: Option<usize>,
    ) -> PyResult<Device> {
        let device = device::named(arguments::device(device)?)?;
        let handle = self.with(py, |store| store.bind(device, staging_bytes))?;
        let handle = handle.map_err(|error| raised(&error))?;
        self.devices.add(&handle);
        Ok(Device::of(handle, self.process))
    }

    /// Begin a request, for the argument `request`: objects that its calls name count as equally
    /// recent. One request is one prompt.
    fn begin_request(&self, py: Python<'_>) -> PyResult<Request> {
        self.with(py, |store| Request(store.begin_request()))
    }

    /// Put objects individually; returns n outcomes. A key that is stored keeps its bytes: its
    /// outcome is `present`. No thread may write to the memory until the call returns. A full store
    /// is waited for `wait` seconds, by default until `timeout`; then the outcome has a BusyError.
    ///
    ///     for key, outcome in zip(keys, store.put(keys, pages)):
    ///         if not outcome:
    ///             print(key, outcome.state, outcome.error)
    #[pyo3(signature = (keys, sources, *, request=None, depth=0, timeout=None, wait=None, stream=None))]
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
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<Vec<PutOutcome>> {
        let options = put_options(request, depth, timeout, wait)?;
        puts(keys, &sources, &self.with_devices(stream)?, |objects| {
            self.with(py, |store| objects.put(store, &PutKind::Objects, options))
        })
    }

    /// Put the objects of one page as a group: visible together or not at all. Returns one outcome.
    /// With `base`, they are visible only while that object of their page is.
    ///
    ///     store.put_group([kv, draft], [kv_bytes, draft_bytes])
    #[pyo3(signature = (keys, sources, *, base=None, request=None, depth=0, timeout=None, wait=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put_group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::base)] base: Option<ObjectKey>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<PutOutcome> {
        let options = put_options(request, depth, timeout, wait)?;
        let outcomes = puts(keys, &sources, &self.with_devices(stream)?, |objects| {
            self.with(py, |store| objects.put(store, &PutKind::Page(base), options))
        })?;
        let none = || InternalError::new_err("put_group returned no outcome");
        outcomes.into_iter().next().ok_or_else(none)
    }

    /// Put groups, one per page; the objects of a page are adjacent in `keys` and visible together
    /// or not at all. With `base`, a key of any page, they are visible only while that object of
    /// their page is. With `required`, keys of any page, they are parts of groups of those objects:
    /// a page becomes visible with its last part. Returns one outcome per page.
    ///
    ///     keys = [key for page in pages for key in (kv.on_page(page), draft.on_page(page))]
    ///     outcomes = store.put_pages(keys, memories)  # len(pages) outcomes
    #[pyo3(signature = (keys, sources, *, base=None, required=None, request=None, depth=0, timeout=None, wait=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put_pages(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::base)] base: Option<ObjectKey>,
        #[pyo3(from_py_with = arguments::required_or_none)] required: Option<Vec<Bound<'_, Key>>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<Vec<PutOutcome>> {
        let options = put_options(request, depth, timeout, wait)?;
        let kind = group_options(base, required)?;
        puts(keys, &sources, &self.with_devices(stream)?, |objects| {
            self.with(py, |store| objects.put(store, &kind, options))
        })
    }

    /// Begin a group of these objects of one page, which is put in several calls, or join it. It is
    /// dropped if it is not committed within `groups.deadline_ms`.
    ///
    ///     group = store.begin_group([kv, draft])
    ///     group.put([kv], [kv_bytes])
    ///     group.put([draft], [draft_bytes])
    ///     assert group.commit()
    #[pyo3(signature = (required, *, request=None, depth=0, timeout=None))]
    fn begin_group(
        this: &Bound<'_, Store>,
        #[pyo3(from_py_with = arguments::required)] required: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Group> {
        Group::begin(this, keys(required), options(request, depth, timeout)?)
    }

    /// Get objects, or byte ranges (from, to) of them, each into its memory, which must have
    /// exactly the length of the object or range. Returns n outcomes. The content of the memory is
    /// undefined unless it is a hit. No thread may read or write it until the call returns.
    /// `prefill_tokens_per_s` is how many tokens the engine recomputes in a second, by default the
    /// setting `read.prefill_tokens_per_s`: objects on SSD whose load would take longer than that
    /// are misses, if `read.page_tokens` says how many tokens a page has.
    ///
    ///     for outcome in store.get(keys, memories, ranges=[(0, 4096)] * len(keys)):
    ///         print(outcome.tier, outcome.bytes, outcome.cause, outcome.error)
    #[pyo3(signature = (keys, destinations, *, ranges=None, request=None, depth=0, timeout=None, prefill_tokens_per_s=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::destinations)] destinations: Memories<'_>,
        #[pyo3(from_py_with = arguments::ranges)] ranges: Option<ListOf<ByteRange>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::prefill_tokens_per_s)] prefill_tokens_per_s: Option<u64>,
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<Vec<GetOutcome>> {
        let options = get_options(request, depth, timeout, prefill_tokens_per_s)?;
        let mut gets = GetArgs::of(keys, &destinations, ranges, &self.with_devices(stream)?)?;
        let mut batch = gets.lend();
        let outcomes = self.with(py, |store| batch.get(store, options))?;
        Ok(outcomes.into_iter().map(GetOutcome).collect())
    }

    /// Submit a batch of gets to a thread of the store and return at once with its handle. The
    /// memory stays exported until the batch has ended, whether or not the handle is used; no
    /// thread may read or write it until then. `timeout` starts when a thread starts the batch. So
    /// does the wait for `stream`: its object is kept until the batch has ended; a plain number
    /// must stay valid until then.
    ///
    ///     outcomes = await store.submit_get(keys, memories)
    #[pyo3(signature = (keys, destinations, *, ranges=None, request=None, depth=0, timeout=None, prefill_tokens_per_s=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn submit_get(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::destinations)] destinations: Memories<'_>,
        #[pyo3(from_py_with = arguments::ranges)] ranges: Option<ListOf<ByteRange>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::prefill_tokens_per_s)] prefill_tokens_per_s: Option<u64>,
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<Submitted> {
        let options = get_options(request, depth, timeout, prefill_tokens_per_s)?;
        let gets = GetArgs::of(keys, &destinations, ranges, &self.with_devices_later(stream)?)?;
        self.submit(py, gets, move |store, gets| gets.lend().get(store, options), GetOutcome)
    }

    /// Submit a batch of puts, as for `put`. No thread may write to its memory until it has ended.
    /// `stream` is as for `submit_get`.
    ///
    ///     batch = store.submit_put(keys, pages)
    ///     outcomes = batch.result(timeout=5)  # or: await batch
    #[pyo3(signature = (keys, sources, *, request=None, depth=0, timeout=None, wait=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn submit_put(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<Submitted> {
        let options = put_options(request, depth, timeout, wait)?;
        let puts = PutArgs::of(keys, &sources, &self.with_devices_later(stream)?)?;
        self.submit(
            py,
            puts,
            move |store, puts| puts.lend().put(store, &PutKind::Objects, options),
            PutOutcome,
        )
    }

    /// Submit a batch of pages, as for `put_pages`. No thread may write to its memory until it has
    /// ended. `stream` is as for `submit_get`.
    #[pyo3(signature = (keys, sources, *, base=None, required=None, request=None, depth=0, timeout=None, wait=None, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn submit_put_pages(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::sources)] sources: Memories<'_>,
        #[pyo3(from_py_with = arguments::base)] base: Option<ObjectKey>,
        #[pyo3(from_py_with = arguments::required_or_none)] required: Option<Vec<Bound<'_, Key>>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::wait)] wait: Option<f64>,
        #[pyo3(from_py_with = arguments::stream)] stream: Option<Stream>,
    ) -> PyResult<Submitted> {
        let options = put_options(request, depth, timeout, wait)?;
        let kind = group_options(base, required)?;
        let puts = PutArgs::of(keys, &sources, &self.with_devices_later(stream)?)?;
        let put =
            move |store: &StoreHandle, puts: &mut PutArgs| puts.lend().put(store, &kind, options);
        self.submit(py, puts, put, PutOutcome)
    }

    /// Whether each object is stored; n booleans. Peers are asked about the others.
    #[pyo3(signature = (keys, *, request=None, depth=0, timeout=None))]
    fn exists(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        let (keys, options) = (crate::keys::keys(keys), options(request, depth, timeout)?);
        self.with(py, |store| store.exists_batch(&keys, options))?.map_err(|error| raised(&error))
    }

    /// The number of leading `keys` that are stored, 0 to n.
    ///
    ///     hit_pages = store.exists_prefix([kv.on_page(page) for page in prompt])
    #[pyo3(signature = (keys, *, request=None, depth=0, timeout=None))]
    fn exists_prefix(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (keys, options) = (crate::keys::keys(keys), options(request, depth, timeout)?);
        self.with(py, |store| store.exists_prefix(&keys, options))?.map_err(|error| raised(&error))
    }

    /// The longest prefix of `pages` that can be restored from several pools. `anchor` has the
    /// objects of the first pool, as keys of any page; `pools` says for each further pool which
    /// prefix lengths it allows.
    ///
    ///     kv, state = pagelith.Key(space, pages[0]), pagelith.Key(space, pages[0], pool="mamba")
    ///     found = store.exists_groups(pages, [kv], [pagelith.PoolQuery.trailing_pages([state])])
    ///     print(found.usable_pages)
    #[pyo3(signature = (pages, anchor, pools=None, *, request=None, depth=0, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn exists_groups(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::pages)] pages: ListOf<Page>,
        #[pyo3(from_py_with = arguments::anchor)] anchor: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::pools)] pools: Option<ListOf<Bound<'_, PoolQuery>>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<PagesFound> {
        let (anchor, options) = (keys(anchor), options(request, depth, timeout)?);
        let pages: Vec<_> = pages.0.into_iter().map(|page| page.0).collect();
        let pools: Vec<_> =
            pools.iter().flat_map(|pools| &pools.0).map(|pool| pool.get().borrowed()).collect();
        let query = pagelith::PagesQuery { pages: &pages, anchor: &anchor, pools: &pools };
        let found = self.with(py, |store| store.exists_groups(&query, options))?;
        found.map(PagesFound::from).map_err(|error| raised(&error))
    }

    /// Remove objects durably, with their groups. Returns how many were stored. Raises
    /// UnavailableError while a peer cannot be reached, and DeniedError without that right.
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

    /// Make all objects of a namespace invisible for ever. Returns its new generation. Raises as
    /// `remove`.
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

    /// Make every object put so far durable: it survives `kill -9` and power loss. In a store
    /// process, those of all clients. Returns what became durable since the last report. Raises
    /// UnavailableError if the device fails, or once if the store process was restarted and may
    /// have lost puts of this client.
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

    /// Protect objects from eviction and reclaim until the pin is released. Those that are not
    /// stored are left out. Raises BusyError if too much is pinned.
    ///
    ///     with store.pin(keys) as pin:
    ///         print(pin.objects)
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

    /// Protect objects from eviction and reclaim for `seconds`. Returns how many are stored. Raises
    /// BusyError if too much is leased.
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
        let wrong = |_| arguments::invalid_seconds("seconds", &seconds);
        let duration = Duration::try_from_secs_f64(seconds).map_err(wrong)?;
        let leased = self.with(py, |store| store.lease(&keys, duration, options))?;
        leased.map_err(|error| raised(&error))
    }

    /// Views of objects in DRAM, without a copy; `None` for others. An object stays while its view,
    /// or memory of it, exists; in a store process, until the last view of the call is dropped.
    /// Returns n views. A store process is viewed over its Unix socket only.
    ///
    ///     for view in store.view(keys):
    ///         if view is not None:
    ///             print(view.nbytes, bytes(view.memory[:16]))
    #[pyo3(signature = (keys, *, timeout=None))]
    fn view(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<Vec<Option<View>>> {
        let keys = crate::keys::keys(keys);
        let options = options(None, 0, timeout)?;
        let views = self
            .with(py, |store| store.view_batch(&keys, options))?
            .map_err(|error| raised(&error))?;
        Ok(views
            .into_iter()
            .map(|view| view.and_then(|view| View::of(view, self.process)))
            .collect())
    }

    /// A hint: objects on SSD that are not in DRAM are read into DRAM in the background; returns
    /// how many. Name whole groups. Reads not started within `timeout` seconds are skipped.
    #[pyo3(signature = (keys, *, request=None, depth=0, timeout=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = arguments::request)] request: Option<pagelith::RequestEpoch>,
        #[pyo3(from_py_with = arguments::depth)] depth: u32,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let keys = crate::keys::keys(keys);
        let options = options(request, depth, timeout)?;
        let taken = self.with(py, |store| store.prefetch(&keys, options))?;
        taken.map_err(|error| raised(&error))
    }

    /// A hint about the future use of objects of one namespace, given from the head of their
    /// prompt; it changes what leaves first, never what a get returns. Returns how many objects
    /// follow it.
    ///
    ///     store.hint(keys, "retain", 600)
    ///
    /// `"session_ended"`, `"demote"`, `"low_priority"` and `"high_priority"` take no `seconds`;
    /// `"retain"` and `"expected_back"` (within so many seconds) require them. `BusyError`: more
    /// would be retained than a client may lease. docs/policy.md has the effects.
    #[pyo3(signature = (keys, hint, seconds=None, *, timeout=None))]
    fn hint(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::keys)] keys: Vec<Bound<'_, Key>>,
        #[pyo3(from_py_with = hint::name)] hint: String,
        #[pyo3(from_py_with = arguments::seconds_or_none)] seconds: Option<f64>,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<usize> {
        let keys = crate::keys::keys(keys);
        let hint = hint::of(&hint, seconds)?;
        let options = options(None, 0, timeout)?;
        let followed = self.with(py, |store| store.hint(&keys, hint, options))?;
        followed.map_err(|error| raised(&error))
    }

    /// Counters and gauges by name, since the open; docs/operations.md describes each of them.
    /// Those that are counted by cause are dictionaries, those of namespaces dictionaries of rows.
    /// Raises DeniedError if the key has namespaces and lacks the right `operate`.
    ///
    ///     print(store.stats()["hits_memory"], store.stats()["misses"].get("absent", 0))
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self
            .with(py, |store| store.stats(pagelith::Options::default()))?
            .map_err(|error| raised(&error))?;
        py.import("json")?.call_method1("loads", (PyBytes::new(py, stats.as_bytes()),))
    }

    /// The events since the last call: at most `most`, oldest first, and the number of earlier
    /// events dropped since they were not taken in time. Recorded only if the setting `events.max`,
    /// the number kept, is not 0. For a store process, events count from the first call, which
    /// returns none; a restart of the process counts as one dropped event.
    ///
    ///     events, lost = store.take_events()
    #[pyo3(signature = (most=65536, *, timeout=None))]
    fn take_events(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::most)] most: usize,
        #[pyo3(from_py_with = arguments::timeout)] timeout: Option<f64>,
    ) -> PyResult<(Vec<Event>, u64)> {
        let options = options(None, 0, timeout)?;
        let page = self
            .with(py, |store| store.take_events(most, options))?
            .map_err(|error| raised(&error))?;
        Ok((page.events.into_iter().map(Event).collect(), page.lost))
    }

    /// Flush, close and release everything, after calls in progress and submitted batches have
    /// ended. That takes at most `timeout` seconds more, or close_timeout_ms. Reports what is not
    /// durable; `None` if closed before, or for a store process, which keeps running.
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
            self.devices.end(self.process);
            close_once(&self.store, timeout)
        });
        log::deliver(py)?;
        Ok(closed.map(CloseReport::from))
    }

    fn __repr__(&self) -> String {
        let closed = is_forked(self.process) || is_closed(&self.store);
        format!("Store({}, closed={})", self.name, python_bool(closed))
    }

    fn __enter__(this: Py<Store>) -> Py<Store> {
        this
    }

    /// Close the store. UnavailableError if objects are not durable, unless another is raised.
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
        close_on_drop(&self.store, &self.submitted, self.process);
        Python::attach(|py| py.detach(|| self.devices.end(self.process)));
    }
}
