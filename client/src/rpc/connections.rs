//! The connections of one thread to peers, and the responses that arrived over them.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::Arc;
use rustc_hash::FxHashMap;

use super::pool::ConnectionPool;
use super::{Peers, Response};

/// A connection pool and its responses. Used by one thread.
pub struct PeerConnections {
    pub pool: ConnectionPool,
    responses: FxHashMap<u64, Response>,
    last_token: u64,
    is_client: bool,
}

impl PeerConnections {
    pub fn new(remote: Arc<Peers>) -> PeerConnections {
        PeerConnections {
            pool: ConnectionPool::new(remote),
            responses: FxHashMap::default(),
            last_token: 0,
            is_client: false,
        }
    }

    /// For a process without a store of its own. A late answer is no failure while its link is up.
    pub fn for_client(remote: Arc<Peers>) -> PeerConnections {
        PeerConnections {
            is_client: true,
            pool: ConnectionPool::for_client(remote.clone()),
            ..PeerConnections::new(remote)
        }
    }

    /// A token for a new request.
    pub fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Whether a dial or an operation is in progress.
    pub fn is_busy(&self) -> bool {
        self.pool.is_busy()
    }

    /// Make progress on all connections without waiting.
    pub fn poll(&mut self, now: Mono) {
        self.pool.poll(now, &mut self.responses);
    }

    /// As `poll`, but wait until an event arrives, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration) {
        self.pool.wait(now, timeout, &mut self.responses);
    }

    /// Wait for an event on the link of one peer, at most `timeout`.
    pub fn wait_for_peer(&mut self, peer: usize, now: Mono, timeout: Duration) {
        self.pool.wait_for_peer(peer, now, timeout, &mut self.responses);
    }

    /// Write queued requests to the links without handling events.
    pub fn flush_queues(&mut self) {
        self.pool.flush_queues();
    }

    /// Let all calls to a peer reach their deadlines now.
    pub fn expire_calls(&mut self, peer: usize, now: Mono) {
        self.pool.live_mut(peer).into_iter().for_each(|client| client.expire_calls(now));
    }

    /// Whether the link of a peer has calls in flight, which may hold memory of callers.
    pub fn has_pending_calls(&self, peer: usize) -> bool {
        self.pool.has_pending_calls(peer)
    }

    /// Whether there are responses that were not taken.
    pub fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// The response for a token, once.
    pub fn take_response(&mut self, token: u64) -> Option<Response> {
        self.responses.remove(&token)
    }

    /// All responses that were not taken.
    pub fn take_responses(&mut self) -> FxHashMap<u64, Response> {
        std::mem::take(&mut self.responses)
    }

    /// Record in the breaker that a peer answered or failed. A link that ended during a call is no
    /// failure: idle links end, several at once, and the next dial shows whether the peer is
    /// reachable.
    pub fn record_result(&self, peer: usize, failed: bool, now: Mono) {
        if failed && self.pool.has_ended(peer) {
            return;
        }
        let is_live = self.is_client && self.pool.live(peer).is_some();
        self.pool.remote().breaker(peer, |breaker| match (failed, is_live) {
            (true, true) => {}
            (true, false) => breaker.record_failure(now),
            (false, _) => breaker.record_success(),
        });
    }
}

#[cfg(test)]
mod tests {
    use pagelith_transport::dial::{Dial, Dialing};
    use pagelith_transport::link_error::LinkError;

    use super::super::Peer;
    use super::super::breaker::Trial;
    use super::*;

    struct Down;

    impl Dial for Down {
        fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
            Err(LinkError::HandshakeTimeout { limit_ms: 1 })
        }
    }

    #[test]
    fn answer_resets_earlier_failures_of_the_peer() {
        let dial = std::sync::Arc::new(Down);
        let peer = Peer { name: "far".into(), weight: 1.0, preferred: false, dial };
        let connections = PeerConnections::new(Arc::new(Peers::new(vec![peer]).expect("a peer")));
        let now = Mono::default();
        let allows_request = |connections: &PeerConnections| {
            let mut own = Trial::default();
            connections.pool.remote().breaker(0, |breaker| breaker.allows_request(now, &mut own))
        };
        for round in 0..5 {
            for _ in 0..2 {
                connections.record_result(0, true, now);
                assert_eq!(allows_request(&connections), Some(true), "round={round}");
            }
            connections.record_result(0, false, now);
        }
        (0..3).for_each(|_| connections.record_result(0, true, now));
        assert_eq!(allows_request(&connections), Some(false), "three in a row");
    }
}
