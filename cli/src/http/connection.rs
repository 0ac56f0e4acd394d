//! A connection of HTTP: a request, its answer, and the end. No call on it waits.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use pagelith::io::clock::Mono;
use rustix::event::{PollFd, PollFlags};

use super::answer::Answer;
use super::request::{HEAD_BYTES_MAX, Request, parse};

/// How long a connection lasts at most, from when it was accepted: request, answer, and what the client sends after both.
const LIFETIME: Duration = Duration::from_secs(5);
/// Most bytes that are read of what a client sends after its request, such as a body, and dropped.
const REST_BYTES_MAX: usize = 64 << 10;

/// Makes the answer to a request.
pub(super) type Answering<'a> = &'a mut dyn FnMut(Request<'_>) -> Answer;

/// A client's connection.
pub(super) struct Connection {
    stream: TcpStream,
    until: Mono,
    state: State,
}

enum State {
    /// A part of a head has come.
    Asking(Vec<u8>),
    /// Bytes of the answer, and how many of them were sent.
    Answering(Vec<u8>, usize),
    /// All was sent. To close now would reset the connection if the client has sent more, and the client might lose the answer: so
    /// many bytes of that were dropped.
    Ending(usize),
}

impl Connection {
    /// One that was accepted `now`.
    pub fn new(stream: TcpStream, now: Mono) -> std::io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, until: now.after(LIFETIME), state: State::Asking(Vec::new()) })
    }

    /// What its next turn waits for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let flags = match self.state {
            State::Asking(_) | State::Ending(_) => PollFlags::IN,
            State::Answering(..) => PollFlags::OUT,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Go on as far as it goes without waiting; false once it is over.
    pub fn turn(&mut self, now: Mono, answer: Answering<'_>) -> bool {
        if now >= self.until {
            self.give_up();
            return false;
        }
        match self.go_on(answer) {
            Ok(()) => false,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    /// To the end, or as far as the stream takes or has bytes.
    fn go_on(&mut self, answer: Answering<'_>) -> std::io::Result<()> {
        loop {
            match &mut self.state {
                State::Asking(head) => {
                    if read_more(&mut self.stream, head)? == 0 {
                        return Ok(());
                    }
                    let bytes = match parse(head) {
                        Ok(None) => continue,
                        Ok(Some(request)) => answer(request).bytes(request.method != "HEAD"),
                        Err(refused) => refused.bytes(true),
                    };
                    self.state = State::Answering(bytes, 0);
                }
                State::Answering(bytes, sent) if *sent < bytes.len() => {
                    match unless_interrupted(|| self.stream.write(&bytes[*sent..]))? {
                        0 => return Ok(()),
                        more => *sent += more,
                    }
                }
                State::Answering(..) => {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Ending(0);
                }
                State::Ending(dropped) => {
                    let read = unless_interrupted(|| self.stream.read(&mut [0; 4096]))?;
                    *dropped += read;
                    if read == 0 || *dropped > REST_BYTES_MAX {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Its time is over: a client that has begun to ask is told.
    fn give_up(&mut self) {
        if matches!(&self.state, State::Asking(head) if !head.is_empty()) {
            let late = Answer::text("408 Request Timeout", "the request did not come in time\n");
            // It is as well if it is not taken at once.
            let _ = self.stream.write(&late.bytes(true));
        }
    }
}

/// Read some of what there is, until the head is as long as one may be.
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
