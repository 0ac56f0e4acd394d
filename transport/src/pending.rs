//! A connection whose peer is not known yet. It holds little: one frame of a greeting, and what is to be said.

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
use crate::stream::{Moved, Stream};

/// A connection in its handshake.
pub struct Pending<S> {
    stream: S,
    side: Side,
    peer: String,
    offer: Offer,
    handshake: Handshake,
    /// The frame that is being read: never more than it needs.
    have: Vec<u8>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    begun: Mono,
    /// What was agreed, while the stream goes over to something better.
    agreed: Option<Agreed>,
}

/// How far a handshake is.
#[expect(clippy::large_enum_variant, reason = "it goes from hand to hand a few times a connection")]
pub enum Progress<S> {
    /// More must arrive.
    Waiting(Pending<S>),
    /// The peer is known.
    Ready(Box<Conn<S>>),
    /// It is over, and the connection closed.
    Over(Closed),
}

impl<S: Stream> Pending<S> {
    /// A connection that begins now; `peer` is its name for messages.
    pub fn new(
        stream: S,
        peer: String,
        side: Side,
        offer: Offer,
        handshake: Handshake,
        (clock, limits): (Arc<dyn Clock>, Limits),
    ) -> Pending<S> {
        let begun = clock.now();
        Pending { stream, side, peer, offer, handshake, have: Vec::new(), clock, limits, begun, agreed: None }
    }

    /// The peer's name for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The stream, for whoever waits for several at once.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Bytes that are held for the peer, beside the connection itself.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.have.capacity() + self.handshake.held_bytes()
    }

    /// How long until the handshake has taken too long.
    pub fn due(&self) -> Duration {
        self.limit().saturating_sub(self.clock.now().since(self.begun))
    }

    /// How long it may take altogether: little, until the other side has greeted.
    fn limit(&self) -> Duration {
        let Limits { greeting, handshake, .. } = self.limits;
        if self.handshake.is_greeted() { handshake } else { greeting.min(handshake) }
    }

    /// Whether the other side has greeted.
    pub(crate) fn is_greeted(&self) -> bool {
        self.handshake.is_greeted()
    }

    /// Whether it waits for the stream to take bytes.
    pub fn wants_write(&self) -> bool {
        self.handshake.wants_write()
    }

    /// Go as far as it goes now. Never waits.
    pub fn poll(mut self) -> Progress<S> {
        match self.turn() {
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
                // The refusal is already among what is to be said.
                let _ = self.say();
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

    /// End it, and tell the peer why if it can be told at once.
    pub(crate) fn refuse(mut self, why: Closed) -> Progress<S> {
        self.handshake.refuse(&why);
        let _ = self.say();
        Progress::Over(why)
    }

    fn turn(&mut self) -> Result<Option<Agreed>, Closed> {
        if self.agreed.is_none() {
            let Some(agreed) = self.shake()? else { return Ok(None) };
            if !self.stream.goes_over(agreed.common.features) {
                // What is left of the last frame goes out with the link's own.
                let _ = self.say();
                return Ok(Some(agreed));
            }
            self.agreed = Some(agreed);
        }
        self.say()?;
        let features = self.agreed.as_ref().map_or(0, |agreed| agreed.common.features);
        let over = self.handshake.out().is_empty() && self.stream.go_over(self.side, features)?;
        Ok(self.agreed.take_if(|_| over))
    }

    fn shake(&mut self) -> Result<Option<Agreed>, Closed> {
        loop {
            self.say()?;
            let need = self.handshake.need(&self.have).inspect_err(|why| self.handshake.refuse(why))?;
            if self.have.len() == need {
                let agreed = self.handshake.take(&self.have)?;
                self.have.clear();
                if agreed.is_some() {
                    return Ok(agreed);
                }
                continue;
            }
            let from = self.have.len();
            self.have.reserve_exact(need - from);
            self.have.resize(need, 0);
            let moved = self.stream.read(&mut [IoSliceMut::new(&mut self.have[from..])]);
            let read = if let Moved::Bytes(n) = moved { n } else { 0 };
            self.have.truncate(from + read);
            match moved {
                Moved::Bytes(_) => {}
                Moved::Blocked => return Ok(None),
                Moved::Ended => return Err(Closed::Ended),
                Moved::Failed { operation, errno } => return Err(Closed::System { operation, errno }),
            }
        }
    }

    /// Send what is to be said, as far as it goes.
    fn say(&mut self) -> Result<(), Closed> {
        let out = self.handshake.out();
        while !out.is_empty() {
            match self.stream.write(&[IoSlice::new(out)]) {
                Moved::Bytes(n) => drop(out.drain(..n)),
                Moved::Blocked => return Ok(()),
                Moved::Ended => return Err(Closed::Ended),
                Moved::Failed { operation, errno } => return Err(Closed::System { operation, errno }),
            }
        }
        Ok(())
    }
}
