//! Puts that a store process acknowledged and no flush has covered: they are lost with the process.

use crate::api::error::{Error, ErrorKind, Result};

/// Identifies a store process.
pub(crate) type Instance = [u8; 16];

/// The acknowledged puts of this client that are not durable yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnflushedPuts {
    /// The process that sent the last acknowledgement.
    by: Instance,
    /// Number of acknowledgements, and how many of them a flush has covered.
    count: u64,
    covered: u64,
    /// Some acknowledgements were of an earlier process and no flush covered them.
    lost: bool,
}

impl UnflushedPuts {
    /// Record acknowledgements of puts, each by its process.
    pub fn note(&mut self, by: impl IntoIterator<Item = Instance>) {
        for by in by {
            self.lost |= self.by != by && self.count > self.covered;
            (self.by, self.count) = (by, self.count + 1);
        }
    }

    /// Record that process `by` answered a flush that began when this was `before`.
    ///
    /// # Errors
    /// `Unavailable`, once, if the flush should have covered puts of another process.
    pub fn record_flush(&mut self, before: UnflushedPuts, by: Instance) -> Result<()> {
        let uncovered = before.count > self.covered;
        let lost = std::mem::take(&mut self.lost) || uncovered && before.by != by;
        self.covered = self.covered.max(before.count);
        if lost {
            let detail =
                "the store process was restarted: unflushed puts from before that are not durable";
            return Err(Error::new(ErrorKind::Unavailable, detail));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Instance = [1; 16];
    const OTHER: Instance = [2; 16];

    #[test]
    fn flush_covers_puts_acknowledged_by_the_same_process() {
        let mut unflushed = UnflushedPuts::default();
        unflushed.note([ONE, ONE]);
        assert_eq!(unflushed.record_flush(unflushed, ONE), Ok(()));
        assert_eq!(unflushed.record_flush(unflushed, OTHER), Ok(()), "nothing is uncovered");
    }

    #[test]
    fn puts_lost_with_their_process_are_reported_once() {
        let mut unflushed = UnflushedPuts::default();
        unflushed.note([ONE]);
        assert!(unflushed.record_flush(unflushed, OTHER).is_err());
        assert_eq!(unflushed.record_flush(unflushed, OTHER), Ok(()));
        unflushed.note([ONE, OTHER]);
        assert!(unflushed.record_flush(unflushed, OTHER).is_err(), "the later put hides the loss");
        assert_eq!(unflushed.record_flush(unflushed, OTHER), Ok(()));
    }

    #[test]
    fn put_acknowledged_during_a_flush_is_left_to_the_next_flush() {
        let mut unflushed = UnflushedPuts::default();
        unflushed.note([ONE]);
        let before = unflushed;
        unflushed.note([ONE]);
        assert_eq!(unflushed.record_flush(before, ONE), Ok(()));
        assert!(unflushed.record_flush(unflushed, OTHER).is_err(), "the put counts as covered");
    }
}
