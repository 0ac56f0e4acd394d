//! Pooled sessions, used by the blocking calls of a store and of its groups.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::error::{ErrorKind, Result};
use crate::state::shared::{BUSY_STEP, Shared};
use crate::store::session::Session;

/// The pooled sessions of a store.
pub(crate) struct SessionPool {
    pub shared: Arc<Shared>,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    /// A stack: the session that was used last is reused first.
    idle: Vec<Session>,
    /// Number of sessions in use.
    in_use: usize,
    /// The store has ended: a session is dropped after its use.
    ended: bool,
}

impl SessionPool {
    pub fn new(shared: Arc<Shared>) -> SessionPool {
        SessionPool { shared, sessions: Mutex::default() }
    }

    /// Run `body` with a pooled session. Waits for one until the timeout.
    pub fn with_session<R>(
        &self,
        timeout: Option<Duration>,
        body: impl FnOnce(&mut Session) -> R,
    ) -> Result<R> {
        let mut session = self.take_session(timeout)?;
        let result = body(&mut session);
        let mut sessions = self.sessions();
        sessions.in_use -= 1;
        if sessions.ended {
            // Its drop may wait for reads.
            drop(sessions);
            drop(session);
        } else {
            // Their reads that no batch waits for any more hold segments until they are polled.
            sessions.idle.iter_mut().filter(|idle| idle.is_busy()).for_each(|idle| _ = idle.poll());
            sessions.idle.push(session);
        }
        Ok(result)
    }

    /// Take a pooled session, or create one. If the resources for a new one are exhausted (a ring,
    /// a descriptor, a mapping), wait for a session in use to be returned.
    fn take_session(&self, timeout: Option<Duration>) -> Result<Session> {
        let shared = &self.shared;
        let deadline = shared.deadline(timeout);
        loop {
            let seen = shared.signals.progress.value();
            let mut sessions = self.sessions();
            if let Some(session) = sessions.idle.pop() {
                sessions.in_use += 1;
                return Ok(session);
            }
            let others = sessions.in_use > 0;
            drop(sessions);
            let left = deadline.since(shared.now());
            match Session::new(shared.clone()) {
                Ok(session) => {
                    self.sessions().in_use += 1;
                    return Ok(session);
                }
                Err(error) if error.kind != ErrorKind::Busy || !others || left.is_zero() => {
                    return Err(error);
                }
                Err(_) => {
                    shared.env.runtime.pause(&shared.signals.progress, seen, left.min(BUSY_STEP))
                }
            }
        }
    }

    /// End the idle sessions, by `deadline`, and those in use when they are returned.
    pub fn end(&self, deadline: Mono) {
        let mut sessions = self.sessions();
        sessions.ended = true;
        let mut idle = std::mem::take(&mut sessions.idle);
        drop(sessions);
        idle.iter_mut().for_each(|session| session.set_drop_deadline(deadline));
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
