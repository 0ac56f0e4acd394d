//! The public face of a store. Each method is a few lines that delegate.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::registered::Registration;
use pagelith_io::runtime::{Env, Join};
use pagelith_io::shm::Region;
use pagelith_io::sync::{Arc, Mutex, MutexGuard, PoisonError};
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;

use crate::api::error::{ErrorKind, Result};
use crate::api::events::{Events, PIECE};
use crate::api::hits::{PagesFound, PagesQuery};
use crate::api::outcome::{CloseReport, FlushReport, GetOutcome, PutOutcome};
use crate::api::request::{GetSlice, Options, PutSlice, Request};
use crate::api::stats::Stats;
use crate::background::scrub;
use crate::background::scrub::{ScrubOptions, ScrubReport};
use crate::config::ValidConfig;
use crate::read::pin::Pin;
use crate::read::view::View;
use crate::read::{exists, pin, view};
use crate::rpc::Peer;
use crate::state::session_io;
use crate::state::shared::{BUSY_STEP, Shared};
use crate::store::open::OpenReport;
use crate::store::session::Session;
use crate::store::stats;
use crate::store::{close, flush, open, pooled, prefetch, registered, remove};
use crate::write::groups;
use crate::write::groups::{Group, GroupId};

/// An open store. Shared between threads by reference; threads that get or put much have a [`Session`] each.
///
/// Dropping a store without [`Store::close`] leaves on SSD what a crash at that moment would have left:
/// everything that a flush covered, and no promise about the rest.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    sessions: Mutex<Sessions>,
    pub(crate) flusher: Option<Box<dyn Join>>,
    pub(crate) writer: Option<Box<dyn Join>>,
    report: OpenReport,
}

/// Sessions of the store's own methods.
#[derive(Default)]
struct Sessions {
    /// The one that was used last comes last, and is taken first.
    idle: Vec<Session>,
    /// How many are in use.
    lent: usize,
}

impl Store {
    /// Open the store that `config` describes, or make it. Blocks; allocates all memory that the store will
    /// use. Fails without touching anything if the directories hold something else, another format or
    /// another configuration, if another process has the store open, or if `remote.key` is no file of one key that
    /// others cannot read. The peers of `remote.peers` are a tier behind it; that one cannot be reached is no error.
    pub fn open(config: ValidConfig) -> Result<Store> {
        Store::open_until(config, &Arc::default())
    }

    /// As [`Store::open`], for a process that may be told to end meanwhile: making the files of a store fails soon once `stop` is
    /// raised, and leaves nothing behind. It can take long where the file system does not allocate, and all of them are written.
    pub fn open_until(config: ValidConfig, stop: &Arc<AtomicBool>) -> Result<Store> {
        let env = open::real_env(&config, stop)?;
        Store::open_in(config, env)
    }

    /// As [`Store::open`], with these peers' stores as a tier behind DRAM and SSD, instead of those that the configuration names: what is not here is
    /// asked of the peer that owns its page, and what is put here is offered to it in the background. `Invalid` names a peer that is named
    /// twice or has no weight; that one cannot be reached is no error, and costs misses.
    pub fn open_with_peers(config: ValidConfig, peers: Vec<Peer>) -> Result<Store> {
        let env = open::real_env(&config, &Arc::default())?;
        Store::open_in_with_peers(config, env, peers)
    }

    /// As [`Store::open`], in a world of the caller's: a simulation, or an application's own clock.
    pub fn open_in(config: ValidConfig, env: Env) -> Result<Store> {
        Store::opened_by(open::open(config, env, None)?)
    }

    /// As [`Store::open_with_peers`], in a world of the caller's.
    pub fn open_in_with_peers(config: ValidConfig, env: Env, peers: Vec<Peer>) -> Result<Store> {
        Store::opened_by(open::open(config, env, Some(peers))?)
    }

    fn opened_by(opened: open::Opened) -> Result<Store> {
        let open::Opened { shared, flusher, writer, report } = opened;
        Ok(Store { shared, sessions: Mutex::default(), flusher, writer, report })
    }

    /// What opening found.
    pub fn opened(&self) -> &OpenReport {
        &self.report
    }

    /// The arena, as memory that processes of this host can be shown, where `dram.shared` is set: for a listener that serves
    /// this store.
    pub fn shared_memory(&self) -> Option<Arc<Region>> {
        self.shared.memory.region().cloned()
    }

    /// A thread's own way in, with its own disk queue.
    pub fn session(&self) -> Result<Session> {
        Session::new(self.shared.clone())
    }

    /// Say that gets will read into this memory over and over, such as a host pool: `len` bytes from `base`. Reads from SSD then
    /// need not look its pages up, which is half of what the kernel does for a long read into pages of 4 KiB; nothing else changes. Until the
    /// registration is dropped the memory has to stay mapped to the pages that it has now: what is read would go to those.
    /// Each session looks the pages up once more, at its next get. Where there is nothing to be spared (no SSD tier, no io_uring)
    /// the registration is one of nothing ([`Registration::is_used`]).
    ///
    /// # Errors
    /// `Busy` if the process may not lock so much memory (`RLIMIT_MEMLOCK`); `Invalid` if the kernel does not take this memory,
    /// such as what is not mapped, or a file's; `Closed`. Gets into it are what they are without.
    pub fn register_memory(&self, base: *const u8, len: usize) -> Result<Registration> {
        registered::register(&self.shared, base as usize, len)
    }

    /// Begin a request: batches that carry it count as equally recent, deeper pages before shallower ones.
    pub fn begin_request(&self) -> Request {
        session_io::begin_request(&self.shared)
    }

    /// Put objects, each by itself. A full arena is waited out until the timeout, then `Busy`.
    pub fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = objects.chunks(1).map(|object| (None, object)).collect();
        pooled::put(self, &groups, options)
    }

    /// Put groups of objects of one page each; one outcome a group.
    pub fn put_groups(&self, groups: &[&[PutSlice<'_>]], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|group| (None, *group)).collect();
        pooled::put(self, &groups, options)
    }

    /// Put objects of pools that a page need not have (a Mamba checkpoint, a sliding window). Each group is
    /// attached to the base group that the key beside it is of, on the same page: visible together, and only
    /// while that is. If the base is not here yet, the group waits for it (`Waiting`) until its deadline.
    pub fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|(base, group)| (Some(*base), *group)).collect();
        pooled::put(self, &groups, options)
    }

    /// Begin the base group of a page that consists of the objects `required`, or join it if it was begun:
    /// they may be put in any order, in several calls and from several threads, and become visible together at
    /// [`Group::commit`]. A group that is not committed within `groups.deadline_ms` is dropped and counted.
    ///
    /// # Errors
    /// `Invalid` if the keys are none, too many, of two pages, or twice the same, or if one of them is in a
    /// group of other objects, open or in DRAM (what is only on SSD is compared at the commit); `Busy` if the open
    /// groups require too many objects.
    pub fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Group<'_>> {
        groups::begin(self, required, options)
    }

    /// The group of this name, for who could keep no [`Group`]; `None` if it is open no more.
    pub fn open_group(&self, id: GroupId) -> Option<Group<'_>> {
        groups::open(self, id)
    }

    /// Put parts of base groups, each of one page, and commit those groups that are whole then: what
    /// [`Store::begin_group`] and [`crate::Group`] do, in one call for many pages. A group consists of the objects
    /// `required`, which are keys of any page, on the part's page; whoever puts its other parts names the same ones. One
    /// outcome a part: `Waiting` if objects of its group are missing still, which is dropped at its deadline, and
    /// `Stored` or `AlreadyPresent` if the group is visible.
    ///
    /// # Errors
    /// A part's own: as of [`Store::begin_group`] and of [`crate::Group::put`] and `commit`; `Invalid` also if it has no
    /// object. What was put of it before an error waits for the rest.
    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        groups::parts::put(self, required, parts, options)
    }

    /// Get objects. Returns when every destination is the caller's again, which a device that hangs, or has become slower than the
    /// timeout a moment ago, can delay beyond it (counted in [`Stats::late_direct`]). Reads that lately took longer than the
    /// timeout leaves go through staging memory, and delay nothing.
    pub fn get_batch(&self, gets: &mut [GetSlice<'_, '_>], options: Options) -> Vec<Result<GetOutcome>> {
        pooled::get(self, gets, options)
    }

    /// Say that these objects will be asked for soon. What is on SSD and not in DRAM is read into DRAM in the background, as if
    /// `dram.promote` were "always"; returns how many that are. Objects that were put together go together: name all of them. A
    /// hint promises nothing. At most a quarter of the arena waits to be read, and counts here: name the rest later. What is not
    /// begun within the timeout is not read any more. Never waits for the disk; nothing is asked of peers.
    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> usize {
        prefetch::prefetch(&self.shared, keys.iter().copied(), &options)
    }

    /// Which objects are here; from memory alone, or with peers at the peer that owns them. What is here counts as asked
    /// for.
    pub fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Vec<bool> {
        if self.shared.remote.is_some() {
            return pooled::exists(self, keys, options);
        }
        let at = session_io::recency(&self.shared, &options);
        exists::exists(&self.shared, keys.iter(), at)
    }

    /// How many of `keys` are here before the first that is not.
    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> usize {
        if self.shared.remote.is_some() {
            return pooled::exists(self, keys, options).into_iter().take_while(|here| *here).count();
        }
        let at = session_io::recency(&self.shared, &options);
        exists::prefix(&self.shared, keys.iter(), at)
    }

    /// How long a prefix can be restored when a page's state lies in several pools, and every length at which
    /// one may stop; from memory alone, or with peers at the peers that own the pages. What is here and could be used counts as asked for. `Invalid` names
    /// what is no query.
    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        if self.shared.remote.is_some() {
            return crate::store::hits_peers::exists_groups(self, query, options);
        }
        crate::read::exists_groups::exists_groups(
            &self.shared,
            query,
            session_io::recency(&self.shared, &options),
        )
    }

    /// An object in DRAM, in place: verified once since it came there, and pinned while the view lives.
    /// `None` if it is not in DRAM.
    pub fn view(&self, key: &ObjectKey) -> Result<Option<View>> {
        view::view(&self.shared, key)
    }

    /// Remove objects, and with each the other objects of its group and what is attached to it. Returns how many of
    /// `keys` were here. When it
    /// returns `Ok`, they stay gone, also across a crash.
    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        remove::remove(self, keys, options)
    }

    /// Make everything in a namespace invisible for ever, by raising its generation; durable when it returns. Returns the generation that it has
    /// then: of one that holds nothing the one that it had.
    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        remove::clear(&self.shared, namespace, options)
    }

    /// Keep objects from being evicted or reclaimed until the pin is dropped.
    pub fn pin(&self, keys: &[ObjectKey]) -> Pin {
        Pin::new(&self.shared, keys)
    }

    /// Keep objects from being evicted or reclaimed for `duration`. Returns how many of them are here.
    pub fn lease(&self, keys: &[ObjectKey], duration: Duration) -> usize {
        pin::lease(&self.shared, keys, duration)
    }

    /// Make everything put so far durable (what waits for its group or its base is not), and say what became so since the last report.
    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        flush::flush(&self.shared, options)
    }

    /// Read everything in sealed segments and verify it, in this thread. What is damaged or cannot be read is dropped,
    /// and written again if DRAM has it. Gets, puts and reclaim go on meanwhile.
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

    /// What came and went since it was asked last, `most` events at most; nothing unless the setting `events.max` says how many to
    /// keep. Whoever starts to listen asks [`Store::exists_batch`] for what was there before.
    pub fn take_events(&self, most: usize) -> Events {
        let mut told = Events::default();
        loop {
            let piece = self.shared.lock().events.take(PIECE.min(most - told.events.len()));
            told.lost += piece.lost;
            if piece.events.is_empty() {
                return told;
            }
            told.events.extend(piece.events);
        }
    }

    /// Flush, seal, write a checkpoint, and release everything, within `close_timeout_ms`. Sessions still in use find the store
    /// closed.
    ///
    /// # Errors
    /// Not everything is durable; [`Store::close_within`] says how much.
    pub fn close(self) -> Result<FlushReport> {
        let timeout = self.close_timeout();
        let report = self.close_within(timeout);
        report.error.map_or(Ok(report.flushed), Err)
    }

    /// The setting `close_timeout_ms`.
    pub fn close_timeout(&self) -> Duration {
        self.shared.config.close_timeout()
    }

    /// As [`Store::close`], within `timeout`, and say what is not durable. A tier that is known to take nothing is not waited for.
    pub fn close_within(mut self, timeout: Duration) -> CloseReport {
        close::close(&mut self, timeout)
    }

    /// Drop the process's state without flushing: on SSD is what a crash at this moment leaves. Waits for
    /// writes under way, so that the directory can be opened again at once.
    pub fn abandon(mut self) {
        close::abandon(&mut self);
    }

    /// Run `body` with a pooled session, which is to be had until the timeout.
    pub(crate) fn with_session<R>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&mut Session) -> R,
    ) -> Result<R> {
        let mut session = self.take_session(timeout)?;
        let result = body(&mut session);
        let mut sessions = self.sessions();
        sessions.lent -= 1;
        sessions.idle.push(session);
        Ok(result)
    }

    /// A pooled session, or else a new one. What another takes (a ring, a descriptor, a mapping) may be used up: then it is waited for one
    /// that comes back.
    fn take_session(&self, timeout: Option<Duration>) -> Result<Session> {
        let shared = &self.shared;
        let deadline = shared.deadline(timeout);
        loop {
            let seen = shared.progress.value();
            let mut sessions = self.sessions();
            if let Some(session) = sessions.idle.pop() {
                sessions.lent += 1;
                return Ok(session);
            }
            let others = sessions.lent > 0;
            drop(sessions);
            let left = deadline.since(shared.now());
            match self.session() {
                Ok(session) => {
                    self.sessions().lent += 1;
                    return Ok(session);
                }
                Err(error) if error.kind != ErrorKind::Busy || !others || left.is_zero() => {
                    return Err(error);
                }
                Err(_) => shared.env.runtime.pause(&shared.progress, seen, left.min(BUSY_STEP)),
            }
        }
    }

    /// End those that nobody uses, until `by`.
    pub(crate) fn end_sessions(&self, by: Mono) {
        let mut idle = std::mem::take(&mut self.sessions().idle);
        idle.iter_mut().for_each(|session| session.set_drop_deadline(by));
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        close::abandon(self);
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("opened", &self.report).finish_non_exhaustive()
    }
}
