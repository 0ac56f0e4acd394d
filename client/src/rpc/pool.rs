//! The links of one thread to its peers. A link is dialed on first use, and again after it ended.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::Arc;
use pagelith_transport::dial::{DialProgress, Dialing};
use pagelith_transport::link::Link;
use pagelith_transport::link_error::LinkError;
use rustc_hash::FxHashMap;

use super::breaker::{Breaker, Trial};
use super::client::RpcClient;
use super::{Peers, Response};

/// Longest wait on one link while other links may have events.
const WAIT_SLICE: Duration = Duration::from_millis(1);

enum Connection {
    None,
    Dialing(Box<dyn Dialing>),
    Up(Box<RpcClient>),
}

/// Whether a peer accepts requests.
pub enum ConnState<'a> {
    /// The link is up.
    Up(&'a mut RpcClient),
    /// A dial is in progress.
    Connecting,
    /// The peer is unreachable, or its breaker is open.
    Down,
}

/// The links to all peers.
pub struct ConnectionPool {
    remote: Arc<Peers>,
    connections: Vec<Connection>,
    /// The trials of open breakers that this pool makes, by peer.
    trials: Vec<Trial>,
    generation: u64,
    /// This process is a store; otherwise it is a client.
    is_store: bool,
}

impl ConnectionPool {
    pub fn new(remote: Arc<Peers>) -> ConnectionPool {
        let connections = remote.dials.iter().map(|_| Connection::None).collect();
        let trials = remote.dials.iter().map(|_| Trial::default()).collect();
        ConnectionPool { remote, connections, trials, generation: 0, is_store: true }
    }

    /// For a process without a store of its own.
    pub fn for_client(remote: Arc<Peers>) -> ConnectionPool {
        let mut pool = ConnectionPool::new(remote);
        pool.is_store = false;
        pool
    }

    /// Number of links that were established so far. A lease belongs to the generation in which it
    /// was acquired and ends with it.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn remote(&self) -> &Arc<Peers> {
        &self.remote
    }

    /// Use a link that the caller has established.
    pub fn adopt(&mut self, peer: usize, link: Box<dyn Link>) {
        if let Some(connection) = self.connections.get_mut(peer) {
            self.generation += 1;
            *connection = connected(link, self.is_store);
        }
    }

    /// The link to a peer, if it is up as far as this side knows.
    pub fn live(&self, peer: usize) -> Option<&RpcClient> {
        match self.connections.get(peer) {
            Some(Connection::Up(client)) if client.closed().is_none() => Some(client),
            Some(Connection::Up(_) | Connection::Dialing(_) | Connection::None) | None => None,
        }
    }

    /// As [`ConnectionPool::live`], for sending.
    pub fn live_mut(&mut self, peer: usize) -> Option<&mut RpcClient> {
        match self.connections.get_mut(peer) {
            Some(Connection::Up(client)) if client.closed().is_none() => Some(client),
            Some(Connection::Up(_) | Connection::Dialing(_) | Connection::None) | None => None,
        }
    }

    /// Whether the link to a peer has ended and no new one was established.
    pub fn has_ended(&self, peer: usize) -> bool {
        match self.connections.get(peer) {
            Some(Connection::Up(client)) => client.closed().is_some(),
            Some(Connection::Dialing(_) | Connection::None) | None => false,
        }
    }

    /// As [`ConnectionPool::has_ended`], if the peer ended it: the peer does not execute the
    /// requests in flight.
    pub fn was_ended_by_peer(&self, peer: usize) -> bool {
        match self.connections.get(peer) {
            Some(Connection::Up(client)) => client.closed().is_some_and(LinkError::is_by_peer),
            Some(Connection::Dialing(_) | Connection::None) | None => false,
        }
    }

    /// The state of a peer's link; dials if there is none.
    pub fn connect(&mut self, peer: usize, now: Mono) -> ConnState<'_> {
        let needs_dial = |connection: &Connection| match connection {
            Connection::Up(client) => client.closed().is_some() && client.pending_calls() == 0,
            Connection::None => true,
            Connection::Dialing(_) => false,
        };
        // An established link proves little: its host may be cut off without notice.
        if !self.may_send(peer, now) && (self.is_store || !self.probe(peer, now)) {
            return ConnState::Down;
        }
        if self.connections.get(peer).is_none_or(needs_dial) && !self.dial(peer, now) {
            return ConnState::Down;
        }
        match self.connections.get_mut(peer) {
            Some(Connection::Up(client)) if client.closed().is_none() => ConnState::Up(client),
            Some(Connection::Up(_) | Connection::Dialing(_)) => ConnState::Connecting,
            Some(Connection::None) | None => ConnState::Down,
        }
    }

    /// Whether the breaker allows a request. It admits one pool at a time to a peer that is down.
    fn may_send(&mut self, peer: usize, now: Mono) -> bool {
        let Some(own) = self.trials.get_mut(peer) else { return false };
        self.remote.breaker(peer, |breaker| breaker.allows_request(now, own)).unwrap_or(false)
    }

    /// Whether a client's only store, whose breaker is open, is reachable again. The pool dials it
    /// once a second and does not wait for the dial. A store with peers accepts misses meanwhile; a
    /// client without its store has nothing else.
    fn probe(&mut self, peer: usize, now: Mono) -> bool {
        let needs_dial = match self.connections.get(peer) {
            Some(Connection::Up(client)) if client.closed().is_none() => return true,
            Some(Connection::Up(client)) => client.pending_calls() == 0,
            Some(Connection::None) => true,
            Some(Connection::Dialing(_)) => false,
            None => return false,
        };
        let should_probe = |breaker: &mut Breaker| breaker.allows_probe(now);
        if needs_dial
            && (!self.remote.breaker(peer, should_probe).unwrap_or(false) || !self.dial(peer, now))
        {
            return false;
        }
        if let Some(Connection::Dialing(_)) = self.connections.get(peer) {
            self.poll_peer(peer, now, None, &mut FxHashMap::default());
        }
        self.may_send(peer, now)
    }

    /// Record that the peer is unreachable. While its breaker is open this was logged already, and
    /// no caller waited for it.
    fn record_unreachable(&mut self, peer: usize, now: Mono, why: &LinkError) {
        let may_send = self.may_send(peer, now);
        let name = &self.remote.owners[peer].name;
        if may_send {
            tracing::warn!(peer = %name, %why, "peer cannot be reached");
            self.remote.breaker(peer, |breaker| breaker.record_failure(now));
        } else {
            tracing::debug!(peer = %name, %why, "peer is still unreachable");
        }
    }

    fn dial(&mut self, peer: usize, now: Mono) -> bool {
        let (Some(connection), Some(dial)) =
            (self.connections.get_mut(peer), self.remote.dials.get(peer))
        else {
            return false;
        };
        *connection = Connection::None;
        match dial.begin() {
            Ok(dialing) => *connection = Connection::Dialing(dialing),
            Err(why) => {
                self.record_unreachable(peer, now, &why);
                return false;
            }
        }
        true
    }

    /// Make progress on all links without waiting; adds responses by token.
    pub fn poll(&mut self, now: Mono, responses: &mut FxHashMap<u64, Response>) {
        for peer in 0..self.connections.len() {
            self.poll_peer(peer, now, None, responses);
        }
    }

    /// As `poll`, but wait until an event arrives, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration, responses: &mut FxHashMap<u64, Response>) {
        let busy: Vec<usize> =
            (0..self.connections.len()).filter(|peer| is_busy(&self.connections[*peer])).collect();
        let each = if busy.len() == 1 { timeout } else { timeout.min(WAIT_SLICE) };
        for peer in busy {
            let before = responses.len();
            self.poll_peer(peer, now, Some(each), responses);
            if responses.len() > before {
                break;
            }
        }
    }

    /// Wait for an event on the link of one peer, at most `timeout`.
    pub fn wait_for_peer(
        &mut self,
        peer: usize,
        now: Mono,
        timeout: Duration,
        responses: &mut FxHashMap<u64, Response>,
    ) {
        self.poll_peer(peer, now, Some(timeout), responses);
    }

    /// Write queued requests to the links without handling events.
    pub fn flush_queues(&mut self) {
        for connection in &mut self.connections {
            if let Connection::Up(client) = connection {
                client.flush_queue();
            }
        }
    }

    /// Whether the link to a peer, up or ended, has calls in flight.
    pub fn has_pending_calls(&self, peer: usize) -> bool {
        match self.connections.get(peer) {
            Some(Connection::Up(client)) => client.pending_calls() > 0,
            Some(Connection::Dialing(_) | Connection::None) | None => false,
        }
    }

    /// Whether a dial or an operation is in progress.
    pub fn is_busy(&self) -> bool {
        self.connections.iter().any(is_busy)
    }

    fn poll_peer(
        &mut self,
        peer: usize,
        now: Mono,
        wait: Option<Duration>,
        responses: &mut FxHashMap<u64, Response>,
    ) {
        let next = match std::mem::replace(&mut self.connections[peer], Connection::None) {
            Connection::None => Connection::None,
            Connection::Dialing(dialing) => {
                let progress = match wait {
                    Some(timeout) => dialing.wait(timeout),
                    None => dialing.poll(),
                };
                match progress {
                    DialProgress::Waiting(dialing) => Connection::Dialing(dialing),
                    DialProgress::Ready(link) => {
                        self.remote.breaker(peer, |breaker| breaker.record_success());
                        self.generation += 1;
                        connected(link, self.is_store)
                    }
                    DialProgress::Failed(why) => {
                        self.record_unreachable(peer, now, &why);
                        Connection::None
                    }
                }
            }
            Connection::Up(mut client) => {
                let mut ended = Vec::new();
                match wait {
                    Some(timeout) => client.wait(now, timeout, &mut ended),
                    None => client.poll(now, &mut ended),
                }
                responses.extend(ended);
                Connection::Up(client)
            }
        };
        self.connections[peer] = next;
    }
}

fn connected(link: Box<dyn Link>, is_store: bool) -> Connection {
    for missing in &link.params().missing {
        tracing::warn!(peer = %link.params().peer, missing, "peer lacks a protocol feature");
    }
    let client = RpcClient::new(link);
    Connection::Up(Box::new(if is_store { client.for_store() } else { client }))
}

fn is_busy(connection: &Connection) -> bool {
    match connection {
        Connection::None => false,
        Connection::Dialing(_) => true,
        Connection::Up(client) => client.expects_response(),
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        for (peer, own) in self.trials.iter().enumerate() {
            self.remote.breaker(peer, |breaker| breaker.end_trial(*own));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use pagelith_io::clock::Clock;
    use pagelith_io::system::{SystemClock, SystemEntropy};
    use pagelith_transport::capability::Capabilities;
    use pagelith_transport::dial::{Dial, SocketDial};
    use pagelith_transport::handshake::ClientAuth;
    use pagelith_transport::limits::LinkLimits;
    use pagelith_transport::rights::Rights;
    use pagelith_transport::socket::{ListenConfig, Listener};

    use super::super::Peer;
    use super::*;

    /// A host that is cut off: it does not answer, and no error is reported.
    struct CutOff;

    impl Dial for CutOff {
        fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
            Ok(Box::new(CutOff))
        }
    }

    impl Dialing for CutOff {
        fn poll(self: Box<Self>) -> DialProgress {
            DialProgress::Waiting(self)
        }

        fn wait(self: Box<Self>, _timeout: Duration) -> DialProgress {
            DialProgress::Waiting(self)
        }
    }

    #[test]
    fn peer_with_three_failures_is_down_until_the_pause_ends() {
        let peer = Peer {
            name: "far".into(),
            weight: 1.0,
            preferred: false,
            dial: std::sync::Arc::new(CutOff),
        };
        let remote = Arc::new(Peers::new(vec![peer]).expect("a peer"));
        let mut pool = ConnectionPool::new(remote.clone());
        for ms in [0, 500, 1000] {
            assert!(matches!(pool.connect(0, at(ms)), ConnState::Connecting), "ms={ms}");
            remote.breaker(0, |breaker| breaker.record_failure(at(ms)));
        }
        assert!(
            matches!(pool.connect(0, at(1001)), ConnState::Down),
            "the failed peer is still dialed"
        );
        // The dial continues, and the peer is tried again after the pause.
        assert!(pool.is_busy() && matches!(pool.connect(0, at(2000)), ConnState::Connecting));
    }

    #[test]
    fn one_pool_at_a_time_tries_a_failed_peer_after_its_pause() {
        let dial = std::sync::Arc::new(CutOff);
        let peer = Peer { name: "far".into(), weight: 1.0, preferred: false, dial };
        let remote = Arc::new(Peers::new(vec![peer]).expect("a peer"));
        let fail = |ms| remote.breaker(0, |breaker| breaker.record_failure(at(ms)));
        (0..3).for_each(|_| _ = fail(0));
        let mut pools = [ConnectionPool::new(remote.clone()), ConnectionPool::new(remote.clone())];
        let tries = |pool: &mut ConnectionPool, ms| {
            matches!(pool.connect(0, at(ms)), ConnState::Connecting)
        };
        // Its pause ends at 1000 ms. The pool of the trial may ask repeatedly.
        let [first, second] = &mut pools;
        assert!(!tries(first, 999) && tries(first, 1000) && tries(first, 1100));
        assert!(!tries(second, 1000) && !tries(second, 1100), "a second trial");
        fail(1200);
        assert!(!tries(first, 3199) && !tries(second, 3199), "the pause is 2000 ms now");
        assert!(
            tries(second, 3200) && !tries(first, 3200),
            "the trial is not reserved for one pool"
        );
        // The second pool is not used any more, and its trial has no result.
        assert!(!tries(first, 3200 + 5999) && tries(first, 3200 + 6000) && !tries(second, 9300));
        // The dropped pool does not hold up the others.
        let [first, mut second] = pools;
        drop(first);
        assert!(tries(&mut second, 9301), "its trial ended with it");
        remote.breaker(0, Breaker::record_success);
        let mut third = ConnectionPool::new(remote.clone());
        assert!(tries(&mut third, 9400) && tries(&mut second, 9400), "it answered");
    }

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// A host that refuses links until it is up.
    struct Host {
        up: AtomicBool,
        dial: SocketDial,
    }

    impl Dial for Host {
        fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
            if self.up.load(Relaxed) {
                self.dial.begin()
            } else {
                Err(LinkError::HandshakeTimeout { limit_ms: 1 })
            }
        }
    }

    /// A host that is down, its listener, and a pool with so many failures that the breaker is open
    /// for 30 seconds from 0 ms on.
    fn failed_host(for_client: bool) -> (Listener, Arc<Host>, ConnectionPool) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (offer, limits) =
            (|instance| Capabilities::of_this_build([instance; 16]), LinkLimits::default());
        let listen = ListenConfig {
            address: "tcp:127.0.0.1:0".parse().expect("an address"),
            admission: ClientAuth::Connection(Rights::all()),
            allow_remote: false,
        };
        let entropy = Arc::new(SystemEntropy);
        let listener =
            Listener::new(&listen, offer(1), entropy, clock.clone(), limits).expect("listens");
        let dial = SocketDial::new(listener.address().clone(), None, offer(2), clock);
        let host = Arc::new(Host { up: AtomicBool::new(false), dial });
        let peer = Peer { name: "store".into(), weight: 1.0, preferred: false, dial: host.clone() };
        let remote = Arc::new(Peers::new(vec![peer]).expect("a peer"));
        for _ in 0..20 {
            remote.breaker(0, |breaker| breaker.record_failure(at(0)));
        }
        let pool = if for_client {
            ConnectionPool::for_client(remote)
        } else {
            ConnectionPool::new(remote)
        };
        (listener, host, pool)
    }

    fn at(ms: u64) -> Mono {
        Mono::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn client_finds_its_restarted_store_within_a_second_without_waiting() {
        let (mut listener, host, mut pool) = failed_host(true);
        for ms in [0, 500, 1000, 5000] {
            assert!(matches!(pool.connect(0, at(ms)), ConnState::Down), "ms={ms}");
        }
        host.up.store(true, Relaxed);
        assert!(
            matches!(pool.connect(0, at(5999)), ConnState::Down),
            "probed less than a second ago"
        );
        let (mut arrivals, clock) = (Vec::new(), SystemClock::new());
        let end = clock.now().after(TEST_TIMEOUT);
        while !matches!(pool.connect(0, at(6000)), ConnState::Up(_)) {
            listener.wait(&mut arrivals, Duration::from_millis(1));
            assert!(clock.now() < end, "store was not found");
        }
        let mut own = Trial::default();
        let allows_request =
            pool.remote().breaker(0, |breaker| breaker.allows_request(at(6000), &mut own));
        assert_eq!(allows_request, Some(true), "the breaker is closed for other threads too");
    }

    #[test]
    fn store_does_not_dial_failed_peer_until_the_pause_ends() {
        let (mut listener, host, mut pool) = failed_host(false);
        host.up.store(true, Relaxed);
        for ms in [0, 1000, 29_999] {
            assert!(matches!(pool.connect(0, at(ms)), ConnState::Down), "ms={ms}");
        }
        let (mut arrivals, mut responses) = (Vec::new(), FxHashMap::default());
        let clock = SystemClock::new();
        let end = clock.now().after(TEST_TIMEOUT);
        while !matches!(pool.connect(0, at(30_000)), ConnState::Up(_)) {
            pool.poll(at(30_000), &mut responses);
            listener.wait(&mut arrivals, Duration::from_millis(1));
            assert!(clock.now() < end, "peer was not dialed");
        }
        // The breaker is reset: it takes three failures again.
        let fail = |pool: &ConnectionPool| {
            pool.remote().breaker(0, |breaker| breaker.record_failure(at(30_000)))
        };
        for _ in 0..2 {
            fail(&pool);
            assert!(matches!(pool.connect(0, at(30_000)), ConnState::Up(_)));
        }
        fail(&pool);
        assert!(matches!(pool.connect(0, at(30_000)), ConnState::Down));
    }
}
