//! One thread's questions to other stores: its links to them, and what came back.

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::Arc;
use rustc_hash::FxHashMap;

use super::pool::Lines;
use super::{Remote, Reply};

/// Links and replies. One thread's.
pub(crate) struct Desk {
    pub lines: Lines,
    replies: FxHashMap<u64, Reply>,
    last_token: u64,
    patient: bool,
}

impl Desk {
    pub fn new(remote: Arc<Remote>) -> Desk {
        Desk { lines: Lines::new(remote), replies: FxHashMap::default(), last_token: 0, patient: false }
    }

    /// Of a process that has no other store: one that answers late is asked on, as long as its link stands.
    pub fn patient(remote: Arc<Remote>) -> Desk {
        Desk { patient: true, lines: Lines::of_client(remote.clone()), ..Desk::new(remote) }
    }

    /// A number for a new question.
    pub fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Whether something is on its way.
    pub fn is_busy(&self) -> bool {
        self.lines.is_busy()
    }

    /// Move everything as far as it goes now.
    pub fn poll(&mut self, now: Mono) {
        self.lines.poll(now, &mut self.replies);
    }

    /// As `poll`, but wait until something happens, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration) {
        self.lines.wait(now, timeout, &mut self.replies);
    }

    /// Let a store be for at most `timeout`, unless something happens on its link.
    pub fn rest(&mut self, peer: usize, now: Mono, timeout: Duration) {
        self.lines.rest(peer, now, timeout, &mut self.replies);
    }

    /// Have the stores hear what they are asked, before anything that they said is looked at.
    pub fn send_on(&mut self) {
        self.lines.send_on();
    }

    /// Wait for no answer of a store's any more: what it was asked comes back as if its time were up.
    pub fn give_up(&mut self, peer: usize, now: Mono) {
        self.lines.stands_mut(peer).into_iter().for_each(|caller| caller.hurry(now));
    }

    /// Whether a store's link has something of what it was asked, memory for one.
    pub fn is_asked(&self, peer: usize) -> bool {
        self.lines.is_asked(peer)
    }

    /// Whether something was answered that nobody took yet.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// The reply to a question, once.
    pub fn take(&mut self, token: u64) -> Option<Reply> {
        self.replies.remove(&token)
    }

    /// All replies that nobody took yet.
    pub fn take_all(&mut self) -> FxHashMap<u64, Reply> {
        std::mem::take(&mut self.replies)
    }

    /// A store answered, or failed to. A link that ended under a question is no failure: links end when they are idle,
    /// several at once, and the next dial says whether the store can be reached.
    pub fn note(&self, peer: usize, failed: bool, now: Mono) {
        if failed && self.lines.has_ended(peer) {
            return;
        }
        let stands = self.patient && self.lines.stands(peer).is_some();
        self.lines.remote().breaker(peer, |breaker| match (failed, stands) {
            (true, true) => {}
            (true, false) => breaker.failed(now),
            (false, _) => breaker.answered(),
        });
    }
}

#[cfg(test)]
mod tests {
    use pagelith_transport::closed::Closed;
    use pagelith_transport::dial::{Dial, Dialing};

    use super::super::Peer;
    use super::*;

    struct Down;

    impl Dial for Down {
        fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
            Err(Closed::Late { limit_ms: 1 })
        }
    }

    #[test]
    fn a_peer_that_answers_is_forgiven_the_failures_before_it() {
        let dial = std::sync::Arc::new(Down);
        let peer = Peer { name: "far".into(), weight: 1.0, preferred: false, dial };
        let desk = Desk::new(Arc::new(Remote::new(vec![peer]).expect("a peer")));
        let now = Mono::default();
        let asks = |desk: &Desk| desk.lines.remote().breaker(0, |breaker| breaker.may_ask(now));
        for round in 0..5 {
            for _ in 0..2 {
                desk.note(0, true, now);
                assert_eq!(asks(&desk), Some(true), "round={round}");
            }
            desk.note(0, false, now);
        }
        (0..3).for_each(|_| desk.note(0, true, now));
        assert_eq!(asks(&desk), Some(false), "three in a row");
    }
}
