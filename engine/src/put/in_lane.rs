//! Steps 1 and 3 of a put for what nothing is known of, beside others who put ([`crate::lanes`]). What is not that plain is left as it was,
//! for who has the core.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_epoch::Guard;
use pagelith_layouts::ids::Sequence;
use pagelith_tiers::dram::arena::Extent;
use pagelith_tiers::policy::{FrameId, Recency};
use smallvec::SmallVec;

use super::copied::Copied;
use super::fresh::Fresh;
use super::{Admitted, Came, Kind, Room, Size};
use crate::frames::{FrameData, FrameMember, FrameRef, FrameState, Number, Victims};
use crate::index::{Allowance, Entry, TICK_MODULUS};
use crate::lanes::{Lanes, Listeners, Section, Told};
use crate::shared::Shared;
use crate::tally::PutsCounted;
use crate::visibility::Visibility;

/// Most objects of a group that is put in a lane: each has its own stripes of the index at once.
const MEMBERS_MAX: usize = 32;
/// Most frames that leave for one group, before who has the core makes room for it.
const VICTIMS_MAX: usize = 64;

/// Somebody who puts in a lane.
pub(crate) struct InLane<'a> {
    shared: &'a Shared,
    visibility: &'a Visibility,
    counted: PutsCounted,
    allowance: Allowance<'a>,
    /// What the groups that are published are known by from here on; who is not does without some.
    serials: Range<u64>,
    sequences: Range<u64>,
    /// Who is to know of it.
    pub listeners: Listeners,
    /// Dropped behind all that counts on it.
    pub section: Section<'a>,
}

/// Room to note what leaves, and where to look for it.
#[derive(Default)]
pub(crate) struct Making {
    turn: usize,
    victims: Victims,
    /// Whose number and memory are nobody's yet.
    extents: Vec<Extent>,
    numbers: Vec<Number>,
    /// Made visible and not ordered yet: as [`crate::frames::LaneFrames::order`] has it.
    visible: Vec<(FrameId, u64, u128, Recency)>,
    /// Or not told.
    told: Vec<Told>,
}

impl Making {
    /// Who begins with this turn: others begin elsewhere.
    pub fn from(turn: usize) -> Making {
        Making { turn, ..Making::default() }
    }
}

impl<'a> InLane<'a> {
    /// Go in, to publish so many groups of so many objects; `None` if there are no lanes now.
    pub fn enter(
        shared: &'a Shared,
        lanes: &'a Lanes,
        pin: &'a Guard,
        groups: usize,
        objects: usize,
    ) -> Option<InLane<'a>> {
        let section = lanes.enter()?;
        let groups = groups as u64;
        let first = lanes.sequences.take(groups).0;
        let (serials, allowance) = (lanes.frames.serials(groups), lanes.index.allow(objects));
        // Behind the gate: nobody changes it meanwhile.
        let visibility = shared.published.read(pin).visibility;
        Some(InLane {
            shared,
            visibility,
            counted: PutsCounted::default(),
            allowance,
            serials,
            sequences: first..first + groups,
            listeners: section.listeners(),
            section,
        })
    }

    /// Step 3 of a group; it is as it was, and `None`, if it is not for a lane.
    pub fn publish(
        &mut self,
        kind: Kind<'_>,
        copied: &mut Copied,
        at: Recency,
        making: &mut Making,
    ) -> Option<FrameRef> {
        let (serial, sequence) = self.serials.next().zip(self.sequences.next())?;
        if !self.is_plain(kind, copied) {
            return None;
        }
        let lanes = self.section.lanes;
        // Who found memory that nobody had has none.
        let number = copied.number.take().or_else(|| lanes.frames.number())?;
        let tick = (self.shared.published.tick.load(Relaxed) % u64::from(TICK_MODULUS)) as u32;
        let entry = |m: &FrameMember| Entry {
            fingerprint: m.fingerprint,
            length: m.extent.bytes as u32,
            ssd: None,
            frame: Some(number.get()),
            tick,
            freq: 0,
            attached: false,
        };
        let entries: SmallVec<[Entry; 1]> = copied.data.members.iter().map(entry).collect();
        let room = lanes.index.begin_insert(&entries, &self.allowance);
        // Nobody else has it.
        let (Ok(room), Some(data)) = (room, Arc::get_mut(&mut copied.data)) else {
            copied.number = Some(number);
            return None;
        };
        data.sequence = Sequence(sequence);
        let state = if self.listeners.writes { FrameState::Queued } else { FrameState::Clean };
        // Before the index knows of it: who finds it there enters it.
        let inserted =
            lanes.frames.insert(&self.section.inside, number, serial, copied.data.clone(), state, at);
        let frame = match inserted {
            Ok(frame) => frame,
            Err(number) => {
                copied.number = Some(number);
                return None;
            }
        };
        room.insert(&mut self.allowance);
        self.counted.stored += entries.len() as u64;
        self.counted.bytes += copied.data.object_bytes();
        if self.listeners.any() {
            making.told.push(Told::Visible(frame, copied.data.clone()));
        }
        // What is to be written is ordered by who writes it.
        if !self.listeners.writes {
            making.visible.push((frame.id, copied.data.bytes(), entries[0].fingerprint, at));
        }
        Some(frame)
    }

    /// What was made visible may leave from here on, or is known to be written.
    pub fn order(&self, making: &mut Making) {
        self.section.tell(&mut making.told);
        self.section.lanes.frames.order(&making.visible);
        making.visible.clear();
    }

    /// Go out again; what was counted.
    pub fn leave(self) -> PutsCounted {
        self.counted
    }

    /// Nothing is to be said about it but that it is here.
    fn is_plain(&self, kind: Kind<'_>, copied: &Copied) -> bool {
        let Copied { data, here, open, came, .. } = copied;
        copied.is_whole()
            && copied.is_believed()
            && here.is_empty()
            && open.is_none()
            && *came == Came::Put
            && !matches!(kind, Kind::Attached(_))
            && data.members.len() <= MEMBERS_MAX
            && !data.members.first().is_none_or(|m| self.section.waiting().waits_for_page_of(&m.key))
            && self.visibility.generation(data.namespace) == data.generation
    }

    /// Bring what may have to leave for so many groups out of its lane.
    fn choose(&self, making: &mut Making, groups: usize) {
        let Section { lanes, inside } = &self.section;
        making.turn = making.turn.wrapping_add(1);
        let pins = Some(self.section.pins()).filter(|pins| pins.are_any());
        let pinned = |fingerprint| pins.is_some_and(|pins| pins.is_pinned(fingerprint));
        lanes.frames.choose(inside, making.turn, groups, pinned, &mut making.victims);
        let soles = making.victims.victims.iter().filter_map(|victim| lanes.frames.sole(inside, victim));
        lanes.index.prefetch(&soles.collect::<SmallVec<[u128; 16]>>());
    }

    /// One frame leaves, if there is one and nothing is in its way.
    fn evict(&mut self, making: &mut Making, retired: &mut Vec<Arc<FrameData>>) {
        let Section { lanes, inside } = &self.section;
        let Some(victim) = making.victims.victims.pop() else { return };
        let Some(data) = lanes.frames.data(inside, &victim) else { return };
        let fingerprints = data.members.iter().map(|m| m.fingerprint);
        let (frame, attached, allowance) = (victim.number(), data.is_attached(), &mut self.allowance);
        let told = |gone| {
            if self.listeners.events {
                self.section.tell(&mut vec![Told::Left(data.clone(), gone)]);
            }
        };
        if !lanes.index.remove_frame(fingerprints, frame, attached, allowance, told) {
            return lanes.frames.put_back(inside, victim);
        }
        self.counted.evicted += 1;
        if let Some(number) = lanes.frames.vacate(inside, victim) {
            making.numbers.push(number);
            making.extents.extend(data.members.iter().map(|m| m.extent));
        }
        retired.push(data);
    }

    /// Step 1 of groups that nothing is known of, the first ones of a run: of as many as this returns.
    pub fn admit<'b>(
        &mut self,
        groups: impl ExactSizeIterator<Item = (Kind<'b>, &'b [Size], &'b mut Option<Fresh>)>,
        making: &mut Making,
        retired: &mut Vec<Arc<FrameData>>,
        mut admitted: impl FnMut(usize, Admitted),
    ) -> usize {
        let (mut done, all) = (0, groups.len());
        for (kind, sizes, fresh) in groups {
            let plain = !matches!(kind, Kind::Attached(_))
                && sizes.len() <= MEMBERS_MAX
                && sizes.iter().all(|size| size.length.is_some() && !size.in_arena);
            let known =
                |fresh: &mut Fresh| self.visibility.generation(sizes[0].key.namespace()) == fresh.generation;
            // Who has the core says what is wrong.
            let alone = self.section.waiting().check_overlap(kind, sizes).is_ok();
            let Some(mut one) = fresh.take_if(|fresh| plain && alone && known(fresh)) else { break };
            if !self.set_aside(sizes, &mut one.room, making, retired, all - done) {
                *fresh = Some(one);
                break;
            }
            admitted(done, Admitted::plain(one));
            done += 1;
        }
        self.tidy(making);
        done
    }

    /// Memory and a number for a group; false, and nothing is set aside, if there is not enough now.
    fn set_aside(
        &mut self,
        group: &[Size],
        room: &mut Room,
        making: &mut Making,
        retired: &mut Vec<Arc<FrameData>>,
        groups: usize,
    ) -> bool {
        let mut victims = 0;
        let mut make_room = |this: &mut Self, making: &mut Making| {
            if making.victims.victims.is_empty() {
                this.choose(making, groups);
            }
            victims += 1;
            let any = !making.victims.victims.is_empty();
            this.evict(making, retired);
            any && victims <= VICTIMS_MAX
        };
        for size in group {
            let bytes = size.length.unwrap_or(0);
            let extent = loop {
                let as_long = |e: &Extent| e.of_as_many_pages(bytes).is_some();
                if let Some(at) = making.extents.iter().position(as_long) {
                    break making.extents.swap_remove(at).of_as_many_pages(bytes);
                }
                // What is of other lengths may be long enough beside its neighbours.
                making.extents.drain(..).for_each(|extent| self.section.lanes.space.free(extent));
                if let Some(extent) = self.section.lanes.space.alloc(bytes) {
                    break Some(extent);
                }
                if !make_room(self, making) {
                    break None;
                }
            };
            match extent {
                Some(extent) => room.extents.push(Some(extent)),
                None => return self.give_up(room),
            }
        }
        room.number = making.numbers.pop().or_else(|| self.section.lanes.frames.number());
        room.number.is_some() || self.give_up(room)
    }

    fn give_up(&self, room: &mut Room) -> bool {
        room.extents.drain(..).flatten().for_each(|extent| self.section.lanes.space.free(extent));
        false
    }

    /// What was made and is not needed.
    fn tidy(&self, making: &mut Making) {
        let Section { lanes, inside } = &self.section;
        making.extents.drain(..).for_each(|extent| lanes.space.free(extent));
        making.numbers.drain(..).for_each(|number| lanes.frames.give_back(Some(number)));
        making.victims.victims.drain(..).for_each(|victim| lanes.frames.put_back(inside, victim));
    }
}
