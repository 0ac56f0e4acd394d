//! Keys and namespaces.

use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, ParseKeyError, Role};
use pagelith::layouts::namespace::{LayerRange, Namespace as NamespaceFields, opaque_hash};
use pagelith::layouts::shard::Shard;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::arguments::{self, wrong_type};
use crate::errors::InvalidError;
use crate::sequences::{ByteString, ListOf};

/// The sharing boundary of pages: two namespaces that differ in any field never see each other's
/// pages. An immutable value: equal ones are interchangeable, and it can be copied, pickled and
/// sorted.
///
///     pagelith.Namespace("my-model", revision="main", dtype="bf16", page_tokens=64)
///
/// `page_tokens` is the number of tokens of a page, `layout` and `layout_version` name the order of
/// its bytes, `layer_split` has the (first, end) layers of each pipeline stage, and `extra` further
/// (name, value) pairs.
#[pyclass(frozen, eq, ord, hash, module = "pagelith")]
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(pub NamespaceId);

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (model, *, tenant="", revision="", dtype="", page_tokens=0, layout="", layout_version=0,
        layer_split=None, extra=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        #[pyo3(from_py_with = arguments::model)] model: &str,
        #[pyo3(from_py_with = arguments::tenant)] tenant: &str,
        #[pyo3(from_py_with = arguments::revision)] revision: &str,
        #[pyo3(from_py_with = arguments::dtype)] dtype: &str,
        #[pyo3(from_py_with = arguments::page_tokens)] page_tokens: u32,
        #[pyo3(from_py_with = arguments::layout)] layout: &str,
        #[pyo3(from_py_with = arguments::layout_version)] layout_version: u32,
        #[pyo3(from_py_with = arguments::layer_split)] layer_split: Option<ListOf<(u32, u32)>>,
        #[pyo3(from_py_with = arguments::extra)] extra: Option<ListOf<(String, String)>>,
    ) -> Namespace {
        let fields = NamespaceFields {
            tenant: tenant.into(),
            model: model.into(),
            revision: revision.into(),
            dtype: dtype.into(),
            page_tokens,
            layout: layout.into(),
            layout_version,
            layer_split: layer_split
                .into_iter()
                .flat_map(|split| split.0)
                .map(|(from, to)| LayerRange { from, to })
                .collect(),
            extra: extra.map(|extra| extra.0).unwrap_or_default(),
        };
        Namespace(fields.id())
    }

    /// The fingerprint, 16 bytes; equal for equal fields in every process.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.0)
    }

    /// The namespace with this fingerprint, as returned by `id`.
    #[staticmethod]
    fn of_id(#[pyo3(from_py_with = arguments::id)] id: &[u8]) -> PyResult<Namespace> {
        let wrong = |_| InvalidError::new_err(format!("id must have 16 bytes length={}", id.len()));
        id.try_into().map(|id| Namespace(NamespaceId(id))).map_err(wrong)
    }

    fn __reduce__<'py>(this: &Bound<'py, Namespace>) -> PyResult<PickleCall<'py>> {
        let constructor = this.get_type().getattr("of_id")?;
        Ok((constructor, (this.get().id(this.py()).into_any(),)))
    }

    fn __copy__(this: Py<Namespace>) -> Py<Namespace> {
        this
    }

    fn __deepcopy__(this: Py<Namespace>, _copied: &Bound<'_, PyAny>) -> Py<Namespace> {
        this
    }

    fn __repr__(&self) -> String {
        format!("Namespace(id={})", self.0)
    }
}

/// The result of `__reduce__`: a callable and its arguments.
type PickleCall<'py> = (Bound<'py, PyAny>, (Bound<'py, PyAny>,));

/// The name of an object: namespace, page, role (target or draft), pool, component and shard. An
/// immutable value, as a namespace is; `str` returns its text.
///
///     pagelith.Key(space, page_hash, pool="kv", component="k", shard="rank.tp1of4")
///
/// `page` is the page's prefix hash: 32 bytes, or a string of any length, which is hashed. Raises
/// InvalidError for a name that is too long or has other characters than A-Z a-z 0-9 _ - .
#[pyclass(frozen, eq, ord, hash, module = "pagelith")]
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub ObjectKey);

#[pymethods]
impl Key {
    /// `page` is the page's prefix hash: 32 bytes, or a string of any length, which is hashed.
    #[new]
    #[pyo3(signature = (namespace, page, *, pool="kv", component="kv", draft=false, shard="whole"))]
    fn new(
        #[pyo3(from_py_with = arguments::namespace)] namespace: NamespaceId,
        page: Page,
        #[pyo3(from_py_with = arguments::pool)] pool: &str,
        #[pyo3(from_py_with = arguments::component)] component: &str,
        #[pyo3(from_py_with = arguments::draft)] draft: bool,
        #[pyo3(from_py_with = arguments::shard)] shard: &str,
    ) -> PyResult<Key> {
        let role = if draft { Role::Draft } else { Role::Target };
        let shard = Shard::parse(shard)
            .ok_or_else(|| InvalidError::new_err(format!("shard is not valid shard={shard:?}")))?;
        let key = ObjectKey::new(namespace, page.0, role, pool, component, shard);
        key.map(Key).map_err(|error| InvalidError::new_err(error.to_string()))
    }

    /// The key of the same object for another page.
    fn on_page(&self, page: Page) -> Key {
        Key(self.0.on_page(page.0))
    }

    /// The keys of the same object for several pages.
    fn on_pages(&self, #[pyo3(from_py_with = arguments::pages)] pages: ListOf<Page>) -> Vec<Key> {
        pages.0.into_iter().map(|page| Key(self.0.on_page(page.0))).collect()
    }

    /// The prefix hash of its page, 32 bytes.
    #[getter]
    fn page<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.hash().0)
    }

    /// Its namespace.
    #[getter]
    fn namespace(&self) -> Namespace {
        Namespace(self.0.namespace())
    }

    /// The kind of state, such as `kv`.
    #[getter]
    fn pool(&self) -> &str {
        self.0.pool()
    }

    /// The part of the pool, such as `k`.
    #[getter]
    fn component(&self) -> &str {
        self.0.component()
    }

    /// Whether it is of the draft model.
    #[getter]
    fn draft(&self) -> bool {
        self.0.role() == Role::Draft
    }

    /// `whole`, or the share of one rank.
    #[getter]
    fn shard(&self) -> String {
        self.0.shard().to_string()
    }

    /// The key with this text, as returned by `str`: `NAMESPACE/PAGE/[d:]POOL/COMPONENT/SHARD`, the
    /// first two in hexadecimal digits.
    #[staticmethod]
    fn parse(#[pyo3(from_py_with = arguments::text)] text: &str) -> PyResult<Key> {
        text.parse()
            .map(Key)
            .map_err(|error: ParseKeyError| InvalidError::new_err(error.to_string()))
    }

    fn __reduce__<'py>(this: &Bound<'py, Key>) -> PyResult<PickleCall<'py>> {
        let constructor = this.get_type().getattr("parse")?;
        Ok((constructor, (this.str()?.into_any(),)))
    }

    fn __copy__(this: Py<Key>) -> Py<Key> {
        this
    }

    fn __deepcopy__(this: Py<Key>, _copied: &Bound<'_, PyAny>) -> Py<Key> {
        this
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Key({})", self.0)
    }
}

/// The prefix hash of a page, as an argument.
pub struct Page(pub PrefixHash);

impl<'a, 'py> FromPyObject<'a, 'py> for Page {
    type Error = PyErr;

    fn extract(arg: Borrowed<'a, 'py, PyAny>) -> PyResult<Page> {
        if arg.is_instance_of::<PyString>() {
            return Ok(Page(opaque_hash(arguments::text_of("page", &arg)?.as_bytes())));
        }
        let ByteString(bytes) = arg.extract().map_err(|error: PyErr| {
            match error.is_instance_of::<PyTypeError>(arg.py()) {
                true => wrong_type("page", "32 bytes, or a string, which is hashed", &arg),
                false => error,
            }
        })?;
        let hash = <[u8; 32]>::try_from(bytes.as_slice());
        let wrong =
            |_| InvalidError::new_err(format!("a page's hash has 32 bytes length={}", bytes.len()));
        hash.map(|hash| Page(PrefixHash(hash))).map_err(wrong)
    }
}

/// The keys of a call, in the engine's form.
pub fn keys(arg: Vec<Bound<'_, Key>>) -> Vec<ObjectKey> {
    arg.iter().map(|key| key.get().0).collect()
}
