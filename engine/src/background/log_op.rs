//! The operations that the flusher's parts submit to the log's I/O queue, and their tags there.

/// An operation of the log's owner. Numbers tell operations of one kind apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogOp {
    /// An operation of the checkpoint whose serial number has this lower half.
    Checkpoint(u32),
    /// The read of a victim's footer.
    Footer,
    /// The read of a record that reclaim reinserts.
    Record(u32),
    /// An operation of the device probe.
    Probe,
    /// A read of a victim's record headers.
    Scan,
    /// A read of the background scrub.
    Scrub,
    /// The read of a removal's tombstones; the number is the lower half of the job's id.
    Readback(u32),
}

impl LogOp {
    /// The tag: the kind in the upper half, the number in the lower half.
    pub fn encode(self) -> u64 {
        let (kind, number) = match self {
            LogOp::Checkpoint(serial) => (0, serial),
            LogOp::Footer => (1, 0),
            LogOp::Record(number) => (2, number),
            LogOp::Probe => (3, 0),
            LogOp::Scan => (4, 0),
            LogOp::Scrub => (5, 0),
            LogOp::Readback(job) => (6, job),
        };
        kind << 32 | u64::from(number)
    }

    /// The operation with this tag; `None` if [`LogOp::encode`] returns it for none.
    pub fn decode(tag: u64) -> Option<LogOp> {
        let number = tag as u32;
        let op = match tag >> 32 {
            0 => LogOp::Checkpoint(number),
            1 => LogOp::Footer,
            2 => LogOp::Record(number),
            3 => LogOp::Probe,
            4 => LogOp::Scan,
            5 => LogOp::Scrub,
            6 => LogOp::Readback(number),
            _ => return None,
        };
        Some(op).filter(|op| op.encode() == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_tag_is_the_encoded_operation() {
        let ops = [
            LogOp::Checkpoint(u32::MAX),
            LogOp::Footer,
            LogOp::Record(7),
            LogOp::Probe,
            LogOp::Scan,
            LogOp::Scrub,
            LogOp::Readback(0),
        ];
        for op in ops {
            assert_eq!(LogOp::decode(op.encode()), Some(op));
        }
        assert_eq!(LogOp::decode(7 << 32), None);
        assert_eq!(LogOp::decode(LogOp::Footer.encode() + 1), None);
    }
}
