//! The handshake of a peer of this host, on a thread of its own.
//!
//! Such a peer can hand descriptors over, and a call that touches or closes one may take as long as its owner likes: of a file in a file system whose process
//! does not answer, or of a socket that lingers. So the thread that accepts does nothing with the connection once it has accepted it.
//!
//! Invariant: whatever the peer handed over, and the connection, is let go by the handshake's own thread, or by whoever has the link.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use rustix::net::{Shutdown, shutdown};

use super::{SocketLink, SocketPending};
use crate::closed::Closed;
use crate::pending::Progress;

/// Longest single wait of the thread.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// How a handshake ended.
pub(super) type End = Result<Box<SocketLink>, Closed>;

/// A handshake on its thread.
pub(super) struct Aside {
    state: Arc<Mutex<State>>,
    begun: Mono,
    held_bytes: usize,
}

#[derive(Default)]
struct State {
    /// The connection, while the thread has it: for its shutdown alone.
    socket: Option<Arc<OwnedFd>>,
    end: Option<End>,
    /// The peer has greeted.
    is_greeted: bool,
    /// Why nobody waits for it any more.
    dismissed: Option<Closed>,
}

/// What the threads of a listener have in common: how many there are, and whom they tell that they are done.
#[derive(Clone)]
pub(super) struct Helpers {
    count: Arc<()>,
    wake: Arc<OwnedFd>,
}

impl Helpers {
    pub fn new(wake: OwnedFd) -> Helpers {
        Helpers { count: Arc::new(()), wake: Arc::new(wake) }
    }

    /// Threads that have not ended: those of handshakes that were given up are among them.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.count) - 1
    }

    /// Can be read once a handshake is over.
    pub fn wake(&self) -> &OwnedFd {
        &self.wake
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Let go of a connection that is not served.
pub(super) fn let_go(socket: OwnedFd, helpers: &Helpers) {
    let helpers = helpers.clone();
    let body = move || {
        drop(socket);
        drop(helpers);
    };
    // Where no thread can be started it is let go here: nothing else is left to be done with it.
    let _ = std::thread::Builder::new().name("pagelith-greeting".to_owned()).spawn(body);
}

impl Aside {
    /// Begin; an error if no thread can be started.
    pub fn begin(pending: SocketPending, helpers: &Helpers, clock: &dyn Clock) -> Result<Aside, Closed> {
        let held_bytes = pending.held_bytes();
        let socket = Some(pending.stream().shared());
        let state = Arc::new(Mutex::new(State { socket, ..State::default() }));
        let (theirs, helpers) = (state.clone(), helpers.clone());
        let body = move || {
            let end = shake(pending, &theirs);
            let mut state = lock(&theirs);
            let socket = state.socket.take();
            // Of one that is not waited for any more, the end is let go here.
            let late = if state.dismissed.is_some() { Some(end) } else { state.end.replace(end) };
            drop(state);
            // Whoever is told has the last of it: this thread must not be the one that lets go of a link.
            drop((socket, late));
            let Helpers { count, wake } = helpers;
            drop(count);
            // A count that is full wakes as well.
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        let started = std::thread::Builder::new().name("pagelith-greeting".to_owned()).spawn(body);
        let failed = |e: std::io::Error| Closed::System {
            operation: "start a thread for the greeting",
            errno: e.raw_os_error().unwrap_or(0),
        };
        started.map_err(failed)?;
        Ok(Aside { state, begun: clock.now(), held_bytes })
    }

    /// When it began.
    pub fn begun(&self) -> Mono {
        self.begun
    }

    /// Bytes that are held for the peer, beside the connection itself.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether the peer has greeted.
    pub fn is_greeted(&self) -> bool {
        lock(&self.state).is_greeted
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<End> {
        lock(&self.state).end.take()
    }

    /// Wait for it no longer, because of `why`, which the peer is told if it can be. How it ended, if it has.
    pub fn dismiss(self, why: Closed) -> Option<End> {
        let mut state = lock(&self.state);
        if let Some(end) = state.end.take() {
            return Some(end);
        }
        state.dismissed = Some(why);
        // The thread looks up from its wait.
        state.socket.iter().for_each(|socket| _ = shutdown(socket, Shutdown::Read));
        None
    }
}

fn shake(pending: SocketPending, state: &Mutex<State>) -> End {
    let mut pending = pending;
    loop {
        // Whoever dismisses it does not wait for this thread.
        let dismissed = lock(state).dismissed.clone();
        let progress = match dismissed {
            Some(why) => pending.refuse(why),
            None => pending.poll(),
        };
        pending = match progress {
            Progress::Waiting(pending) => pending,
            Progress::Ready(link) => return Ok(link),
            Progress::Over(why) => return Err(why),
        };
        lock(state).is_greeted = pending.is_greeted();
        pending.sleep(WAIT_STEP);
    }
}
