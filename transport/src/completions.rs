//! Which pushes are still read by the kernel, out of memory that is theirs: what sends from where the bytes lie leave behind.
//!
//! Invariants:
//! - A push comes out once: when the link is done with it and each send that took bytes of it is over, whichever is later.
//! - Each send is over once. What a completion names that was not sent, or is over, changes nothing.

use std::collections::{BTreeMap, VecDeque};

use pagelith_layouts::ids::OpId;

use crate::link::Push;

/// A push that the link is done with, and whether all of it went out.
pub(crate) type Done = (Push, bool);

#[derive(Default)]
pub(crate) struct Completions {
    /// The number of the oldest send that is kept, mod 2^32 as the kernel counts.
    first: u32,
    /// Whose bytes each send took, in order; `None` once it is over.
    sends: VecDeque<Option<u64>>,
    pushes: BTreeMap<u64, Read>,
}

/// A push of which the kernel reads bytes.
struct Read {
    /// Sends that are not over.
    sends: u32,
    done: Option<Done>,
    given_up: bool,
}

impl Completions {
    /// Whether nothing is read.
    pub fn is_empty(&self) -> bool {
        self.pushes.is_empty()
    }

    /// Whether something is read that was given up.
    pub fn has_given_up(&self) -> bool {
        self.pushes.values().any(|read| read.given_up)
    }

    /// The next send took bytes of this push.
    pub fn sent(&mut self, push: u64) {
        self.sends.push_back(Some(push));
        let new = Read { sends: 0, done: None, given_up: false };
        self.pushes.entry(push).or_insert(new).sends += 1;
    }

    /// The link is done with a push: it comes back at once if none of it is read.
    pub fn done(&mut self, push: u64, done: Done) -> Option<Done> {
        let Some(read) = self.pushes.get_mut(&push) else { return Some(done) };
        read.given_up |= !done.1;
        read.done = Some(done);
        None
    }

    /// The pushes of `op`, or all, are given up.
    pub fn give_up(&mut self, op: Option<OpId>) {
        let of_it = |(push, _): &Done| op.is_none_or(|op| push.op == op);
        for read in self.pushes.values_mut().filter(|read| read.done.as_ref().is_some_and(of_it)) {
            read.given_up = true;
        }
    }

    /// The sends from `first` to `last` are over; what comes back.
    pub fn over(&mut self, first: u32, last: u32, back: &mut Vec<Done>) {
        let from = first.wrapping_sub(self.first);
        let count = last.wrapping_sub(first);
        // Numbers go round: what begins before the oldest is far behind the newest.
        let behind = self.first.wrapping_sub(first);
        let (from, to) = match self.sends.len() as u32 {
            kept if from < kept => (from, from.saturating_add(count)),
            _ if behind <= count => (0, count - behind),
            _ => return,
        };
        for send in self.sends.iter_mut().skip(from as usize).take((to - from) as usize + 1) {
            let Some(push) = send.take() else { continue };
            let Some(read) = self.pushes.get_mut(&push) else { continue };
            read.sends -= 1;
            // One that the link is not done with may have more sends to come.
            if read.sends == 0 {
                back.extend(self.pushes.remove(&push).and_then(|read| read.done));
            }
        }
        while let Some(None) = self.sends.front() {
            self.sends.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Keep the memory of all of them for ever: nobody can say when it is not read any more.
    pub fn leak(&mut self) -> usize {
        let reads = std::mem::take(&mut self.pushes);
        let count = reads.len();
        std::mem::forget(reads);
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn push(op: u64, token: u64) -> Push {
        Push { op: OpId(op), item: 0, offset: 0, parts: Vec::new(), token, may_show: false }
    }

    fn tokens(back: &[Done]) -> Vec<(u64, bool)> {
        back.iter().map(|(push, sent)| (push.token, *sent)).collect()
    }

    #[test]
    fn a_push_comes_back_when_the_last_of_its_sends_is_over_and_the_link_is_done() {
        let (mut reads, mut back) = (Completions::default(), Vec::new());
        [0, 0, 1, 0, 2].into_iter().for_each(|push| reads.sent(push));
        assert!(reads.done(3, (push(1, 3), true)).is_some(), "nothing of it was sent so");
        assert!(reads.done(0, (push(1, 0), true)).is_none());
        reads.over(1, 3, &mut back);
        assert!(back.is_empty(), "{:?}", tokens(&back));
        assert!(reads.done(1, (push(1, 1), false)).is_some(), "its send is over");
        reads.over(0, 0, &mut back);
        assert_eq!(tokens(&back), [(0, true)]);
        reads.over(4, 4, &mut back);
        assert!(reads.is_empty(), "the link is not done with it, but nothing is read");
        reads.sent(2);
        assert!(reads.done(2, (push(1, 2), false)).is_none());
        assert!(reads.has_given_up(), "not all of it went out");
        reads.over(5, 5, &mut back);
        assert_eq!((tokens(&back), reads.is_empty()), (vec![(0, true), (2, false)], true));
    }

    #[test]
    fn what_was_not_sent_or_is_over_changes_nothing() {
        let (mut reads, mut back) = (Completions::default(), Vec::new());
        reads.over(0, u32::MAX, &mut back);
        for number in 0..4 {
            reads.sent(number);
            assert!(reads.done(number, (push(number, number), true)).is_none());
        }
        reads.over(4, 9, &mut back);
        reads.over(u32::MAX - 5, u32::MAX, &mut back);
        assert!(back.is_empty(), "{:?}", tokens(&back));
        reads.over(0, 1, &mut back);
        reads.over(0, 1, &mut back);
        assert_eq!(tokens(&back), [(0, true), (1, true)]);
        // Wider than what is open on both sides.
        reads.over(0, 7, &mut back);
        assert_eq!((tokens(&back).len(), reads.is_empty()), (4, true));
    }

    #[test]
    fn what_is_given_up_is_known_as_long_as_it_is_read() {
        let (mut reads, mut back) = (Completions::default(), Vec::new());
        for number in 0..2 {
            reads.sent(number);
            assert!(reads.done(number, (push(number + 1, number), true)).is_none());
        }
        reads.give_up(Some(OpId(7)));
        assert!(!reads.has_given_up());
        reads.give_up(Some(OpId(1)));
        assert!(reads.has_given_up());
        reads.over(0, 0, &mut back);
        assert!(!reads.has_given_up() && !reads.is_empty());
        reads.give_up(None);
        assert_eq!((reads.has_given_up(), reads.leak()), (true, 1));
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Another send of the push in front, or the next.
        Send { next: bool },
        /// The link is done with the push in front.
        Done,
        /// Ranges of open sends from here on, this long.
        Over { from: usize, length: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<bool>().prop_map(|next| Step::Send { next }),
            2 => Just(Step::Done),
            3 => (0usize..40, 1usize..9).prop_map(|(from, length)| Step::Over { from, length }),
        ]
    }

    proptest! {
        /// Against a set of numbers for each push: in any order, in ranges of any length, over where the numbers go round.
        #[test]
        fn any_order_of_sends_and_completions(start in prop_oneof![Just(0u32), Just(u32::MAX - 7)], steps in prop::collection::vec(step(), 1..200)) {
            let mut reads = Completions { first: start, ..Completions::default() };
            let mut open: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
            let (mut done, mut came) = (BTreeSet::new(), BTreeSet::new());
            let (mut next, mut front) = (start, 0);
            let mut check = |back: Vec<Done>, done: &BTreeSet<u64>, open: &BTreeMap<u64, BTreeSet<u32>>| {
                for (push, _) in back {
                    prop_assert!(done.contains(&push.token), "the link has it still");
                    prop_assert!(open.get(&push.token).is_none_or(BTreeSet::is_empty), "it is read still");
                    prop_assert!(came.insert(push.token), "twice");
                }
                // And nothing is kept longer.
                let free = done.iter().filter(|push| open.get(push).is_none_or(BTreeSet::is_empty));
                prop_assert_eq!(free.count(), came.len());
                Ok(())
            };
            for step in steps {
                let mut back = Vec::new();
                match step {
                    Step::Send { next: other } => {
                        if other && done.insert(front) {
                            back.extend(reads.done(front, (push(1, front), true)));
                        }
                        front += u64::from(done.contains(&front));
                        reads.sent(front);
                        open.entry(front).or_default().insert(next);
                        next = next.wrapping_add(1);
                    }
                    Step::Done => {
                        if done.insert(front) {
                            back.extend(reads.done(front, (push(1, front), true)));
                        }
                        front += 1;
                    }
                    Step::Over { from, length } => {
                        // Some of them are over already, some were never sent.
                        let first = start.wrapping_add(from as u32);
                        let last = first.wrapping_add(length as u32 - 1);
                        let sent = next.wrapping_sub(start);
                        for number in (0..length as u32).map(|i| first.wrapping_add(i)) {
                            if number.wrapping_sub(start) < sent {
                                open.values_mut().for_each(|sends| sends.retain(|open| *open != number));
                            }
                        }
                        reads.over(first, last, &mut back);
                    }
                }
                check(back, &done, &open)?;
            }
            let mut back = Vec::new();
            if done.insert(front) {
                back.extend(reads.done(front, (push(1, front), true)));
            }
            if next != start {
                reads.over(start, next.wrapping_sub(1), &mut back);
            }
            open.clear();
            check(back, &done, &open)?;
            prop_assert!(reads.is_empty() && reads.sends.is_empty());
        }
    }
}
