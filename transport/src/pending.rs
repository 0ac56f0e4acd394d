//! A connection in its handshake, before its peer is authenticated. It buffers little: one incoming
//! frame of the handshake, and the outgoing bytes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::printable::Printable;
use pagelith_layouts::wire::rails::RAILS_BODY_MAX;
use pagelith_layouts::wire::{FrameHead, FrameKind, LinkRole};

use crate::capability::Capabilities;
use crate::conn::Conn;
use crate::handshake::Handshake;
use crate::handshake_outcome::HandshakeOutcome;
use crate::limits::LinkLimits;
use crate::link_error::LinkError;
use crate::rdma::rdma_use::RdmaUse;
use crate::rdma::{DataPlane, Exchanged, PendingRails, RailsExchange};
use crate::stream::{Stream, StreamResult};

/// A connection in its handshake.
pub struct PendingHandshake<S> {
    stream: S,
    side: LinkRole,
    peer: String,
    offer: Capabilities,
    handshake: Handshake,
    /// The received bytes of the current frame; at most that frame.
    received: Vec<u8>,
    clock: Arc<dyn Clock>,
    limits: LinkLimits,
    begun: Mono,
    /// The agreement, while the stream moves to its faster carrier, or rails are exchanged.
    agreed: Option<HandshakeOutcome>,
    rdma: RdmaUse,
    /// The exchange of rails, if RDMA is agreed.
    rails: Option<PendingRails>,
    /// The data plane that it has led to.
    data: Option<DataPlane>,
}

/// Progress of a handshake.
#[expect(clippy::large_enum_variant, reason = "it is moved only a few times per connection")]
pub enum HandshakeProgress<S> {
    /// More bytes must arrive.
    Waiting(PendingHandshake<S>),
    /// The link is established.
    Ready(Box<Conn<S>>),
    /// The handshake failed, and the connection is closed.
    Failed(LinkError),
}

impl<S: Stream> PendingHandshake<S> {
    /// A connection that begins its handshake now; `peer` is its name for messages.
    pub fn new(
        stream: S,
        peer: String,
        side: LinkRole,
        offer: Capabilities,
        handshake: Handshake,
        (clock, limits): (Arc<dyn Clock>, LinkLimits),
    ) -> PendingHandshake<S> {
        let begun = clock.now();
        PendingHandshake {
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
            rdma: RdmaUse::Off,
            rails: None,
            data: None,
        }
    }

    /// The same, for a link that may have RDMA if the peer offers it too. The offer has
    /// [`Feature::Rdma`] then.
    pub fn with_rdma(self, rdma: RdmaUse) -> PendingHandshake<S> {
        PendingHandshake { rdma, ..self }
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

    /// Maximum duration of the handshake: [`LinkLimits::greeting`] until the peer has sent its
    /// greeting.
    fn limit(&self) -> Duration {
        let LinkLimits { greeting, handshake, .. } = self.limits;
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
    pub fn poll(mut self) -> HandshakeProgress<S> {
        match self.advance() {
            Ok(Some(agreed)) => {
                let first = std::mem::take(self.handshake.out());
                let peer = self.handshake.named(std::mem::take(&mut self.peer));
                let PendingHandshake { stream, side, offer, clock, limits, data, .. } = self;
                let outside = (clock, limits);
                let link = Conn::new(stream, side, peer, &offer, agreed, first, outside);
                HandshakeProgress::Ready(Box::new(link.with_data_plane(data)))
            }
            Ok(None) if self.due().is_zero() => {
                let limit_ms = u64::try_from(self.limit().as_millis()).unwrap_or(u64::MAX);
                self.refuse(LinkError::HandshakeTimeout { limit_ms })
            }
            Ok(None) => HandshakeProgress::Waiting(self),
            Err(why) => {
                // The refusal is already queued.
                let _ = self.flush();
                HandshakeProgress::Failed(why)
            }
        }
    }

    /// As `poll`, but wait until there is progress or `timeout` passed.
    pub fn wait(mut self, timeout: Duration) -> HandshakeProgress<S> {
        self.sleep(timeout);
        self.poll()
    }

    /// Wait until there may be progress or `timeout` passed.
    pub(crate) fn sleep(&mut self, timeout: Duration) {
        let (write, most) = (self.wants_write(), timeout.min(self.due()));
        self.stream.ready(write, most);
    }

    /// End the handshake, and send the peer the reason if that is possible at once.
    pub(crate) fn refuse(mut self, why: LinkError) -> HandshakeProgress<S> {
        self.handshake.refuse(&why);
        let _ = self.flush();
        HandshakeProgress::Failed(why)
    }

    fn advance(&mut self) -> Result<Option<HandshakeOutcome>, LinkError> {
        if self.agreed.is_none() {
            let Some(agreed) = self.exchange_frames()? else { return Ok(None) };
            let agreed = self.begin_rails(agreed)?;
            if self.rails.is_none() && !self.stream.will_upgrade(agreed.common.features) {
                // The rest of the last frame is sent before the link's own frames.
                let _ = self.flush();
                return Ok(Some(agreed));
            }
            self.agreed = Some(agreed);
        }
        if self.rails.is_some() {
            return self.exchange_rails();
        }
        self.flush()?;
        let features = self.agreed.as_ref().map_or(0, |agreed| agreed.common.features);
        let over =
            self.handshake.out().is_empty() && self.stream.upgrade_carrier(self.side, features)?;
        Ok(self.agreed.take_if(|_| over))
    }

    fn exchange_frames(&mut self) -> Result<Option<HandshakeOutcome>, LinkError> {
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
            if !self.read_to(need)? {
                return Ok(None);
            }
        }
    }

    /// Read until `need` bytes of the current frame are received; false if they have not arrived.
    fn read_to(&mut self, need: usize) -> Result<bool, LinkError> {
        while self.received.len() < need {
            let from = self.received.len();
            self.received.reserve_exact(need - from);
            self.received.resize(need, 0);
            let moved = self.stream.read(&mut [IoSliceMut::new(&mut self.received[from..])]);
            let read = if let StreamResult::Bytes(n) = moved { n } else { 0 };
            self.received.truncate(from + read);
            match moved {
                StreamResult::Bytes(_) => {}
                StreamResult::Blocked => return Ok(false),
                StreamResult::Ended => return Err(LinkError::Disconnected),
                StreamResult::Failed { operation, errno } => {
                    return Err(LinkError::SystemCall { operation, errno });
                }
            }
        }
        Ok(true)
    }

    /// Begin to exchange rails if RDMA is agreed: a client queues its frame.
    fn begin_rails(&mut self, mut agreed: HandshakeOutcome) -> Result<HandshakeOutcome, LinkError> {
        let features = agreed.common.features;
        self.rdma.check(features)?;
        let Some(host) = self.rdma.host().filter(|_| features & Feature::Rdma.bit() != 0) else {
            return Ok(agreed);
        };
        let exchange = RailsExchange::new(host.clone(), self.stream.peer_ip(), self.offer.instance);
        let mut rails = PendingRails::new(exchange, self.side);
        if let Some(first) = rails.first() {
            agreed.append_frame(FrameKind::Rails, &first.encode(), self.handshake.out());
        }
        self.rails = Some(rails);
        Ok(agreed)
    }

    /// Exchange rails as far as possible now.
    fn exchange_rails(&mut self) -> Result<Option<HandshakeOutcome>, LinkError> {
        self.flush()?;
        if !self.read_to(FrameHead::BYTES)? {
            return Ok(None);
        }
        let Some(agreed) = self.agreed.as_mut() else { return Ok(None) };
        let need = agreed.frame_bytes(&self.received, FrameKind::Rails, RAILS_BODY_MAX)?;
        if !self.read_to(need)? {
            return Ok(None);
        }
        let Some((mut agreed, rails)) = self.agreed.take().zip(self.rails.take()) else {
            return Ok(None);
        };
        let received = std::mem::take(&mut self.received);
        let Exchanged { answer, plane } = rails.receive(agreed.frame_body(&received)?)?;
        if let Some(answer) = answer {
            agreed.append_frame(FrameKind::Rails, &answer.encode(), self.handshake.out());
        }
        // The rest of the answer is sent before the link's own frames.
        let _ = self.flush();
        self.data = match plane {
            Ok(plane) => Some(plane),
            Err(reason) if self.rdma.is_demanded() => return Err(LinkError::NoRdma { reason }),
            Err(reason) => {
                let (peer, reason) = (Printable(&self.peer), Printable(&reason));
                tracing::warn!(%peer, %reason, "link has no RDMA: bytes travel on the stream");
                None
            }
        };
        Ok(Some(agreed))
    }

    /// Send as many of the queued bytes as the stream takes.
    fn flush(&mut self) -> Result<(), LinkError> {
        let out = self.handshake.out();
        while !out.is_empty() {
            match self.stream.write(&[IoSlice::new(out)]) {
                StreamResult::Bytes(n) => drop(out.drain(..n)),
                StreamResult::Blocked => return Ok(()),
                StreamResult::Ended => return Err(LinkError::Disconnected),
                StreamResult::Failed { operation, errno } => {
                    return Err(LinkError::SystemCall { operation, errno });
                }
            }
        }
        Ok(())
    }
}
