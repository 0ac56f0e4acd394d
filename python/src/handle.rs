//! The store of a Python object: embedded in this process, or attached in a store process.

use std::sync::Arc;
use std::time::Duration;

use pagelith::client::{self, Client};
use pagelith::io::shm::SharedRegion;
use pagelith::layouts::ids::{Generation, NamespaceId};
use pagelith::layouts::key::ObjectKey;
use pagelith::transport::dial::SocketDial;
use pagelith::{
    CloseReport, Error, ErrorKind, Events, FlushReport, GetOutcome, GetSlice, Options, PagesFound,
    PagesQuery, Pin, PutOutcome, PutSlice, Registration, RequestEpoch, Result, Store, View,
};

/// Longest call to a store process that names no timeout: the default of an embedded store, too.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A pin of either kind of store.
pub enum PinHandle {
    Embedded(Pin),
    Attached(client::Pin),
}

impl PinHandle {
    pub fn pinned(&self) -> usize {
        match self {
            PinHandle::Embedded(pin) => pin.pinned(),
            PinHandle::Attached(pin) => pin.pinned(),
        }
    }

    pub fn is_held(&self) -> bool {
        match self {
            PinHandle::Embedded(_) => true,
            PinHandle::Attached(pin) => pin.is_held(),
        }
    }
}

/// A view of either kind of store.
pub enum ViewHandle {
    Embedded(View),
    Attached(client::View),
}

impl ViewHandle {
    pub fn len(&self) -> usize {
        match self {
            ViewHandle::Embedded(view) => view.len(),
            ViewHandle::Attached(view) => view.len(),
        }
    }

    pub fn address(&self) -> Option<usize> {
        match self {
            ViewHandle::Embedded(view) => Some(view.as_ptr() as usize),
            ViewHandle::Attached(view) => view.as_ptr().map(|at| at as usize),
        }
    }

    pub fn is_held(&self) -> bool {
        match self {
            ViewHandle::Embedded(_) => true,
            ViewHandle::Attached(view) => view.is_held(),
        }
    }
}

pub enum StoreHandle {
    Embedded(Box<Store>),
    Attached(Box<Client>),
}

impl StoreHandle {
    /// Attach to a store process; with `may_be_down` also to one that is not running yet.
    pub fn attach(dial: SocketDial, may_be_down: bool) -> Result<StoreHandle> {
        let attach = if may_be_down { Client::expecting_over } else { Client::over };
        attach(dial, TIMEOUT).map(|attached| StoreHandle::Attached(Box::new(attached)))
    }

    /// Map this process's memory into the store process; an embedded store needs no mapping.
    pub fn share(&self, region: SharedRegion) -> Result<()> {
        match self {
            StoreHandle::Embedded(_) => Ok(()),
            StoreHandle::Attached(store) => store.share(Arc::new(region)),
        }
    }

    /// Register memory with an embedded store's device, which saves page lookups in reads; or with
    /// the RDMA devices of a client, so that the store process writes into it.
    pub fn register(&self, base: *const u8, len: usize) -> Result<Registration> {
        match self {
            StoreHandle::Embedded(store) => store.register_memory(base, len),
            StoreHandle::Attached(store) => {
                store.register_memory(base, len).map(Registration::from)
            }
        }
    }

    pub fn take_events(&self, most: usize, options: Options) -> Result<Events> {
        match self {
            StoreHandle::Embedded(store) => Ok(store.take_events(most)),
            StoreHandle::Attached(store) => store.take_events(most, options),
        }
    }

    pub fn begin_request(&self) -> RequestEpoch {
        match self {
            StoreHandle::Embedded(store) => store.begin_request(),
            StoreHandle::Attached(store) => store.begin_request(),
        }
    }

    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        match self {
            StoreHandle::Embedded(store) => store.put_batch(objects, options),
            StoreHandle::Attached(store) => store.put_batch(objects, options),
        }
    }

    /// Put one group per page, attached to the bases of their pages if `base` is present.
    pub fn put_pages(
        &self,
        base: Option<ObjectKey>,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let Some(base) = base else {
            return match self {
                StoreHandle::Embedded(store) => store.put_groups(groups, options),
                StoreHandle::Attached(store) => store.put_groups(groups, options),
            };
        };
        let on_page = |group: &PutSlice<'_>| base.on_page(group.key.hash());
        let based = |group: &&'_ [PutSlice<'_>]| group.first().map_or(base, on_page);
        let groups: Vec<_> = groups.iter().map(|group| (based(group), *group)).collect();
        match self {
            StoreHandle::Embedded(store) => store.put_attached(&groups, options),
            StoreHandle::Attached(store) => store.put_attached(&groups, options),
        }
    }

    /// Put parts of groups, one group per page.
    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        match self {
            StoreHandle::Embedded(store) => store.put_parts(required, parts, options),
            StoreHandle::Attached(store) => store.put_parts(required, parts, options),
        }
    }

    pub fn get(&self, gets: &mut [GetSlice<'_, '_>], options: Options) -> Vec<Result<GetOutcome>> {
        match self {
            StoreHandle::Embedded(store) => store.get_batch(gets, options),
            StoreHandle::Attached(store) => store.get_batch(gets, options),
        }
    }

    pub fn exists(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<bool>> {
        match self {
            StoreHandle::Embedded(store) => Ok(store.exists_batch(keys, options)),
            StoreHandle::Attached(store) => store.exists_batch(keys, options),
        }
    }

    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match self {
            StoreHandle::Embedded(store) => Ok(store.exists_prefix(keys, options)),
            StoreHandle::Attached(store) => store.exists_prefix(keys, options),
        }
    }

    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        match self {
            StoreHandle::Embedded(store) => store.exists_groups(query, options),
            StoreHandle::Attached(store) => store.exists_groups(query, options),
        }
    }

    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match self {
            StoreHandle::Embedded(store) => store.remove(keys, options),
            StoreHandle::Attached(store) => store.remove(keys, options),
        }
    }

    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        match self {
            StoreHandle::Embedded(store) => store.clear(namespace, options),
            StoreHandle::Attached(store) => store.clear(namespace, options),
        }
    }

    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        match self {
            StoreHandle::Embedded(store) => store.flush(options),
            StoreHandle::Attached(store) => store.flush(options),
        }
    }

    pub fn pin(&self, keys: &[ObjectKey], options: Options) -> Result<PinHandle> {
        match self {
            StoreHandle::Embedded(store) => Ok(PinHandle::Embedded(store.pin(keys))),
            StoreHandle::Attached(store) => store.pin(keys, options).map(PinHandle::Attached),
        }
    }

    pub fn lease(&self, keys: &[ObjectKey], duration: Duration, options: Options) -> Result<usize> {
        match self {
            StoreHandle::Embedded(store) => Ok(store.lease(keys, duration)),
            StoreHandle::Attached(store) => store.lease(keys, duration, options),
        }
    }

    pub fn view(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<Option<ViewHandle>>> {
        match self {
            StoreHandle::Embedded(store) => keys
                .iter()
                .map(|key| store.view(key).map(|view| view.map(ViewHandle::Embedded)))
                .collect(),
            StoreHandle::Attached(store) => {
                let views = store.view_batch(keys, options)?;
                Ok(views.into_iter().map(|view| view.map(ViewHandle::Attached)).collect())
            }
        }
    }

    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match self {
            StoreHandle::Embedded(store) => Ok(store.prefetch(keys, options)),
            StoreHandle::Attached(store) => store.prefetch(keys, options),
        }
    }

    /// Counters, as JSON.
    pub fn stats(&self) -> Result<String> {
        let failed = |error: serde_json::Error| internal(error.to_string());
        match self {
            StoreHandle::Embedded(store) => serde_json::to_string(&store.stats()).map_err(failed),
            StoreHandle::Attached(store) => store.stats(Options::default()),
        }
    }

    /// Close within `timeout`, or the configured time. A client that detaches flushes nothing.
    pub fn close(self, timeout: Option<Duration>) -> Option<CloseReport> {
        match self {
            StoreHandle::Embedded(store) => {
                let timeout = timeout.unwrap_or_else(|| store.close_timeout());
                Some(store.close_within(timeout))
            }
            StoreHandle::Attached(_) => None,
        }
    }
}

fn internal(message: String) -> Error {
    Error { kind: ErrorKind::Internal, message, errno: None }
}
