//! Puts side by side: how threads that put get at what the core has without taking turns at its lock.
//!
//! Who has the core's lock has all of it, as ever, and [the gate](Gate) of the lanes is closed meanwhile. While it is open, any number of
//! threads are inside and make groups visible that nothing is known of, and make room for such: that is most of what is put. Each has what
//! it changes to itself: entries of the index by the stripes that they lie in, frames by their numbers or as victims of the lane that orders
//! them, space, numbers and what is to be written each by a lock of its own that is had for a moment. Everything else is for who has the core.
//!
//! Invariants:
//! 1. Nobody who is inside asks for the core's lock: they would wait for themselves.
//! 2. A store that takes nothing now keeps the lanes shut: [`Lanes::open`] looks, each time that the core is given back.
//! 3. What happened inside is told to the core before anybody has it ([`Lanes::close`]), that which happened to one object in its order: that it
//!    is here before it may leave, and that it left before anybody finds out, who may put it again.

use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::gate::{Gate, Inside};
use pagelith_io::gated::Seen;
use pagelith_io::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, PoisonError};
use pagelith_tiers::dram::arena::SharedSpace;
use pagelith_tiers::policy;

use crate::core::{Core, Sequences};
use crate::frames::{FrameData, FrameRef, LaneFrames};
use crate::groups::waiting::Waiting;
use crate::index::{Gone, Writer};
use crate::outcome::Tier;
use crate::pins::Pins;

/// What a store has of them.
pub(crate) struct Lanes {
    gate: Gate,
    /// Nothing is in their way; changed while the gate is closed.
    open: AtomicBool,
    /// [`Listeners`], packed; changed while the gate is closed.
    listeners: AtomicU32,
    pub index: Writer,
    pub frames: LaneFrames,
    pub space: SharedSpace,
    pub sequences: Sequences,
    pins: Seen<Pins>,
    waiting: Seen<Waiting>,
    told: Mutex<Vec<Told>>,
    /// How much was told.
    told_count: AtomicU32,
}

/// Where more was told than this, the core is to hear of it before more is put.
const TOLD_MAX: u32 = 4096;

/// Who else is to know what happens inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listeners {
    /// What becomes visible is to be written.
    pub writes: bool,
    /// Events are kept.
    pub events: bool,
    /// What is put is offered to peers.
    pub peers: bool,
}

/// What the core is to be told.
#[derive(Debug)]
pub(crate) enum Told {
    /// This was put and is visible; it will be written once it is enqueued.
    Visible(FrameRef, Arc<FrameData>),
    /// These are to be written, the last first.
    Enqueue(Vec<FrameRef>),
    /// These left memory, each of which is gone or on SSD still.
    Left(Arc<FrameData>, Gone),
}

/// Somebody inside.
pub(crate) struct Section<'a> {
    pub lanes: &'a Lanes,
    pub inside: Inside<'a>,
}

impl Lanes {
    /// Of this core, whose order of eviction is this one.
    pub fn of(core: &Core, order: Arc<policy::Lanes>) -> Lanes {
        Lanes {
            gate: Gate::default(),
            open: AtomicBool::new(false),
            listeners: AtomicU32::new(0),
            index: core.index.writer(),
            frames: core.frames.of_lanes(order),
            space: core.space.clone(),
            sequences: core.sequences.clone(),
            pins: core.pins.seen(),
            waiting: core.waiting.seen(),
            told: Mutex::default(),
            told_count: AtomicU32::new(0),
        }
    }

    /// Go in, unless something is in the way of all.
    pub fn enter(&self) -> Option<Section<'_>> {
        if !self.open.load(Relaxed) || self.told_count.load(Relaxed) > TOLD_MAX {
            return None;
        }
        let inside = self.gate.enter();
        self.open.load(Relaxed).then_some(Section { lanes: self, inside })
    }

    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The core is somebody's alone from here on, and knows what happened in the lanes.
    pub fn close(&self, core: &mut Core) {
        self.gate.close();
        if self.told_count.load(Relaxed) == 0 {
            return;
        }
        self.told_count.store(0, Relaxed);
        let told = std::mem::take(&mut *self.told());
        told.into_iter().for_each(|told| told.tell(core));
    }

    /// The core is given back.
    pub fn open(&self, core: &Core) {
        let writes = core.ssd.as_ref().is_some_and(|ssd| ssd.health.writes());
        let open = !core.write_buffer_only && !core.stopping && (writes || core.ssd.is_none());
        let listeners = Listeners { writes, events: core.events.is_on(), peers: core.remote.is_some() };
        // Others look at this line.
        if self.open.load(Relaxed) != open {
            self.open.store(open, Relaxed);
        }
        if self.listeners.load(Relaxed) != listeners.packed() {
            self.listeners.store(listeners.packed(), Relaxed);
        }
        self.gate.open();
    }
}

impl Listeners {
    fn packed(self) -> u32 {
        u32::from(self.writes) | u32::from(self.events) << 1 | u32::from(self.peers) << 2
    }

    fn of(packed: u32) -> Listeners {
        let is = |bit: u32| packed >> bit & 1 == 1;
        Listeners { writes: is(0), events: is(1), peers: is(2) }
    }

    pub fn any(self) -> bool {
        self != Listeners::default()
    }
}

impl Told {
    fn tell(self, core: &mut Core) {
        match self {
            Told::Visible(frame, data) => {
                data.members.iter().for_each(|m| core.events.stored(Tier::Memory, &m.key, true));
                if let Some(remote) = core.remote.as_mut() {
                    core.counters.remote_skipped += remote.push_frame(frame, data.members.len() as u64);
                }
                if let Some(ssd) = core.ssd.as_mut() {
                    ssd.unflushed_bytes += data.bytes();
                    ssd.unqueued.insert(frame.serial, frame);
                }
            }
            Told::Enqueue(frames) => {
                core.ssd.iter_mut().for_each(|ssd| ssd.enqueue(frames.iter().copied()));
            }
            Told::Left(data, gone) => {
                let each = data.members.iter().zip(gone);
                let here = each.filter_map(|(m, gone)| Some((m, gone?)));
                here.for_each(|(m, gone)| core.events.removed(Tier::Memory, &m.key, gone));
            }
        }
    }
}

impl Section<'_> {
    /// Who is to be told.
    pub fn listeners(&self) -> Listeners {
        Listeners::of(self.lanes.listeners.load(Relaxed))
    }

    /// Tell the core all of this, in its order.
    pub fn tell(&self, all: &mut Vec<Told>) {
        if !all.is_empty() {
            self.lanes.told_count.fetch_add(all.len() as u32, Relaxed);
            self.lanes.told().append(all);
        }
    }

    /// As [`crate::put::enqueue`].
    pub fn enqueue(&self, frames: &mut Vec<FrameRef>) {
        if self.listeners().writes {
            self.tell(&mut vec![Told::Enqueue(std::mem::take(frames))]);
        }
        frames.clear();
    }

    /// What may not leave.
    pub fn pins(&self) -> &Pins {
        // SAFETY: this is inside.
        unsafe { self.lanes.pins.get() }
    }

    /// Groups that are not visible yet.
    pub fn waiting(&self) -> &Waiting {
        // SAFETY: this is inside.
        unsafe { self.lanes.waiting.get() }
    }
}
