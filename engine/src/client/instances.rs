//! What a store process acknowledged and no flush covered yet: it goes with the process.

use crate::api::error::{Error, ErrorKind, Result};

/// Names a store process.
pub(crate) type Instance = [u8; 16];

/// What is owed to the puts of this client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Who acknowledged last.
    by: Instance,
    /// Acknowledgements so far, and how many of them a flush covered.
    count: u64,
    covered: u64,
    /// Some were another process's, and no flush had covered them.
    lost: bool,
}

impl Acked {
    /// `by` acknowledged puts, if any.
    pub fn note(&mut self, by: impl IntoIterator<Item = Instance>) {
        for by in by {
            self.lost |= self.by != by && self.count > self.covered;
            (self.by, self.count) = (by, self.count + 1);
        }
    }

    /// A flush that began when this was `before` was answered by a process.
    ///
    /// # Errors
    /// `Unavailable`, once, if what it should have covered was another process's.
    pub fn flushed(&mut self, before: Acked, by: Instance) -> Result<()> {
        let owed = before.count > self.covered;
        let lost = std::mem::take(&mut self.lost) || owed && before.by != by;
        self.covered = self.covered.max(before.count);
        if lost {
            let detail = "the store process was started again, and what was put before that is not durable";
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
    fn a_flush_covers_what_the_process_acknowledged_that_answers_it() {
        let mut acked = Acked::default();
        acked.note([ONE, ONE]);
        assert_eq!(acked.flushed(acked, ONE), Ok(()));
        assert_eq!(acked.flushed(acked, OTHER), Ok(()), "nothing is owed");
    }

    #[test]
    fn what_went_with_its_process_is_said_once() {
        let mut acked = Acked::default();
        acked.note([ONE]);
        assert!(acked.flushed(acked, OTHER).is_err());
        assert_eq!(acked.flushed(acked, OTHER), Ok(()));
        acked.note([ONE, OTHER]);
        assert!(acked.flushed(acked, OTHER).is_err(), "it is forgotten for what came after");
        assert_eq!(acked.flushed(acked, OTHER), Ok(()));
    }

    #[test]
    fn what_is_acknowledged_while_a_flush_runs_is_for_the_next() {
        let mut acked = Acked::default();
        acked.note([ONE]);
        let before = acked;
        acked.note([ONE]);
        assert_eq!(acked.flushed(before, ONE), Ok(()));
        assert!(acked.flushed(acked, OTHER).is_err(), "it counts as covered");
    }
}
