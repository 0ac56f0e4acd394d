//! What the store holds for this client lives as long as the link that it was taken on: one link for all of it, which is
//! looked at so often that the store does not take this process for dead.
//!
//! - While somebody talks over it, it is theirs; nobody holds the lock meanwhile, and who else wants it waits no longer than
//!   its own time.
//! - Links are numbered as they are made: what was held over an earlier one is held no more, and is not let go over another.

use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::{Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::sync::{Arc, AtomicU64, Condvar, Mutex, PoisonError, wait_while};
use pagelith_layouts::wire::request::Ask;
use pagelith_tiers::policy::Recency;

use super::control::tell_once;
use super::{STORE, is_unavailable};
use crate::api::error::{Error, Result};
use crate::rpc::connections::Desk;
use crate::rpc::remote_get::{Manner, no_link};
use crate::rpc::{Remote, Told};

/// How often the link is looked at while something is held: several times in what makes a silent peer a dead one.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The link that things are held over, and who may use it.
pub(crate) struct Keeper {
    pub clock: Arc<dyn Clock>,
    timeout: Duration,
    /// `None` while somebody has it.
    kept: Mutex<Option<Box<Kept>>>,
    free: Condvar,
    /// How many things are held, or may be.
    held: AtomicU64,
    /// The number of the link that stood when it was last used; 0 if none did.
    stood: AtomicU64,
    /// Looks at the link; taken once it does.
    runtime: Mutex<Option<Arc<dyn Runtime>>>,
}

/// The link.
pub(crate) struct Kept {
    pub desk: Desk,
    last_name: u64,
}

impl Kept {
    /// A name that nothing was held by before, on any link.
    pub fn name(&mut self) -> u64 {
        self.last_name += 1;
        self.last_name
    }

    /// The number of the link that stands now; `None` if there is none.
    pub fn link(&self) -> Option<u64> {
        self.desk.lines.stands(STORE).map(|_| self.desk.lines.made())
    }

    /// Ask what has a number for an answer, once; and over which link it was answered.
    pub fn number(&mut self, clock: &dyn Clock, ask: &Ask<'_>, manner: Manner) -> Result<(u64, u64)> {
        // Answers that nobody waited for.
        self.desk.take_all();
        match tell_once(clock, &mut self.desk, ask, manner, &|| {})? {
            (Told::Number(number), _) => Ok((number, self.desk.lines.made())),
            (Told::Flushed(_) | Told::Text(_) | Told::Bits(_) | Told::Events(_) | Told::Views(_), _) => {
                Err(no_link())
            }
        }
    }

    /// Ask what has a bit an object for an answer.
    pub fn bits(&mut self, clock: &dyn Clock, ask: &Ask<'_>, manner: Manner) -> Result<Vec<bool>> {
        self.desk.take_all();
        match tell_once(clock, &mut self.desk, ask, manner, &|| {})? {
            (Told::Bits(bits), _) => Ok(bits),
            (Told::Flushed(_) | Told::Text(_) | Told::Number(_) | Told::Events(_) | Told::Views(_), _) => {
                Err(no_link())
            }
        }
    }

    /// Ask on the link of this number, if it still stands, and wait for no answer.
    pub fn say(&mut self, link: u64, ask: &Ask<'_>, manner: Manner, now: Mono) {
        if self.link() == Some(link) {
            let token = self.desk.token();
            let caller = self.desk.lines.stands_mut(STORE);
            let said = caller.map(|caller| caller.tell(token, ask, manner.terms(now, 0), manner.deadline));
            if let Some(Err(error)) = said {
                tracing::warn!(%error, "what was held may be held until the link ends");
            }
        }
    }
}

impl Keeper {
    pub fn new(remote: Arc<Remote>, clock: Arc<dyn Clock>, timeout: Duration) -> Keeper {
        let kept = Box::new(Kept { desk: Desk::patient(remote), last_name: 0 });
        let (kept, free) = (Mutex::new(Some(kept)), Condvar::default());
        let (held, stood) = (AtomicU64::new(0), AtomicU64::new(0));
        Keeper { clock, timeout, kept, free, held, stood, runtime: Mutex::default() }
    }

    /// Let a task of this runtime look at the link, once something is held.
    pub fn looked_at_by(&self, runtime: Arc<dyn Runtime>) {
        *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
    }

    /// How what nobody set a time for is asked.
    pub fn manner(&self) -> Manner {
        Manner { at: Recency { epoch: 0, depth: 0 }, deadline: self.clock.now().after(self.timeout) }
    }

    /// Use the link. Whoever has it is waited for.
    ///
    /// # Errors
    /// `Busy` if others have it until `deadline`.
    pub fn with<R>(&self, deadline: Mono, body: impl FnOnce(&mut Kept) -> R) -> Result<R> {
        let mut slot = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = loop {
            let left = deadline.since(self.clock.now());
            match slot.take() {
                Some(kept) => break kept,
                None if left.is_zero() => {
                    return Err(Error::busy("the link that things are held over was in use all the time"));
                }
                None => slot = wait_while(&self.free, slot, LOOK_EVERY.min(left), |slot| slot.is_none()),
            }
        };
        drop(slot);
        let mut own = Own { keeper: self, kept: Some(kept) };
        own.polled().map(body)
    }

    /// The link, if nobody has it.
    fn unused(&self) -> Option<Own<'_>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Made only if there is one: who drops it puts back what is in it.
        kept.map(|kept| Own { keeper: self, kept: Some(kept) })
    }

    /// See to it that the store hears of this process, unless somebody talks to it now.
    pub fn look(&self) {
        if self.held.load(Relaxed) > 0
            && let Some(mut own) = self.unused()
        {
            let _ = own.polled();
        }
    }

    /// Whether the link of this number stands, as far as is known here. Waits for nobody.
    pub fn stands(&self, link: u64) -> bool {
        if let Some(mut own) = self.unused() {
            let _ = own.polled();
        }
        self.stood.load(Relaxed) == link
    }

    /// Whether the store answers over the link of this number: what is held over it was held until it did. A look at the link would not
    /// do: one that has ended may look as if it stood for a while. Waits as long as a call may take.
    pub fn answers(&self, link: u64) -> bool {
        let manner = self.manner();
        let asked = self.with(manner.deadline, |kept| {
            (kept.link() == Some(link)).then(|| kept.number(&*self.clock, &Ask::Ping, manner))
        });
        matches!(asked, Ok(Some(Ok((_, over)))) if over == link)
    }

    /// Have the store let go what is pinned or looked at by these names on the link of this number, if that still stands.
    pub fn unpin(&self, link: u64, names: &[u64]) {
        let manner = self.manner();
        let told = self.with(manner.deadline, |kept| {
            for name in names {
                if kept.link() != Some(link) {
                    return;
                }
                if let Err(error) = kept.number(&*self.clock, &Ask::Unpin(*name), manner) {
                    tracing::warn!(%error, "what was held may be held until the link ends");
                }
            }
        });
        if let Err(error) = told {
            tracing::warn!(%error, "what was held may be held until the link ends");
        }
    }

    /// One thing less is held.
    pub fn let_go(&self) {
        self.held.fetch_sub(1, Relaxed);
    }

    /// From now on a task looks at the link, if there is a runtime for it.
    fn look_on(self: &Arc<Self>) {
        let mut slot = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(runtime) = slot.take() else { return };
        let look = Box::new(Look(Arc::downgrade(self)));
        if let Err(error) = runtime.spawn("pagelith-keeper", look, Signal::default()) {
            tracing::warn!(%error, "nobody looks at the link that things are held over, but for the next call");
            // Whoever takes something next tries again.
            *slot = Some(runtime);
        }
    }

    /// Take something to be held: once more over a new link, if the one that stood has ended under it.
    pub fn take<R>(self: &Arc<Self>, deadline: Mono, take: impl Fn(&mut Kept) -> Result<R>) -> Result<R> {
        let taken = self.with(deadline, |kept| {
            let mut taken = Err(no_link());
            for _ in 0..super::tries(&kept.desk) {
                taken = take(kept);
                if !is_unavailable(&taken) {
                    break;
                }
            }
            taken
        })??;
        self.held.fetch_add(1, Relaxed);
        self.look_on();
        Ok(taken)
    }
}

/// Puts the link back, whatever becomes of who has it.
struct Own<'a> {
    keeper: &'a Keeper,
    kept: Option<Box<Kept>>,
}

impl Own<'_> {
    /// The link, once what came meanwhile was taken in.
    fn polled(&mut self) -> Result<&mut Kept> {
        let kept = self.kept.as_deref_mut().ok_or_else(no_link)?;
        kept.desk.poll(self.keeper.clock.now());
        Ok(kept)
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let link = self.kept.as_ref().and_then(|kept| kept.link());
        self.keeper.stood.store(link.unwrap_or(0), Relaxed);
        *self.keeper.kept.lock().unwrap_or_else(PoisonError::into_inner) = self.kept.take();
        self.keeper.free.notify_one();
    }
}

/// Looks at the link until nobody holds anything over it, nor could.
struct Look(Weak<Keeper>);

impl Task for Look {
    fn step(&mut self) -> Step {
        match self.0.upgrade() {
            Some(keeper) => {
                keeper.look();
                Step::Idle(LOOK_EVERY)
            }
            None => Step::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::entropy::Entropy;
    use pagelith_io::system::{SystemClock, SystemEntropy};
    use pagelith_transport::capability::Offer;
    use pagelith_transport::dial::SocketDial;

    use super::*;
    use crate::api::error::ErrorKind;
    use crate::rpc::Peer;

    #[test]
    fn who_wants_the_link_waits_no_longer_than_its_own_time() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let address = "tcp:127.0.0.1:1".parse().expect("an address");
        let offer = Offer::of_this_build(SystemEntropy.bytes16());
        let dial = Arc::new(SocketDial::new(address, None, offer, clock.clone()));
        let remote =
            Remote::new(vec![Peer { name: "store".to_owned(), weight: 1.0, preferred: false, dial }])
                .expect("a peer");
        let keeper = Keeper::new(Arc::new(remote), clock, Duration::from_secs(60));
        let soon = || keeper.clock.now().after(Duration::from_millis(2));
        let far = keeper.manner().deadline;
        // As if a link stood when it was last used.
        keeper.stood.store(7, Relaxed);
        let outer = keeper.with(far, |_| {
            assert_eq!(keeper.with(soon(), |_| ()).expect_err("in use").kind, ErrorKind::Busy);
            assert!(!keeper.stands(1), "and who only asks does not wait at all");
            keeper.held.store(1, Relaxed);
            keeper.look();
            assert!(keeper.stands(7), "nor does who asks while it is in use make it one that has ended");
        });
        assert_eq!((outer, keeper.with(soon(), |_| ())), (Ok(()), Ok(())), "it is put back");
    }
}
