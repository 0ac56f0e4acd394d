//! The store that a Python object stands for: this process's own, or another process's that it is attached to.

use std::sync::Arc;
use std::time::Duration;

use pagelith::attach::{self, Attached};
use pagelith::io::shm::Region;
use pagelith::layouts::ids::{Generation, NamespaceId};
use pagelith::layouts::key::ObjectKey;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use pagelith::{
    CloseReport, Error, ErrorKind, Events, FlushReport, GetOutcome, GetSlice, Options, PagesFound,
    PagesQuery, Pin, PutOutcome, PutSlice, Registration, Request, Result, Store, View,
};

/// Longest that a call to another process's store may take which names no timeout: as a store's own default.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A pin of either.
pub enum Pinned {
    Own(Pin),
    Attached(attach::Pin),
}

impl Pinned {
    pub fn pinned(&self) -> usize {
        match self {
            Pinned::Own(pin) => pin.pinned(),
            Pinned::Attached(pin) => pin.pinned(),
        }
    }

    pub fn is_held(&self) -> bool {
        match self {
            Pinned::Own(_) => true,
            Pinned::Attached(pin) => pin.is_held(),
        }
    }
}

/// A view of either.
pub enum Viewed {
    Own(View),
    Attached(attach::View),
}

impl Viewed {
    pub fn len(&self) -> usize {
        match self {
            Viewed::Own(view) => view.len(),
            Viewed::Attached(view) => view.len(),
        }
    }

    pub fn address(&self) -> Option<usize> {
        match self {
            Viewed::Own(view) => Some(view.as_ptr() as usize),
            Viewed::Attached(view) => view.as_ptr().map(|at| at as usize),
        }
    }

    pub fn is_held(&self) -> bool {
        match self {
            Viewed::Own(_) => true,
            Viewed::Attached(view) => view.is_held(),
        }
    }
}

pub enum Reached {
    Own(Box<Store>),
    Attached(Box<Attached>),
}

impl Reached {
    /// Attach to a store process, which may be down for now if the caller says so.
    pub fn attach(address: &Address, key: Option<&Key>, may_be_down: bool) -> Result<Reached> {
        let attach = if may_be_down { Attached::expecting } else { Attached::to };
        attach(address, key, TIMEOUT).map(|attached| Reached::Attached(Box::new(attached)))
    }

    /// Let the store process look at this process's memory; an own store sees it anyway.
    pub fn share(&self, region: Region) -> Result<()> {
        match self {
            Reached::Own(_) => Ok(()),
            Reached::Attached(store) => store.share(Arc::new(region)),
        }
    }

    /// Spare an own store's reads into this memory the looking up of its pages; another process does not read into it.
    pub fn register(&self, base: *const u8, len: usize) -> Result<Registration> {
        match self {
            Reached::Own(store) => store.register_memory(base, len),
            Reached::Attached(_) => Ok(Registration::none()),
        }
    }

    pub fn take_events(&self, most: usize, options: Options) -> Result<Events> {
        match self {
            Reached::Own(store) => Ok(store.take_events(most)),
            Reached::Attached(store) => store.take_events(most, options),
        }
    }

    pub fn begin_request(&self) -> Request {
        match self {
            Reached::Own(store) => store.begin_request(),
            Reached::Attached(store) => store.begin_request(),
        }
    }

    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        match self {
            Reached::Own(store) => store.put_batch(objects, options),
            Reached::Attached(store) => store.put_batch(objects, options),
        }
    }

    /// Groups of a page each, attached to the bases of their pages if one is named.
    pub fn put_pages(
        &self,
        base: Option<ObjectKey>,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let Some(base) = base else {
            return match self {
                Reached::Own(store) => store.put_groups(groups, options),
                Reached::Attached(store) => store.put_groups(groups, options),
            };
        };
        let on_page = |group: &PutSlice<'_>| base.on_page(group.key.hash());
        let based = |group: &&'_ [PutSlice<'_>]| group.first().map_or(base, on_page);
        let groups: Vec<_> = groups.iter().map(|group| (based(group), *group)).collect();
        match self {
            Reached::Own(store) => store.put_attached(&groups, options),
            Reached::Attached(store) => store.put_attached(&groups, options),
        }
    }

    /// Parts of groups of a page each.
    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        match self {
            Reached::Own(store) => store.put_parts(required, parts, options),
            Reached::Attached(store) => store.put_parts(required, parts, options),
        }
    }

    pub fn get(&self, gets: &mut [GetSlice<'_, '_>], options: Options) -> Vec<Result<GetOutcome>> {
        match self {
            Reached::Own(store) => store.get_batch(gets, options),
            Reached::Attached(store) => store.get_batch(gets, options),
        }
    }

    pub fn exists(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<bool>> {
        match self {
            Reached::Own(store) => Ok(store.exists_batch(keys, options)),
            Reached::Attached(store) => store.exists_batch(keys, options),
        }
    }

    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match self {
            Reached::Own(store) => Ok(store.exists_prefix(keys, options)),
            Reached::Attached(store) => store.exists_prefix(keys, options),
        }
    }

    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        match self {
            Reached::Own(store) => store.exists_groups(query, options),
            Reached::Attached(store) => store.exists_groups(query, options),
        }
    }

    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match self {
            Reached::Own(store) => store.remove(keys, options),
            Reached::Attached(store) => store.remove(keys, options),
        }
    }

    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        match self {
            Reached::Own(store) => store.clear(namespace, options),
            Reached::Attached(store) => store.clear(namespace, options),
        }
    }

    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        match self {
            Reached::Own(store) => store.flush(options),
            Reached::Attached(store) => store.flush(options),
        }
    }

    pub fn pin(&self, keys: &[ObjectKey], options: Options) -> Result<Pinned> {
        match self {
            Reached::Own(store) => Ok(Pinned::Own(store.pin(keys))),
            Reached::Attached(store) => store.pin(keys, options).map(Pinned::Attached),
        }
    }

    pub fn lease(&self, keys: &[ObjectKey], duration: Duration, options: Options) -> Result<usize> {
        match self {
            Reached::Own(store) => Ok(store.lease(keys, duration)),
            Reached::Attached(store) => store.lease(keys, duration, options),
        }
    }

    pub fn view(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<Option<Viewed>>> {
        match self {
            Reached::Own(store) => {
                keys.iter().map(|key| store.view(key).map(|view| view.map(Viewed::Own))).collect()
            }
            Reached::Attached(store) => {
                let views = store.view_batch(keys, options)?;
                Ok(views.into_iter().map(|view| view.map(Viewed::Attached)).collect())
            }
        }
    }

    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match self {
            Reached::Own(store) => Ok(store.prefetch(keys, options)),
            Reached::Attached(store) => store.prefetch(keys, options),
        }
    }

    /// Counters, as JSON.
    pub fn stats(&self) -> Result<String> {
        let failed = |error: serde_json::Error| internal(error.to_string());
        match self {
            Reached::Own(store) => serde_json::to_string(&store.stats()).map_err(failed),
            Reached::Attached(store) => store.stats(Options::default()),
        }
    }

    /// Close it within `timeout`, or what its configuration says. Nothing is flushed by a client that leaves.
    pub fn close(self, timeout: Option<Duration>) -> Option<CloseReport> {
        match self {
            Reached::Own(store) => {
                let timeout = timeout.unwrap_or_else(|| store.close_timeout());
                Some(store.close_within(timeout))
            }
            Reached::Attached(_) => None,
        }
    }
}

fn internal(message: String) -> Error {
    Error { kind: ErrorKind::Internal, message, errno: None }
}
