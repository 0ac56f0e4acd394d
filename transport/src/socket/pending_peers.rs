//! The unauthenticated connections of a listener, and the choice of the one to evict.
//!
//! Invariants:
//! - connections <= [`LinkLimits::unauthenticated_max`], and connections of one source <= half of
//!   it, rounded up.
//! - A new connection is always accepted. It evicts a connection of its own source if that has its
//!   share, else one of the source that has most connections. The victim is the oldest connection
//!   of that source that has not sent a greeting, or the oldest if all have.
//! - So silent connections block no other connection and end no handshake that has begun. A
//!   source evicts no connection of a source that has fewer.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::wire::greeting::{Refusal, RefusalReason};

use super::connected::{SocketLink, SocketPending};
use super::handshake_thread::{HandshakeResult, HandshakeThread};
use super::source::ConnectionSource;
use crate::limits::LinkLimits;
use crate::link_error::LinkError;
use crate::pending::HandshakeProgress;

/// The outcome of one connection.
pub enum AdmissionResult {
    /// The link of an admitted client.
    Link(Box<SocketLink>),
    /// A client that was not admitted, or an accept that failed.
    Refused {
        /// The client's address; empty for a failed accept.
        peer: String,
        /// The reason.
        why: LinkError,
    },
}

/// A handshake, by the thread that runs it.
pub(super) enum Handshaking {
    /// Polled by the accepting thread.
    Inline(Box<SocketPending>),
    /// On its own thread.
    Thread(HandshakeThread),
}

struct PendingPeer {
    source: ConnectionSource,
    peer: String,
    handshaking: Handshaking,
}

impl PendingPeer {
    fn is_greeted(&self) -> bool {
        match &self.handshaking {
            Handshaking::Inline(pending) => pending.is_greeted(),
            Handshaking::Thread(thread) => thread.is_greeted(),
        }
    }
}

/// Connections in their handshakes, in the order in which they were accepted.
pub(super) struct PendingPeers {
    peers: Vec<PendingPeer>,
    limits: LinkLimits,
    versions: (u16, u16),
}

impl PendingPeers {
    pub fn new(limits: LinkLimits, versions: (u16, u16)) -> PendingPeers {
        PendingPeers { peers: Vec::new(), limits, versions }
    }

    /// Bytes of memory held for each of them.
    pub fn held_bytes(&self) -> Vec<usize> {
        let held = |peer: &PendingPeer| match &peer.handshaking {
            Handshaking::Inline(pending) => pending.held_bytes(),
            Handshaking::Thread(thread) => thread.held_bytes(),
        };
        self.peers.iter().map(held).collect()
    }

    /// Number of peers that have sent their greeting.
    pub fn greeted(&self) -> usize {
        self.peers.iter().filter(|peer| peer.is_greeted()).count()
    }

    /// Add a connection.
    pub fn add(&mut self, source: ConnectionSource, peer: String, handshaking: Handshaking) {
        self.peers.push(PendingPeer { source, peer, handshaking });
    }

    /// Evict a connection if there is no room for another one of `source`.
    pub fn make_room(&mut self, source: ConnectionSource, arrivals: &mut Vec<AdmissionResult>) {
        let Some(from) = self.source_to_evict(source) else { return };
        // Ends: each round either evicts a connection, or finds that one more has sent its
        // greeting.
        while let Some(at) = self.victim(from) {
            let had_greeted = self.peers[at].is_greeted();
            let PendingPeer { source, peer, handshaking } = self.peers.remove(at);
            let result = match handshaking {
                Handshaking::Inline(pending) => match pending.poll() {
                    // Its greeting had arrived, but was not read before.
                    HandshakeProgress::Waiting(pending) if pending.is_greeted() && !had_greeted => {
                        let handshaking = Handshaking::Inline(Box::new(pending));
                        self.peers.insert(at, PendingPeer { source, peer, handshaking });
                        continue;
                    }
                    HandshakeProgress::Waiting(pending) => match pending.refuse(self.busy()) {
                        HandshakeProgress::Failed(why) => Some(Err(why)),
                        HandshakeProgress::Ready(_) | HandshakeProgress::Waiting(_) => None,
                    },
                    HandshakeProgress::Ready(link) => Some(Ok(link)),
                    HandshakeProgress::Failed(why) => Some(Err(why)),
                },
                Handshaking::Thread(thread) => {
                    thread.abandon(self.busy()).or_else(|| Some(Err(self.busy())))
                }
            };
            arrivals.extend(result.map(|result| arrival(peer, result)));
            return;
        }
    }

    /// The source that loses a connection to a new one of `source`, if any must.
    fn source_to_evict(&self, source: ConnectionSource) -> Option<ConnectionSource> {
        let of = |source| self.peers.iter().filter(|other| other.source == source).count();
        let share = self.limits.unauthenticated_max.div_ceil(2);
        if of(source) >= share {
            return Some(source);
        }
        if self.peers.len() < self.limits.unauthenticated_max {
            return None;
        }
        // Of several sources with that many, the one with the oldest connection.
        let most = self.peers.iter().rev().max_by_key(|other| of(other.source));
        Some(most.map_or(source, |other| other.source))
    }

    /// The connection of a source to evict: the oldest without a greeting, or else the oldest.
    fn victim(&self, source: ConnectionSource) -> Option<usize> {
        let first = |is_one: &dyn Fn(&PendingPeer) -> bool| {
            self.peers.iter().position(|other| other.source == source && is_one(other))
        };
        first(&|peer| !peer.is_greeted()).or_else(|| first(&|_| true))
    }

    fn busy(&self) -> LinkError {
        let text = format!(
            "too many unauthenticated connections, this one was evicted: try again connections_max={}",
            self.limits.unauthenticated_max
        );
        LinkError::Refused(Refusal {
            reason: RefusalReason::Busy,
            versions: self.versions,
            missing: 0,
            text,
        })
    }

    /// Advance all handshakes as far as possible now.
    pub fn poll(&mut self, now: Mono, arrivals: &mut Vec<AdmissionResult>) {
        for PendingPeer { source, peer, handshaking } in std::mem::take(&mut self.peers) {
            let result = match handshaking {
                Handshaking::Inline(pending) => match pending.poll() {
                    HandshakeProgress::Waiting(pending) => {
                        self.add(source, peer, Handshaking::Inline(Box::new(pending)));
                        continue;
                    }
                    HandshakeProgress::Ready(link) => Ok(link),
                    HandshakeProgress::Failed(why) => Err(why),
                },
                Handshaking::Thread(thread) => match self.result_of(thread, now) {
                    Ok(result) => result,
                    Err(thread) => {
                        self.add(source, peer, Handshaking::Thread(thread));
                        continue;
                    }
                },
            };
            arrivals.push(arrival(peer, result));
        }
    }

    /// The result of a handshake that is over or has timed out; else the handshake. The timeout is
    /// checked here too, since the handshake's thread may be blocked.
    fn result_of(
        &self,
        thread: HandshakeThread,
        now: Mono,
    ) -> Result<HandshakeResult, HandshakeThread> {
        if let Some(result) = thread.result() {
            return Ok(result);
        }
        if !self.time_left(&thread, now).is_zero() {
            return Err(thread);
        }
        let limit_ms = u64::try_from(self.limits.handshake.as_millis()).unwrap_or(u64::MAX);
        let late = LinkError::HandshakeTimeout { limit_ms };
        Ok(thread.abandon(late.clone()).unwrap_or(Err(late)))
    }

    fn time_left(&self, thread: &HandshakeThread, now: Mono) -> Duration {
        self.limits.handshake.saturating_sub(now.since(thread.begun()))
    }

    /// Time until the first of them times out.
    pub fn due(&self, now: Mono) -> Option<Duration> {
        let due = |peer: &PendingPeer| match &peer.handshaking {
            Handshaking::Inline(pending) => pending.due(),
            Handshaking::Thread(thread) => self.time_left(thread, now),
        };
        self.peers.iter().map(due).min()
    }

    /// The sockets to wait for, and whether each must become writable too.
    pub fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.peers.iter().filter_map(|peer| match &peer.handshaking {
            Handshaking::Inline(pending) => Some((pending.stream().as_fd(), pending.wants_write())),
            Handshaking::Thread(_) => None,
        })
    }
}

impl Drop for PendingPeers {
    fn drop(&mut self) {
        for peer in self.peers.drain(..) {
            if let Handshaking::Thread(thread) = peer.handshaking {
                drop(thread.abandon(LinkError::ClosedLocally));
            }
        }
    }
}

fn arrival(peer: String, result: HandshakeResult) -> AdmissionResult {
    match result {
        Ok(link) => AdmissionResult::Link(link),
        Err(why) => AdmissionResult::Refused { peer, why },
    }
}
