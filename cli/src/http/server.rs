//! An HTTP server on one thread with non-blocking sockets: no client blocks another.
//!
//! `connections <= CONNECTIONS_MAX`; each new one beyond that replaces the oldest. `spares` are
//! reserve descriptors: if the process has no others left, one is closed to accept a connection, so
//! that metrics stay readable.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagelith::io::clock::{Clock, Mono};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::{Connection, Handler};
use crate::output::log;

/// Maximum open connections.
pub(super) const CONNECTIONS_MAX: usize = 32;
/// Number of reserve descriptors.
const SPARES: usize = 4;
/// Pause of accept if no descriptor is available.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener and its connections, oldest first.
pub(super) struct Server {
    listener: TcpListener,
    connections: Vec<Connection>,
    spares: Vec<OwnedFd>,
    /// No connection is accepted before this time.
    accepts_from: Mono,
    /// The lack of descriptors was logged, and no connection was accepted since.
    lack_logged: bool,
}

impl Server {
    pub fn new(listener: TcpListener) -> std::io::Result<Server> {
        listener.set_nonblocking(true)?;
        let (connections, spares) = (Vec::new(), Vec::new());
        let mut server = Server {
            listener,
            connections,
            spares,
            accepts_from: Mono::default(),
            lack_logged: false,
        };
        server.keep_spares();
        Ok(server)
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Number of open connections.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Wait at most `timeout` for events, and handle them. No client can extend the time that
    /// takes.
    pub fn poll(&mut self, clock: &dyn Clock, timeout: Duration, handler: Handler<'_>) {
        let accepts = self.accepts_from <= clock.now();
        let listening = accepts.then(|| PollFd::new(&self.listener, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = self.connections.iter().map(Connection::poll_fd).collect();
        fds.extend(listening);
        // An interrupted poll is harmless: a call on a socket that is not ready returns EAGAIN.
        let _ = poll(&mut fds, Some(&short(timeout)));
        let now = clock.now();
        if accepts {
            self.accept(now, handler);
        }
        self.connections.retain_mut(|connection| connection.poll(now, handler));
        self.keep_spares();
    }

    /// Accept waiting connections, at most [`CONNECTIONS_MAX`].
    fn accept(&mut self, now: Mono, handler: Handler<'_>) {
        for _ in 0..CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream, now, handler),
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::AGAIN) => return,
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        // Accept fails with these errors even if no client waits.
                        if !self.has_waiting_client() {
                            return;
                        }
                        // Closing a descriptor helps only against the limit of this process.
                        let ours = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
                        if !ours || !self.free_a_descriptor() {
                            self.pause(now, &error);
                            return;
                        }
                    }
                    // For example a client that has closed its connection meanwhile.
                    _ => {}
                },
            }
        }
    }

    /// Whether a client waits to be accepted.
    fn has_waiting_client(&self) -> bool {
        poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|n| n > 0)
    }

    fn admit(&mut self, stream: TcpStream, now: Mono, handler: Handler<'_>) {
        self.lack_logged = false;
        let Ok(mut connection) = Connection::new(stream, now) else { return };
        // Read at once, so that a later connection cannot evict one whose request has arrived.
        if connection.poll(now, handler) {
            if self.connections.len() >= CONNECTIONS_MAX {
                self.connections.remove(0);
            }
            self.connections.push(connection);
        }
    }

    /// Free a descriptor for the next connection; false if there is none to free.
    fn free_a_descriptor(&mut self) -> bool {
        if self.spares.pop().is_some() {
            return true;
        }
        let has_any = !self.connections.is_empty();
        if has_any {
            self.connections.remove(0);
        }
        has_any
    }

    fn pause(&mut self, now: Mono, error: &std::io::Error) {
        self.accepts_from = now.after(PAUSE);
        if !std::mem::replace(&mut self.lack_logged, true) {
            log!("no descriptor is free for HTTP connections, raise `ulimit -n`: {error}");
        }
    }

    /// Refill the reserve. Any descriptor serves the purpose.
    fn keep_spares(&mut self) {
        while self.spares.len() < SPARES {
            let Ok(spare) = self.listener.as_fd().try_clone_to_owned() else { return };
            self.spares.push(spare);
        }
    }
}

/// A timeout below one second.
fn short(timeout: Duration) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() }
}
