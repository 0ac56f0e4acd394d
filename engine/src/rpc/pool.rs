//! One thread's links to the peers: made when they are first needed, made again after they ended.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::Arc;
use pagelith_tiers::remote::breaker::Breaker;
use pagelith_transport::closed::Closed;
use pagelith_transport::dial::{Dialing, Dialled};
use pagelith_transport::link::Link;
use rustc_hash::FxHashMap;

use super::client::Caller;
use super::{Remote, Reply};

/// How long to wait for one link while others, too, may bring something.
const TURN: Duration = Duration::from_millis(1);

enum Line {
    None,
    Dialing(Box<dyn Dialing>),
    Up(Box<Caller>),
}

/// Whether a peer can be asked.
pub(crate) enum Standing<'a> {
    /// Now, through this.
    Up(&'a mut Caller),
    /// Soon, perhaps.
    Soon,
    /// Not now.
    Down,
}

/// The links.
pub(crate) struct Lines {
    remote: Arc<Remote>,
    lines: Vec<Line>,
    made: u64,
    /// They are a store's, to its peers.
    of_store: bool,
}

impl Lines {
    pub fn new(remote: Arc<Remote>) -> Lines {
        let lines = remote.dials.iter().map(|_| Line::None).collect();
        Lines { remote, lines, made: 0, of_store: true }
    }

    /// Of a process that has no store of its own.
    pub fn of_client(remote: Arc<Remote>) -> Lines {
        Lines { of_store: false, ..Lines::new(remote) }
    }

    /// How many links were made so far: what was held over an earlier one is held no more.
    pub fn made(&self) -> u64 {
        self.made
    }

    pub fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Take a link that was made elsewhere.
    pub fn adopt(&mut self, peer: usize, link: Box<dyn Link>) {
        if let Some(line) = self.lines.get_mut(peer) {
            self.made += 1;
            *line = up(link, self.of_store);
        }
    }

    /// The peer's link that stands now, as far as this side knows.
    pub fn stands(&self, peer: usize) -> Option<&Caller> {
        match self.lines.get(peer) {
            Some(Line::Up(caller)) if caller.closed().is_none() => Some(caller),
            Some(Line::Up(_) | Line::Dialing(_) | Line::None) | None => None,
        }
    }

    /// The same, to be asked.
    pub fn stands_mut(&mut self, peer: usize) -> Option<&mut Caller> {
        match self.lines.get_mut(peer) {
            Some(Line::Up(caller)) if caller.closed().is_none() => Some(caller),
            Some(Line::Up(_) | Line::Dialing(_) | Line::None) | None => None,
        }
    }

    /// Whether the peer had a link that has ended, and none was made since.
    pub fn has_ended(&self, peer: usize) -> bool {
        match self.lines.get(peer) {
            Some(Line::Up(caller)) => caller.closed().is_some(),
            Some(Line::Dialing(_) | Line::None) | None => false,
        }
    }

    /// The same, if the peer ended it: it does nothing more of what it was asked.
    pub fn was_ended_by_peer(&self, peer: usize) -> bool {
        match self.lines.get(peer) {
            Some(Line::Up(caller)) => caller.closed().is_some_and(Closed::is_by_peer),
            Some(Line::Dialing(_) | Line::None) | None => false,
        }
    }

    /// A peer's link; one is made if there is none.
    pub fn standing(&mut self, peer: usize, now: Mono) -> Standing<'_> {
        let ended = |line: &Line| match line {
            Line::Up(caller) => caller.closed().is_some() && caller.calls() == 0,
            Line::None => true,
            Line::Dialing(_) => false,
        };
        // A link that stands says little: the host behind it may be cut off without a word.
        if !self.may_ask(peer, now) && (self.of_store || !self.is_back(peer, now)) {
            return Standing::Down;
        }
        if self.lines.get(peer).is_none_or(ended) && !self.dial(peer, now) {
            return Standing::Down;
        }
        match self.lines.get_mut(peer) {
            Some(Line::Up(caller)) if caller.closed().is_none() => Standing::Up(caller),
            Some(Line::Up(_) | Line::Dialing(_)) => Standing::Soon,
            Some(Line::None) | None => Standing::Down,
        }
    }

    fn may_ask(&self, peer: usize, now: Mono) -> bool {
        self.remote.breaker(peer, |breaker| breaker.may_ask(now)).unwrap_or(false)
    }

    /// Whether a client's only store, which is left alone, is there again. It is looked for once a second, and nobody waits for that: a
    /// store that has peers has misses meanwhile, and a client without its store has nothing else.
    fn is_back(&mut self, peer: usize, now: Mono) -> bool {
        let dials = match self.lines.get(peer) {
            Some(Line::Up(caller)) if caller.closed().is_none() => return true,
            Some(Line::Up(caller)) => caller.calls() == 0,
            Some(Line::None) => true,
            Some(Line::Dialing(_)) => false,
            None => return false,
        };
        let looks = |breaker: &mut Breaker| breaker.may_look(now);
        if dials && (!self.remote.breaker(peer, looks).unwrap_or(false) || !self.dial(peer, now)) {
            return false;
        }
        if let Some(Line::Dialing(_)) = self.lines.get(peer) {
            self.turn(peer, now, None, &mut FxHashMap::default());
        }
        self.may_ask(peer, now)
    }

    /// The peer could not be reached. While it is left alone that was said, and nobody waited for it.
    fn not_reached(&self, peer: usize, now: Mono, why: &Closed) {
        let name = &self.remote.owners[peer].name;
        if self.may_ask(peer, now) {
            tracing::warn!(peer = %name, %why, "peer cannot be reached");
            self.remote.breaker(peer, |breaker| breaker.failed(now));
        } else {
            tracing::debug!(peer = %name, %why, "peer cannot be reached still");
        }
    }

    fn dial(&mut self, peer: usize, now: Mono) -> bool {
        let (Some(line), Some(dial)) = (self.lines.get_mut(peer), self.remote.dials.get(peer)) else {
            return false;
        };
        *line = Line::None;
        match dial.begin() {
            Ok(dialing) => *line = Line::Dialing(dialing),
            Err(why) => {
                self.not_reached(peer, now, &why);
                return false;
            }
        }
        true
    }

    /// Move everything as far as it goes now; what has ended, by token.
    pub fn poll(&mut self, now: Mono, replies: &mut FxHashMap<u64, Reply>) {
        for peer in 0..self.lines.len() {
            self.turn(peer, now, None, replies);
        }
    }

    /// As `poll`, but wait until something happens, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration, replies: &mut FxHashMap<u64, Reply>) {
        let busy: Vec<usize> = (0..self.lines.len()).filter(|peer| is_busy(&self.lines[*peer])).collect();
        let each = if busy.len() == 1 { timeout } else { timeout.min(TURN) };
        for peer in busy {
            let had = replies.len();
            self.turn(peer, now, Some(each), replies);
            if replies.len() > had {
                break;
            }
        }
    }

    /// Let a peer's link be for at most `timeout`, unless something happens on it.
    pub fn rest(&mut self, peer: usize, now: Mono, timeout: Duration, replies: &mut FxHashMap<u64, Reply>) {
        self.turn(peer, now, Some(timeout), replies);
    }

    /// Move what is asked towards the peers, and look at nothing that they say.
    pub fn send_on(&mut self) {
        for line in &mut self.lines {
            if let Line::Up(caller) = line {
                caller.send_on();
            }
        }
    }

    /// Whether the peer's link, standing or ended, has calls that are not replied to.
    pub fn is_asked(&self, peer: usize) -> bool {
        match self.lines.get(peer) {
            Some(Line::Up(caller)) => caller.calls() > 0,
            Some(Line::Dialing(_) | Line::None) | None => false,
        }
    }

    /// Whether something is on its way.
    pub fn is_busy(&self) -> bool {
        self.lines.iter().any(is_busy)
    }

    fn turn(&mut self, peer: usize, now: Mono, wait: Option<Duration>, replies: &mut FxHashMap<u64, Reply>) {
        let next = match std::mem::replace(&mut self.lines[peer], Line::None) {
            Line::None => Line::None,
            Line::Dialing(dialing) => {
                let dialled = match wait {
                    Some(timeout) => dialing.wait(timeout),
                    None => dialing.poll(),
                };
                match dialled {
                    Dialled::Waiting(dialing) => Line::Dialing(dialing),
                    Dialled::Ready(link) => {
                        self.remote.breaker(peer, |breaker| breaker.answered());
                        self.made += 1;
                        up(link, self.of_store)
                    }
                    Dialled::Over(why) => {
                        self.not_reached(peer, now, &why);
                        Line::None
                    }
                }
            }
            Line::Up(mut caller) => {
                let mut ended = Vec::new();
                match wait {
                    Some(timeout) => caller.wait(now, timeout, &mut ended),
                    None => caller.poll(now, &mut ended),
                }
                replies.extend(ended);
                Line::Up(caller)
            }
        };
        self.lines[peer] = next;
    }
}

fn up(link: Box<dyn Link>, of_store: bool) -> Line {
    for missing in &link.facts().missing {
        tracing::warn!(peer = %link.facts().peer, missing, "the peer lacks a feature");
    }
    let caller = Caller::new(link);
    Line::Up(Box::new(if of_store { caller.of_store() } else { caller }))
}

fn is_busy(line: &Line) -> bool {
    match line {
        Line::None => false,
        Line::Dialing(_) => true,
        Line::Up(caller) => caller.is_owed(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use pagelith_io::clock::Clock;
    use pagelith_io::system::{SystemClock, SystemEntropy};
    use pagelith_transport::capability::Offer;
    use pagelith_transport::dial::{Dial, SocketDial};
    use pagelith_transport::handshake::Admission;
    use pagelith_transport::limits::Limits;
    use pagelith_transport::rights::Rights;
    use pagelith_transport::socket::{Listen, Listener};

    use super::super::Peer;
    use super::*;

    /// A host that is cut off: nobody answers, and nobody says so.
    struct CutOff;

    impl Dial for CutOff {
        fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
            Ok(Box::new(CutOff))
        }
    }

    impl Dialing for CutOff {
        fn poll(self: Box<Self>) -> Dialled {
            Dialled::Waiting(self)
        }

        fn wait(self: Box<Self>, _timeout: Duration) -> Dialled {
            Dialled::Waiting(self)
        }
    }

    #[test]
    fn who_did_not_answer_three_times_is_not_waited_for() {
        let peer =
            Peer { name: "far".into(), weight: 1.0, preferred: false, dial: std::sync::Arc::new(CutOff) };
        let remote = Arc::new(Remote::new(vec![peer]).expect("a peer"));
        let mut lines = Lines::new(remote.clone());
        for ms in [0, 500, 1000] {
            assert!(matches!(lines.standing(0, at(ms)), Standing::Soon), "ms={ms}");
            remote.breaker(0, |breaker| breaker.failed(at(ms)));
        }
        assert!(matches!(lines.standing(0, at(1001)), Standing::Down), "it is waited for again and again");
        // It goes on meanwhile, and is asked once the pause is over.
        assert!(lines.is_busy() && matches!(lines.standing(0, at(2000)), Standing::Soon));
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A host that refuses links until it is up.
    struct Host {
        up: AtomicBool,
        dial: SocketDial,
    }

    impl Dial for Host {
        fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
            if self.up.load(Relaxed) { self.dial.begin() } else { Err(Closed::Late { limit_ms: 1 }) }
        }
    }

    /// A host that is down, lines to it that have failed so often that it is left alone for half a minute from 0 ms on, and its listener.
    fn left_alone(of_client: bool) -> (Listener, Arc<Host>, Lines) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (offer, limits) = (|who| Offer::of_this_build([who; 16]), Limits::default());
        let listen = Listen {
            address: "tcp:127.0.0.1:0".parse().expect("an address"),
            admission: Admission::Connection(Rights::all()),
            beyond_this_host: false,
        };
        let entropy = Arc::new(SystemEntropy);
        let listener = Listener::new(&listen, offer(1), entropy, clock.clone(), limits).expect("listens");
        let dial = SocketDial::new(listener.address().clone(), None, offer(2), clock);
        let host = Arc::new(Host { up: AtomicBool::new(false), dial });
        let peer = Peer { name: "store".into(), weight: 1.0, preferred: false, dial: host.clone() };
        let remote = Arc::new(Remote::new(vec![peer]).expect("a peer"));
        for _ in 0..20 {
            remote.breaker(0, |breaker| breaker.failed(at(0)));
        }
        let lines = if of_client { Lines::of_client(remote) } else { Lines::new(remote) };
        (listener, host, lines)
    }

    fn at(ms: u64) -> Mono {
        Mono::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn a_client_finds_its_only_store_a_second_after_its_return_and_waits_for_nothing() {
        let (mut listener, host, mut lines) = left_alone(true);
        for ms in [0, 500, 1000, 5000] {
            assert!(matches!(lines.standing(0, at(ms)), Standing::Down), "ms={ms}");
        }
        host.up.store(true, Relaxed);
        assert!(matches!(lines.standing(0, at(5999)), Standing::Down), "looked for not even a second ago");
        let (mut arrivals, clock) = (Vec::new(), SystemClock::new());
        let end = clock.now().after(PATIENCE);
        while !matches!(lines.standing(0, at(6000)), Standing::Up(_)) {
            listener.wait(&mut arrivals, Duration::from_millis(1));
            assert!(clock.now() < end, "not found");
        }
        let asked = lines.remote().breaker(0, |breaker| breaker.may_ask(at(6000)));
        assert_eq!(asked, Some(true), "others ask it too: it is forgiven");
    }

    #[test]
    fn a_store_leaves_a_peer_alone_until_the_pause_is_over_and_forgives_it_then() {
        let (mut listener, host, mut lines) = left_alone(false);
        host.up.store(true, Relaxed);
        for ms in [0, 1000, 29_999] {
            assert!(matches!(lines.standing(0, at(ms)), Standing::Down), "ms={ms}");
        }
        let (mut arrivals, mut replies) = (Vec::new(), FxHashMap::default());
        let clock = SystemClock::new();
        let end = clock.now().after(PATIENCE);
        while !matches!(lines.standing(0, at(30_000)), Standing::Up(_)) {
            lines.poll(at(30_000), &mut replies);
            listener.wait(&mut arrivals, Duration::from_millis(1));
            assert!(clock.now() < end, "not asked");
        }
        // As if nothing had been: it takes three failures again.
        let fails = |lines: &Lines| lines.remote().breaker(0, |breaker| breaker.failed(at(30_000)));
        for _ in 0..2 {
            fails(&lines);
            assert!(matches!(lines.standing(0, at(30_000)), Standing::Up(_)));
        }
        fails(&lines);
        assert!(matches!(lines.standing(0, at(30_000)), Standing::Down));
    }
}
