//! Frames for who puts beside others: what [`Frames`](super::Frames) does to all of them, done to those that somebody has.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::gate::Inside;
use pagelith_io::kept::Kept;
use pagelith_io::sync::AtomicU64;
use pagelith_tiers::policy::{FrameId, Lanes, Recency, Touches};

use super::cells::LaneCells;
use super::{Frame, FrameData, FrameRef, FrameState, Number, Numbers};

/// See the module's text. Used inside of the gate, which whoever calls shows.
pub(crate) struct LaneFrames {
    pub(super) cells: LaneCells,
    pub(super) kept: Kept<FrameData>,
    pub(super) numbers: Numbers,
    pub(super) serial: Arc<AtomicU64>,
    pub(super) touches: Arc<Touches>,
    /// Who is in it may leave, and nobody's but who has the lock of its lane.
    pub(super) order: Arc<Lanes>,
}

/// A frame that was taken out of its lane: whoever has this has the frame.
#[derive(Debug)]
pub(crate) struct Victim(FrameId);

/// Victims, of which the last is the next to leave.
#[derive(Default)]
pub(crate) struct Victims {
    ids: Vec<FrameId>,
    pub victims: Vec<Victim>,
}

impl Victim {
    /// As the index has it.
    pub fn number(&self) -> u32 {
        self.0.0
    }
}

impl LaneFrames {
    /// A number that is nobody's, if there is one.
    pub fn number(&self) -> Option<Number> {
        self.numbers.take()
    }

    /// It is not needed.
    pub fn give_back(&self, number: Option<Number>) {
        self.numbers.give_back(number);
    }

    /// Numbers of the lives of so many frames.
    pub fn serials(&self, frames: u64) -> Range<u64> {
        let last = self.serial.fetch_add(frames, Relaxed);
        last + 1..last + 1 + frames
    }

    /// Take a filled frame in, in a life that no other has, which nobody orders yet. The number is back if nothing is in it.
    pub fn insert(
        &self,
        _: &Inside<'_>,
        number: Number,
        serial: u64,
        data: Arc<FrameData>,
        state: FrameState,
        at: Recency,
    ) -> Result<FrameRef, Number> {
        let id = FrameId(number.0);
        let Some(frame) = Frame::new(serial, data.clone(), state) else { return Err(number) };
        // SAFETY: the number is nobody else's: the cell and the place with it.
        let (cell, mut kept) = unsafe { (self.cells.place(id.0 as usize), self.kept.own(id.0 as usize)) };
        let Some(cell) = cell.filter(|_| kept.fill(data)) else { return Err(number) };
        *cell = Some(frame);
        self.touches.set(id, at);
        Ok(FrameRef { id, serial })
    }

    /// What was inserted may leave from here on: each with its bytes, and what its first object is known by.
    pub fn order(&self, frames: &[(FrameId, u64, u128, Recency)]) {
        self.order.insert(frames);
    }

    /// Take up to `most` frames out of a lane that may leave, those that are to leave first behind the others: nobody reads them, they are not on
    /// their way, and no object of theirs is `pinned`. In another turn it is another lane.
    pub fn choose(
        &self,
        _: &Inside<'_>,
        turn: usize,
        most: usize,
        pinned: impl Fn(u128) -> bool,
        Victims { ids, victims }: &mut Victims,
    ) {
        let free = |id: FrameId| {
            // SAFETY: asked by `Lanes::victims` under the lock of its lane.
            let (cell, kept) = unsafe { (self.cells.place(id.0 as usize), self.kept.own(id.0 as usize)) };
            let idle = |f: &Frame| f.state == FrameState::Clean && f.readers == 0 && !f.dead;
            let may_leave = |f: &Frame| idle(f) && !f.any_fingerprint(&pinned);
            cell.and_then(|f| f.as_ref()).is_some_and(may_leave) && kept.count() == 0
        };
        let ahead = |ids: &[FrameId]| {
            for id in ids {
                self.cells.prefetch_to_write(id.0 as usize);
                self.kept.prefetch_to_write(id.0 as usize);
            }
            self.touches.prefetch(ids.iter().map(|id| id.0));
        };
        self.order.victims(turn, most, ahead, free, ids);
        victims.extend(ids.drain(..).rev().map(Victim));
    }

    fn frame(&self, victim: &Victim) -> Option<&Frame> {
        // SAFETY: it is the caller's, who can change it by giving it away alone.
        unsafe { self.cells.place(victim.0.0 as usize) }?.as_ref()
    }

    /// What a victim holds.
    pub fn data(&self, _: &Inside<'_>, victim: &Victim) -> Option<Arc<FrameData>> {
        self.frame(victim).map(|f| f.data.clone())
    }

    /// What the index knows a victim's object by, if it has a single one.
    pub fn sole(&self, _: &Inside<'_>, victim: &Victim) -> Option<u128> {
        self.frame(victim)?.sole().map(|(fingerprint, _)| fingerprint)
    }

    /// A victim stays.
    pub fn put_back(&self, _: &Inside<'_>, victim: Victim) {
        let Some(frame) = self.frame(&victim) else { return };
        let at = self.touches.get(victim.0).unwrap_or(Recency { epoch: 0, depth: 0 });
        self.order.insert(&[(victim.0, frame.data.bytes(), frame.fingerprint, at)]);
    }

    /// Empty a victim's place, behind the change of the index by which nobody finds it any more: its number, unless somebody reads it still, who
    /// frees it then.
    pub fn vacate(&self, _: &Inside<'_>, victim: Victim) -> Option<Number> {
        let Victim(id) = victim;
        // SAFETY: it is the caller's.
        let (cell, mut kept) = unsafe { (self.cells.place(id.0 as usize), self.kept.own(id.0 as usize)) };
        let cell = cell?;
        kept.close();
        // Who enters from here on is not let in.
        if kept.count() > 0 {
            cell.as_mut()?.dead = true;
            return None;
        }
        drop((kept.take(), cell.take()));
        Some(Number(id.0))
    }
}
