//! Planted bugs of a link. The checks of runs over links must detect each. They are values, not
//! builds, so that every test run plants them.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::outcome::{self, DecodedOutcome, Item, ItemOutcome, OutcomeToSend};
use pagelith_layouts::wire::{Frame, FrameKind, List};

use super::sharing::concat_bytes;

/// A planted bug of an end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedBug {
    /// No bug.
    #[default]
    None,
    /// The outcome of a finished operation is taken for the outcome of the newest request.
    StaleOutcome,
    /// Retracted memory is reported as returned, and bytes still arrive in it.
    WriteAfterRetract,
    /// A push is reported as complete before its memory was read.
    EarlyPushCompletion,
    /// Checksums are recomputed from the bytes that arrived: a reader that does not verify.
    Unverified,
    /// RDMA: the client gives memory back when its operation is cancelled.
    BackAtRetract,
    /// RDMA: the client gives memory back when the stream ends.
    BackAtStreamEnd,
    /// RDMA: the client gives memory back when the server has flushed its queue.
    BackAtServerFlush,
    /// RDMA: the server posts a notice before the WRITEs that it is to follow.
    NoticeBeforeData,
    /// RDMA: the client posts too few receives for the notices.
    TooFewReceives,
    /// RDMA: the server adds the base of another region.
    WrongRegionBase,
}

impl PlantedBug {
    /// Every bug, and `None`.
    pub const ALL: [PlantedBug; 11] = [
        PlantedBug::None,
        PlantedBug::StaleOutcome,
        PlantedBug::WriteAfterRetract,
        PlantedBug::EarlyPushCompletion,
        PlantedBug::Unverified,
        PlantedBug::BackAtRetract,
        PlantedBug::BackAtStreamEnd,
        PlantedBug::BackAtServerFlush,
        PlantedBug::NoticeBeforeData,
        PlantedBug::TooFewReceives,
        PlantedBug::WrongRegionBase,
    ];

    /// Whether it needs one-sided transfers.
    pub fn is_of_rdma(self) -> bool {
        match self {
            PlantedBug::None
            | PlantedBug::StaleOutcome
            | PlantedBug::WriteAfterRetract
            | PlantedBug::EarlyPushCompletion
            | PlantedBug::Unverified => false,
            PlantedBug::BackAtRetract
            | PlantedBug::BackAtStreamEnd
            | PlantedBug::BackAtServerFlush
            | PlantedBug::NoticeBeforeData
            | PlantedBug::TooFewReceives
            | PlantedBug::WrongRegionBase => true,
        }
    }

    /// Whether it is a bug of a server's end; the others are of a client's.
    pub fn is_of_server(self) -> bool {
        matches!(self, PlantedBug::NoticeBeforeData | PlantedBug::WrongRegionBase)
    }

    /// Its name on a command line: the name of the variant.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

impl std::str::FromStr for PlantedBug {
    type Err = String;

    fn from_str(name: &str) -> Result<PlantedBug, String> {
        PlantedBug::ALL.into_iter().find(|plant| plant.name() == name).ok_or_else(|| {
            format!(
                "unknown plant: {name}; use a variant of link::PlantedBug, such as StaleOutcome"
            )
        })
    }
}

/// Checksums of the bytes that arrived, by operation and item.
#[derive(Default)]
pub(super) struct ArrivedSums(BTreeMap<(OpId, u32), Vec<Checksum>>);

impl ArrivedSums {
    pub fn note(&mut self, op: OpId, item: u32, parts: &[Part]) {
        self.note_bytes(op, item, &concat_bytes(parts));
    }

    pub fn note_bytes(&mut self, op: OpId, item: u32, bytes: &[u8]) {
        self.0.insert((op, item), bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect());
    }

    /// The outcome with the checksums of the bytes that arrived instead of the checksums that were
    /// sent.
    pub fn replace_checksums(&self, frame: Frame) -> Frame {
        let body = match (frame.kind, outcome::decode(&frame.body)) {
            (FrameKind::Outcome, Ok((verb, DecodedOutcome::Items(items)))) => {
                let block_bytes = items.block_bytes();
                let mut all: Vec<Item<'_>> = items.iter().collect();
                for (item, at) in all.iter_mut().zip(0u32..) {
                    if let ItemOutcome::Hit { checksums, .. } = &mut item.verdict
                        && let Some(own) =
                            self.0.get(&(frame.op, at)).filter(|own| own.len() == checksums.len())
                    {
                        *checksums = List::of(own);
                    }
                }
                outcome::encode(verb, &OutcomeToSend::Items(&all, block_bytes))
            }
            _ => return frame,
        };
        Frame::new(frame.kind, frame.op, body)
    }
}
