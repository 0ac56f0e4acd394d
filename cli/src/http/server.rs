//! An HTTP server on one thread, over sockets that do not block: no client holds up another.
//!
//! `connections <= CONNECTIONS_MAX`; each new one beyond that replaces the oldest. `spares` are descriptors held in reserve: when the
//! process has no others left, one is closed to accept a connection, so that metrics stay readable.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagelith::io::clock::{Clock, Mono};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::{Answering, Connection};
use crate::output::log;

/// Most connections at once.
pub(super) const CONNECTIONS_MAX: usize = 32;
/// Descriptors that are kept for when there are no others.
const SPARES: usize = 4;
/// How long nothing is accepted once no descriptor can be had at all.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener and its connections, oldest first.
pub(super) struct Server {
    listener: TcpListener,
    connections: Vec<Connection>,
    spares: Vec<OwnedFd>,
    /// Nothing is accepted before.
    accepts_from: Mono,
    /// The lack of descriptors was logged, and no connection was accepted since.
    lacks: bool,
}

impl Server {
    pub fn new(listener: TcpListener) -> std::io::Result<Server> {
        listener.set_nonblocking(true)?;
        let (connections, spares) = (Vec::new(), Vec::new());
        let mut server =
            Server { listener, connections, spares, accepts_from: Mono::default(), lacks: false };
        server.keep_spares();
        Ok(server)
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How many there are now.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Wait for something to do, at most `timeout`, and do it. How long that takes depends on no client.
    pub fn turn(&mut self, clock: &dyn Clock, timeout: Duration, answer: Answering<'_>) {
        let accepts = self.accepts_from <= clock.now();
        let listening = accepts.then(|| PollFd::new(&self.listener, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = self.connections.iter().map(Connection::poll_fd).collect();
        fds.extend(listening);
        // An interrupted poll does no harm: a socket that is not ready answers EAGAIN.
        let _ = poll(&mut fds, Some(&short(timeout)));
        let now = clock.now();
        if accepts {
            self.accept(now, answer);
        }
        self.connections.retain_mut(|connection| connection.turn(now, answer));
        self.keep_spares();
    }

    /// Accept what waits, as many as there may be at once.
    fn accept(&mut self, now: Mono, answer: Answering<'_>) {
        for _ in 0..CONNECTIONS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream, now, answer),
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::AGAIN) => return,
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        // The system says so even if no client waits.
                        if !self.is_waited_for() {
                            return;
                        }
                        // The system's lack, unlike the process's, is not ours to mend.
                        let ours = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
                        if !ours || !self.free_a_descriptor() {
                            self.pause(now, &error);
                            return;
                        }
                    }
                    // Such as of a client that has gone meanwhile.
                    _ => {}
                },
            }
        }
    }

    /// Whether a client waits to be accepted.
    fn is_waited_for(&self) -> bool {
        poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&Timespec::default()))
            .is_ok_and(|n| n > 0)
    }

    fn admit(&mut self, stream: TcpStream, now: Mono, answer: Answering<'_>) {
        self.lacks = false;
        let Ok(mut connection) = Connection::new(stream, now) else { return };
        // Read at once, so that a later connection cannot replace one whose request has arrived.
        if connection.turn(now, answer) {
            if self.connections.len() >= CONNECTIONS_MAX {
                self.connections.remove(0);
            }
            self.connections.push(connection);
        }
    }

    /// Give up a descriptor for the next connection; false if there is none.
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
        if !std::mem::replace(&mut self.lacks, true) {
            log!("nobody is answered over HTTP until a descriptor is free, raise `ulimit -n`: {error}");
        }
    }

    /// Any descriptor does.
    fn keep_spares(&mut self) {
        while self.spares.len() < SPARES {
            let Ok(spare) = self.listener.as_fd().try_clone_to_owned() else { return };
            self.spares.push(spare);
        }
    }
}

/// A time-out below a second.
fn short(timeout: Duration) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() }
}
