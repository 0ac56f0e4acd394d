//! The devices of the process. Time passes in steps: each query of an event is one. A step advances
//! one stream by one piece of work, so streams run late, and in no order among each other.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::faults::{Faults, strikes};
use crate::memory::{self, Allocation};

/// Why a call fails; each driver has its own number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NotInitialised,
    NoContext,
    OtherContext,
    Invalid,
    NoSuchDevice,
    OutOfMemory,
    AlreadyRegistered,
    NotRegistered,
    Lost,
}

pub type Result<T> = std::result::Result<T, Fault>;

/// A range of the host's or of the device's memory, by its first address.
#[derive(Clone, Copy)]
enum Copy {
    ToDevice { to: u64, from: usize, bytes: usize },
    ToHost { to: usize, from: u64, bytes: usize },
}

impl Copy {
    fn host(&self) -> Range<usize> {
        let (base, bytes) = match *self {
            Copy::ToDevice { from, bytes, .. } => (from, bytes),
            Copy::ToHost { to, bytes, .. } => (to, bytes),
        };
        base..base + bytes
    }

    fn device(&self) -> (u64, usize) {
        match *self {
            Copy::ToDevice { to, bytes, .. } => (to, bytes),
            Copy::ToHost { from, bytes, .. } => (from, bytes),
        }
    }
}

enum Work {
    Copy(Copy),
    Fill { address: u64, bytes: usize, value: u8 },
    Record(usize),
    Wait(usize),
}

#[derive(Default)]
struct Stream {
    context: usize,
    work: VecDeque<Work>,
    waited: u32,
}

struct Event {
    was_recorded: bool,
    is_done: bool,
}

pub struct World {
    pub faults: Faults,
    pub is_initialised: bool,
    is_lost: bool,
    /// Contexts and their devices.
    contexts: BTreeMap<usize, u32>,
    /// The primary context of each device that has one.
    primary: BTreeMap<u32, usize>,
    /// Devices that the engine keeps.
    started: BTreeSet<u32>,
    /// How often each device is retained by others.
    retained: BTreeMap<u32, u64>,
    allocations: Vec<Allocation>,
    /// Registered ranges of the host.
    registered: BTreeMap<usize, usize>,
    streams: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
    /// Memory that was given back while work used it.
    violations: u64,
    last: usize,
    random: u64,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| {
    let mut faults = Faults::default();
    let script = std::env::var("TEST_PAGELITH_FAKE_DEVICE").unwrap_or_default();
    faults.apply(&script).expect("a script in TEST_PAGELITH_FAKE_DEVICE");
    Mutex::new(World {
        random: faults.seed,
        faults,
        is_initialised: false,
        is_lost: false,
        contexts: BTreeMap::new(),
        primary: BTreeMap::new(),
        started: BTreeSet::new(),
        retained: BTreeMap::new(),
        allocations: Vec::new(),
        registered: BTreeMap::new(),
        streams: BTreeMap::new(),
        events: BTreeMap::new(),
        violations: 0,
        last: 0,
    })
});

thread_local! {
    /// The context of the thread; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The state of the library.
pub fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn current() -> usize {
    CURRENT.get()
}

pub fn set_current(context: usize) {
    CURRENT.set(context);
}

impl World {
    /// The name of a new object: an address that is never accessed.
    fn name(&mut self) -> usize {
        self.last += 1;
        self.last << 4
    }

    pub fn change(&mut self, script: &str) -> Option<()> {
        self.faults.apply(script)?;
        self.random = self.faults.seed;
        Some(())
    }

    pub fn count(&self, what: &str) -> u64 {
        let work = self.streams.values().map(|stream| stream.work.len() as u64);
        match what {
            "retained" => self.retained.values().sum(),
            "streams" => self.streams.len() as u64,
            "events" => self.events.len() as u64,
            "locked-chunks" => self.registered.len() as u64,
            "locked-bytes" => self.registered.values().map(|bytes| *bytes as u64).sum(),
            "work" => work.sum(),
            "violations" => self.violations,
            _ => u64::MAX,
        }
    }

    pub fn check_device(&self, ordinal: u32) -> Result<()> {
        match ordinal < self.faults.devices {
            true => Ok(()),
            false => Err(Fault::NoSuchDevice),
        }
    }

    /// Make a device's primary context, if it has none, and keep it until `stop`.
    pub fn start(&mut self, ordinal: u32) -> Result<usize> {
        let context = self.primary_of(ordinal)?;
        self.started.insert(ordinal);
        Ok(context)
    }

    /// The engine needs the device no longer.
    pub fn stop(&mut self, ordinal: u32) {
        self.started.remove(&ordinal);
        self.end_unused(ordinal);
    }

    /// End the primary context of a device that nothing keeps.
    fn end_unused(&mut self, ordinal: u32) {
        let is_retained = self.retained.get(&ordinal).is_some_and(|count| *count > 0);
        if !is_retained && !self.started.contains(&ordinal) {
            self.primary.remove(&ordinal).map(|context| self.contexts.remove(&context));
        }
    }

    fn primary_of(&mut self, ordinal: u32) -> Result<usize> {
        self.check_device(ordinal)?;
        self.is_initialised = true;
        if let Some(context) = self.primary.get(&ordinal) {
            return Ok(*context);
        }
        let context = self.new_context(ordinal);
        self.primary.insert(ordinal, context);
        Ok(context)
    }

    pub fn new_context(&mut self, ordinal: u32) -> usize {
        let context = self.name();
        self.contexts.insert(context, ordinal);
        context
    }

    pub fn has_primary(&self, ordinal: u32) -> bool {
        self.primary.contains_key(&ordinal)
    }

    pub fn retain(&mut self, ordinal: u32) -> Result<usize> {
        let context = self.primary_of(ordinal)?;
        *self.retained.entry(ordinal).or_default() += 1;
        Ok(context)
    }

    pub fn release(&mut self, ordinal: u32) -> Result<()> {
        self.check_device(ordinal)?;
        let count = self.retained.entry(ordinal).or_default();
        *count = count.checked_sub(1).ok_or(Fault::NoContext)?;
        self.end_unused(ordinal);
        Ok(())
    }

    pub fn is_context(&self, context: usize) -> bool {
        self.contexts.contains_key(&context)
    }

    /// The device of the thread's context.
    pub fn current_device(&self) -> Result<u32> {
        if self.is_lost {
            return Err(Fault::Lost);
        }
        self.contexts.get(&current()).copied().ok_or(Fault::NoContext)
    }

    pub fn allocate(&mut self, ordinal: u32, bytes: usize) -> Option<u64> {
        let used: usize = self.allocations.iter().map(|one| one.bytes.len()).sum();
        if (used + bytes) as u64 > self.faults.memory {
            return None;
        }
        let allocation = Allocation::new(ordinal, bytes)?;
        let address = allocation.address();
        self.allocations.push(allocation);
        Some(address)
    }

    pub fn free(&mut self, address: u64) {
        let at = self.allocations.iter().position(|one| one.address() == address);
        let allocation = self.allocations.swap_remove(at.expect("an allocation"));
        let end = address + allocation.bytes.len() as u64;
        let in_use = |copy: &Copy| (address..end).contains(&copy.device().0);
        self.violations += self.copies(in_use);
    }

    /// Device, first address and bytes of the allocation that has this address.
    pub fn owner(&self, address: u64) -> Option<(u32, u64, usize)> {
        let has = |one: &&Allocation| {
            (one.address()..one.address() + one.bytes.len() as u64).contains(&address)
        };
        let one = self.allocations.iter().find(has)?;
        Some((one.device, one.address(), one.bytes.len()))
    }

    fn device_bytes(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        self.allocations.iter_mut().find_map(|one| one.range(address, bytes))
    }

    /// Copy bytes of a device at once, as a test that looks at them.
    pub fn peek(&mut self, address: u64, to: &mut [u8]) {
        let bytes = self.device_bytes(address, to.len()).expect("memory of a device");
        to.copy_from_slice(bytes);
    }

    /// Write bytes of a device at once.
    pub fn poke(&mut self, address: u64, from: &[u8]) {
        self.device_bytes(address, from.len()).expect("memory of a device").copy_from_slice(from);
    }

    pub fn register(&mut self, base: usize, bytes: usize) -> Result<()> {
        self.current_device()?;
        if strikes(&mut self.faults.fail_lock) {
            return Err(Fault::OutOfMemory);
        }
        if bytes == 0 || !base.is_multiple_of(4096) {
            return Err(Fault::Invalid);
        }
        if self.registered.iter().any(|(at, len)| *at < base + bytes && base < at + len) {
            return Err(Fault::AlreadyRegistered);
        }
        if self.count("locked-bytes") + bytes as u64 > self.faults.lock_limit {
            return Err(Fault::OutOfMemory);
        }
        self.registered.insert(base, bytes);
        Ok(())
    }

    pub fn unregister(&mut self, base: usize) -> Result<()> {
        self.current_device()?;
        let bytes = self.registered.remove(&base).ok_or(Fault::NotRegistered)?;
        let range = base..base + bytes;
        let in_use = |copy: &Copy| {
            let host = copy.host();
            host.start < range.end && range.start < host.end
        };
        self.violations += self.copies(in_use);
        Ok(())
    }

    /// Copies that are queued and for which `is` holds.
    fn copies(&self, is: impl Fn(&Copy) -> bool) -> u64 {
        let work = self.streams.values().flat_map(|stream| &stream.work);
        work.filter(|work| matches!(work, Work::Copy(copy) if is(copy))).count() as u64
    }

    pub fn new_stream(&mut self) -> Result<usize> {
        self.current_device()?;
        let name = self.name();
        self.streams.insert(name, Stream { context: current(), ..Stream::default() });
        Ok(name)
    }

    /// A stream of the thread's context; 0 is the context's default stream.
    fn stream(&mut self, name: usize) -> Result<&mut Stream> {
        self.current_device()?;
        if name == 0 {
            let context = current();
            let make = || Stream { context, ..Stream::default() };
            return Ok(self.streams.entry(context).or_insert_with(make));
        }
        let stream = self.streams.get_mut(&name).ok_or(Fault::Invalid)?;
        match stream.context == current() {
            true => Ok(stream),
            false => Err(Fault::OtherContext),
        }
    }

    pub fn destroy_stream(&mut self, name: usize) -> Result<()> {
        if !self.stream(name)?.work.is_empty() {
            return Err(Fault::Invalid);
        }
        self.streams.remove(&name);
        Ok(())
    }

    pub fn new_event(&mut self) -> Result<usize> {
        self.current_device()?;
        let name = self.name();
        self.events.insert(name, Event { was_recorded: false, is_done: false });
        Ok(name)
    }

    pub fn destroy_event(&mut self, name: usize) -> Result<()> {
        self.current_device()?;
        let uses = |work: &Work| matches!(work, Work::Record(of) | Work::Wait(of) if *of == name);
        if self.streams.values().any(|stream| stream.work.iter().any(uses)) {
            return Err(Fault::Invalid);
        }
        self.events.remove(&name).map(|_| ()).ok_or(Fault::Invalid)
    }

    pub fn record(&mut self, event: usize, stream: usize) -> Result<()> {
        self.stream(stream)?.work.push_back(Work::Record(event));
        let event = self.events.get_mut(&event).ok_or(Fault::Invalid)?;
        *event = Event { was_recorded: true, is_done: false };
        Ok(())
    }

    pub fn wait(&mut self, stream: usize, event: usize) -> Result<()> {
        let was_recorded = self.events.get(&event).ok_or(Fault::Invalid)?.was_recorded;
        let stream = self.stream(stream)?;
        if was_recorded {
            stream.work.push_back(Work::Wait(event));
        }
        Ok(())
    }

    /// Whether an event is done; `None` if it was never recorded. Time passes.
    pub fn query(&mut self, event: usize) -> Result<Option<bool>> {
        self.current_device()?;
        self.step();
        self.current_device()?;
        let event = self.events.get(&event).ok_or(Fault::Invalid)?;
        Ok(event.was_recorded.then_some(event.is_done))
    }

    pub fn copy_in(&mut self, to: u64, from: usize, bytes: usize, on: usize) -> Result<()> {
        self.queue_copy(Copy::ToDevice { to, from, bytes }, on)
    }

    pub fn copy_out(&mut self, to: usize, from: u64, bytes: usize, on: usize) -> Result<()> {
        self.queue_copy(Copy::ToHost { to, from, bytes }, on)
    }

    fn queue_copy(&mut self, copy: Copy, on: usize) -> Result<()> {
        self.stream(on)?;
        if strikes(&mut self.faults.fail_copy) {
            return Err(Fault::Invalid);
        }
        let (address, bytes) = copy.device();
        if self.device_bytes(address, bytes).is_none() {
            return Err(Fault::Invalid);
        }
        // A copy that begins in one registration and ends elsewhere is refused.
        let host = copy.host();
        let touches = |at: usize, len: usize| at < host.end && host.start < at + len;
        let holds = |at: usize, len: usize| at <= host.start && host.end <= at + len;
        if self.registered.iter().any(|(at, len)| touches(*at, *len) && !holds(*at, *len)) {
            return Err(Fault::Invalid);
        }
        self.stream(on)?.work.push_back(Work::Copy(copy));
        Ok(())
    }

    /// Queue writing of a value, as the caller's own work.
    pub fn fill(&mut self, address: u64, bytes: usize, value: u8, on: usize) -> Result<()> {
        self.stream(on)?.work.push_back(Work::Fill { address, bytes, value });
        Ok(())
    }

    /// Let time pass.
    pub fn step(&mut self) {
        let busy: Vec<usize> = self
            .streams
            .iter()
            .filter(|(_, s)| !s.work.is_empty())
            .map(|(name, _)| *name)
            .collect();
        if self.faults.hang || self.is_lost || busy.is_empty() {
            return;
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let name = busy[(self.random >> 33) as usize % busy.len()];
        let late = self.faults.late;
        let stream = self.streams.get_mut(&name).expect("a stream");
        stream.waited += 1;
        let waits = |event: &usize| self.events.get(event).is_some_and(|event| !event.is_done);
        if stream.waited <= late
            || matches!(stream.work.front(), Some(Work::Wait(event)) if waits(event))
        {
            return;
        }
        stream.waited = 0;
        let work = stream.work.pop_front();
        self.run(work.expect("the stream is busy"));
    }

    fn run(&mut self, work: Work) {
        match work {
            Work::Wait(_) => {}
            Work::Record(event) => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.is_done = true;
                }
            }
            Work::Fill { address, bytes, value } => {
                if let Some(range) = self.device_bytes(address, bytes) {
                    range.fill(value);
                }
            }
            Work::Copy(_) if strikes(&mut self.faults.lose_at_copy) => self.is_lost = true,
            Work::Copy(Copy::ToDevice { to, from, bytes }) => match self.device_bytes(to, bytes) {
                Some(range) => memory::read(from, range),
                None => self.is_lost = true,
            },
            Work::Copy(Copy::ToHost { to, from, bytes }) => match self.device_bytes(from, bytes) {
                Some(range) => memory::write(to, range),
                None => self.is_lost = true,
            },
        }
    }
}
