//! The allowed answers of a cache in long runs with many calls in flight: the rules of
//! [`crate::model`], but with times instead of a sequence of calls, and for the requested objects
//! only.
//!
//! Every put of an object is a *version*. It may be seen from the start of its put until it
//! certainly was gone. A get that ran from `a` to `b` may return any version whose life overlaps
//! `a..b`, or miss, unless the object was certainly present from `a` to `b`. Each begin and end of
//! a call is a tick.
//!
//! An object is certainly present
//! - without eviction: from the end of the put, or of a get that saw it, until a remove or clear
//!   begins;
//! - with eviction: while it is pinned;
//! - after a reboot: if a flush had covered it; with eviction only if it was also pinned at the
//!   crash, and until the first lookup;
//!
//! and never after a fault that may have lost it ([`Oracle::struck`]).

#[cfg(test)]
mod tests;
mod types;

pub use types::{FaultEffect, ObservedVersion, Violation};

use super::objects::{Content, ObjectId, PAGES, PARTS, base_of};

/// No time.
const NEVER: u32 = u32::MAX;
/// Bytes needed to identify the put that wrote them; fewer are equal by chance.
const IDENTIFYING_BYTES: usize = 8;

/// The state of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its put is in progress, or ended without an outcome, or a crash made it doubtful.
    Maybe,
    /// It waits for its base or for the rest of its group.
    Waiting,
    /// Acked by the running process.
    Stored,
    /// Acked, and covered by a flush.
    Durable,
}

/// One put of an object.
#[derive(Clone, Copy, Debug)]
struct Version {
    no: u32,
    len: u32,
    start: u32,
    /// When the put ended; `NEVER` while it runs.
    done: u32,
    /// From this time on it must not be seen in this process.
    dead: u32,
    state: State,
    /// The time at which it was removed or cleared for good.
    gone: u32,
}

#[derive(Clone, Debug)]
struct Object {
    versions: Vec<Version>,
    /// From this time on it is certainly present.
    certain: u32,
    /// When the last remove or clear of it began: older versions may be gone, whatever its outcome.
    taken: u32,
    pins: u32,
}

impl Object {
    fn mark_uncertain(&mut self) {
        self.certain = NEVER;
        // Also uncovered versions: the next flush may cover a write that no lookup finds.
        let stored =
            self.versions.iter_mut().filter(|v| matches!(v.state, State::Durable | State::Stored));
        stored.for_each(|v| v.state = State::Maybe);
    }
}

/// The oracle of a run.
#[derive(Clone, Debug)]
pub struct Oracle {
    objects: Vec<Object>,
    now: u32,
    /// Nothing is evicted.
    roomy: bool,
    /// A put may not see a present object: the version that it replaces stays possible.
    blind: bool,
    /// Stored by this process and not covered by a flush.
    dirty: Vec<(ObjectId, u32)>,
    /// The device may lie: removed objects may come back.
    lying: bool,
    /// The device has lied: a lost segment header or tombstone may bring back any removed object.
    removed_may_return: bool,
    /// Blocks became bad, or the device lied: a flush proves nothing any more.
    flush_unreliable: bool,
    /// When a read was last struck, and how often in this process.
    read_struck: u32,
    reads_struck: u32,
    /// After this many struck reads a segment is quarantined with everything in it.
    quarantine_after: u32,
    /// The index has room for all objects of the segments: pinned objects survive a crash.
    keeps_pins: bool,
    /// The last process crashed with its pins held.
    held: bool,
    /// A write or sync of this process failed: the SSD tier may stop, and then memory evicts.
    write_failed: bool,
    /// A sync failed in an earlier process or during this one's open, and the machine has not
    /// crashed since: objects that were read may be lost at a crash, even if synced until then.
    unproven: bool,
    /// All calls in flight began at this time or later.
    oldest: u32,
}

impl Oracle {
    /// Of an empty store. `roomy`: it has room for everything. `blind`: all keys share a
    /// fingerprint, and a put may miss an object that moves to SSD while it examines the others.
    pub fn new(roomy: bool, blind: bool) -> Oracle {
        let object = Object { versions: Vec::new(), certain: NEVER, taken: 0, pins: 0 };
        let objects = vec![object; PAGES * PARTS];
        Oracle {
            objects,
            now: 1,
            roomy,
            blind,
            dirty: Vec::new(),
            lying: false,
            removed_may_return: false,
            flush_unreliable: false,
            read_struck: 0,
            reads_struck: 0,
            quarantine_after: 1000,
            keeps_pins: false,
            held: false,
            write_failed: false,
            unproven: false,
            oldest: 1,
        }
    }

    /// A process read wrong bytes at open: it may have missed tombstones, and sealed its scan.
    pub fn opened_with_wrong_bytes(&mut self) {
        self.removed_may_return = true;
        self.flush_unreliable = true;
        self.may_all_be_dropped();
    }

    /// Sets the number of failed reads after which a segment is quarantined.
    pub fn set_quarantine_after(&mut self, reads: u32) {
        self.quarantine_after = reads;
    }

    /// The index has room for all objects of the segments.
    pub fn keeps_pins(&mut self) {
        self.keeps_pins = true;
    }

    /// The machine crashed with the process: no pinned object had left by then.
    pub fn machine_crashed(&mut self) {
        self.held = self.keeps_pins;
        self.unproven = false;
    }

    /// The process drops its pins before it ends, and the store may evict their objects until then.
    pub fn pins_dropped(&mut self) {
        self.objects.iter_mut().for_each(|o| o.pins = 0);
        self.pins_expired();
    }

    /// A sync failed before this process began, on a machine that has not crashed since.
    pub fn began_after_failed_sync(&mut self) {
        self.unproven = true;
    }

    /// Objects pinned before the crash were looked up; from here on they may be evicted.
    pub fn pins_expired(&mut self) {
        if !self.roomy {
            self.objects.iter_mut().for_each(|o| o.certain = NEVER);
        }
    }

    /// A page's objects may have been dropped for good.
    pub fn may_be_dropped(&mut self, page: usize) {
        self.objects[page * PARTS..(page + 1) * PARTS].iter_mut().for_each(Object::mark_uncertain);
    }

    /// Any object may have been dropped for good.
    pub fn may_all_be_dropped(&mut self) {
        self.objects.iter_mut().for_each(Object::mark_uncertain);
    }

    /// The device may lie.
    pub fn set_lying(&mut self) {
        self.lying = true;
    }

    /// The next tick.
    pub fn tick(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// Sets the start of the oldest call in flight.
    pub fn oldest(&mut self, at: u32) {
        self.oldest = at;
    }

    fn at(&mut self, oid: ObjectId) -> &mut Object {
        &mut self.objects[usize::from(oid)]
    }

    /// A put begins now.
    pub fn put_begun(&mut self, oid: ObjectId, no: u32, len: usize) {
        let (start, oldest, lying) = (self.now, self.oldest, self.lying);
        let o = self.at(oid);
        if o.versions.len() >= 12 && !lying {
            o.versions.retain(|v| v.gone >= oldest);
        }
        let (done, dead, gone) = (NEVER, NEVER, NEVER);
        o.versions.push(Version {
            no,
            len: len as u32,
            start,
            done,
            dead,
            gone,
            state: State::Maybe,
        });
    }

    /// The put ended without storing anything.
    pub fn put_nothing(&mut self, oid: ObjectId, no: u32) {
        // The same open group may have been committed before, with or without a known outcome.
        self.at(oid).versions.retain(|v| v.no != no || v.done < NEVER);
    }

    /// The put ended with an unknown effect.
    pub fn put_unknown(&mut self, oid: ObjectId, no: u32) {
        let now = self.now;
        let of = self.at(oid).versions.iter_mut().filter(|v| v.no == no && v.done == NEVER);
        of.for_each(|v| v.done = now);
    }

    /// The put ended, and becomes visible later.
    pub fn put_waits(&mut self, oid: ObjectId, no: u32) {
        let now = self.now;
        let of = self.at(oid).versions.iter_mut().filter(|v| v.no == no);
        of.for_each(|v| (v.done, v.state) = (now, State::Waiting));
    }

    /// The put was stored: earlier versions were not present when it took effect.
    pub fn put_stored(&mut self, oid: ObjectId, no: u32) {
        let (now, roomy, blind) = (self.now, self.roomy, self.blind);
        let may_be_certain = !self.flush_unreliable
            && !self.write_failed
            && self.reads_struck < self.quarantine_after;
        let read_struck = self.read_struck;
        let o = self.at(oid);
        let Some(mine) = o.versions.iter_mut().rfind(|v| v.no == no) else { return };
        let start = mine.start;
        // It may have been written, found damaged and dropped before its outcome arrived.
        let whole = read_struck < start;
        (mine.done, mine.state) = (now, if whole { State::Stored } else { State::Maybe });
        let older = o.versions.iter_mut().filter(|v| v.no != no && v.done <= start);
        if !blind {
            older.for_each(|v| v.dead = v.dead.min(now));
        }
        if whole && may_be_certain && (roomy || o.pins > 0) && o.taken < start {
            o.certain = o.certain.min(now);
        }
        self.dirty.push((oid, no));
    }

    /// A remove or clear of an object begins now.
    pub fn removal_begun(&mut self, oid: ObjectId) {
        let now = self.now;
        let o = self.at(oid);
        (o.certain, o.taken, o.pins) = (NEVER, now, 0);
    }

    /// The remove or clear succeeded: versions put before it began never come back.
    pub fn removed(&mut self, oid: ObjectId) {
        let now = self.now;
        let o = self.at(oid);
        let begun = o.taken;
        for v in o.versions.iter_mut().filter(|v| v.done <= begun && v.gone == NEVER) {
            (v.gone, v.dead) = (now, v.dead.min(now));
        }
    }

    /// The object is present and pinned.
    pub fn pinned(&mut self, oid: ObjectId) {
        let now = self.now;
        let o = self.at(oid);
        o.pins += 1;
        o.certain = o.certain.min(now);
    }

    /// A pin of the object is dropped.
    pub fn unpinned(&mut self, oid: ObjectId) {
        let roomy = self.roomy;
        let o = self.at(oid);
        o.pins = o.pins.saturating_sub(1);
        if o.pins == 0 && !roomy {
            o.certain = NEVER;
        }
    }

    /// A flush that began at `start` succeeded.
    pub fn flushed(&mut self, start: u32) {
        if self.flush_unreliable {
            return;
        }
        let objects = &mut self.objects;
        self.dirty.retain(|(oid, no)| {
            let of = |v: &&mut Version| v.no == *no && v.state == State::Stored;
            let Some(v) = objects[usize::from(*oid)].versions.iter_mut().find(of) else {
                return false;
            };
            let covered = v.done <= start;
            if covered {
                v.state = State::Durable;
            }
            !covered
        });
    }

    /// A fault struck now.
    pub fn struck(&mut self, what: FaultEffect) {
        match what {
            // An unreadable record has no fingerprint to compare: a remove misses it.
            FaultEffect::Read | FaultEffect::Rot if self.blind => self.struck(FaultEffect::Lie),
            FaultEffect::Read => {
                self.reads_struck += 1;
                self.read_struck = self.now;
                self.objects.iter_mut().for_each(|o| o.certain = NEVER);
            }
            FaultEffect::Write => {
                self.write_failed = true;
                // The tier may be off; objects only on it are not seen by this process.
                self.objects.iter_mut().for_each(|o| o.certain = NEVER);
            }
            FaultEffect::Lie | FaultEffect::Rot => {
                self.flush_unreliable = true;
                if what == FaultEffect::Lie {
                    self.removed_may_return = true;
                }
                self.may_all_be_dropped();
            }
        }
    }

    /// The process ended, and another one runs. `whole`: it read everything without a fault.
    pub fn rebooted(&mut self, whole: bool) {
        if !whole || self.reads_struck >= self.quarantine_after {
            // The next checkpoint has only what this process found, or what a quarantine left.
            self.may_all_be_dropped();
        }
        self.now += 1;
        let (now, roomy, lying, held) = (self.now, self.roomy, self.lying, self.held);
        // A later version that no flush covered may have replaced the durable one, and be lost.
        let last = |o: &Object| o.versions.last().is_some_and(|v| v.state == State::Durable);
        let durable: Vec<bool> = self.objects.iter().map(last).collect();
        for (oid, o) in (0..).zip(&mut self.objects) {
            // An attached object may be lost with its base, if that was put again.
            let held =
                held && o.pins > 0 && base_of(oid).chain([oid]).all(|o| durable[usize::from(o)]);
            o.versions.retain(|v| v.gone == NEVER || lying);
            for v in &mut o.versions {
                v.done = v.done.min(now);
                if v.state != State::Durable {
                    v.state = State::Maybe;
                }
                if v.gone == NEVER {
                    v.dead = NEVER;
                }
            }
            (o.pins, o.certain) = (0, NEVER);
            let last =
                o.versions.iter().rposition(|v| v.state == State::Durable && v.gone == NEVER);
            if let (true, Some(last)) = (roomy || held, last) {
                // Of two puts in flight, or a put and a clear, either may be the later.
                let start = o.versions[last].start;
                let earlier = o.versions[..last].iter_mut().filter(|v| v.done <= start);
                earlier.for_each(|v| v.dead = v.dead.min(now));
                if whole && o.taken < start {
                    o.certain = now;
                }
            }
        }
        self.dirty.clear();
        self.held = false;
        (self.write_failed, self.read_struck, self.reads_struck, self.oldest) =
            (false, now, 0, now);
        self.now += 1;
    }

    /// Whether a lasting fault struck since the store was made.
    pub fn is_flush_unreliable(&self) -> bool {
        self.flush_unreliable
    }

    /// All files are removed: no version is present.
    pub fn wiped(&mut self) {
        self.now += 1;
        self.objects.iter_mut().for_each(|o| o.versions.clear());
        (self.removed_may_return, self.flush_unreliable) = (false, false);
    }

    /// The length to request for the object: that of its last put, if any.
    pub fn length(&self, oid: ObjectId) -> Option<usize> {
        let alive = |v: &&Version| v.dead == NEVER && v.gone == NEVER;
        self.objects[usize::from(oid)].versions.iter().rev().find(alive).map(|v| v.len as usize)
    }

    /// Whether the object may have a length other than `len`.
    pub fn may_have_another_length(&self, oid: ObjectId, len: usize) -> bool {
        self.objects[usize::from(oid)].versions.iter().any(|v| v.len as usize != len)
    }

    /// Whether the object may be shorter than `len`.
    pub fn may_be_shorter(&self, oid: ObjectId, len: usize) -> bool {
        self.objects[usize::from(oid)].versions.iter().any(|v| (v.len as usize) < len)
    }

    /// Whether the object was certainly present since `start`.
    pub fn is_certain(&self, oid: ObjectId, start: u32) -> bool {
        self.objects[usize::from(oid)].certain <= start
    }

    /// Whether it may have been present at any time since `start`.
    pub fn may_be_present(&self, oid: ObjectId, start: u32) -> bool {
        let o = &self.objects[usize::from(oid)];
        o.versions.iter().any(|v| v.dead >= start || self.removed_may_return)
    }

    /// Whether a remove or clear of it began at `start` or later.
    pub fn was_taken_since(&self, oid: ObjectId, start: u32) -> bool {
        self.objects[usize::from(oid)].taken >= start
    }

    /// A get that began at `start` ends now with `pieces`; `len` is the object's, if it got all.
    pub fn hit<'a>(
        &mut self,
        oid: ObjectId,
        start: u32,
        pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
        len: Option<usize>,
    ) -> Result<ObservedVersion, Violation> {
        let (now, removed_may_return, roomy) = (self.now, self.removed_may_return, self.roomy);
        // A struck read of this or another batch in flight may still drop objects near its own.
        let whole = self.read_struck < start.min(self.oldest);
        let clear = whole && !self.flush_unreliable && self.reads_struck < self.quarantine_after;
        let weak = self.write_failed;
        let is = |v: &Version| {
            let content = Content::of(oid, v.no);
            len.is_none_or(|len| len == v.len as usize)
                && pieces.clone().all(|(at, bytes)| content.is(at, bytes))
        };
        let o = &mut self.objects[usize::from(oid)];
        let alive = |v: &Version| v.dead >= start;
        // The latest first: it nearly always matches.
        let seen = o.versions.iter().rposition(|v| alive(v) && is(v));
        let (seen, returned) = match seen {
            Some(seen) => (seen, false),
            None => {
                // The version with these bytes, if any.
                let dead = o.versions.iter().rposition(is);
                let Some(dead) = dead else {
                    let head: Vec<u8> = pieces.flat_map(|(_, b)| b).take(16).copied().collect();
                    let text =
                        format!("bytes of no put oid={oid} head={head:02x?} {o:?} start={start}");
                    return Err(Violation::Bytes(text));
                };
                let v = o.versions[dead];
                if !removed_may_return {
                    let what = if v.gone < NEVER { "removed or cleared" } else { "replaced" };
                    let text =
                        format!("{what} bytes returned oid={oid} no={} {o:?} start={start}", v.no);
                    return Err(Violation::Bytes(text));
                }
                (dead, true)
            }
        };
        let no = o.versions[seen].no;
        if self.blind || pieces.map(|(_, bytes)| bytes.len()).sum::<usize>() < IDENTIFYING_BYTES {
            return Ok(ObservedVersion { no, returned, sure: false });
        }
        for (at, v) in o.versions.iter_mut().enumerate() {
            if at == seen {
                if whole
                    && !self.unproven
                    && v.state == State::Maybe
                    && v.done < NEVER
                    && v.gone == NEVER
                {
                    v.state = State::Stored;
                    self.dirty.push((oid, no));
                }
            } else if v.no != no && v.done <= start && v.state != State::Waiting {
                // (An open group committed twice is two versions of the same bytes.)
                v.dead = v.dead.min(start);
            }
        }
        if clear && !weak && (roomy || o.pins > 0) && o.taken < start && !returned {
            o.certain = o.certain.min(now);
        }
        Ok(ObservedVersion { no, returned, sure: true })
    }

    /// A get that began at `start` ends now with a miss.
    pub fn miss(&self, oid: ObjectId, start: u32, how: &str) -> Result<(), Violation> {
        let o = &self.objects[usize::from(oid)];
        if o.certain > start {
            return Ok(());
        }
        let synced = o
            .versions
            .iter()
            .any(|v| v.state == State::Durable && v.gone == NEVER && v.dead == NEVER);
        let text = format!("object is missing {how} oid={oid} {o:?} start={start}");
        Err(if synced { Violation::SyncedLost(text) } else { Violation::Lost(text) })
    }
}
