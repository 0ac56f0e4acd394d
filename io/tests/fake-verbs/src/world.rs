//! All devices, their objects, and the transfers between them.

mod traffic;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::abi::{
    self, AsyncEvent, Channel, Context, Cq, Pd, QpAttr, QpInitAttr, SendWr, Sge, Wc, qp_mask,
    qp_state, status,
};
use crate::faults::Faults;

/// Pieces of a scatter list.
pub const PIECES_MAX: usize = 8;

/// The variable with the scripts of devices that exist from the beginning, separated by semicolons:
/// for programs whose test cannot call into the library.
const DEVICES: &str = "TEST_PAGELITH_FAKE_VERBS";

/// Steps that a request waits for a receive of the peer.
const RECEIVER_STEPS: u32 = 20;

/// Everything, behind one lock.
#[derive(Default)]
pub struct World {
    /// Whether the kernel has RDMA.
    pub has_kernel: bool,
    pub devices: Vec<Device>,
    /// Devices of contexts, by address.
    pub contexts: HashMap<usize, u32>,
    /// Devices of protection domains, by address.
    domains: HashMap<usize, u32>,
    regions: BTreeMap<u32, Region>,
    pub channels: HashMap<usize, ChannelState>,
    queues: HashMap<usize, Queue>,
    pairs: BTreeMap<u32, Pair>,
    /// Messages under way to pairs that were destroyed, on devices that deliver them.
    orphans: Vec<Arrival>,
    numbers: u32,
}

pub struct Device {
    pub number: u32,
    pub name: CString,
    pub faults: Faults,
    /// Readable while there are events.
    pub wake: OwnedFd,
    events: VecDeque<AsyncEvent>,
    registrations: u32,
    completions: u32,
    bytes_written: u64,
}

struct Region {
    device: u32,
    domain: usize,
    base: u64,
    length: u64,
    access: i32,
}

pub struct ChannelState {
    device: u32,
    wake: OwnedFd,
    /// Queues with an event, by address.
    events: VecDeque<usize>,
}

struct Queue {
    device: u32,
    channel: usize,
    armed: bool,
    unacknowledged: u32,
    ready: VecDeque<Wc>,
    /// Completions with the steps until they are delivered.
    late: VecDeque<(u32, Wc)>,
    /// A completion that the next one overtakes.
    overtaken: Option<Wc>,
}

struct Pair {
    device: u32,
    domain: usize,
    send_queue: usize,
    receive_queue: usize,
    state: u32,
    peer: u32,
    access: i32,
    sends: VecDeque<Send>,
    receives: VecDeque<Receive>,
    /// Messages of peers to this pair that have not arrived, in order.
    arrivals: VecDeque<Arrival>,
    sends_max: usize,
    receives_max: usize,
}

pub struct Send {
    id: u64,
    opcode: u32,
    signaled: bool,
    pieces: Vec<Sge>,
    address: u64,
    key: u32,
    immediate: u32,
    wait: u32,
    receiver_steps: u32,
}

impl Send {
    pub fn of(raw: &SendWr, pieces: &[Sge]) -> Send {
        Send {
            id: raw.wr_id,
            opcode: raw.opcode,
            signaled: raw.send_flags & abi::send_flag::SIGNALED != 0,
            pieces: pieces.to_vec(),
            address: raw.remote_addr,
            key: raw.rkey,
            immediate: raw.imm_data,
            wait: 0,
            receiver_steps: 0,
        }
    }

    fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }
}

pub struct Receive {
    pub id: u64,
    pub pieces: Vec<Sge>,
}

struct Arrival {
    wait: u32,
    pieces: Vec<Sge>,
    bytes: Vec<u8>,
    completion: Option<Wc>,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| {
    let mut world = World { has_kernel: true, ..World::default() };
    let scripts = std::env::var(DEVICES).unwrap_or_default();
    for script in scripts.split(';').filter(|_| !scripts.is_empty()) {
        world.new_device(script).expect("a script of a device");
    }
    Mutex::new(world)
});

pub fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that is readable while it counts more than 0.
pub fn new_wake() -> OwnedFd {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
    eventfd(0, flags).expect("an eventfd")
}

fn wake(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

fn consume(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

impl ChannelState {
    pub fn new(device: u32, wake: OwnedFd) -> ChannelState {
        ChannelState { device, wake, events: VecDeque::new() }
    }
}

impl World {
    pub fn new_device(&mut self, script: &str) -> Result<u32, Errno> {
        let number = self.devices.len() as u32 + 1;
        let mut faults = Faults::none(number);
        faults.apply(script)?;
        let name = CString::new(format!("fake{number}")).map_err(|_| Errno::INVAL)?;
        self.devices.push(Device {
            number,
            name,
            faults,
            wake: new_wake(),
            events: VecDeque::new(),
            registrations: 0,
            completions: 0,
            bytes_written: 0,
        });
        Ok(number)
    }

    /// Apply a script to a device, and report the events of the changes.
    pub fn change(&mut self, device: u32, script: &str) -> Result<(), Errno> {
        let device = self.device(device);
        let before = device.faults.clone();
        device.faults.apply(script)?;
        let mut report = |event_type: u32| {
            device.events.push_back(AsyncEvent { element: 1, event_type });
            wake(&device.wake);
        };
        if before.gids != device.faults.gids {
            report(abi::event::GID_CHANGE);
        }
        if before.port_down != device.faults.port_down {
            let down = device.faults.port_down;
            report(if down { abi::event::PORT_ERR } else { abi::event::PORT_ACTIVE });
        }
        Ok(())
    }

    /// Objects of a device.
    pub fn count(&mut self, device: u32, what: &str) -> u64 {
        let of = |found: &u32| *found == device;
        let count = match what {
            "contexts" => self.contexts.values().filter(|d| of(d)).count(),
            "domains" => self.domains.values().filter(|d| of(d)).count(),
            "regions" => self.regions.values().filter(|region| of(&region.device)).count(),
            "channels" => self.channels.values().filter(|channel| of(&channel.device)).count(),
            "queues" => self.queues.values().filter(|queue| of(&queue.device)).count(),
            "pairs" => self.pairs.values().filter(|pair| of(&pair.device)).count(),
            "bytes-written" => return self.device(device).bytes_written,
            "registrations" => return u64::from(self.device(device).registrations),
            _ => return u64::MAX,
        };
        count as u64
    }

    pub fn device(&mut self, number: u32) -> &mut Device {
        &mut self.devices[number as usize - 1]
    }

    pub fn of_context(&mut self, context: *mut Context) -> &mut Device {
        let number = self.contexts[&context.addr()];
        self.device(number)
    }

    pub fn take_event(&mut self, context: *mut Context) -> Option<AsyncEvent> {
        let device = self.of_context(context);
        let event = device.events.pop_front()?;
        consume(&device.wake);
        Some(event)
    }

    pub fn add_domain(&mut self, context: *mut Context, pd: *mut Pd) {
        let device = self.of_context(context).number;
        self.domains.insert(pd.addr(), device);
    }

    pub fn remove_domain(&mut self, pd: *mut Pd) -> Result<(), Errno> {
        let domain = pd.addr();
        let used = self.regions.values().any(|region| region.domain == domain)
            || self.pairs.values().any(|pair| pair.domain == domain);
        if used {
            return Err(Errno::BUSY);
        }
        self.domains.remove(&domain);
        Ok(())
    }

    pub fn register(
        &mut self,
        pd: *mut Pd,
        base: u64,
        length: u64,
        access: i32,
    ) -> Result<u32, Errno> {
        let number = self.domains[&pd.addr()];
        let device = self.device(number);
        if length == 0 || length > device.faults.max_mr_size {
            return Err(Errno::INVAL);
        }
        device.registrations += 1;
        if device.registrations == device.faults.fail_registration {
            return Err(Errno::NOMEM);
        }
        self.numbers += 1;
        let key = self.numbers << 8;
        let region = Region { device: number, domain: pd.addr(), base, length, access };
        self.regions.insert(key, region);
        Ok(key)
    }

    pub fn deregister(&mut self, key: u32) {
        self.regions.remove(&key);
    }

    pub fn remove_channel(&mut self, channel: usize) -> Result<(), Errno> {
        if self.queues.values().any(|queue| queue.channel == channel) {
            return Err(Errno::BUSY);
        }
        self.channels.remove(&channel);
        Ok(())
    }

    pub fn add_queue(&mut self, context: *mut Context, cq: *mut Cq, channel: *mut Channel) {
        let device = self.of_context(context).number;
        let queue = Queue {
            device,
            channel: channel.addr(),
            armed: false,
            unacknowledged: 0,
            ready: VecDeque::new(),
            late: VecDeque::new(),
            overtaken: None,
        };
        self.queues.insert(cq.expose_provenance(), queue);
    }

    pub fn remove_queue(&mut self, cq: usize) -> Result<(), Errno> {
        let of = |pair: &Pair| pair.send_queue == cq || pair.receive_queue == cq;
        // The real library would wait for the acknowledgement.
        if self.pairs.values().any(of) || self.queues[&cq].unacknowledged > 0 {
            return Err(Errno::BUSY);
        }
        for channel in self.channels.values_mut() {
            channel.events.retain(|event| *event != cq);
        }
        self.queues.remove(&cq);
        Ok(())
    }

    pub fn take_queue_event(&mut self, channel: usize) -> Option<usize> {
        let channel = self.channels.get_mut(&channel)?;
        let queue = channel.events.pop_front()?;
        consume(&channel.wake);
        self.queues.get_mut(&queue)?.unacknowledged += 1;
        Some(queue)
    }

    pub fn acknowledge(&mut self, cq: usize, count: u32) {
        if let Some(queue) = self.queues.get_mut(&cq) {
            queue.unacknowledged -= count;
        }
    }

    /// The next completion wakes the channel. So does work under way: nothing else would make time
    /// pass while the caller sleeps.
    pub fn arm(&mut self, cq: usize) {
        self.step();
        let waits = |pair: &Pair| !pair.sends.is_empty() || !pair.arrivals.is_empty();
        let busy = self.pairs.values().any(waits)
            || !self.orphans.is_empty()
            || self.queues.values().any(|queue| !queue.late.is_empty());
        if let Some(queue) = self.queues.get_mut(&cq) {
            queue.armed = true;
        }
        if busy {
            self.report(cq);
        }
    }

    fn report(&mut self, cq: usize) {
        let Some(queue) = self.queues.get_mut(&cq).filter(|queue| queue.armed) else { return };
        queue.armed = false;
        if let Some(channel) = self.channels.get_mut(&queue.channel) {
            channel.events.push_back(cq);
            wake(&channel.wake);
        }
    }

    pub fn poll(&mut self, cq: usize, room: usize) -> Vec<Wc> {
        let ready = self.queues.get_mut(&cq).map(|queue| &mut queue.ready);
        ready.map_or(Vec::new(), |ready| ready.drain(..room.min(ready.len())).collect())
    }

    pub fn add_pair(&mut self, pd: *mut Pd, init: &QpInitAttr) -> u32 {
        self.numbers += 1;
        let pair = Pair {
            device: self.domains[&pd.addr()],
            domain: pd.addr(),
            send_queue: init.send_cq.addr(),
            receive_queue: init.recv_cq.addr(),
            state: qp_state::RESET,
            peer: 0,
            access: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            arrivals: VecDeque::new(),
            sends_max: init.cap.max_send_wr as usize,
            receives_max: init.cap.max_recv_wr as usize,
        };
        self.pairs.insert(self.numbers, pair);
        self.numbers
    }

    pub fn pair_state(&self, number: u32) -> u32 {
        self.pairs[&number].state
    }

    pub fn modify(&mut self, number: u32, attr: &QpAttr, mask: i32) -> Result<(), Errno> {
        // Attributes that each transition needs.
        let init = qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::ACCESS_FLAGS;
        let rtr = qp_mask::AV
            | qp_mask::PATH_MTU
            | qp_mask::DEST_QPN
            | qp_mask::RQ_PSN
            | qp_mask::MAX_DEST_RD_ATOMIC
            | qp_mask::MIN_RNR_TIMER;
        let rts = qp_mask::SQ_PSN
            | qp_mask::TIMEOUT
            | qp_mask::RETRY_CNT
            | qp_mask::RNR_RETRY
            | qp_mask::MAX_RD_ATOMIC;
        if attr.qp_state == qp_state::ERR {
            self.fail(number);
            return Ok(());
        }
        let pair = self.pairs.get_mut(&number).ok_or(Errno::INVAL)?;
        let needed = match (pair.state, attr.qp_state) {
            (qp_state::RESET, qp_state::INIT) => init,
            (qp_state::INIT, qp_state::RTR) => rtr,
            (qp_state::RTR, qp_state::RTS) => rts,
            _ => return Err(Errno::INVAL),
        };
        if mask != needed | qp_mask::STATE {
            return Err(Errno::INVAL);
        }
        pair.state = attr.qp_state;
        match attr.qp_state {
            qp_state::INIT => pair.access = attr.qp_access_flags as i32,
            qp_state::RTR => pair.peer = attr.dest_qp_num,
            _ => {}
        }
        Ok(())
    }

    pub fn faults(&mut self, number: u32) -> &Faults {
        &self.device(self.pairs[&number].device).faults
    }

    pub fn remove_pair(&mut self, number: u32) -> Result<(), Errno> {
        let device = self.device(self.pairs[&number].device);
        if device.faults.fail_destroy > 0 {
            device.faults.fail_destroy -= 1;
            return Err(Errno::BUSY);
        }
        let lands_later = device.faults.lands_after_destroy;
        let Some(mut pair) = self.pairs.remove(&number) else { return Ok(()) };
        if lands_later {
            self.orphans.extend(pair.arrivals.drain(..));
        }
        // Completions of a destroyed pair are removed from its queues.
        for queue in [pair.send_queue, pair.receive_queue] {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.ready.retain(|completion| completion.qp_num != number);
                queue.late.retain(|(_, completion)| completion.qp_num != number);
                queue.overtaken = queue.overtaken.filter(|completion| completion.qp_num != number);
            }
        }
        Ok(())
    }

    pub fn post_send(&mut self, number: u32, mut request: Send) -> Result<(), Errno> {
        let faults = self.faults(number).clone();
        let pair = self.pairs.get_mut(&number).ok_or(Errno::INVAL)?;
        if pair.state == qp_state::ERR {
            if !faults.never_drain {
                let queue = pair.send_queue;
                let completion = failed_completion(request.id, status::WR_FLUSH, number);
                self.complete(queue, completion);
            }
            return Ok(());
        }
        if pair.state != qp_state::RTS || request.pieces.len() > PIECES_MAX {
            return Err(Errno::INVAL);
        }
        if pair.sends.len() >= pair.sends_max {
            return Err(Errno::NOMEM);
        }
        request.wait = faults.delay;
        request.receiver_steps = RECEIVER_STEPS;
        pair.sends.push_back(request);
        Ok(())
    }

    pub fn post_receive(&mut self, number: u32, request: Receive) -> Result<(), Errno> {
        let pair = self.pairs.get_mut(&number).ok_or(Errno::INVAL)?;
        if pair.state == qp_state::RESET || request.pieces.len() > PIECES_MAX {
            return Err(Errno::INVAL);
        }
        if pair.receives.len() >= pair.receives_max {
            return Err(Errno::NOMEM);
        }
        // As in rxe, a receive that is posted in the error state is never flushed.
        pair.receives.push_back(request);
        Ok(())
    }
}

fn failed_completion(id: u64, status: u32, number: u32) -> Wc {
    // Fields that are not valid after a failure have misleading values.
    Wc { wr_id: id, status, qp_num: number, opcode: u32::MAX, byte_len: u32::MAX, ..Wc::default() }
}
