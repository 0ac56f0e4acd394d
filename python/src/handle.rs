//! The store of a Python object: embedded in this process, or attached in a store process.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::shm::SharedRegion;
use pagelith::layouts::key::ObjectKey;
use pagelith::transport::dial::SocketDial;
use pagelith::{
    CloseReport, Device, DeviceHandle, Error, Options, PageGroup, PageStore, PutOutcome, PutSlice,
    Registration, Result, Store,
};

/// Longest call to a store process that names no timeout: the default of an embedded store, too.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The store, and the groups that its Python objects name. They end with it: a group of a client
/// would keep its link.
pub struct StoreHandle {
    kind: Kind,
    groups: Mutex<Groups>,
}

enum Kind {
    Embedded(Store),
    Attached(Client),
}

#[derive(Default)]
struct Groups {
    open: HashMap<u64, Arc<dyn PageGroup>>,
    last: u64,
}

impl Deref for StoreHandle {
    type Target = dyn PageStore;
    fn deref(&self) -> &(dyn PageStore + 'static) {
        match &self.kind {
            Kind::Embedded(store) => store,
            Kind::Attached(client) => client,
        }
    }
}

impl StoreHandle {
    pub fn embedded(store: Store) -> StoreHandle {
        StoreHandle { kind: Kind::Embedded(store), groups: Mutex::default() }
    }

    /// Attach to a store process; with `may_be_down` also to one that is not running yet.
    pub fn attach(dial: SocketDial, may_be_down: bool) -> Result<StoreHandle> {
        let attach = if may_be_down { Client::expecting_over } else { Client::over };
        let kind = Kind::Attached(attach(dial, TIMEOUT)?);
        Ok(StoreHandle { kind, groups: Mutex::default() })
    }

    /// Map this process's memory into the store process; an embedded store needs no mapping.
    pub fn share(&self, region: SharedRegion) -> Result<()> {
        match &self.kind {
            Kind::Embedded(_) => Ok(()),
            Kind::Attached(client) => client.share(Arc::new(region)),
        }
    }

    /// Bind a device. `staging_bytes` is the memory of an attached client for its copies.
    pub fn bind(&self, device: Device, staging_bytes: Option<usize>) -> Result<DeviceHandle> {
        match (&self.kind, staging_bytes) {
            (Kind::Embedded(store), None) => store.bind_device(device),
            (Kind::Embedded(_), Some(_)) => Err(Error::invalid(
                "staging_bytes is for attached stores; set staging.bytes of this one",
            )),
            (Kind::Attached(client), None) => client.bind_device(device),
            (Kind::Attached(client), Some(bytes)) => {
                client.clone().with_device_staging(bytes).bind_device(device)
            }
        }
    }

    /// Register memory with an embedded store's device, which saves page lookups in reads; or with
    /// the RDMA devices of a client, so that the store process writes into it.
    pub fn register(&self, base: *const u8, len: usize) -> Result<Registration> {
        match &self.kind {
            Kind::Embedded(store) => store.register_memory(base, len),
            Kind::Attached(client) => client.register_memory(base, len).map(Registration::from),
        }
    }

    /// Put one group per page, attached to the bases of their pages if `base` is present.
    pub fn put_pages(
        &self,
        base: Option<ObjectKey>,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let Some(base) = base else { return self.put_groups(groups, options) };
        let on_page = |group: &PutSlice<'_>| base.on_page(group.key.hash());
        let based = |group: &&'_ [PutSlice<'_>]| group.first().map_or(base, on_page);
        let groups: Vec<_> = groups.iter().map(|group| (based(group), *group)).collect();
        self.put_attached(&groups, options)
    }

    /// Begin a group, or join it; returns its number in this store.
    pub fn begin(&self, required: &[ObjectKey], options: Options) -> Result<u64> {
        let group = self.begin_group(required, options)?;
        let mut groups = self.groups();
        groups.last += 1;
        let number = groups.last;
        groups.open.insert(number, group.into());
        Ok(number)
    }

    /// A group that was begun and not released.
    pub fn group(&self, number: u64) -> Option<Arc<dyn PageGroup>> {
        self.groups().open.get(&number).cloned()
    }

    /// Forget a group.
    pub fn release_group(&self, number: u64) {
        let group = self.groups().open.remove(&number);
        // Not with the table locked: the last group of a link may end it.
        drop(group);
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Close within `timeout`, or the configured time. A client that detaches flushes nothing.
    pub fn close(self, timeout: Option<Duration>) -> Option<CloseReport> {
        match self.kind {
            Kind::Embedded(store) => {
                let timeout = timeout.unwrap_or_else(|| store.close_timeout());
                Some(store.close_within(timeout))
            }
            Kind::Attached(_) => None,
        }
    }
}
