//! An HTTP connection: one request, one response, then the end. No call blocks.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use pagelith::io::clock::Mono;
use rustix::event::{PollFd, PollFlags};

use super::request::{HEAD_BYTES_MAX, Request, parse};
use super::response::Response;

/// Maximum lifetime of a connection from its accept: request, response, and bytes that follow both.
const LIFETIME: Duration = Duration::from_secs(5);
/// Maximum bytes after a request, such as a body, that are read and discarded.
const REST_BYTES_MAX: usize = 64 << 10;

/// Handles a request.
pub(super) type Handler<'a> = &'a mut dyn FnMut(Request<'_>) -> Response;

/// A client's connection.
pub(super) struct Connection {
    stream: TcpStream,
    deadline: Mono,
    state: State,
}

enum State {
    /// Reading the head; holds the bytes so far.
    Reading(Vec<u8>),
    /// Writing the response; holds its bytes and the number of those sent.
    Writing(Vec<u8>, usize),
    /// The response was sent. Further bytes of the client are discarded; holds their number.
    /// Closing with unread bytes would reset the connection, and the client could lose the
    /// response.
    Draining(usize),
}

impl Connection {
    /// A connection accepted at `now`.
    pub fn new(stream: TcpStream, now: Mono) -> std::io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, deadline: now.after(LIFETIME), state: State::Reading(Vec::new()) })
    }

    /// The event that the connection waits for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let flags = match self.state {
            State::Reading(_) | State::Draining(_) => PollFlags::IN,
            State::Writing(..) => PollFlags::OUT,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Advance as far as possible without blocking; false once the connection is over.
    pub fn poll(&mut self, now: Mono, handler: Handler<'_>) -> bool {
        if now >= self.deadline {
            self.time_out();
            return false;
        }
        match self.advance(handler) {
            Ok(()) => false,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    /// Advance to the end, or until the stream would block.
    fn advance(&mut self, handler: Handler<'_>) -> std::io::Result<()> {
        loop {
            match &mut self.state {
                State::Reading(head) => {
                    if read_more(&mut self.stream, head)? == 0 {
                        return Ok(());
                    }
                    let bytes = match parse(head) {
                        Ok(None) => continue,
                        Ok(Some(request)) => handler(request).bytes(request.method != "HEAD"),
                        Err(refused) => refused.bytes(true),
                    };
                    self.state = State::Writing(bytes, 0);
                }
                State::Writing(bytes, sent) if *sent < bytes.len() => {
                    match unless_interrupted(|| self.stream.write(&bytes[*sent..]))? {
                        0 => return Ok(()),
                        more => *sent += more,
                    }
                }
                State::Writing(..) => {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Draining(0);
                }
                State::Draining(dropped) => {
                    let read = unless_interrupted(|| self.stream.read(&mut [0; 4096]))?;
                    *dropped += read;
                    if read == 0 || *dropped > REST_BYTES_MAX {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Time out: a client that has sent a part of a request gets a response.
    fn time_out(&mut self) {
        if matches!(&self.state, State::Reading(head) if !head.is_empty()) {
            let late = Response::text("408 Request Timeout", "the request took too long\n");
            // Best effort: dropped if the socket is full.
            let _ = self.stream.write(&late.bytes(true));
        }
    }
}

/// Read available bytes, up to the maximum length of a head.
fn read_more(stream: &mut TcpStream, head: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut part = [0; 2048];
    let room = (HEAD_BYTES_MAX - head.len()).min(part.len());
    let read = unless_interrupted(|| stream.read(&mut part[..room]))?;
    head.extend_from_slice(&part[..read]);
    Ok(read)
}

fn unless_interrupted(mut call: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
