//! Offers that the writer has in hand: from when it takes one out of the queue until it has its outcome, or will not be made. A store that is
//! told of a removal answers when those of before have ended ([`Core::ask_offers`]): until then one of them may have what is removed stored
//! by a peer that was told already.

use std::collections::BTreeSet;

use super::peer_queue::{RemoteJob, removed};
use crate::state::core::{Core, JobResult};

/// A part of the queue.
#[derive(Debug, Default)]
pub(crate) struct InHand {
    /// By when they were taken.
    turns: BTreeSet<u64>,
    last: u64,
    /// Who is answered once none is left that was taken up to then.
    waits: Vec<(u64, u64)>,
}

impl InHand {
    /// One is taken: its turn.
    pub fn take(&mut self) -> u64 {
        self.last += 1;
        self.turns.insert(self.last);
        self.last
    }

    /// It has ended; whom to answer.
    fn over(&mut self, turn: u64) -> Vec<u64> {
        self.turns.remove(&turn);
        let first = self.turns.first().copied().unwrap_or(u64::MAX);
        let (over, wait) = std::mem::take(&mut self.waits).into_iter().partition(|(_, last)| *last < first);
        self.waits = wait;
        let over: Vec<(u64, u64)> = over;
        over.into_iter().map(|(id, _)| id).collect()
    }
}

impl Core {
    /// Have peers told something; the number to wait for.
    pub fn ask_remote(&mut self, job: impl FnOnce(u64) -> RemoteJob) -> Option<u64> {
        let id = self.next_answer;
        let (remote, job) = (self.remote.as_mut()?, job(id));
        remote.removing += removed(&job);
        remote.jobs.push_back(job);
        self.next_answer += 1;
        self.answers.insert(id, None);
        Some(id)
    }

    /// Have it said when the offers that are in hand now have ended; the number to wait for, if there are any. It does not wait for what
    /// peers are being told of removals: they may be waiting for this.
    pub fn ask_offers(&mut self) -> Option<u64> {
        let id = self.next_answer;
        let in_hand = &mut self.remote.as_mut()?.in_hand;
        if in_hand.turns.is_empty() {
            return None;
        }
        in_hand.waits.push((id, in_hand.last));
        self.next_answer += 1;
        self.answers.insert(id, None);
        Some(id)
    }

    /// An offer has ended; whether somebody is answered with that.
    pub fn end_offer(&mut self, turn: u64) -> bool {
        let over = self.remote.as_mut().map(|queue| queue.in_hand.over(turn)).unwrap_or_default();
        let is_waited_for = !over.is_empty();
        over.into_iter().for_each(|id| self.answer(id, JobResult::Done));
        is_waited_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_answered_behind_all_of_before_and_not_those_of_later() {
        let mut in_hand = InHand::default();
        let [a, b] = [in_hand.take(), in_hand.take()];
        in_hand.waits.push((7, in_hand.last));
        let c = in_hand.take();
        in_hand.waits.push((8, in_hand.last));
        assert_eq!(in_hand.over(b), [0; 0]);
        assert_eq!(in_hand.over(a), [7]);
        assert_eq!(in_hand.over(c), [8]);
        assert!(in_hand.waits.is_empty());
    }
}
