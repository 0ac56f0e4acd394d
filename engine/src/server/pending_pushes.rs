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
pub(crate) struct PendingPushes {
    /// How many each has there, and until when it may: those that were answered.
    ops: FxHashMap<OpId, (u32, Option<Mono>)>,
    due: BTreeSet<(Mono, OpId)>,
}

impl PendingPushes {
    /// The link took one.
    pub fn sent(&mut self, op: OpId) {
        self.ops.entry(op).or_default().0 += 1;
    }

    /// One came back.
    pub fn returned(&mut self, op: OpId) {
        let Some((count, due)) = self.ops.get_mut(&op) else { return };
        *count -= 1;
        if *count == 0 {
            due.map(|due| self.due.remove(&(due, op)));
            self.ops.remove(&op);
        }
    }

    /// The operation was answered: what it has there still, it may have until `deadline`.
    pub fn op_answered(&mut self, op: OpId, deadline: Mono) {
        if let Some((_, due)) = self.ops.get_mut(&op) {
            *due = Some(deadline);
            self.due.insert((deadline, op));
        }
    }

    /// An operation whose time is up, once.
    pub fn overdue(&mut self, now: Mono) -> Option<OpId> {
        let (_, op) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first();
        self.ops.get_mut(&op).into_iter().for_each(|(_, due)| *due = None);
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdue_operation_is_returned_once() {
        let (mut pushes, [a, b, c]) = (PendingPushes::default(), [OpId(1), OpId(2), OpId(3)]);
        for op in [a, a, b, c] {
            pushes.sent(op);
        }
        pushes.returned(c);
        pushes.op_answered(a, Mono(20));
        pushes.op_answered(b, Mono(10));
        pushes.op_answered(c, Mono(5));
        pushes.returned(a);
        assert_eq!(pushes.overdue(Mono(9)), None);
        assert_eq!([pushes.overdue(Mono(20)), pushes.overdue(Mono(20))], [Some(b), Some(a)]);
        assert_eq!(pushes.overdue(Mono(99)), None, "{a:?} was named");
        pushes.returned(a);
        pushes.returned(b);
        assert!(pushes.ops.is_empty() && pushes.due.is_empty());
    }
}
