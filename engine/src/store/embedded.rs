//! The public type of an embedded store. Each method delegates to the module that implements it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pagelith_io::runtime::Env;
use pagelith_io::shm::SharedRegion;
use pagelith_io::sync::Arc;
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_transport::rdma::host::RdmaHost;

use crate::api::error::{Error, Result};
use crate::api::events::Events;
use crate::api::hint::Hint;
use crate::api::hits::{PagesFound, PagesQuery};
use crate::api::outcome::{CloseReport, FlushReport, GetOutcome, PutOutcome};
use crate::api::request::{GetSlice, Options, PutSlice, RequestEpoch};
use crate::background::scrub;
use crate::background::scrub::{ScrubOptions, ScrubReport};
use crate::config::ValidConfig;
use crate::read::pin::Pin;
use crate::read::view::View;
use crate::read::{exists, pin, view};
use crate::rpc::Peer;
use crate::state::event_log::PIECE;
use crate::state::session_io;
use crate::state::shared::Shared;
use crate::state::stats::Stats;
use crate::store::close::RunningStore;
use crate::store::group::{self, Group};
use crate::store::open::OpenReport;
use crate::store::put_parts;
use crate::store::registered_memory::Registration;
use crate::store::session::Session;
use crate::store::session_pool::SessionPool;
use crate::store::stats;
use crate::store::{blocking_calls, flush, hint, open, prefetch, rdma, registered_memory, remove};

/// An open store. Clones are the same store, for other threads and owners; a thread with many gets
/// or puts should have its own [`Session`]. A close by one clone closes the store for all. The
/// memory and the files are released with the last clone.
///
/// A store whose last clone is dropped without [`Store::close`] leaves the same state on SSD as a
/// crash at that moment: everything that a flush covered, without a promise about the rest.
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<SessionPool>,
    running: Arc<RunningStore>,
}

const _: () = {
    const fn is_shareable<T: Clone + Send + Sync + 'static>() {}
    is_shareable::<Store>();
};

impl Store {
    /// Open the store that `config` describes, or create it. Blocks, and allocates all memory that
    /// the store will use. The peers of `remote.peers` are a tier below DRAM and SSD; an
    /// unreachable peer is no error.
    ///
    /// # Errors
    /// Fails, without any change on disk, if the directories hold other files, another format or
    /// another configuration, if another process has the store open, or if `remote.key` is not a
    /// file with one key that other users cannot read.
    pub fn open(config: ValidConfig) -> Result<Store> {
        Store::open_until(config, &Arc::default())
    }

    /// As [`Store::open`], for a process that may be asked to stop meanwhile. Once `stop` is
    /// raised, the creation of a store's files fails soon, and leaves no files. The creation takes
    /// long on a file system that cannot preallocate, since all files are written then.
    pub fn open_until(config: ValidConfig, stop: &Arc<AtomicBool>) -> Result<Store> {
        let env = open::real_env(&config, stop)?;
        Store::open_in(config, env)
    }

    /// As [`Store::open`], with these peers instead of the configured ones. A get that misses in
    /// this store is sent to the peer that owns the page, and objects put here are offered to that
    /// peer in the background. An unreachable peer is no error, and costs misses.
    ///
    /// # Errors
    /// `Invalid` also if two peers have the same name, or if a weight is not above 0.
    pub fn open_with_peers(config: ValidConfig, peers: Vec<Peer>) -> Result<Store> {
        let env = open::real_env(&config, &Arc::default())?;
        Store::open_in_with_peers(config, env, peers)
    }

    /// As [`Store::open`], in the caller's environment: a simulation, or an application's own
    /// clock.
    pub fn open_in(config: ValidConfig, env: Env) -> Result<Store> {
        Store::from_opened(open::open(config, env, None)?)
    }

    /// As [`Store::open_with_peers`], in the caller's environment.
    pub fn open_in_with_peers(config: ValidConfig, env: Env, peers: Vec<Peer>) -> Result<Store> {
        Store::from_opened(open::open(config, env, Some(peers))?)
    }

    fn from_opened(opened: open::OpenedStore) -> Result<Store> {
        let open::OpenedStore { shared, flusher, writer, report } = opened;
        let pool = Arc::new(SessionPool::new(shared.clone()));
        let running = Arc::new(RunningStore::new(pool.clone(), flusher, writer, report));
        Ok(Store { shared, pool, running })
    }

    /// The report of the open.
    pub fn opened(&self) -> &OpenReport {
        &self.running.report
    }

    /// The arena as shared memory, if `dram.shared` is set: for a listener that serves this store
    /// to processes of this host.
    pub fn shared_memory(&self) -> Option<Arc<SharedRegion>> {
        self.shared.memory.region().cloned()
    }

    /// The RDMA devices with which the store's memory is registered: for a listener whose clients
    /// may use RDMA. `None` without the setting `rdma.serve` and without peers that may use RDMA.
    pub fn rdma(&self) -> Option<&Arc<RdmaHost>> {
        self.shared.rdma.host.get()
    }

    /// Register the store's memory with the devices of `host`, for a listener that was not set up
    /// by the configuration. It stays registered as long as `host`.
    ///
    /// # Errors
    /// `Busy` if the process may not lock so much memory; `Unavailable` if a device refuses it;
    /// `Invalid` if the store has devices already.
    pub fn register_rdma(&self, host: &Arc<RdmaHost>) -> Result<()> {
        let pushes = self.shared.remote.peers.is_some();
        if self.shared.rdma.host.get().is_some() {
            return Err(Error::invalid(
                "the store's memory is registered with RDMA devices already",
            ));
        }
        rdma::register_store(host, &self.shared.memory, &self.shared.ssd.staging, pushes)?;
        self.shared.rdma.host.get_or_init(|| host.clone());
        Ok(())
    }

    /// Create a session: a thread's own handle, with its own disk queue.
    pub fn session(&self) -> Result<Session> {
        Session::new(self.shared.clone())
    }

    /// Register memory that gets read into repeatedly, such as a host pool: `len` bytes from
    /// `base`. For reads from SSD the kernel then need not look up its pages, which is half of its
    /// work for a long read into pages of 4 KiB; nothing else changes. Until the registration is
    /// dropped, the memory must stay mapped to its current pages: reads go to those. Each session
    /// looks the pages up once more, at its next get. Without an SSD tier or without io_uring the
    /// registration has no effect ([`Registration::is_used`]). With RDMA devices it is as
    /// [`crate::client::Client::register_memory`] too: peers write hits straight into the memory.
    ///
    /// # Errors
    /// `Busy` if the process may not lock so much memory (`RLIMIT_MEMLOCK`); `Invalid` if the
    /// kernel rejects this memory, for example because it is not mapped, or maps a file; `Closed`.
    /// Gets into the memory then work as without a registration.
    pub fn register_memory(&self, base: *const u8, len: usize) -> Result<Registration> {
        registered_memory::register(&self.shared, base, len)
    }

    /// Begin a request: batches with it count as equally recent, deeper pages before shallower
    /// ones.
    pub fn begin_request(&self) -> RequestEpoch {
        session_io::begin_request(&self.shared)
    }

    /// Put standalone objects. If the arena is full, waits until the timeout; then the outcome is
    /// `Busy`.
    pub fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = objects.chunks(1).map(|object| (None, object)).collect();
        blocking_calls::put(&self.pool, &groups, options)
    }

    /// Put groups, each of objects of one page; one outcome for each group.
    pub fn put_groups(
        &self,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|group| (None, *group)).collect();
        blocking_calls::put(&self.pool, &groups, options)
    }

    /// Put objects of pools that a page need not have (a Mamba checkpoint, a sliding window). Each
    /// group is attached to the base group that contains the key given with it, on the same page.
    /// Its objects are visible together, and only while the base is. If the base is absent, the
    /// group waits for it (`Waiting`) until its deadline.
    pub fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|(base, group)| (Some(*base), *group)).collect();
        blocking_calls::put(&self.pool, &groups, options)
    }

    /// Begin the base group of a page that consists of the objects `required`, or join it if it is
    /// open. The objects may be put in any order, in several calls and from several threads, and
    /// become visible together at [`Group::commit`]. A group that is not committed within
    /// `groups.deadline_ms` is dropped and counted.
    ///
    /// # Errors
    /// `Invalid` if there are no keys or too many, if they are of two pages, or if a key occurs
    /// twice. `Invalid` also if a key is in a group of other objects that is open or in DRAM;
    /// groups that are only on SSD are compared at the commit. `Busy` if the open groups require
    /// too many objects.
    pub fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Group> {
        group::begin(&self.pool, required, options)
    }

    /// Put parts of base groups, each of one page, and commit the groups that are complete then: as
    /// [`Store::begin_group`] and [`crate::Group`], in one call for many pages. A group consists of
    /// the objects `required`, whose keys may be of any page, on the part's page; the calls for its
    /// other parts must give the same ones. One outcome for each part: `Waiting` if objects of its
    /// group are missing (the group is dropped at its deadline), `Stored` or `AlreadyPresent` if
    /// the group is visible.
    ///
    /// # Errors
    /// For each part, as [`Store::begin_group`], [`crate::Group::put`] and `commit`; `Invalid` also
    /// if it has no object. Objects that were put before the error wait for the rest of their
    /// group.
    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        put_parts::put(&self.pool, required, parts, options)
    }

    /// Get objects. Returns when no read uses the destinations any more. A device that hangs, or
    /// that has just become slower than the timeout, can delay this beyond the timeout (counted in
    /// [`Stats::late_direct`]). If recent reads took longer than the time that is left, reads go
    /// through staging memory and cause no delay.
    pub fn get_batch(
        &self,
        gets: &mut [GetSlice<'_, '_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        blocking_calls::get(&self.pool, gets, options)
    }

    /// Hint that these objects will be requested soon. Objects that are on SSD and not in DRAM are
    /// read into DRAM in the background, as if `dram.promote` were "always"; returns their number.
    /// Objects of a group are promoted together: give all of them. A hint promises nothing. Pending
    /// hints are limited to a quarter of the arena, and only accepted hints count in the result:
    /// give the others later. A read that does not begin within the timeout is dropped. Never waits
    /// for the disk, and sends nothing to peers.
    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> usize {
        prefetch::prefetch(&self.shared, keys.iter().copied(), &options)
    }

    /// Give a hint about the future use of objects of one namespace. Returns to how many present
    /// objects it was applied; 0 also if such hints of the namespace are not trusted.
    ///
    /// # Errors
    /// `Invalid` if the objects are of several namespaces; `Busy` if too much would be retained;
    /// `Closed`.
    pub fn hint(&self, keys: &[ObjectKey], hint: Hint) -> Result<usize> {
        hint::hint(&self.shared, keys, hint)
    }

    /// Whether each object is present: from the index in memory, and with peers also at the peer
    /// that owns it. A lookup counts as a use of the objects present in this store.
    pub fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Vec<bool> {
        if self.shared.check_open().is_err() {
            return vec![false; keys.len()];
        }
        if self.shared.remote.peers.is_some() {
            return blocking_calls::exists(&self.pool, keys, options);
        }
        let at = session_io::recency(&self.shared, &options);
        exists::exists(&self.shared, keys.iter(), at)
    }

    /// Number of leading `keys` whose objects are present, as [`Store::exists_batch`].
    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> usize {
        if self.shared.check_open().is_err() {
            return 0;
        }
        if self.shared.remote.peers.is_some() {
            return blocking_calls::exists(&self.pool, keys, options)
                .into_iter()
                .take_while(|present| *present)
                .count();
        }
        let at = session_io::recency(&self.shared, &options);
        exists::prefix(&self.shared, keys.iter(), at)
    }

    /// The longest prefix that can be restored if the state of a page is in several pools, and
    /// every usable length: from the index in memory, and with peers also at the peers that own the
    /// pages. A lookup counts as a use of the present local objects that are usable. `Invalid`
    /// names the invalid part of a query.
    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        if self.shared.remote.peers.is_some() {
            return crate::store::exists_groups::exists_groups(&self.pool, query, options);
        }
        crate::read::exists_groups::exists_groups(
            &self.shared,
            query,
            session_io::recency(&self.shared, &options),
        )
    }

    /// An object in DRAM, in place: verified once since it was stored there, and kept while the
    /// view exists. `None` if it is not in DRAM.
    pub fn view(&self, key: &ObjectKey) -> Result<Option<View>> {
        view::view(&self.shared, key)
    }

    /// Remove objects, and with each the other objects of its group and the objects attached to the
    /// group. Returns how many of `keys` were present. After `Ok` they stay removed, also across a
    /// crash.
    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        remove::remove(&self.pool, keys, options)
    }

    /// Make all objects of a namespace invisible for ever, by raising its generation. Durable when
    /// it returns. Returns the new generation; an empty namespace keeps its generation.
    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        remove::clear(&self.shared, namespace, options)
    }

    /// Keep objects from being evicted or reclaimed until the pin is dropped.
    pub fn pin(&self, keys: &[ObjectKey]) -> Pin {
        Pin::new(&self.shared, keys)
    }

    /// Keep objects from being evicted or reclaimed for `duration`. Returns how many are present.
    pub fn lease(&self, keys: &[ObjectKey], duration: Duration) -> usize {
        pin::lease(&self.shared, keys, duration)
    }

    /// Make all objects put so far durable, except objects that wait for their group or their base.
    /// The report counts the objects that became durable since the last report, and those that
    /// could not: the device failed (lost), or they left DRAM and were never written (refused).
    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        flush::flush(&self.shared, options)
    }

    /// Read and verify all records in sealed segments, in this thread. Records that are damaged or
    /// cannot be read are dropped, and written again if DRAM has the objects. Gets, puts and
    /// reclaim continue meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if a read did not end within `deadline_ms`; `Closed`.
    pub fn scrub(&self, options: ScrubOptions) -> Result<ScrubReport> {
        scrub::scrub(&self.shared, options)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        stats::of(&self.shared)
    }

    /// Take the events since the last call, at most `most`. Events are kept only if the setting
    /// `events.max` is above 0. A new listener finds the objects present before its first event
    /// with [`Store::exists_batch`].
    pub fn take_events(&self, most: usize) -> Events {
        let mut taken = Events::default();
        loop {
            let piece = self.shared.lock().events.take(PIECE.min(most - taken.events.len()));
            taken.lost += piece.lost;
            if piece.events.is_empty() {
                return taken;
            }
            taken.events.extend(piece.events);
        }
    }

    /// Flush, seal, write a checkpoint, and release all resources, within `close_timeout_ms`. Calls
    /// of other clones, and of sessions and groups still in use, then fail with `Closed`.
    ///
    /// # Errors
    /// If not all objects are durable; [`Store::close_within`] reports how many are not. `Closed`
    /// if another clone has closed the store.
    pub fn close(self) -> Result<FlushReport> {
        let timeout = self.close_timeout();
        let report = self.close_within(timeout);
        report.error.map_or(Ok(report.flushed), Err)
    }

    /// The setting `close_timeout_ms`.
    pub fn close_timeout(&self) -> Duration {
        self.shared.config.close_timeout()
    }

    /// As [`Store::close`], within `timeout`; reports the objects that are not durable. It does not
    /// wait for a tier that accepts no writes.
    pub fn close_within(self, timeout: Duration) -> CloseReport {
        self.running.close(timeout)
    }

    /// Drop the store without a flush: SSD has the same state as after a crash at this moment.
    /// Waits for writes in flight, so that the directory can be opened again at once.
    pub fn abandon(self) {
        self.running.abandon();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("opened", self.opened()).finish_non_exhaustive()
    }
}
