//! Which answers a cache may give, for long runs with many calls in flight: as [`crate::model`], whose rules it
//! keeps, but with times instead of a sequence of calls, and without a look at anything but the objects asked for.
//!
//! Every put of an object is a *version*. It may be seen from the moment its put began until the moment at which
//! it certainly was gone; a get that ran from `a` to `b` may bring any version whose life overlaps that, or miss,
//! unless the object was certainly there from `a` to `b`. Times are ticks: one for each begin and end of a call.
//!
//! An object is certainly there
//! - where nothing can be evicted: from the end of the put, or a get that saw it, until a remove or clear begins;
//! - where things are evicted: while it is pinned;
//! - behind a reboot: where nothing can be evicted, if a flush had covered it; where things are, if it was pinned as
//!   well when the machine went down, until the first look;
//!
//! and in no case behind a fault that may have taken it ([`Oracle::struck`]).

#[cfg(test)]
mod tests;
mod words;

pub use words::{Seen, Struck, Wrong};

use super::objects::{Content, Oid, PAGES, PARTS, base_of};

/// No time.
const NEVER: u32 = u32::MAX;
/// Bytes that tell which put wrote them; fewer are equal by chance.
const TELLING: usize = 8;

/// How far a version came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its put runs, or ended without saying what became of it, or a crash made it doubtful.
    Maybe,
    /// It waits for its base or for the rest of its group.
    Waiting,
    /// Acked by the process that runs.
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
    /// Since when nobody may see it in this process.
    dead: u32,
    state: State,
    /// It was removed or cleared at this time, and never comes back.
    gone: u32,
}

#[derive(Clone, Debug)]
struct Object {
    versions: Vec<Version>,
    /// Since when it is certainly there.
    certain: u32,
    /// When the last remove or clear of it began: whether it succeeded or not, what is older may be gone.
    taken: u32,
    pins: u32,
}

impl Object {
    fn doubt_all(&mut self) {
        self.certain = NEVER;
        // What no flush had covered yet neither: the next one may cover a write that nothing finds any more.
        let here = self.versions.iter_mut().filter(|v| matches!(v.state, State::Durable | State::Stored));
        here.for_each(|v| v.state = State::Maybe);
    }
}

/// The oracle of a run.
#[derive(Clone, Debug)]
pub struct Oracle {
    objects: Vec<Object>,
    now: u32,
    /// Nothing can be evicted.
    roomy: bool,
    /// A put that meets a present object may not see it: what it replaces stays possible.
    blind: bool,
    /// Stored by this process and not covered by a flush.
    dirty: Vec<(Oid, u32)>,
    /// The device may lie: what is gone may come back.
    lies: bool,
    /// It has lied since the store was made. Where that hit the head of a segment or a record of tombstones, what
    /// was removed may come back, whenever that was.
    lied: bool,
    /// Blocks went bad, or the device lied: a flush proves nothing any more.
    rotten: bool,
    /// When a read was last struck, and how often in this process.
    read_struck: u32,
    reads_struck: u32,
    /// Of so many, a segment is quarantined, whatever else is in it.
    quarantine_after: u32,
    /// The index has room for all that segments hold: what is pinned when the machine goes down is found again.
    keeps_pins: bool,
    /// The last process went down with its pins held.
    held: bool,
    /// A write or sync of this process failed: the SSD tier may take nothing more, and then memory evicts.
    weak: bool,
    /// A sync failed, in an earlier process or while this one opened the store, and the machine has not gone down
    /// since: what was read may be gone when it does, whatever is synced until then.
    unsaved: bool,
    /// Calls in flight began at this time or later.
    oldest: u32,
}

impl Oracle {
    /// Of an empty store. `roomy`: it has room for all that is ever put. `blind`: it has one fingerprint for all
    /// keys, and a put may miss what moves from memory to SSD while it looks at all the others.
    pub fn new(roomy: bool, blind: bool) -> Oracle {
        let object = Object { versions: Vec::new(), certain: NEVER, taken: 0, pins: 0 };
        let objects = vec![object; PAGES * PARTS];
        Oracle {
            objects,
            now: 1,
            roomy,
            blind,
            dirty: Vec::new(),
            lies: false,
            lied: false,
            rotten: false,
            read_struck: 0,
            reads_struck: 0,
            quarantine_after: 1000,
            keeps_pins: false,
            held: false,
            weak: false,
            unsaved: false,
            oldest: 1,
        }
    }

    /// A process that opened the store was shown other bytes than there are: what removes is not seen, and the scan
    /// is sealed as it went.
    pub fn was_misled(&mut self) {
        self.lied = true;
        self.rotten = true;
        self.may_all_be_dropped();
    }

    /// After so many reads that failed a segment is quarantined.
    pub fn quarantines_after(&mut self, reads: u32) {
        self.quarantine_after = reads;
    }

    /// The index has room for all that segments hold.
    pub fn keeps_pins(&mut self) {
        self.keeps_pins = true;
    }

    /// The machine went down with the process: nothing that was pinned had left by then.
    pub fn fell(&mut self) {
        self.held = self.keeps_pins;
        self.unsaved = false;
    }

    /// The process lets go of its pins before it ends, and what the store does until then may take what they held.
    pub fn pins_let_go(&mut self) {
        self.objects.iter_mut().for_each(|o| o.pins = 0);
        self.pins_are_over();
    }

    /// A sync failed before this process began, on a machine that has stayed up.
    pub fn began_behind_a_failed_sync(&mut self) {
        self.unsaved = true;
    }

    /// What was pinned before the machine went down was looked for; from here on it may be evicted.
    pub fn pins_are_over(&mut self) {
        if !self.roomy {
            self.objects.iter_mut().for_each(|o| o.certain = NEVER);
        }
    }

    /// A page's objects may have been dropped, for good.
    pub fn may_be_dropped(&mut self, page: usize) {
        self.objects[page * PARTS..(page + 1) * PARTS].iter_mut().for_each(Object::doubt_all);
    }

    /// Any object may have been dropped, for good.
    pub fn may_all_be_dropped(&mut self) {
        self.objects.iter_mut().for_each(Object::doubt_all);
    }

    /// The device may lie.
    pub fn may_be_lied_to(&mut self) {
        self.lies = true;
    }

    /// The next moment.
    pub fn tick(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// The oldest call in flight began at this moment.
    pub fn oldest(&mut self, at: u32) {
        self.oldest = at;
    }

    fn at(&mut self, oid: Oid) -> &mut Object {
        &mut self.objects[usize::from(oid)]
    }

    /// A put begins, now.
    pub fn put_begun(&mut self, oid: Oid, no: u32, len: usize) {
        let (start, oldest, lies) = (self.now, self.oldest, self.lies);
        let o = self.at(oid);
        if o.versions.len() >= 12 && !lies {
            o.versions.retain(|v| v.gone >= oldest);
        }
        let (done, dead, gone) = (NEVER, NEVER, NEVER);
        o.versions.push(Version { no, len: len as u32, start, done, dead, gone, state: State::Maybe });
    }

    /// It ended without putting anything.
    pub fn put_nothing(&mut self, oid: Oid, no: u32) {
        // The same open group may have been committed before, and that be known or not.
        self.at(oid).versions.retain(|v| v.no != no || v.done < NEVER);
    }

    /// It ended, and nothing is known of it.
    pub fn put_unknown(&mut self, oid: Oid, no: u32) {
        let now = self.now;
        let of = self.at(oid).versions.iter_mut().filter(|v| v.no == no && v.done == NEVER);
        of.for_each(|v| v.done = now);
    }

    /// It ended, and waits for something else before anybody may see it.
    pub fn put_waits(&mut self, oid: Oid, no: u32) {
        let now = self.now;
        let of = self.at(oid).versions.iter_mut().filter(|v| v.no == no);
        of.for_each(|v| (v.done, v.state) = (now, State::Waiting));
    }

    /// It ended as stored: what was put before it began was not there when it took effect.
    pub fn put_stored(&mut self, oid: Oid, no: u32) {
        let (now, roomy, blind) = (self.now, self.roomy, self.blind);
        let may_be_certain = !self.rotten && !self.weak && self.reads_struck < self.quarantine_after;
        let read_struck = self.read_struck;
        let o = self.at(oid);
        let Some(mine) = o.versions.iter_mut().rfind(|v| v.no == no) else { return };
        let start = mine.start;
        // It may have been stored, written, read, found damaged and dropped before anybody heard that it was stored.
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

    /// A remove or clear of an object begins, now.
    pub fn take_begun(&mut self, oid: Oid) {
        let now = self.now;
        let o = self.at(oid);
        (o.certain, o.taken, o.pins) = (NEVER, now, 0);
    }

    /// It succeeded: what had been put by the time it began never comes back.
    pub fn taken(&mut self, oid: Oid) {
        let now = self.now;
        let o = self.at(oid);
        let begun = o.taken;
        for v in o.versions.iter_mut().filter(|v| v.done <= begun && v.gone == NEVER) {
            (v.gone, v.dead) = (now, v.dead.min(now));
        }
    }

    /// The object is there, and is pinned.
    pub fn pinned(&mut self, oid: Oid) {
        let now = self.now;
        let o = self.at(oid);
        o.pins += 1;
        o.certain = o.certain.min(now);
    }

    /// A pin of it ends.
    pub fn unpinned(&mut self, oid: Oid) {
        let roomy = self.roomy;
        let o = self.at(oid);
        o.pins = o.pins.saturating_sub(1);
        if o.pins == 0 && !roomy {
            o.certain = NEVER;
        }
    }

    /// A flush that began at `start` succeeded.
    pub fn flushed(&mut self, start: u32) {
        if self.rotten {
            return;
        }
        let objects = &mut self.objects;
        self.dirty.retain(|(oid, no)| {
            let of = |v: &&mut Version| v.no == *no && v.state == State::Stored;
            let Some(v) = objects[usize::from(*oid)].versions.iter_mut().find(of) else { return false };
            let covered = v.done <= start;
            if covered {
                v.state = State::Durable;
            }
            !covered
        });
    }

    /// A fault struck, now.
    pub fn struck(&mut self, what: Struck) {
        match what {
            // What cannot be looked at cannot be told from others by its fingerprint either: a remove misses it.
            Struck::Read | Struck::Rot if self.blind => self.struck(Struck::Lie),
            Struck::Read => {
                self.reads_struck += 1;
                self.read_struck = self.now;
                self.objects.iter_mut().for_each(|o| o.certain = NEVER);
            }
            Struck::Write => {
                self.weak = true;
                // The tier may be turned off, and what only it has is not seen before the next process.
                self.objects.iter_mut().for_each(|o| o.certain = NEVER);
            }
            Struck::Lie | Struck::Rot => {
                self.rotten = true;
                if what == Struck::Lie {
                    self.lied = true;
                }
                self.may_all_be_dropped();
            }
        }
    }

    /// The process ended, and another one runs. `whole`: it read everything without a fault.
    pub fn rebooted(&mut self, whole: bool) {
        if !whole || self.reads_struck >= self.quarantine_after {
            // The next checkpoint is of what this process found; that of the last one, of what a quarantine had left it.
            self.may_all_be_dropped();
        }
        self.now += 1;
        let (now, roomy, lies, held) = (self.now, self.roomy, self.lies, self.held);
        // A younger version of which no flush spoke may have taken the place of the durable one, and be lost.
        let last = |o: &Object| o.versions.last().is_some_and(|v| v.state == State::Durable);
        let durable: Vec<bool> = self.objects.iter().map(last).collect();
        for (oid, o) in (0..).zip(&mut self.objects) {
            // What is attached may be of a base that went and was put again, and is lost with that.
            let held = held && o.pins > 0 && base_of(oid).chain([oid]).all(|o| durable[usize::from(o)]);
            o.versions.retain(|v| v.gone == NEVER || lies);
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
            let last = o.versions.iter().rposition(|v| v.state == State::Durable && v.gone == NEVER);
            if let (true, Some(last)) = (roomy || held, last) {
                // Of two puts that were in flight together either may have been the later one, and of a put and a
                // clear.
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
        (self.weak, self.read_struck, self.reads_struck, self.oldest) = (false, now, 0, now);
        self.now += 1;
    }

    /// Whether a fault that lasts struck since the store was made.
    pub fn is_rotten(&self) -> bool {
        self.rotten
    }

    /// All files are gone: nothing that was ever put is there.
    pub fn wiped(&mut self) {
        self.now += 1;
        self.objects.iter_mut().for_each(|o| o.versions.clear());
        (self.lied, self.rotten) = (false, false);
    }

    /// The length that a get of the object must ask for: that of its last put, if there is one.
    pub fn length(&self, oid: Oid) -> Option<usize> {
        let alive = |v: &&Version| v.dead == NEVER && v.gone == NEVER;
        self.objects[usize::from(oid)].versions.iter().rev().find(alive).map(|v| v.len as usize)
    }

    /// Whether the object may have another length than this.
    pub fn may_have_another_length(&self, oid: Oid, len: usize) -> bool {
        self.objects[usize::from(oid)].versions.iter().any(|v| v.len as usize != len)
    }

    /// Whether the object may be shorter than this.
    pub fn may_be_shorter(&self, oid: Oid, len: usize) -> bool {
        self.objects[usize::from(oid)].versions.iter().any(|v| (v.len as usize) < len)
    }

    /// Whether the object was certainly there since `start`.
    pub fn is_certain(&self, oid: Oid, start: u32) -> bool {
        self.objects[usize::from(oid)].certain <= start
    }

    /// Whether it may have been there at any time since `start`.
    pub fn may_be_here(&self, oid: Oid, start: u32) -> bool {
        let o = &self.objects[usize::from(oid)];
        o.versions.iter().any(|v| v.dead >= start || self.lied)
    }

    /// Whether a remove or clear of it began at `start` or later.
    pub fn was_taken_since(&self, oid: Oid, start: u32) -> bool {
        self.objects[usize::from(oid)].taken >= start
    }

    /// A get that began at `start` ends now, with these bytes of the object, `whole` of which has `len`.
    pub fn hit<'a>(
        &mut self,
        oid: Oid,
        start: u32,
        pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
        len: Option<usize>,
    ) -> Result<Seen, Wrong> {
        let (now, lied, roomy) = (self.now, self.lied, self.roomy);
        // A struck read of a batch that is still in flight, or of this one, may yet take what lies beside its object.
        let whole = self.read_struck < start.min(self.oldest);
        let clear = whole && !self.rotten && self.reads_struck < self.quarantine_after;
        let weak = self.weak;
        let is = |v: &Version| {
            let content = Content::of(oid, v.no);
            len.is_none_or(|len| len == v.len as usize)
                && pieces.clone().all(|(at, bytes)| content.is(at, bytes))
        };
        let o = &mut self.objects[usize::from(oid)];
        let alive = |v: &Version| v.dead >= start;
        // The youngest first: it is nearly always that.
        let seen = o.versions.iter().rposition(|v| alive(v) && is(v));
        let (seen, returned) = match seen {
            Some(seen) => (seen, false),
            None => {
                // The put that wrote them, if any did.
                let dead = o.versions.iter().rposition(is);
                let Some(dead) = dead else {
                    let head: Vec<u8> = pieces.flat_map(|(_, b)| b).take(16).copied().collect();
                    let text =
                        format!("bytes that nobody put oid={oid} head={head:02x?} {o:?} start={start}");
                    return Err(Wrong::Bytes(text));
                };
                let v = o.versions[dead];
                if !lied {
                    let what = if v.gone < NEVER { "removed or cleared" } else { "replaced" };
                    let text = format!("bytes that were {what} oid={oid} no={} {o:?} start={start}", v.no);
                    return Err(Wrong::Bytes(text));
                }
                (dead, true)
            }
        };
        let no = o.versions[seen].no;
        if self.blind || pieces.map(|(_, bytes)| bytes.len()).sum::<usize>() < TELLING {
            return Ok(Seen { no, returned, sure: false });
        }
        for (at, v) in o.versions.iter_mut().enumerate() {
            if at == seen {
                if whole && !self.unsaved && v.state == State::Maybe && v.done < NEVER && v.gone == NEVER {
                    v.state = State::Stored;
                    self.dirty.push((oid, no));
                }
            } else if v.no != no && v.done <= start && v.state != State::Waiting {
                // (An open group that is committed twice is two versions of the same bytes.)
                v.dead = v.dead.min(start);
            }
        }
        if clear && !weak && (roomy || o.pins > 0) && o.taken < start && !returned {
            o.certain = o.certain.min(now);
        }
        Ok(Seen { no, returned, sure: true })
    }

    /// A get that began at `start` ends now, with a miss.
    pub fn miss(&self, oid: Oid, start: u32, how: &str) -> Result<(), Wrong> {
        let o = &self.objects[usize::from(oid)];
        if o.certain > start {
            return Ok(());
        }
        let synced =
            o.versions.iter().any(|v| v.state == State::Durable && v.gone == NEVER && v.dead == NEVER);
        let text = format!("missing though it is there {how} oid={oid} {o:?} start={start}");
        Err(if synced { Wrong::SyncedLost(text) } else { Wrong::Lost(text) })
    }
}
