//! Bugs of a link, planted on order: what runs over links hold against it must notice each. They are values and not builds, so
//! that the tests of every run plant them.

use std::collections::BTreeMap;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::outcome::{self, Answer, Item, Verdict, Written};
use pagelith_layouts::wire::{Frame, Kind, List};

use super::shares::gathered;

/// A bug of a client's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None.
    #[default]
    None,
    /// The outcome of an operation that is over is believed for the one that was asked last.
    StaleOutcome,
    /// Memory that is given up is said to be back, and bytes land in it still.
    KeptAfterRetract,
    /// A push is said to be over before its memory was looked at.
    PushedEarly,
    /// What landed is vouched for, whatever it is: a reader that does not verify.
    Unverified,
}

impl Plant {
    /// All of them, and none.
    pub const ALL: [Plant; 5] =
        [Plant::None, Plant::StaleOutcome, Plant::KeptAfterRetract, Plant::PushedEarly, Plant::Unverified];

    /// Its name on a command line: that of the variant.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

impl std::str::FromStr for Plant {
    type Err = String;

    fn from_str(name: &str) -> Result<Plant, String> {
        Plant::ALL
            .into_iter()
            .find(|plant| plant.name() == name)
            .ok_or_else(|| format!("no such plant: {name}"))
    }
}

/// Checksums of what landed, as who believes it would make them.
#[derive(Default)]
pub(super) struct Landed(BTreeMap<(OpId, u32), Vec<Checksum>>);

impl Landed {
    pub fn note(&mut self, op: OpId, item: u32, parts: &[Part]) {
        self.note_bytes(op, item, &gathered(parts));
    }

    pub fn note_bytes(&mut self, op: OpId, item: u32, bytes: &[u8]) {
        self.0.insert((op, item), bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect());
    }

    /// The outcome, with the checksums of what landed in place of those that were sent.
    pub fn vouched(&self, frame: Frame) -> Frame {
        let said = match (frame.kind, outcome::decode(&frame.body)) {
            (Kind::Outcome, Ok((verb, Answer::Items(items)))) => {
                let block_bytes = items.block_bytes();
                let mut all: Vec<Item<'_>> = items.iter().collect();
                for (item, at) in all.iter_mut().zip(0u32..) {
                    if let Verdict::Hit { checksums, .. } = &mut item.verdict
                        && let Some(own) =
                            self.0.get(&(frame.op, at)).filter(|own| own.len() == checksums.len())
                    {
                        *checksums = List::of(own);
                    }
                }
                outcome::encode(verb, &Written::Items(&all, block_bytes))
            }
            _ => return frame,
        };
        Frame::new(frame.kind, frame.op, said)
    }
}
