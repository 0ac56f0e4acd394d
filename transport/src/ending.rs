//! A link that is closed, while memory of it is read still: it comes back when the kernel says so.
//!
//! An orderly end waits a little for the peer to take what was sent. After that, and at any other end, the connection is
//! aborted: its stream drops what the peer has not acknowledged, and what is left are bytes that a device has in its hands.

use std::time::Duration;

use pagelith_io::clock::Mono;

use crate::closed::Closed;
use crate::link::Event;
use crate::outbound::Outbound;
use crate::stream::Stream;

/// Longest single wait.
pub(crate) const STEP: Duration = Duration::from_millis(1);
/// Waits of a link that is dropped: for an orderly end, and for what a device has.
const ORDERLY_STEPS: usize = 100;
const DEVICE_STEPS: usize = 1000;

pub(crate) struct Ending<S> {
    stream: S,
    pub why: Closed,
    /// When the connection is aborted, if it is not yet.
    abort_at: Option<Mono>,
}

impl<S: Stream> Ending<S> {
    /// `orderly` is how long the peer has for what was sent; `None` if it takes nothing any more.
    pub fn new(mut stream: S, why: Closed, now: Mono, orderly: Option<Duration>) -> Ending<S> {
        if let Some(zero_copy) = stream.zero_copy() {
            match orderly {
                Some(_) => zero_copy.finish(),
                None => zero_copy.abort(),
            }
        }
        Ending { stream, why, abort_at: orderly.map(|time| now.after(time)) }
    }

    /// Go on as far as it goes now; true once nothing is read.
    pub fn poll(&mut self, outbound: &mut Outbound, now: Mono, events: &mut Vec<Event>) -> bool {
        outbound.complete(&mut self.stream, events);
        if outbound.is_read() && self.abort_at.is_some_and(|at| now >= at) {
            self.abort();
            outbound.complete(&mut self.stream, events);
        }
        !outbound.is_read()
    }

    /// Wait until less is read, at most `timeout` and for a step. False: it may be that nothing has changed.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        if let Some(zero_copy) = self.stream.zero_copy() {
            zero_copy.wait(timeout.min(STEP));
        }
        false
    }

    /// Wait until nothing is read, or leak it. Counts waits: a clock may stand still.
    pub fn last(mut self, outbound: &mut Outbound) {
        let mut events = Vec::new();
        for step in 0..ORDERLY_STEPS + DEVICE_STEPS {
            if step == ORDERLY_STEPS {
                self.abort();
            }
            outbound.complete(&mut self.stream, &mut events);
            if !outbound.is_read() {
                return;
            }
            self.wait(STEP);
        }
        let pushes = outbound.leak();
        tracing::error!(pushes, "memory of a connection that was aborted is read still: it is leaked");
    }

    fn abort(&mut self) {
        self.abort_at = None;
        if let Some(zero_copy) = self.stream.zero_copy() {
            zero_copy.abort();
        }
    }
}
