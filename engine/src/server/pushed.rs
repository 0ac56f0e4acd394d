//! What gets have on a link, and until when.
//!
//! Invariant: memory that a push holds is back by the deadline of its operation, whatever the peer
//! does: one that is shown bytes and never says that it has taken them keeps them no longer. It
//! finds out by its checksums, if it still looks.

use std::collections::BTreeSet;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use rustc_hash::FxHashMap;

/// Pushes on a link, by operation.
#[derive(Default)]
pub(crate) struct Pushed {
    /// How many each has there, and until when it may: those that were answered.
    of: FxHashMap<OpId, (u32, Option<Mono>)>,
    due: BTreeSet<(Mono, OpId)>,
}

impl Pushed {
    /// The link took one.
    pub fn sent(&mut self, op: OpId) {
        self.of.entry(op).or_default().0 += 1;
    }

    /// One came back.
    pub fn back(&mut self, op: OpId) {
        let Some((count, due)) = self.of.get_mut(&op) else { return };
        *count -= 1;
        if *count == 0 {
            due.map(|due| self.due.remove(&(due, op)));
            self.of.remove(&op);
        }
    }

    /// The operation was answered: what it has there still, it may have until `deadline`.
    pub fn answered(&mut self, op: OpId, deadline: Mono) {
        if let Some((_, due)) = self.of.get_mut(&op) {
            *due = Some(deadline);
            self.due.insert((deadline, op));
        }
    }

    /// An operation whose time is up, once.
    pub fn overdue(&mut self, now: Mono) -> Option<OpId> {
        let (_, op) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first();
        self.of.get_mut(&op).into_iter().for_each(|(_, due)| *due = None);
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_back_in_time_is_named_once() {
        let (mut pushed, [a, b, c]) = (Pushed::default(), [OpId(1), OpId(2), OpId(3)]);
        for op in [a, a, b, c] {
            pushed.sent(op);
        }
        pushed.back(c);
        pushed.answered(a, Mono(20));
        pushed.answered(b, Mono(10));
        pushed.answered(c, Mono(5));
        pushed.back(a);
        assert_eq!(pushed.overdue(Mono(9)), None);
        assert_eq!([pushed.overdue(Mono(20)), pushed.overdue(Mono(20))], [Some(b), Some(a)]);
        assert_eq!(pushed.overdue(Mono(99)), None, "{a:?} was named");
        pushed.back(a);
        pushed.back(b);
        assert!(pushed.of.is_empty() && pushed.due.is_empty());
    }
}
