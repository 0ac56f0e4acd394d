//! Syncs of the data files: which writes a sync covers, and what follows when one fails.
//!
//! A sync covers a write only if the write's completion had been returned before the sync was submitted. So
//! a request waits for the writes under way, then one sync a file answers every request made by then.
//! A failed sync is never tried again: the kernel marks the pages clean whether or not they were written.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_io::disk::FileId;

/// Names a request for a sync; later requests have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId(pub u64);

/// Tracks writes and syncs of the data files.
#[derive(Debug, Default)]
pub struct Syncs {
    /// Writes under way, by token.
    writing: BTreeSet<u64>,
    /// Files with completed writes that no sync has covered.
    dirty: BTreeSet<FileId>,
    /// Requests not yet begun, with the newest write token at the time.
    waiting: BTreeMap<SyncId, u64>,
    /// The round under way: the requests it answers, and the files still to be synced.
    round: Option<Round>,
    next: u64,
}

#[derive(Debug)]
struct Round {
    answers: Vec<SyncId>,
    left: BTreeSet<FileId>,
    failed: bool,
}

impl Syncs {
    /// A write was made, and is submitted next or when others have ended. Tokens only grow.
    pub fn write_begun(&mut self, token: u64) {
        self.writing.insert(token);
    }

    /// A write was not submitted after all.
    pub fn write_dropped(&mut self, token: u64) {
        self.writing.remove(&token);
    }

    /// A write's completion was returned.
    pub fn write_ended(&mut self, token: u64, file: FileId) {
        self.writing.remove(&token);
        self.dirty.insert(file);
    }

    /// Ask for a sync that covers every write submitted so far.
    pub fn request(&mut self, last_token: u64) -> SyncId {
        self.next += 1;
        self.waiting.insert(SyncId(self.next), last_token);
        SyncId(self.next)
    }

    /// Whether a request has not been answered.
    pub fn busy(&self) -> bool {
        self.round.is_some() || !self.waiting.is_empty()
    }

    /// Begin a round if one can begin: the files to sync now. An empty list is a round that is over at once
    /// ([`Syncs::ended`] need not be called).
    pub fn begin(&mut self) -> Option<Vec<FileId>> {
        if self.round.is_some() {
            return None;
        }
        let oldest_write = self.writing.first().copied().unwrap_or(u64::MAX);
        let answers: Vec<_> =
            self.waiting.iter().filter(|(_, last)| **last < oldest_write).map(|(id, _)| *id).collect();
        if answers.is_empty() {
            return None;
        }
        answers.iter().for_each(|id| {
            self.waiting.remove(id);
        });
        let left = std::mem::take(&mut self.dirty);
        let files = left.iter().copied().collect();
        self.round = Some(Round { answers, left, failed: false });
        Some(files)
    }

    /// A file's sync ended. Returns the answered requests and whether all went well, once the round is over.
    pub fn ended(&mut self, file: FileId, ok: bool) -> Option<(Vec<SyncId>, bool)> {
        let round = self.round.as_mut()?;
        round.left.remove(&file);
        round.failed |= !ok;
        self.finish()
    }

    /// The round's answers if nothing is left to be synced.
    pub fn finish(&mut self) -> Option<(Vec<SyncId>, bool)> {
        if !self.round.as_ref()?.left.is_empty() {
            return None;
        }
        self.round.take().map(|r| (r.answers, !r.failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: FileId = FileId(1);
    const B: FileId = FileId(2);

    #[test]
    fn a_request_waits_for_the_writes_before_it_only() {
        let mut s = Syncs::default();
        s.write_begun(1);
        s.write_begun(2);
        let id = s.request(2);
        s.write_begun(3);
        s.write_ended(2, A);
        assert_eq!(s.begin(), None, "write 1 is under way");
        s.write_ended(1, B);
        assert_eq!(s.begin(), Some(vec![A, B]), "write 3 came after the request");
        assert_eq!(s.ended(A, true), None);
        assert_eq!(s.ended(B, true), Some((vec![id], true)));
        assert!(!s.busy());
    }

    #[test]
    fn a_write_that_ends_during_a_round_is_covered_by_the_next() {
        let mut s = Syncs::default();
        s.write_begun(1);
        s.write_ended(1, A);
        let first = s.request(1);
        assert_eq!(s.begin(), Some(vec![A]));
        s.write_begun(2);
        s.write_ended(2, A);
        let second = s.request(2);
        assert_eq!(s.begin(), None, "one round at a time");
        assert_eq!(s.ended(A, false), Some((vec![first], false)));
        assert_eq!(s.begin(), Some(vec![A]));
        assert_eq!(s.ended(A, true), Some((vec![second], true)));
    }

    #[test]
    fn nothing_to_sync_is_answered_at_once() {
        let mut s = Syncs::default();
        let id = s.request(0);
        assert_eq!(s.begin(), Some(vec![]));
        assert_eq!(s.finish(), Some((vec![id], true)));
    }
}
