//! The handshake of a local peer, on its own thread.
//!
//! A local peer can pass descriptors. A call that uses or closes one may block for as long as its
//! owner likes: the process of a FUSE file system may not respond, or a socket may linger. So the
//! accepting thread makes no further call on a connection after it has accepted it.
//!
//! Invariant: the connection and all descriptors of the peer are closed by the handshake's thread,
//! or by the owner of the link.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use rustix::net::{Shutdown, shutdown};

use super::connected::{SocketLink, SocketPending};
use crate::link_error::LinkError;
use crate::pending::HandshakeProgress;

/// Maximum single wait of the thread.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// The result of a handshake.
pub(super) type HandshakeResult = Result<Box<SocketLink>, LinkError>;

/// A handshake on its thread.
pub(super) struct HandshakeThread {
    state: Arc<Mutex<ThreadState>>,
    begun: Mono,
    held_bytes: usize,
}

#[derive(Default)]
struct ThreadState {
    /// The connection, while the thread owns it; used only to shut it down.
    socket: Option<Arc<OwnedFd>>,
    result: Option<HandshakeResult>,
    /// The peer has sent its greeting.
    is_greeted: bool,
    /// The reason why the listener no longer waits for the result.
    abandoned: Option<LinkError>,
}

/// State shared by the handshake threads of a listener: their count, and the eventfd that they
/// signal.
#[derive(Clone)]
pub(super) struct HandshakeThreads {
    count: Arc<()>,
    wake: Arc<OwnedFd>,
}

impl HandshakeThreads {
    pub fn new(wake: OwnedFd) -> HandshakeThreads {
        HandshakeThreads { count: Arc::new(()), wake: Arc::new(wake) }
    }

    /// Running threads, including those of abandoned handshakes.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.count) - 1
    }

    /// Readable once a handshake is over.
    pub fn wake(&self) -> &OwnedFd {
        &self.wake
    }
}

fn lock(state: &Mutex<ThreadState>) -> MutexGuard<'_, ThreadState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Close a connection that is not served, on a separate thread.
pub(super) fn close_on_thread(socket: OwnedFd, threads: &HandshakeThreads) {
    let threads = threads.clone();
    let body = move || {
        drop(socket);
        drop(threads);
    };
    // If no thread can be started, the socket is closed here: there is no other way to close it.
    let _ = std::thread::Builder::new().name("pagelith-greeting".to_owned()).spawn(body);
}

impl HandshakeThread {
    /// Start the thread; an error if that is not possible.
    pub fn start(
        pending: SocketPending,
        threads: &HandshakeThreads,
        clock: &dyn Clock,
    ) -> Result<HandshakeThread, LinkError> {
        let held_bytes = pending.held_bytes();
        let socket = Some(pending.stream().shared());
        let state = Arc::new(Mutex::new(ThreadState { socket, ..ThreadState::default() }));
        let (shared, threads) = (state.clone(), threads.clone());
        let body = move || {
            let result = run(pending, &shared);
            let mut state = lock(&shared);
            let socket = state.socket.take();
            // The result of an abandoned handshake is dropped by this thread.
            let unused =
                if state.abandoned.is_some() { Some(result) } else { state.result.replace(result) };
            drop(state);
            // Before the wake-up: the owner of a link must be the last to close its socket.
            drop((socket, unused));
            let HandshakeThreads { count, wake } = threads;
            drop(count);
            // An eventfd whose counter is full is readable as well.
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        let started = std::thread::Builder::new().name("pagelith-greeting".to_owned()).spawn(body);
        let failed = |e: std::io::Error| LinkError::SystemCall {
            operation: "start of a handshake thread",
            errno: e.raw_os_error().unwrap_or(0),
        };
        started.map_err(failed)?;
        Ok(HandshakeThread { state, begun: clock.now(), held_bytes })
    }

    /// Start time of the handshake.
    pub fn begun(&self) -> Mono {
        self.begun
    }

    /// Bytes of memory held for the peer, without those of the kernel's connection.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether the peer has sent its greeting.
    pub fn is_greeted(&self) -> bool {
        lock(&self.state).is_greeted
    }

    /// The result, if the handshake is over.
    pub fn result(&self) -> Option<HandshakeResult> {
        lock(&self.state).result.take()
    }

    /// Stop waiting for the handshake, and refuse the peer with `why` if it can still be sent.
    /// Returns the result instead if the handshake is over.
    pub fn abandon(self, why: LinkError) -> Option<HandshakeResult> {
        let mut state = lock(&self.state);
        if let Some(result) = state.result.take() {
            return Some(result);
        }
        state.abandoned = Some(why);
        // The shutdown wakes the thread from its wait.
        state.socket.iter().for_each(|socket| _ = shutdown(socket, Shutdown::Read));
        None
    }
}

fn run(pending: SocketPending, state: &Mutex<ThreadState>) -> HandshakeResult {
    let mut pending = pending;
    loop {
        // Cloned, so that the lock is not held during `poll`: `abandon` must not wait for this
        // thread.
        let abandoned = lock(state).abandoned.clone();
        let progress = match abandoned {
            Some(why) => pending.refuse(why),
            None => pending.poll(),
        };
        pending = match progress {
            HandshakeProgress::Waiting(pending) => pending,
            HandshakeProgress::Ready(link) => return Ok(link),
            HandshakeProgress::Failed(why) => return Err(why),
        };
        lock(state).is_greeted = pending.is_greeted();
        pending.sleep(WAIT_STEP);
    }
}
