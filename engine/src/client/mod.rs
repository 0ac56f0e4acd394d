//! A store in another process, of this host or another: the calls of a [`crate::Store`], over a link.
//!
//! - Bytes are verified where they land, before the caller hears `Hit`; those of a put by the store, before it stores them.
//! - Each thread that calls has a link of its own, made when it is needed and kept for the next call. A link that is idle for some seconds
//!   ends. A call whose link ends under it is asked once more over a new link, whatever it asks; only what belongs to one link (a pin, a
//!   view, a group that was begun) is lost with it.
//! - Who keeps several batches in flight has a link for all of them: [`Session`].
//! - A store process that was started again has lost what no flush covered: the next flush says so, once.

mod batch;
mod control;
mod events;
mod exists;
mod group;
mod instances;
mod lease_connection;
mod pin;
mod put;
mod session;
mod view;

use std::time::Duration;

use pagelith_io::buffer::Lender;
use pagelith_io::clock::{Clock, Mono};
use pagelith_io::entropy::Entropy;
use pagelith_io::runtime::Runtime;
use pagelith_io::shm::Region;
use pagelith_io::sync::{Arc, Mutex, PoisonError};
use pagelith_io::system::{SystemClock, SystemEntropy, Threads};
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::Ask;
use pagelith_tiers::policy::Recency;
use pagelith_transport::address::Address;
use pagelith_transport::auth::Key;
use pagelith_transport::capability::Offer;
use pagelith_transport::closed::Closed;
use pagelith_transport::dial::{Dial, Dialled, SocketDial};
use pagelith_transport::link::Link;
use pagelith_transport::shown::{REGIONS_MAX, Shows};

use self::batch::{Puts, begin_get};
use self::events::Listening;
use self::instances::Acked;
use self::lease_connection::Keeper;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{FlushReport, GetDone, GetOutcome, PutDone, PutOutcome};
use crate::api::request::{Get, GetSlice, Options, PutGroup, PutSlice, Request};
use crate::rpc::client::Caller;
use crate::rpc::connections::Desk;
use crate::rpc::remote_get::{Heard, Manner, no_link};
use crate::rpc::{Peer, Remote, Told};
use crate::store::pooled;
use crate::store::pooled::LentGroup;

pub use self::group::{Group, GroupId};
pub use self::pin::Pin;
pub use self::session::Session;
pub use self::view::View;

/// Longest single wait, so that a wait for several things notices each.
const STEP: Duration = Duration::from_millis(20);
/// How long to wait before a busy store is asked again.
const BUSY_STEP: Duration = Duration::from_millis(2);

/// The one store that is asked, as a desk numbers them.
const STORE: usize = 0;

/// Links that nobody uses now.
#[derive(Default)]
struct Desks {
    idle: Vec<Desk>,
    /// How often memory was shared: links that were made before have not handed it over.
    shares: u64,
}

/// A store in another process. Shared between threads by reference.
pub struct Attached {
    remote: Arc<Remote>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    desks: Mutex<Desks>,
    requests: Mutex<u64>,
    acked: Mutex<Acked>,
    listening: Mutex<Listening>,
    shows: Shows,
    keeper: Arc<Keeper>,
    /// As `keeper`, for groups: their bytes take time.
    groups: Arc<Keeper>,
}

impl Attached {
    /// Attach to the store that `dial` reaches. `timeout` is the longest that a call may take which names none itself, and
    /// that attaching may take.
    ///
    /// # Errors
    /// `Unavailable` if nobody answers there in time, `Denied` if the store does not take this process, `Incompatible` if
    /// the two have no protocol in common; the message says which.
    pub fn attach(dial: Arc<dyn Dial>, clock: Arc<dyn Clock>, timeout: Duration) -> Result<Attached> {
        let link = first_link(&*dial, &*clock, timeout).map_err(|why| not_attached(&why))?;
        Attached::over(dial, "store".to_owned(), clock, timeout, Some(link))
    }

    /// Of the store that `dial` reaches, by this link or by the first one that a call can make. The log calls it `name`.
    fn over(
        dial: Arc<dyn Dial>,
        name: String,
        clock: Arc<dyn Clock>,
        timeout: Duration,
        link: Option<Box<dyn Link>>,
    ) -> Result<Attached> {
        let peer = Peer { name, weight: 1.0, preferred: false, dial };
        let remote = Arc::new(Remote::new(vec![peer])?);
        let keeper = Arc::new(Keeper::new(remote.clone(), clock.clone(), timeout));
        let groups = Arc::new(Keeper::new(remote.clone(), clock.clone(), timeout));
        let mut desk = Desk::patient(remote.clone());
        link.into_iter().for_each(|link| desk.lines.adopt(STORE, link));
        let desks = Mutex::new(Desks { idle: vec![desk], ..Desks::default() });
        let (requests, acked, shows) = (Mutex::new(0), Mutex::default(), Shows::default());
        let listening = Mutex::default();
        Ok(Attached { remote, clock, timeout, desks, requests, acked, listening, shows, keeper, groups })
    }

    /// Attach to the store of the process at `address`, which knows this one by `key`. As [`Attached::attach`]. A host name is resolved for
    /// each link.
    pub fn to(address: &Address, key: Option<&Key>, timeout: Duration) -> Result<Attached> {
        Attached::dialled(address, key, timeout, false)
    }

    /// As [`Attached::to`], and also if nobody answers there yet: calls are `Unavailable` until the process can be reached, and each tries it as
    /// after its restart. What answers and refuses this process is an error here too.
    pub fn expecting(address: &Address, key: Option<&Key>, timeout: Duration) -> Result<Attached> {
        Attached::dialled(address, key, timeout, true)
    }

    fn dialled(
        address: &Address,
        key: Option<&Key>,
        timeout: Duration,
        may_be_down: bool,
    ) -> Result<Attached> {
        let clock = Arc::new(SystemClock::new());
        let offer = Offer::of_this_build(SystemEntropy.bytes16());
        let dial = SocketDial::new(address.clone(), key.cloned(), offer, clock.clone());
        let shows = dial.shows.clone();
        let link = match first_link(&dial, &*clock, timeout).map_err(|why| not_attached(&why)) {
            Ok(link) => Some(link),
            Err(error) if may_be_down && error.kind == ErrorKind::Unavailable => {
                tracing::warn!(%address, %error, "store process is down, and is expected: nothing is found until it is up");
                None
            }
            Err(mut error) => {
                error.message = format!("{} address={address}", error.message);
                return Err(error);
            }
        };
        let attached = Attached::over(Arc::new(dial), address.to_string(), clock, timeout, link)?;
        let attached = Attached { shows, ..attached };
        Ok(attached.looked_at_by(Arc::new(Threads)))
    }

    /// Let a task of `runtime` look at the link that things are held over: a store takes a process for dead that says nothing
    /// for some seconds, and lets go of what it held. Without one, only this process's calls do.
    #[must_use]
    pub fn looked_at_by(self, runtime: Arc<dyn Runtime>) -> Attached {
        self.keeper.looked_at_by(runtime.clone());
        self.groups.looked_at_by(runtime);
        self
    }

    /// Let a store process of this host look at `region`, so that what is put from there is copied once and not sent. For memory
    /// that lives as long as this does: a store's link has it until it ends.
    ///
    /// # Errors
    /// `Invalid` if there are too many ([`REGIONS_MAX`]).
    pub fn share(&self, region: Arc<Region>) -> Result<()> {
        if !self.shows.add(region) {
            return Err(Error::invalid(format!("too many regions are shared most={REGIONS_MAX}")));
        }
        // Links hand their regions over when they are made.
        let mut desks = self.desks();
        desks.shares += 1;
        desks.idle.clear();
        Ok(())
    }

    /// As [`crate::Store::begin_request`].
    pub fn begin_request(&self) -> Request {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests += 1;
        Request(*requests)
    }

    /// As [`crate::Store::put_batch`]. `Unavailable` is for a store that cannot be reached.
    pub fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = objects.chunks(1).map(|object| (None, object)).collect();
        self.put_lent(&groups, &[], options)
    }

    /// As [`crate::Store::put_groups`].
    pub fn put_groups(&self, groups: &[&[PutSlice<'_>]], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|group| (None, *group)).collect();
        self.put_lent(&groups, &[], options)
    }

    /// As [`crate::Store::put_attached`].
    pub fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let groups: Vec<_> = groups.iter().map(|(base, group)| (Some(*base), *group)).collect();
        self.put_lent(&groups, &[], options)
    }

    /// As [`crate::Store::put_parts`]. `Incompatible` if the store is of a time when it took whole groups alone.
    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        if required.is_empty() {
            return parts.iter().map(|_| Err(Error::invalid("a group requires no object"))).collect();
        }
        let parts: Vec<_> = parts.iter().map(|part| (None, *part)).collect();
        self.put_lent(&parts, required, options)
    }

    fn put_lent(
        &self,
        groups: &[LentGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let options = Options { request: Some(self.request(&options)), ..options };
        let deadline = self.clock.now().after(options.timeout.unwrap_or(self.timeout));
        let once = |groups: &[LentGroup<'_>], options| {
            Lender::scope(|lender| {
                let done = self.put_parts_of(pooled::lend_groups(lender, groups), required, options);
                pooled::outcomes_of_groups(groups, done)
            })
        };
        let rest = |left: Duration| {
            self.with_desk(|desk| desk.rest(STORE, self.clock.now(), left.min(BUSY_STEP)));
        };
        pooled::while_busy(groups, options, || deadline.since(self.clock.now()), once, rest)
    }

    /// Put groups; one outcome an object, and its memory back. Where there is no room it is `Busy` at once.
    pub fn put(&self, groups: Vec<PutGroup>, options: Options) -> Vec<PutDone> {
        self.put_parts_of(groups, &[], options)
    }

    /// Put groups, or parts of groups that consist of the objects `required` if there are any.
    fn put_parts_of(&self, groups: Vec<PutGroup>, required: &[ObjectKey], options: Options) -> Vec<PutDone> {
        let manner = self.manner(&options);
        self.with_desk(|desk| {
            let mut puts = Puts::begin(desk, groups, required, manner);
            self.drive(desk, |desk, now| {
                let mut heard = Heard::default();
                let over = puts.advance(desk, now, &mut heard);
                heard.tell(desk, now);
                over
            });
            self.acked().note(puts.acked());
            puts.finish()
        })
    }

    /// As [`crate::Store::get_batch`]; a hit's tier is the one that the store had it in. `Unavailable` is for a store that
    /// cannot be reached.
    pub fn get_batch(&self, gets: &mut [GetSlice<'_, '_>], options: Options) -> Vec<Result<GetOutcome>> {
        Lender::scope(|lender| {
            let done = self.get(pooled::lend_gets(lender, gets), options);
            done.into_iter().map(|done| done.outcome).collect()
        })
    }

    /// Get objects; returns with all memory back when each has its outcome.
    pub fn get(&self, gets: Vec<Get>, options: Options) -> Vec<GetDone> {
        let manner = self.manner(&options);
        self.with_desk(|desk| {
            let mut get = begin_get(desk, gets, manner);
            self.drive(desk, |desk, now| get.advance(desk, now));
            get.finish()
        })
    }

    /// As [`crate::Store::remove`]. If the link ended under it, it was asked twice, and counts what the second time found.
    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        if keys.is_empty() {
            return Ok(0);
        }
        let removed = self.number(&Ask::Remove(List::of(keys)), &options)?;
        Ok(usize::try_from(removed).unwrap_or(usize::MAX))
    }

    /// As [`crate::Store::clear`]. If the link ended under it, it may have been done twice, which raises the
    /// generation twice. One of a namespace that holds nothing raises none.
    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        self.number(&Ask::Clear(namespace), &options).map(Generation)
    }

    /// As [`crate::Store::flush`]: what any client put is covered. The report counts what this process was not told yet, in the namespaces of its
    /// key.
    ///
    /// # Errors
    /// `Unavailable` also, once, if the store process was started again since something was put from here that no flush
    /// covered: it may be gone.
    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        let before = *self.acked();
        let (told, instance) = self.tell(&Ask::Flush, &options)?;
        let Told::Flushed(report) = told else { return Err(no_link()) };
        self.acked().flushed(before, instance)?;
        Ok(report)
    }

    /// The store's counters, a JSON object.
    pub fn stats(&self, options: Options) -> Result<String> {
        match self.tell(&Ask::Stats, &options)? {
            (Told::Text(text), _) => Ok(text),
            (Told::Number(_) | Told::Flushed(_) | Told::Bits(_) | Told::Events(_) | Told::Views(_), _) => {
                Err(no_link())
            }
        }
    }

    /// Whether the store answers.
    pub fn ping(&self, options: Options) -> Result<()> {
        self.tell(&Ask::Ping, &options).map(|_| ())
    }

    fn acked(&self) -> pagelith_io::sync::MutexGuard<'_, Acked> {
        self.acked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See to it that the store hears of this process where things are held.
    fn look(&self) {
        self.keeper.look();
        self.groups.look();
    }

    fn request(&self, options: &Options) -> Request {
        options.request.unwrap_or_else(|| self.begin_request())
    }

    fn manner(&self, options: &Options) -> Manner {
        let Request(epoch) = self.request(options);
        let deadline = self.clock.now().after(options.timeout.unwrap_or(self.timeout));
        Manner { at: Recency { epoch, depth: options.depth }, deadline }
    }

    fn desks(&self) -> pagelith_io::sync::MutexGuard<'_, Desks> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A link that nobody else uses until it is given back, and how often memory had been shared by then.
    fn desk(&self) -> (Desk, u64) {
        let mut desks = self.desks();
        let (idle, shares) = (desks.idle.pop(), desks.shares);
        drop(desks);
        let mut desk = idle.unwrap_or_else(|| Desk::patient(self.remote.clone()));
        // A link that ended since it was last used is found out before something hangs on it.
        desk.poll(self.clock.now());
        (desk, shares)
    }

    /// Keep a link for the next call, unless what was shared meanwhile would not be shown over it.
    fn give_back(&self, desk: Desk, shares: u64) {
        let mut desks = self.desks();
        if desks.shares == shares {
            desks.idle.push(desk);
        }
    }

    /// Run `body` with a link that nobody else uses meanwhile.
    fn with_desk<R>(&self, body: impl FnOnce(&mut Desk) -> R) -> R {
        let (mut desk, shares) = self.desk();
        let result = body(&mut desk);
        self.give_back(desk, shares);
        result
    }

    /// Go on until `advance` says that all is over.
    fn drive(&self, desk: &mut Desk, advance: impl FnMut(&mut Desk, Mono) -> bool) {
        control::drive(&*self.clock, desk, advance, &|| self.look());
    }
}

/// How often something safe is asked: once more over a new link, if one stands that may end under it.
fn tries(desk: &Desk) -> usize {
    1 + usize::from(desk.lines.stands(STORE).is_some())
}

/// Have the store awake by the time that it is asked.
fn nudge(desk: &mut Desk) {
    desk.lines.stands_mut(STORE).into_iter().for_each(Caller::nudge);
}

fn is_unavailable<T>(outcome: &Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind == ErrorKind::Unavailable)
}

fn first_link(
    dial: &dyn Dial,
    clock: &dyn Clock,
    timeout: Duration,
) -> std::result::Result<Box<dyn Link>, Closed> {
    let deadline = clock.now().after(timeout);
    let mut dialing = dial.begin()?;
    loop {
        let left = deadline.since(clock.now());
        match dialing.wait(left.min(STEP)) {
            Dialled::Ready(link) => return Ok(link),
            Dialled::Over(why) => return Err(why),
            Dialled::Waiting(_) if left.is_zero() => {
                let limit_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                return Err(Closed::Late { limit_ms });
            }
            Dialled::Waiting(waiting) => dialing = waiting,
        }
    }
}

fn not_attached(why: &Closed) -> Error {
    use pagelith_layouts::wire::greeting::Reason;
    let kind = match why {
        Closed::NotAuthentic { .. } => ErrorKind::Denied,
        Closed::Misfit(_) => ErrorKind::Incompatible,
        Closed::Refused(refusal) => match refusal.reason {
            Reason::Denied => ErrorKind::Denied,
            Reason::Version | Reason::Feature => ErrorKind::Incompatible,
            Reason::Busy | Reason::Malformed | Reason::Late => ErrorKind::Unavailable,
        },
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot attach to the store: {why}"))
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached").finish_non_exhaustive()
    }
}
