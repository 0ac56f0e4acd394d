//! Execution of an operation: its effects on files and memory, and the faults that strike it.

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::disk::{FileId, Op};
use pagelith_io::fault::{FaultKind, FaultOp};

use super::fault_injector::{Effect, StruckOp, Written};
use super::fault_rates::DiskFault;
use super::file::SimFile;
use super::image::{BLOCK, SectorFate, push_blocks};
use super::state::State;
use super::table::FileNo;
use crate::entropy::SplitMix64;

/// How an operation ended.
#[derive(Default)]
pub(crate) struct OpResult {
    /// How it failed.
    pub(crate) failed: Option<FaultKind>,
    /// The fault that struck it.
    pub(crate) struck: Option<DiskFault>,
    /// The reason, for the fault's message.
    pub(crate) detail: &'static str,
}

impl OpResult {
    /// From an ordered failure or a struck fault.
    fn of(ordered: Option<FaultKind>, struck: Option<DiskFault>) -> OpResult {
        let failed = ordered.or(struck.and_then(DiskFault::failure));
        let detail = if ordered.is_some() { "injected" } else { "struck" };
        OpResult { failed, struck, detail }
    }
}

impl State {
    /// Executes operation `id` on an open file.
    pub(crate) fn perform(&mut self, id: u64, no: FileNo) -> OpResult {
        let Ok(at) = self.in_flight.binary_search_by_key(&id, |e| e.submitted) else {
            return OpResult::default();
        };
        // Taken out of the table while it executes; nothing looks it up meanwhile.
        let unit = Op::Sync { file: FileId(0) };
        let mut op = std::mem::replace(&mut self.in_flight[at].op, unit);
        let done = match &mut op {
            Op::Read { offset, parts, .. } => self.perform_read(no, *offset, parts),
            Op::Write { offset, parts, .. } => {
                let (done, wrote) = self.perform_write(no, *offset, parts);
                self.in_flight[at].wrote = wrote;
                done
            }
            Op::Sync { .. } => self.perform_sync(no, self.in_flight[at].submitted),
        };
        self.in_flight[at].op = op;
        done
    }

    fn perform_read(&mut self, no: FileNo, offset: u64, parts: &mut [Part]) -> OpResult {
        let len = parts.iter().map(|p| p.len() as u64).sum();
        let ordered = self.pending.draw(FaultOp::Read);
        let Some(named) = self.files.get(no) else { return OpResult::default() };
        if named.file.is_bad(offset, len) {
            fill(&named.file, offset, parts, 2);
            return OpResult {
                failed: Some(FaultKind::Device),
                struck: None,
                detail: "a bad block",
            };
        }
        let struck = match ordered {
            None => self.strikes.draw(FaultOp::Read, &named.name, false),
            Some(_) => None,
        };
        let mut done = OpResult::of(ordered, struck);
        // A failed read has filled the first half of each part.
        fill(&named.file, offset, parts, if done.failed.is_some() { 2 } else { 1 });
        if let Some(fault) = struck {
            let effect = match fault {
                DiskFault::ReadError | DiskFault::ShortRead => Some((None, true)),
                _ => self.strikes.read(fault, &mut self.files, (no, offset), parts),
            };
            done.struck = self.note(fault, FaultOp::Read, (no, offset, len), effect);
        }
        done
    }

    fn perform_write(
        &mut self,
        no: FileNo,
        offset: u64,
        parts: &[Part],
    ) -> (OpResult, Option<(FileNo, u64)>) {
        let len = parts.iter().map(|p| p.len()).sum::<usize>();
        let mut blocks = Vec::with_capacity(len / BLOCK);
        parts.iter().for_each(|p| push_blocks(&mut blocks, p.bytes()));
        let ordered = self.pending.draw(FaultOp::Write);
        let seq = self.tick();
        let State { files, strikes, rng, .. } = self;
        let Some(named) = files.get_mut(no) else { return (OpResult::default(), None) };
        let struck = match ordered {
            None => strikes.draw(FaultOp::Write, &named.name, false),
            Some(_) => None,
        };
        let mut done = OpResult::of(ordered, struck);
        let half =
            |rng: &mut SplitMix64| if rng.one_in(2) { SectorFate::New } else { SectorFate::Old };
        let Written { landed, effect } = match (ordered, struck) {
            (None, None) => Written::intact(no, offset, blocks),
            (Some(_), _) => {
                Written::intact(no, offset, named.file.partial_write(offset, &blocks, rng, half))
            }
            (None, Some(fault)) => strikes.write(fault, files, (no, offset), blocks),
        };
        let mut wrote = None;
        if let Some((no, offset, blocks)) = landed
            && let Some(named) = self.files.get_mut(no)
        {
            named.file.write(seq, offset, blocks);
            wrote = Some((no, seq));
        }
        if let Some(fault) = struck {
            done.struck = self.note(fault, FaultOp::Write, (no, offset, len as u64), effect);
        }
        (done, wrote)
    }

    fn perform_sync(&mut self, no: FileNo, submitted: u64) -> OpResult {
        let ordered = self.pending.draw(FaultOp::Sync);
        let State { files, strikes, ignored_syncs, .. } = self;
        let Some(named) = files.get_mut(no) else { return OpResult::default() };
        let struck = match ordered {
            None => strikes.draw(FaultOp::Sync, &named.name, false),
            Some(_) => None,
        };
        let done = OpResult::of(ordered, struck);
        if done.failed.is_some() {
            named.file.sync_failing();
        } else if !ignored_syncs.count(&named.path) {
            named.file.sync(submitted);
        }
        if let Some(fault) = struck {
            self.note(fault, FaultOp::Sync, (no, 0, 0), Some((None, true)));
        }
        done
    }

    /// Logs a strike if it had an effect; returns the fault for the operation's log entry.
    fn note(
        &mut self,
        fault: DiskFault,
        op: FaultOp,
        (no, offset, len): (FileNo, u64, u64),
        effect: Option<Effect>,
    ) -> Option<DiskFault> {
        let ((hit, effective), named) = effect.zip(self.files.get(no))?;
        // The number that the operation is about to get.
        let n = self.changes + u64::from(op != FaultOp::Read);
        let struck_op = StruckOp { fault, op, dir: named.dir, name: &named.name, offset, len };
        self.strikes.log(n, self.clock.now(), struck_op, hit, effective);
        Some(fault)
    }
}

/// Fills the first `1 / share` of each part's memory with the file's bytes from `offset`.
fn fill(file: &SimFile, offset: u64, parts: &mut [Part], share: usize) {
    let mut at = offset;
    for part in parts {
        let len = part.len() as u64;
        if let Some(bytes) = part.bytes_mut() {
            let filled = bytes.len() / share;
            file.read(at, &mut bytes[..filled]);
        }
        at += len;
    }
}
