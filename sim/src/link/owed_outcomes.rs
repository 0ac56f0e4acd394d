//! Check at a server's end: each request that arrived gets one outcome, also one that its client
//! cancelled. A client limits its requests by outcomes, so a missing outcome uses up a part of that
//! limit for ever, and no other check finds it.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};

/// Time limit for the outcome of a cancelled request: it waits for nothing.
const CANCELLED_MAX: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct OwedOutcomes {
    /// How often each request arrived; packets may be duplicated.
    requests: BTreeMap<OpId, u32>,
    /// Requests that were cancelled, and when.
    cancelled: BTreeMap<OpId, Mono>,
}

impl OwedOutcomes {
    /// A frame arrived at the server's end.
    pub fn arrived(&mut self, frame: &Frame, now: Mono) {
        match frame.kind {
            FrameKind::Request => *self.requests.entry(frame.op).or_default() += 1,
            FrameKind::Cancel if self.requests.contains_key(&frame.op) => {
                self.cancelled.entry(frame.op).or_insert(now);
            }
            _ => {}
        }
    }

    /// A frame leaves the server's end; false for an outcome that is not owed.
    pub fn sent(&mut self, frame: &Frame) -> bool {
        if frame.kind != FrameKind::Outcome {
            return true;
        }
        let Some(times) = self.requests.get_mut(&frame.op) else { return false };
        *times -= 1;
        if *times == 0 {
            self.requests.remove(&frame.op);
        }
        // A request that arrived again after the cancel is a new request.
        self.cancelled.remove(&frame.op);
        true
    }

    /// The number of requests that were cancelled too long ago; each is counted once.
    pub fn overdue(&mut self, now: Mono) -> u64 {
        let all = self.cancelled.len();
        self.cancelled.retain(|_, since| now.since(*since) < CANCELLED_MAX);
        (all - self.cancelled.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_needs_one_outcome_and_cancelled_one_soon() {
        let mut owed = OwedOutcomes::default();
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let (request, outcome) = (
            |op| Frame::new(FrameKind::Request, OpId(op), vec![1]),
            |op| Frame::new(FrameKind::Outcome, OpId(op), vec![1]),
        );
        let cancel = |op| Frame::bare(FrameKind::Cancel, OpId(op));
        for op in [1, 2, 2, 3] {
            owed.arrived(&request(op), at(0));
        }
        assert!(owed.sent(&outcome(1)) && !owed.sent(&outcome(1)), "one, and no second");
        assert!(
            owed.sent(&outcome(2)) && owed.sent(&outcome(2)) && !owed.sent(&outcome(2)),
            "sent twice"
        );
        [1, 3].into_iter().for_each(|op| owed.arrived(&cancel(op), at(10)));
        assert_eq!([50, 110, 500].map(|ms| owed.overdue(at(ms))), [0, 1, 0], "of 1 there was one");
        owed.arrived(&request(4), at(500));
        owed.arrived(&cancel(4), at(500));
        owed.arrived(&request(4), at(500));
        assert!(owed.sent(&outcome(4)));
        assert_eq!(owed.overdue(at(1000)), 0);
        assert!(owed.sent(&outcome(4)) && !owed.sent(&outcome(4)));
    }
}
