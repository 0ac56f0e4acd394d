//! Random faults: their choice, their effect on an operation, and their log.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::fault::FaultOp;
use pagelith_layouts::align::ALIGN;

use super::fault_rates::{DiskFault, FaultRates, FileOffset, MILLION, SLOW_TIMES, StrikeRecord};
use super::file::SimFile;
use super::image::{BLOCK, Block, SECTORS, SectorFate};
use super::table::{FileNo, FileTable};
use crate::entropy::SplitMix64;

/// Effect of a strike: the offset that it hit, and whether any byte differs from an honest
/// device's.
pub(crate) type Effect = (Option<FileOffset>, bool);

/// The operation that a fault strikes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StruckOp<'a> {
    pub(crate) fault: DiskFault,
    pub(crate) op: FaultOp,
    pub(crate) dir: usize,
    pub(crate) name: &'a str,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Rates, planned faults, and the faults that struck.
#[derive(Debug)]
pub(crate) struct FaultInjector {
    rates: FaultRates,
    /// By kind of operation, the delays and the others: each fault with the cumulative rate.
    tables: [[Vec<(DiskFault, u64)>; 2]; OPS.len()],
    /// Planned faults, and how many operations remain, 1 if the next one is struck.
    scheduled: Vec<(DiskFault, u64)>,
    rng: SplitMix64,
    struck: Vec<StrikeRecord>,
    /// Whether any fault may strike.
    armed: bool,
}

/// Operations that can be struck.
const OPS: [FaultOp; 4] = [FaultOp::Read, FaultOp::Write, FaultOp::Sync, FaultOp::Create];

impl Default for FaultInjector {
    fn default() -> FaultInjector {
        FaultInjector {
            rates: FaultRates::new(0),
            tables: Default::default(),
            scheduled: Vec::new(),
            rng: SplitMix64::new(0),
            struck: Vec::new(),
            armed: false,
        }
    }
}

impl FaultInjector {
    /// Sets the rates; planned faults stay.
    pub(crate) fn set(&mut self, rates: FaultRates) {
        self.rng = SplitMix64::new(rates.seed());
        for (table, op) in self.tables.iter_mut().zip(OPS) {
            for (table, delays) in table.iter_mut().zip([false, true]) {
                let mut sum = 0;
                let entry = |(fault, rate)| {
                    sum += u64::from(rate);
                    (fault, sum)
                };
                *table = rates.of(op, delays).map(entry).collect();
            }
        }
        self.rates = rates;
        self.arm();
    }

    /// Strikes the `nth` next operation that `fault` can strike.
    pub(crate) fn schedule(&mut self, fault: DiskFault, nth: u64) {
        assert!(nth > 0, "faults are counted from 1 fault={fault}");
        self.scheduled.push((fault, nth));
        self.arm();
    }

    /// Stops all faults; keeps the log.
    pub(crate) fn disarm(&mut self) {
        *self =
            FaultInjector { struck: std::mem::take(&mut self.struck), ..FaultInjector::default() };
    }

    /// Stops all faults and clears the log.
    pub(crate) fn clear(&mut self) {
        *self = FaultInjector::default();
    }

    fn arm(&mut self) {
        let any = |tables: &[Vec<(DiskFault, u64)>; 2]| tables.iter().any(|t| !t.is_empty());
        self.armed = !self.scheduled.is_empty() || self.tables.iter().any(any);
    }

    /// Whether a read may return previous block contents.
    pub(crate) fn needs_previous(&self) -> bool {
        let stale = DiskFault::StaleRead;
        self.rates.rate(stale) > 0 || self.scheduled.iter().any(|(fault, _)| *fault == stale)
    }

    /// The faults that struck.
    pub(crate) fn struck(&self) -> &[StrikeRecord] {
        &self.struck
    }

    /// Returns the faults that struck and empties the list.
    pub(crate) fn take(&mut self) -> Vec<StrikeRecord> {
        std::mem::take(&mut self.struck)
    }

    /// The fault that strikes this operation: a delay, or one of the others.
    pub(crate) fn draw(&mut self, op: FaultOp, name: &str, delays: bool) -> Option<DiskFault> {
        if !self.armed {
            return None;
        }
        let mut due = None;
        for (i, (fault, left)) in self.scheduled.iter_mut().enumerate() {
            if fault.strikes(op) && fault.delays() == delays {
                *left -= 1;
                due = due.or((*left == 0).then_some((i, *fault)));
            }
        }
        if let Some((i, fault)) = due {
            self.scheduled.remove(i);
            // Two were due for the same operation: the other one strikes the next.
            self.scheduled.iter_mut().for_each(|(_, left)| *left = (*left).max(1));
            self.arm();
            return Some(fault);
        }
        let table = &self.tables[OPS.iter().position(|o| *o == op)?][usize::from(delays)];
        if table.is_empty() || !self.rates.covers(name) {
            return None;
        }
        let drawn = self.rng.below(MILLION);
        table.iter().find(|(_, sum)| drawn < *sum).map(|(fault, _)| *fault)
    }

    /// The additional time of an operation that a delay strikes.
    pub(crate) fn delay(&self, fault: DiskFault, latency: Duration) -> Duration {
        match fault {
            DiskFault::Slow => latency * (SLOW_TIMES - 1),
            _ => self.rates.stuck(),
        }
    }

    /// Records that a fault struck.
    pub(crate) fn log(
        &mut self,
        n: u64,
        at: Mono,
        struck_op: StruckOp<'_>,
        hit: Option<FileOffset>,
        effective: bool,
    ) {
        let StruckOp { fault, op, dir, name, offset, len } = struck_op;
        self.struck.push(StrikeRecord {
            n,
            at,
            fault,
            op,
            dir,
            name: name.to_string(),
            offset,
            len,
            hit,
            effective,
        });
    }

    /// Applies to a read a fault that lets it succeed, or that makes a block bad. `None` if it had
    /// no effect.
    pub(crate) fn read(
        &mut self,
        fault: DiskFault,
        files: &mut FileTable,
        (no, offset): (FileNo, u64),
        parts: &mut [Part],
    ) -> Option<Effect> {
        let len = parts.iter().map(|p| p.len() as u64).sum::<u64>();
        match fault {
            DiskFault::BadBlock => {
                let block = offset / ALIGN + self.rng.below(len / ALIGN);
                let named = files.get_mut(no)?;
                named.file.mark_bad(block);
                Some((Some(named.file_offset(block * ALIGN)), true))
            }
            DiskFault::BitFlipRead => {
                let (at, bit) = (self.rng.below(len), self.rng.below(8));
                flip(parts, at, bit)?;
                Some((Some(files.get(no)?.file_offset(offset + at)), true))
            }
            DiskFault::MisdirectedRead => {
                let (other, from) = self.other_range(files, no, offset, len)?;
                let other = files.get(other)?;
                let changed = replace(parts, |at, out| other.file.read(from + at, out));
                Some((Some(other.file_offset(from)), changed))
            }
            DiskFault::StaleRead => {
                let file = &files.get(no)?.file;
                let blocks = offset / ALIGN..(offset + len) / ALIGN;
                blocks.clone().find(|block| file.previous(*block).is_some())?;
                let changed = replace(parts, |at, out| {
                    for (i, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                        let block = (offset + at) / ALIGN + i as u64;
                        match file.previous(block) {
                            Some(before) => out.copy_from_slice(&**before),
                            None => file.read(block * ALIGN, out),
                        }
                    }
                });
                Some((None, changed))
            }
            _ => None,
        }
    }

    /// Bytes that a struck write of `blocks` leaves, with their file and range.
    pub(crate) fn write(
        &mut self,
        fault: DiskFault,
        files: &FileTable,
        (no, offset): (FileNo, u64),
        mut blocks: Vec<Block>,
    ) -> Written {
        let Some(named) = files.get(no) else { return Written::intact(no, offset, blocks) };
        let differs = |file: &SimFile, offset: u64, blocks: &[Block]| {
            (offset / ALIGN..).zip(blocks).any(|(n, new)| file.block(n) != *new)
        };
        match fault {
            DiskFault::LostWrite => Written {
                landed: None,
                effect: Some((None, differs(&named.file, offset, &blocks))),
            },
            DiskFault::WriteError => {
                let half = |rng: &mut SplitMix64| {
                    if rng.one_in(2) { SectorFate::New } else { SectorFate::Old }
                };
                let torn = named.file.partial_write(offset, &blocks, &mut self.rng, half);
                Written { landed: Some((no, offset, torn)), effect: Some((None, true)) }
            }
            DiskFault::TornWrite | DiskFault::ShortWrite => {
                let mut new = self.sectors(fault, blocks.len() * SECTORS).into_iter();
                let fate = |_: &mut SplitMix64| {
                    if new.next() == Some(true) { SectorFate::New } else { SectorFate::Old }
                };
                let torn = named.file.partial_write(offset, &blocks, &mut self.rng, fate);
                let effective = fault == DiskFault::ShortWrite || torn != blocks;
                Written { landed: Some((no, offset, torn)), effect: Some((None, effective)) }
            }
            DiskFault::MisdirectedWrite => {
                let found = self.other_range(files, no, offset, (blocks.len() * BLOCK) as u64);
                let Some((other, to, target)) =
                    found.and_then(|(no, to)| Some((no, to, files.get(no)?)))
                else {
                    return Written::intact(no, offset, blocks);
                };
                let effective =
                    differs(&named.file, offset, &blocks) || differs(&target.file, to, &blocks);
                Written {
                    landed: Some((other, to, blocks)),
                    effect: Some((Some(target.file_offset(to)), effective)),
                }
            }
            DiskFault::BitFlipAtRest => {
                let (at, bit) = (self.rng.below((blocks.len() * BLOCK) as u64), self.rng.below(8));
                let block = Arc::make_mut(&mut blocks[(at / ALIGN) as usize]);
                block[(at % ALIGN) as usize] ^= 1 << bit;
                let effect = Some((Some(named.file_offset(offset + at)), true));
                Written { landed: Some((no, offset, blocks)), effect }
            }
            _ => Written::intact(no, offset, blocks),
        }
    }

    /// Which of the sectors are new.
    fn sectors(&mut self, fault: DiskFault, sectors: usize) -> Vec<bool> {
        let cut = 1 + self.rng.below(sectors as u64 - 1) as usize;
        let shape = if fault == DiskFault::ShortWrite { 0 } else { self.rng.below(3) };
        match shape {
            0 => (0..sectors).map(|i| i < cut).collect(),
            1 => (0..sectors).map(|i| i >= cut).collect(),
            _ => {
                let mut new: Vec<bool> = (0..sectors).map(|_| self.rng.one_in(2)).collect();
                // Neither none nor all of them: one sector is new, and its neighbour is not.
                new[cut] = self.rng.one_in(2);
                new[cut - 1] = !new[cut];
                new
            }
        }
    }

    /// A random aligned range of `len` bytes, disjoint from the addressed one, in a file of the
    /// same kind.
    fn other_range(
        &mut self,
        files: &FileTable,
        no: FileNo,
        offset: u64,
        len: u64,
    ) -> Option<(FileNo, u64)> {
        let target = files.get(no)?;
        // Candidate ranges before the addressed one, and in total.
        let places = |other: FileNo, file_len: u64| {
            let count = |room: u64| if room < len { 0 } else { (room - len) / ALIGN + 1 };
            match other == no {
                true => (count(offset), count(offset) + count(file_len - (offset + len))),
                false => (0, count(file_len)),
            }
        };
        let same_kind = files.iter().filter(|(_, f)| f.kind() == target.kind());
        let same_kind: Vec<_> =
            same_kind.map(|(other, f)| (other, places(other, f.file.len))).collect();
        let same_kind: Vec<_> = same_kind.into_iter().filter(|(_, (_, all))| *all > 0).collect();
        let (other, (before, all)) =
            *same_kind.get(self.rng.below(same_kind.len() as u64) as usize)?;
        let place = self.rng.below(all);
        let skipped = if other == no && place >= before { offset + len } else { 0 };
        let first = if skipped > 0 { place - before } else { place };
        Some((other, skipped + first * ALIGN))
    }
}

/// The outcome of a write.
pub(crate) struct Written {
    /// File, offset and blocks; `None` if nothing was written.
    pub(crate) landed: Option<(FileNo, u64, Vec<Block>)>,
    /// The effect of a strike; `None` if none had any.
    pub(crate) effect: Option<Effect>,
}

impl Written {
    /// The whole write, in the addressed range.
    pub(crate) fn intact(no: FileNo, offset: u64, blocks: Vec<Block>) -> Written {
        Written { landed: Some((no, offset, blocks)), effect: None }
    }
}

/// Flips a bit of byte `at` of the parts.
fn flip(parts: &mut [Part], mut at: u64, bit: u64) -> Option<()> {
    for part in parts {
        match part.bytes_mut()?.get_mut(at as usize) {
            Some(byte) => {
                *byte ^= 1 << bit;
                return Some(());
            }
            None => at -= part.len() as u64,
        }
    }
    None
}

/// Replaces the bytes of the parts with those of `read`, given the distance from the first; true if
/// any changed.
fn replace(parts: &mut [Part], read: impl Fn(u64, &mut [u8])) -> bool {
    let (mut at, mut changed) = (0, false);
    for part in parts {
        let len = part.len() as u64;
        if let Some(bytes) = part.bytes_mut() {
            let honest = bytes.to_vec();
            read(at, bytes);
            changed |= *bytes != *honest;
        }
        at += len;
    }
    changed
}
