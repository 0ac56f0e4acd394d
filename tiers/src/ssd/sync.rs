//! Syncs of the data files: decides which writes a sync covers.
//!
//! A sync covers a write only if the write's completion was returned before the sync was submitted.
//! So a request waits for the writes in flight; then one sync per file completes every request made
//! by that time.
//!
//! A failed sync is never retried: the kernel marks the pages clean even if they were not written.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_io::disk::FileId;

/// Identifies a sync request; later requests have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId(pub u64);

/// Tracks writes and syncs of the data files.
#[derive(Debug, Default)]
pub struct SyncTracker {
    /// Writes queued or in flight, by token.
    writing: BTreeSet<u64>,
    /// Files with completed writes that no sync has covered.
    dirty: BTreeSet<FileId>,
    /// Requests whose round has not begun, with the newest write token at the time of the request.
    waiting: BTreeMap<SyncId, u64>,
    /// The current round: the requests that it completes, and the files whose sync has not ended.
    round: Option<Round>,
    next: u64,
}

#[derive(Debug)]
struct Round {
    answers: Vec<SyncId>,
    left: BTreeSet<FileId>,
    failed: bool,
}

impl SyncTracker {
    /// Note a new write, which is submitted now or later. Tokens must increase.
    pub fn write_begun(&mut self, token: u64) {
        self.writing.insert(token);
    }

    /// Note that a write was dropped before it was submitted.
    pub fn write_dropped(&mut self, token: u64) {
        self.writing.remove(&token);
    }

    /// Note that a write's completion was returned.
    pub fn write_ended(&mut self, token: u64, file: FileId) {
        self.writing.remove(&token);
        self.dirty.insert(file);
    }

    /// Request a sync that covers every write up to `last_token`.
    pub fn request(&mut self, last_token: u64) -> SyncId {
        self.next += 1;
        self.waiting.insert(SyncId(self.next), last_token);
        SyncId(self.next)
    }

    /// Whether a request is not complete.
    pub fn busy(&self) -> bool {
        self.round.is_some() || !self.waiting.is_empty()
    }

    /// Begin a round if possible; returns the files to sync now. With an empty list the round is
    /// complete at once, and [`SyncTracker::finish`] returns its requests.
    pub fn begin(&mut self) -> Option<Vec<FileId>> {
        if self.round.is_some() {
            return None;
        }
        let oldest_write = self.writing.first().copied().unwrap_or(u64::MAX);
        let answers: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, last)| **last < oldest_write)
            .map(|(id, _)| *id)
            .collect();
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

    /// Note that a file's sync ended. Once the round is complete, returns its requests, and whether
    /// all syncs succeeded.
    pub fn ended(&mut self, file: FileId, ok: bool) -> Option<(Vec<SyncId>, bool)> {
        let round = self.round.as_mut()?;
        round.left.remove(&file);
        round.failed |= !ok;
        self.finish()
    }

    /// The result of the round, if every sync has ended.
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
    fn sync_request_waits_only_for_earlier_writes() {
        let mut s = SyncTracker::default();
        s.write_begun(1);
        s.write_begun(2);
        let id = s.request(2);
        s.write_begun(3);
        s.write_ended(2, A);
        assert_eq!(s.begin(), None, "write 1 is in flight");
        s.write_ended(1, B);
        assert_eq!(s.begin(), Some(vec![A, B]), "write 3 came after the request");
        assert_eq!(s.ended(A, true), None);
        assert_eq!(s.ended(B, true), Some((vec![id], true)));
        assert!(!s.busy());
    }

    #[test]
    fn write_ended_during_round_is_covered_by_next_round() {
        let mut s = SyncTracker::default();
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
    fn sync_without_dirty_file_completes_at_once() {
        let mut s = SyncTracker::default();
        let id = s.request(0);
        assert_eq!(s.begin(), Some(vec![]));
        assert_eq!(s.finish(), Some((vec![id], true)));
    }
}
