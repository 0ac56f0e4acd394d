//! Hits that this process reads itself, out of files that the store handed over.
//!
//! Invariants:
//! - Memory that is read into comes back when the kernel is done with it, and not before, whatever becomes of the operation.
//! - Nothing that was read is believed by this: it may be another object's by now. Who gets it compares checksums.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Mono;
use pagelith_io::disk::{Completion, FileId, Op, Queue};
use pagelith_io::fault::IoFault;
use pagelith_layouts::align::{ALIGN, align_up, is_aligned};
use pagelith_layouts::ids::OpId;
use pagelith_transport::link::Link;
use pagelith_transport::shown::{FilePlace, Shown};
use rustc_hash::FxHashMap;

use crate::ragged::Ragged;
use crate::slow::{Looks, SlowReads};

/// Reads in flight: what a session of the store's own has.
const DEPTH: usize = 128;

/// A link's reads.
#[derive(Default)]
pub(super) struct Reads {
    way: Way,
    waiting: VecDeque<(u64, Op)>,
    flights: FxHashMap<u64, Flight>,
    last: u64,
    done: Vec<Completion>,
    /// How long they took lately.
    slow: SlowReads,
    looks: Looks,
}

/// How files are read.
#[derive(Default)]
enum Way {
    /// Nobody asked yet.
    #[default]
    Unknown,
    /// And the most parts of a read.
    Queue(Box<dyn Queue>, usize),
    /// There are none, or this process cannot.
    None,
}

struct Flight {
    op: OpId,
    item: u32,
    shown: Shown,
    began: Mono,
    ragged: Option<Ragged>,
}

/// A read that is over.
pub(super) struct Landed {
    pub op: OpId,
    pub item: u32,
    pub parts: Vec<Part>,
    pub shown: Shown,
    /// Whether all of it came.
    pub arrived: bool,
}

impl Reads {
    /// Reads by this queue, of memory of any number of parts.
    #[cfg(test)]
    pub fn by(queue: Box<dyn Queue>) -> Reads {
        Reads { way: Way::Queue(queue, usize::MAX), ..Reads::default() }
    }

    /// Of how many parts memory may be that is read into out of files handed over on `link` ([`is_readable`]); 0 if none can be, or if a
    /// read may not end by `deadline`: the peer stages it then. A ring is made when this is first asked where there are files.
    pub fn parts_max(&mut self, link: &dyn Link, deadline: Mono, now: Mono) -> usize {
        if self.slow.may_outlast(deadline, now) {
            return 0;
        }
        if matches!(self.way, Way::Unknown) {
            self.way = Way::of(link);
        }
        self.way.parts_max()
    }

    /// Whether anything is read.
    pub fn is_busy(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Read what lies at `place` into memory that is as long. Handed back if it cannot be.
    pub fn begin(
        &mut self,
        (op, item): (OpId, u32),
        mut parts: Vec<Part>,
        shown: Shown,
        place: FilePlace,
        now: Mono,
    ) -> Result<(), Landed> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let file = u32::try_from(place.file).map(FileId);
        let is_ragged = !is_aligned(bytes);
        let page =
            if is_ragged { AlignedBuf::new(ALIGN as usize).ok().map(AlignedBuf::into_part) } else { None };
        let fits = bytes == place.length && is_readable(&parts, self.way.parts_max());
        let (Ok(file), true) = (file, fits && page.is_some() == is_ragged) else {
            return Err(Landed { op, item, parts, shown, arrived: false });
        };
        let last = parts.pop_if(|_| is_ragged).zip(page);
        let ragged =
            last.map(|(last, page)| Ragged::cut(&mut parts, 0, last, page, align_up(bytes), ALIGN as usize));
        self.last += 1;
        self.flights.insert(self.last, Flight { op, item, shown, began: now, ragged });
        self.waiting.push_back((self.last, Op::Read { file, offset: place.at, parts }));
        Ok(())
    }

    /// Go on as far as it goes now; what is over.
    pub fn poll(&mut self, now: Mono, landed: &mut Vec<Landed>) {
        self.turn(now, None, landed);
    }

    /// As `poll`, but wait until something is over, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration, landed: &mut Vec<Landed>) {
        self.turn(now, Some(timeout), landed);
    }

    fn turn(&mut self, now: Mono, wait: Option<Duration>, landed: &mut Vec<Landed>) {
        let Way::Queue(queue, _) = &mut self.way else { return };
        if self.flights.is_empty() {
            return;
        }
        let came = self.looks.look(now);
        while let Some((token, op)) = self.waiting.pop_front() {
            if let Err(op) = queue.submit(token, op) {
                self.waiting.push_front((token, op));
                break;
            }
        }
        match wait {
            Some(timeout) => queue.wait(&mut self.done, timeout),
            None => queue.poll(&mut self.done),
        }
        for completion in self.done.drain(..) {
            let Some(Flight { op, item, shown, began, ragged }) = self.flights.remove(&completion.token)
            else {
                continue;
            };
            self.slow.note(came.since(began), came);
            let arrived = completion
                .result
                .inspect_err(|fault| tracing::warn!(%fault, "a file of the store's is not read"))
                .is_ok();
            let mut parts = completion.op.into_parts();
            ragged.map(|ragged| ragged.put_back(&mut parts, arrived));
            landed.push(Landed { op, item, parts, shown, arrived });
        }
    }
}

impl Way {
    fn parts_max(&self) -> usize {
        match self {
            Way::Queue(_, most) => *most,
            Way::Unknown | Way::None => 0,
        }
    }

    fn of(link: &dyn Link) -> Way {
        let made = || -> Result<Way, IoFault> {
            let Some(disk) = link.files()? else { return Ok(Way::None) };
            Ok(Way::Queue(disk.queue(DEPTH)?, disk.facts().parts_max))
        };
        made().unwrap_or_else(|fault| {
            tracing::warn!(%fault, "files of the store's cannot be read: it reads hits from SSD for this process");
            Way::None
        })
    }
}

/// Whether the kernel can read into this memory, but for a ragged end.
pub(super) fn is_readable(parts: &[Part], parts_max: usize) -> bool {
    let inner = parts.len().saturating_sub(1);
    // A ragged end takes one more.
    parts.len() < parts_max
        && parts.iter().all(|part| is_aligned(part.addr() as u64))
        && parts[..inner].iter().all(|part| is_aligned(part.len() as u64))
}
