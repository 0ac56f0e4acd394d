//! Pushes of gets that the link has not returned, and their deadlines.
//!
//! Invariant: memory of a push is returned by the deadline of its operation, whatever the peer
//! does. A peer that got a reference and never releases it loses the bytes then; if it reads them
//! later, their checksums do not match.

use std::collections::BTreeSet;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use rustc_hash::FxHashMap;

/// Pending pushes of a link, by operation.
#[derive(Default)]
pub(crate) struct PendingPushes {
    /// Number of pending pushes, and the deadline once the operation is answered.
    ops: FxHashMap<OpId, (u32, Option<Mono>)>,
    due: BTreeSet<(Mono, OpId)>,
}

impl PendingPushes {
    /// The link accepted a push.
    pub fn sent(&mut self, op: OpId) {
        self.ops.entry(op).or_default().0 += 1;
    }

    /// The link returned a push.
    pub fn returned(&mut self, op: OpId) {
        let Some((count, due)) = self.ops.get_mut(&op) else { return };
        *count -= 1;
        if *count == 0 {
            due.map(|due| self.due.remove(&(due, op)));
            self.ops.remove(&op);
        }
    }

    /// The operation was answered: its remaining pushes may stay until `deadline`.
    pub fn op_answered(&mut self, op: OpId, deadline: Mono) {
        if let Some((_, due)) = self.ops.get_mut(&op) {
            *due = Some(deadline);
            self.due.insert((deadline, op));
        }
    }

    /// An operation whose deadline is over; each is returned once.
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
        assert_eq!(pushes.overdue(Mono(99)), None, "{a:?} was returned before");
        pushes.returned(a);
        pushes.returned(b);
        assert!(pushes.ops.is_empty() && pushes.due.is_empty());
    }
}
