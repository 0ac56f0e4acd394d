//! A connection in its handshake, before its peer is authenticated. It buffers little: one incoming
//! frame of the handshake, and the outgoing bytes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::wire::Side;

use crate::capability::Offer;
use crate::closed::Closed;
use crate::conn::Conn;
use crate::handshake::{Agreed, Handshake};
use crate::limits::Limits;
use crate::stream::{IoResult, Stream};

/// A connection in its handshake.
pub struct Pending<S> {
    stream: S,
    side: Side,
    peer: String,
    offer: Offer,
    handshake: Handshake,
    /// The received bytes of the current frame; at most that frame.
    received: Vec<u8>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    begun: Mono,
    /// The agreement, while the stream moves to its faster carrier.
    agreed: Option<Agreed>,
}

/// Progress of a handshake.
#[expect(clippy::large_enum_variant, reason = "it is moved only a few times per connection")]
pub enum Progress<S> {
    /// More bytes must arrive.
    Waiting(Pending<S>),
    /// The link is established.
    Ready(Box<Conn<S>>),
    /// The handshake failed, and the connection is closed.
    Over(Closed),
}

impl<S: Stream> Pending<S> {
    /// A connection that begins its handshake now; `peer` is its name for messages.
    pub fn new(
        stream: S,
        peer: String,
        side: Side,
        offer: Offer,
        handshake: Handshake,
        (clock, limits): (Arc<dyn Clock>, Limits),
    ) -> Pending<S> {
        let begun = clock.now();
        Pending {
            stream,
            side,
            peer,
            offer,
            handshake,
            received: Vec::new(),
            clock,
            limits,
            begun,
            agreed: None,
        }
    }

    /// The peer's name for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The stream, for callers that wait for several at once.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Bytes of memory held for the peer, without those of the kernel's connection.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.received.capacity() + self.handshake.held_bytes()
    }

    /// Time left for the handshake.
    pub fn due(&self) -> Duration {
        self.limit().saturating_sub(self.clock.now().since(self.begun))
    }

    /// Maximum duration of the handshake: [`Limits::greeting`] until the peer has sent its
    /// greeting.
    fn limit(&self) -> Duration {
        let Limits { greeting, handshake, .. } = self.limits;
        if self.handshake.is_greeted() { handshake } else { greeting.min(handshake) }
    }

    /// Whether the peer has sent its greeting.
    pub(crate) fn is_greeted(&self) -> bool {
        self.handshake.is_greeted()
    }

    /// Whether it waits until its stream can be written.
    pub fn wants_write(&self) -> bool {
        self.handshake.wants_write()
    }

    /// Advance as far as possible now. Never waits.
    pub fn poll(mut self) -> Progress<S> {
        match self.advance() {
            Ok(Some(agreed)) => {
                let first = std::mem::take(self.handshake.out());
                let Pending { stream, side, peer, offer, clock, limits, .. } = self;
                Progress::Ready(Box::new(Conn::new(
                    stream,
                    side,
                    peer,
                    &offer,
                    agreed,
                    first,
                    (clock, limits),
                )))
            }
            Ok(None) if self.due().is_zero() => {
                let limit_ms = u64::try_from(self.limit().as_millis()).unwrap_or(u64::MAX);
                self.refuse(Closed::Late { limit_ms })
            }
            Ok(None) => Progress::Waiting(self),
            Err(why) => {
                // The refusal is already queued.
                let _ = self.flush();
                Progress::Over(why)
            }
        }
    }

    /// As `poll`, but wait until there is progress or `timeout` passed.
    pub fn wait(mut self, timeout: Duration) -> Progress<S> {
        self.sleep(timeout);
        self.poll()
    }

    /// Wait until there may be progress or `timeout` passed.
    pub(crate) fn sleep(&mut self, timeout: Duration) {
        let (write, most) = (self.wants_write(), timeout.min(self.due()));
        self.stream.ready(write, most);
    }

    /// End the handshake, and send the peer the reason if that is possible at once.
    pub(crate) fn refuse(mut self, why: Closed) -> Progress<S> {
        self.handshake.refuse(&why);
        let _ = self.flush();
        Progress::Over(why)
    }

    fn advance(&mut self) -> Result<Option<Agreed>, Closed> {
        if self.agreed.is_none() {
            let Some(agreed) = self.exchange_frames()? else { return Ok(None) };
            if !self.stream.goes_over(agreed.common.features) {
                // The rest of the last frame is sent before the link's own frames.
                let _ = self.flush();
                return Ok(Some(agreed));
            }
            self.agreed = Some(agreed);
        }
        self.flush()?;
        let features = self.agreed.as_ref().map_or(0, |agreed| agreed.common.features);
        let over = self.handshake.out().is_empty() && self.stream.go_over(self.side, features)?;
        Ok(self.agreed.take_if(|_| over))
    }

    fn exchange_frames(&mut self) -> Result<Option<Agreed>, Closed> {
        loop {
            self.flush()?;
            let need = self
                .handshake
                .need(&self.received)
                .inspect_err(|why| self.handshake.refuse(why))?;
            if self.received.len() == need {
                let agreed = self.handshake.take(&self.received)?;
                self.received.clear();
                if agreed.is_some() {
                    return Ok(agreed);
                }
                continue;
            }
            let from = self.received.len();
            self.received.reserve_exact(need - from);
            self.received.resize(need, 0);
            let moved = self.stream.read(&mut [IoSliceMut::new(&mut self.received[from..])]);
            let read = if let IoResult::Bytes(n) = moved { n } else { 0 };
            self.received.truncate(from + read);
            match moved {
                IoResult::Bytes(_) => {}
                IoResult::Blocked => return Ok(None),
                IoResult::Ended => return Err(Closed::Ended),
                IoResult::Failed { operation, errno } => {
                    return Err(Closed::System { operation, errno });
                }
            }
        }
    }

    /// Send as many of the queued bytes as the stream takes.
    fn flush(&mut self) -> Result<(), Closed> {
        let out = self.handshake.out();
        while !out.is_empty() {
            match self.stream.write(&[IoSlice::new(out)]) {
                IoResult::Bytes(n) => drop(out.drain(..n)),
                IoResult::Blocked => return Ok(()),
                IoResult::Ended => return Err(Closed::Ended),
                IoResult::Failed { operation, errno } => {
                    return Err(Closed::System { operation, errno });
                }
            }
        }
        Ok(())
    }
}
