//! The ghost queue: a FIFO of fingerprints of evicted pages.

use std::collections::{BTreeMap, VecDeque};

/// A bounded queue of fingerprints. A recalled fingerprint stays in `queue` until it reaches the
/// front, or until the queue has twice the allowed length. An entry of `queue` is valid only if
/// `turns` has its turn.
#[derive(Debug, Default)]
pub(super) struct Ghost {
    turns: BTreeMap<u128, u64>,
    queue: VecDeque<(u128, u64)>,
    turn: u64,
}

impl Ghost {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Add a page as the newest, and drop the oldest pages beyond `len_max`.
    pub(super) fn remember(&mut self, fingerprint: u128, len_max: usize) {
        self.turn += 1;
        self.turns.insert(fingerprint, self.turn);
        self.queue.push_back((fingerprint, self.turn));
        while self.turns.len() > len_max || self.queue.len() > 2 * len_max {
            let Some((oldest, turn)) = self.queue.pop_front() else { break };
            if self.turns.get(&oldest) == Some(&turn) {
                self.turns.remove(&oldest);
            }
        }
    }

    /// Remove a page; returns whether it was in the queue.
    pub(super) fn recall(&mut self, fingerprint: u128) -> bool {
        self.turns.remove(&fingerprint).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ghost_queue_drops_oldest_first() {
        let mut ghost = Ghost::default();
        for page in 0..5 {
            ghost.remember(page, 3);
        }
        let known: Vec<bool> = (0..5).map(|page| ghost.recall(page)).collect();
        assert_eq!(known, [false, false, true, true, true]);
        assert!(!ghost.recall(4), "a page is recalled once");
    }

    #[test]
    fn ghost_remembered_again_is_newest() {
        let mut ghost = Ghost::default();
        for page in [1, 2, 1, 3, 4] {
            ghost.remember(page, 3);
        }
        assert_eq!([1, 2, 3, 4].map(|page| ghost.recall(page)), [true, false, true, true]);
    }

    #[test]
    fn ghost_queue_length_is_bounded() {
        let mut ghost = Ghost::default();
        for page in 0..10_000 {
            ghost.remember(page % 7, 4);
            ghost.recall(page % 5);
            assert!(ghost.len() <= 4);
            assert!(ghost.queue.len() <= 8);
        }
    }
}
