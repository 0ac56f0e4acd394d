//! The health of a rail: after several failures in a short time it is suspended for a while.
//!
//! A request that fails does not tell whether this port, the peer, or the network between them is
//! at fault. So:
//! - After failures with one peer the rail is suspended for that peer.
//! - It is suspended for all peers after failures with several of them, if no request of the rail
//!   succeeded meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use pagelith_io::clock::Mono;

/// Failures that suspend a rail: with one peer, or each with another one.
pub const FAILURES_MAX: usize = 3;
/// The time in which they happen.
pub const FAILURES_WITHIN: Duration = Duration::from_secs(10);
/// The length of the first suspension.
pub const REST_MIN: Duration = Duration::from_secs(30);
/// The longest one. A rail that did not fail for as long begins with the first again.
pub const REST_MAX: Duration = Duration::from_secs(300);

/// The host at the other end of a link, by the address of its byte stream, which it cannot choose
/// as it likes; `None` if the stream has no address.
pub type PeerHost = Option<IpAddr>;

/// A suspension that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The only peer for which the rail is suspended, or all of them.
    pub of: RestOf,
    /// Its length.
    pub length: Duration,
}

/// The peers for which a rail is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestOf {
    /// The peer of the failed link.
    Peer,
    /// All peers.
    Rail,
}

/// Failures and suspensions of a rail.
#[derive(Debug, Default)]
pub struct RailHealth {
    /// At most one failure of each peer counts for all.
    rail: Failures,
    /// Peers with failures that still matter.
    peers: BTreeMap<PeerHost, Failures>,
}

impl RailHealth {
    /// Whether the rail may be used at all.
    pub fn is_up(&self, now: Mono) -> bool {
        self.rail.is_up(now)
    }

    /// Whether links to this peer may use the rail.
    pub fn is_up_for(&self, peer: PeerHost, now: Mono) -> bool {
        self.is_up(now) && self.peers.get(&peer).is_none_or(|of_peer| of_peer.is_up(now))
    }

    /// Note that a request of the rail has succeeded: the port works.
    pub fn note_success(&mut self) {
        self.rail.latest.clear();
    }

    /// Note a failure with a peer. Returns the suspension that it begins, if it begins one.
    /// Failures during it are those of links from before it, and count for nothing.
    pub fn note_failure(&mut self, peer: PeerHost, now: Mono) -> Option<Rest> {
        if !self.is_up_for(peer, now) {
            return None;
        }
        self.peers.retain(|_, of_peer| !of_peer.is_past(now));
        self.rail.latest.retain(|(_, other)| *other != peer);
        let of_peer = self.peers.entry(peer).or_default().note(peer, now);
        let of_rail = self.rail.note(peer, now);
        let rest = |of| move |length| Rest { of, length };
        of_rail.map(rest(RestOf::Rail)).or(of_peer.map(rest(RestOf::Peer)))
    }
}

/// Failures, and the suspension that they have begun.
#[derive(Debug, Default)]
struct Failures {
    /// The latest ones, fewer than [`FAILURES_MAX`].
    latest: VecDeque<(Mono, PeerHost)>,
    /// The end of the last suspension, and its length.
    rest: Option<(Mono, Duration)>,
}

impl Failures {
    fn is_up(&self, now: Mono) -> bool {
        self.rest.is_none_or(|(until, _)| now >= until)
    }

    /// Whether nothing of them matters any more.
    fn is_past(&self, now: Mono) -> bool {
        self.rest.is_none_or(|(until, _)| now.since(until) >= REST_MAX)
            && self.latest.iter().all(|(failure, _)| now.since(*failure) > FAILURES_WITHIN)
    }

    /// Note one. Returns the length of the suspension that it begins, if any.
    fn note(&mut self, peer: PeerHost, now: Mono) -> Option<Duration> {
        self.latest.push_back((now, peer));
        self.latest.retain(|(failure, _)| now.since(*failure) <= FAILURES_WITHIN);
        if self.latest.len() < FAILURES_MAX {
            return None;
        }
        self.latest.clear();
        let length = match self.rest {
            Some((until, last)) if now.since(until) < REST_MAX => (last * 2).min(REST_MAX),
            _ => REST_MIN,
        };
        self.rest = Some((now.after(length), length));
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::default().after(Duration::from_secs(seconds))
    }

    fn peer(number: u8) -> PeerHost {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    /// Three failures with a peer at once; the rest that they begin, in seconds.
    fn fail(health: &mut RailHealth, now: u64) -> Option<u64> {
        let rests: Vec<_> = (0..3).map(|_| health.note_failure(peer(1), at(now))).collect();
        assert_eq!(rests[..2], [None; 2]);
        assert!(health.is_up(at(now)), "one peer");
        rests[2].map(|rest| rest.length.as_secs())
    }

    fn rest(of: RestOf, seconds: u64) -> Option<Rest> {
        Some(Rest { of, length: Duration::from_secs(seconds) })
    }

    #[test]
    fn third_failure_with_a_peer_in_10_s_begins_a_rest_of_30_s_for_it() {
        let mut health = RailHealth::default();
        let failures = [100, 105, 111].map(|now| health.note_failure(peer(1), at(now)));
        assert_eq!(failures, [None; 3], "the first is too old");
        assert!(health.is_up_for(peer(1), at(111)));
        assert_eq!(health.note_failure(peer(1), at(115)), rest(RestOf::Peer, 30));
        for now in [115, 144] {
            assert!(!health.is_up_for(peer(1), at(now)));
            assert!(health.is_up_for(peer(2), at(now)) && health.is_up(at(now)));
        }
        assert!(health.is_up_for(peer(1), at(145)));
    }

    #[test]
    fn failures_with_three_peers_in_10_s_begin_a_rest_for_all() {
        let mut health = RailHealth::default();
        for (number, now) in [(1, 100), (2, 105), (1, 106), (3, 117)] {
            assert_eq!(health.note_failure(peer(number), at(now)), None, "peer={number}");
        }
        assert_eq!(health.note_failure(peer(2), at(118)), None, "two peers in 10 s");
        assert_eq!(health.note_failure(peer(1), at(119)), rest(RestOf::Rail, 30));
        assert!(!health.is_up(at(148)) && !health.is_up_for(peer(9), at(148)));
        assert!(health.is_up_for(peer(9), at(149)));
    }

    #[test]
    fn failures_with_several_peers_count_for_each_alone_if_the_rail_succeeded_meanwhile() {
        let mut health = RailHealth::default();
        for now in 100..102 {
            for number in 1..=3 {
                assert_eq!(health.note_failure(peer(number), at(now)), None);
                health.note_success();
            }
        }
        assert_eq!(health.note_failure(peer(1), at(102)), rest(RestOf::Peer, 30));
    }

    #[test]
    fn rests_double_up_to_300_s_and_begin_anew_after_300_good_seconds() {
        let (mut health, mut now) = (RailHealth::default(), 0);
        for expected in [30, 60, 120, 240, 300, 300] {
            assert_eq!(fail(&mut health, now), Some(expected));
            now += expected;
        }
        now += 299;
        assert_eq!(fail(&mut health, now), Some(300));
        assert_eq!(fail(&mut health, now + 300 + 300), Some(30));
    }

    #[test]
    fn failures_during_a_rest_count_for_nothing() {
        let mut health = RailHealth::default();
        assert_eq!(fail(&mut health, 0), Some(30));
        assert_eq!(fail(&mut health, 29), None);
        assert_eq!(health.note_failure(peer(1), at(30)), None);
        assert_eq!(health.note_failure(peer(1), at(31)), None);
        assert_eq!(health.note_failure(peer(1), at(32)), rest(RestOf::Peer, 60));
    }

    #[test]
    fn peers_whose_failures_are_past_are_forgotten() {
        let mut health = RailHealth::default();
        for number in 0..100 {
            health.note_failure(peer(number), at(11 * u64::from(number)));
        }
        assert_eq!(health.peers.len(), 1);
    }
}
