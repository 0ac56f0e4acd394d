//! The network between the two ends: packets in transit, and the faults that strike them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::signal::Signal;
use pagelith_layouts::checksum::checksum64;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole};

use super::rdma::{Fabric, FabricStats, Target};
use super::reference_check::{ReferenceCheck, sum};
use crate::clock::SimClock;
use crate::entropy::SplitMix64;

/// Delays and fault rates of packets. A packet is a control frame, or at most [`PACKET_BYTES`] of
/// bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFaults {
    /// Shortest delay of a packet.
    pub delay_min: Duration,
    /// Longest delay of a packet.
    pub delay_max: Duration,
    /// Packets of a million that never arrive.
    pub drop: u32,
    /// Packets of a million that arrive twice.
    pub duplicate: u32,
    /// Packets of a million that later packets overtake.
    pub reorder: u32,
    /// Packets of a million at which the connection breaks: no later packet arrives, and both ends
    /// are notified.
    pub cut: u32,
    /// Bulk packets of a million in which one bit is flipped. Only verification detects that.
    pub flip: u32,
    /// Longest time between a push and the read of its memory. The link owns the memory until then,
    /// as with a device that reads it by DMA.
    pub hold_max: Duration,
}

impl LinkFaults {
    /// The faults that a byte stream has too: it breaks and is late, but loses nothing and keeps
    /// the order. One-sided transfers need that, since the stream announces what they move.
    #[must_use]
    pub fn of_stream(self) -> LinkFaults {
        LinkFaults { drop: 0, duplicate: 0, reorder: 0, ..self }
    }
}

/// Counters of packets and of violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Sent.
    pub packets: u64,
    /// Packets that never arrived: lost by chance, or sent over a broken connection.
    pub dropped: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub flipped: u64,
    /// Packets that arrived at an end that had given up or finished their operation.
    pub late: u64,
    /// Connections that broke.
    pub cuts: u64,
    /// Ranges passed by reference to memory.
    pub shown: u64,
    /// Of `shown`, ranges read after the reference was withdrawn.
    pub looked_late: u64,
    /// Requests of stores to their peers.
    pub questions: u64,
    /// Of `shown`, ranges that changed while referenced, or that do not match the
    /// checksums of the outcome.
    pub broken: u64,
    /// Cancelled requests without an outcome, and outcomes without a request.
    pub unowed: u64,
    /// One-sided transfers.
    pub fabric: FabricStats,
}

/// Most bulk bytes of a packet.
pub const PACKET_BYTES: usize = 16 << 10;

impl Default for LinkFaults {
    fn default() -> LinkFaults {
        let (delay_min, delay_max) = (Duration::from_micros(5), Duration::from_micros(50));
        let (drop, duplicate, reorder, cut, flip, hold_max) = Default::default();
        LinkFaults { delay_min, delay_max, drop, duplicate, reorder, cut, flip, hold_max }
    }
}

/// A message between the ends.
#[derive(Clone, Debug)]
pub(super) enum Packet {
    Frame(Frame),
    Data {
        op: OpId,
        item: u32,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// A reference to bytes in the sender's memory.
    ShmRef {
        range: ItemRange,
        pieces: Vec<ShownPiece>,
    },
    /// The sender no longer reads the bytes of a reference.
    Taken(ItemRange),
    /// Memory of the sender to which the receiver may write bytes of an operation.
    Targets(OpId, Vec<Target>),
    /// The sender has posted a WRITE of these bytes. They are there once the receiver has polled
    /// this many notices.
    Placed {
        op: OpId,
        item: u32,
        offset: u64,
        len: u64,
        notice: u64,
    },
    /// The sender closed: with a goodbye, or because its process ended.
    End {
        goodbye: bool,
    },
}

/// The network's state for one end.
#[derive(Default)]
struct End {
    /// Arrival time of the last in-order packet: later packets arrive no earlier.
    last: Mono,
    /// Since when the end receives nothing.
    deaf_since: Option<Mono>,
    closed: bool,
    arrived: Signal,
}

pub(super) struct Wire {
    pub clock: SimClock,
    pub faults: LinkFaults,
    pub net_stats: NetStats,
    pub trace: u64,
    pub reference_check: ReferenceCheck,
    pub request_counter: Option<Arc<AtomicU64>>,
    /// The queue pairs, if the ends have RDMA.
    pub fabric: Option<Fabric>,
    /// Raised when the devices must look again.
    pub device: Signal,
    rng: SplitMix64,
    in_transit: BTreeMap<(Mono, u64), (LinkRole, Packet)>,
    ends: [End; 2],
    /// No packet arrives before this time.
    partitioned_until: Mono,
    /// Start and end of the last partition.
    last_partition: Option<(Mono, Mono)>,
    cut: bool,
    dead_after: Duration,
}

fn index(side: LinkRole) -> usize {
    match side {
        LinkRole::Client => 0,
        LinkRole::Server => 1,
    }
}

impl Wire {
    pub fn new(seed: u64, clock: SimClock, dead_after: Duration) -> Wire {
        Wire {
            clock,
            faults: LinkFaults::default(),
            net_stats: NetStats::default(),
            trace: 0,
            reference_check: ReferenceCheck::default(),
            request_counter: None,
            fabric: None,
            device: Signal::default(),
            rng: SplitMix64::new(seed),
            in_transit: BTreeMap::new(),
            ends: Default::default(),
            partitioned_until: Mono::default(),
            last_partition: None,
            cut: false,
            dead_after,
        }
    }

    fn note(&mut self, what: &str, side: LinkRole, packet: &Packet) {
        let line = match packet {
            Packet::Frame(f) => format!("{:?} {} {}", f.kind, f.op, checksum64(&f.body)),
            Packet::Data { op, item, offset, bytes } => {
                format!("{op} {item} {offset} {}", checksum64(bytes))
            }
            Packet::ShmRef { range, pieces } => format!("shown {range:?} {pieces:?}"),
            Packet::Taken(range) => format!("taken {range:?}"),
            Packet::Targets(op, targets) => format!("targets {op} {}", targets.len()),
            Packet::Placed { op, item, offset, len, notice } => {
                format!("placed {op} {item} {offset} {len} {notice}")
            }
            Packet::End { goodbye } => format!("end {goodbye}"),
        };
        let line = format!("{} {} {what} {side:?} {line}", self.trace, self.clock.now().0);
        self.trace = checksum64(line.as_bytes());
    }

    /// Sends a packet from `side`.
    pub fn send(&mut self, side: LinkRole, mut packet: Packet) {
        self.net_stats.packets += 1;
        let asks = matches!(&packet, Packet::Frame(frame) if frame.kind == FrameKind::Request);
        if let Some(questions) = self.request_counter.as_ref().filter(|_| asks) {
            self.net_stats.questions += 1;
            questions.fetch_add(1, Relaxed);
        }
        let strikes = |rng: &mut SplitMix64, rate: u32| rng.below(1_000_000) < rate.into();
        let faults = self.faults;
        // Drawn for every packet, so that one rate does not shift the draws of the others.
        let [lost, twice, late, cut, flip] =
            [faults.drop, faults.duplicate, faults.reorder, faults.cut, faults.flip]
                .map(|rate| strikes(&mut self.rng, rate));
        let ends = matches!(packet, Packet::End { .. });
        if cut && !ends {
            self.note("cut", side, &packet);
            self.net_stats.dropped += 1;
            return self.cut();
        }
        if self.cut || (lost && !ends) {
            self.net_stats.dropped += 1;
            return self.note("lost", side, &packet);
        }
        if let Packet::Data { bytes, .. } = &mut packet
            && flip
        {
            let bit = self.rng.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.net_stats.flipped += 1;
        }
        self.note("sent", side, &packet);
        if twice && !ends {
            self.net_stats.duplicated += 1;
            let at = self.arrival(side.other(), true);
            self.put(at, side.other(), packet.clone());
        }
        self.net_stats.reordered += u64::from(late && !ends);
        let at = self.arrival(side.other(), late && !ends);
        self.put(at, side.other(), packet);
    }

    /// Arrival time of a packet sent now: after all others, or later than its turn if it is
    /// overtaken.
    fn arrival(&mut self, to: LinkRole, overtaken: bool) -> Mono {
        let (least, most) = (self.faults.delay_min, self.faults.delay_max);
        let spread = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        let delay = least + Duration::from_nanos(self.rng.below(spread.saturating_add(1)));
        let at = self.clock.now().after(delay).max(self.partitioned_until);
        let end = &mut self.ends[index(to)];
        if overtaken {
            return at.max(end.last).after(most);
        }
        end.last = at.max(end.last);
        end.last
    }

    fn put(&mut self, at: Mono, to: LinkRole, packet: Packet) {
        let packets = self.net_stats.packets;
        let number = packets * 2 + u64::from(self.in_transit.contains_key(&(at, packets * 2)));
        self.in_transit.insert((at, number), (to, packet));
        self.ends[index(to)].arrived.raise();
    }

    /// Packets that have arrived at `side` by now, in order of arrival.
    pub fn receive(&mut self, side: LinkRole) -> Vec<Packet> {
        let now = self.clock.now();
        let due = self.in_transit.range(..=(now, u64::MAX)).filter(|(_, (to, _))| *to == side);
        let names: Vec<_> = due.map(|(name, _)| *name).collect();
        let arrived: Vec<Packet> = names
            .iter()
            .filter_map(|name| self.in_transit.remove(name))
            .map(|(_, packet)| packet)
            .collect();
        if self.ends[index(side)].deaf_since.is_some() {
            return Vec::new();
        }
        arrived.iter().for_each(|packet| self.note("arrived", side, packet));
        arrived
    }

    /// Time until a packet arrives at `side`, or until it must detect that none does.
    pub fn due(&self, side: LinkRole) -> Option<Duration> {
        let now = self.clock.now();
        let next = self
            .in_transit
            .iter()
            .find(|(_, (to, _))| *to == side)
            .map(|((at, _), _)| at.since(now));
        let device = self.device_due();
        let dead = self.silent_since().map(|since| since.after(self.dead_after).since(now));
        next.into_iter().chain(device).chain(dead).min()
    }

    /// Time until a device does something.
    pub fn device_due(&self) -> Option<Duration> {
        let next = self.fabric.as_ref()?.next()?;
        Some(next.since(self.clock.now()))
    }

    /// Since when pings get no reply: a reply needs both directions.
    fn silent_since(&self) -> Option<Mono> {
        let now = self.clock.now();
        let apart = self.last_partition.filter(|(_, until)| now < *until).map(|(since, _)| since);
        self.ends.iter().filter_map(|end| end.deaf_since).chain(apart).min()
    }

    /// How long nothing was received, if that exceeds the limit.
    pub fn silent(&self) -> Option<Duration> {
        let silent = self.clock.now().since(self.silent_since()?);
        (silent >= self.dead_after).then_some(silent)
    }

    /// Whether the connection is broken.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    pub fn signal(&self, side: LinkRole) -> Signal {
        self.ends[index(side)].arrived.clone()
    }

    /// `side` has read these bytes of a reference of the other side.
    pub fn ref_read(&mut self, side: LinkRole, range: ItemRange, bytes: &[u8]) {
        match self.reference_check.check(side.other(), range, sum(bytes)) {
            None => self.net_stats.looked_late += 1,
            Some(true) => {}
            Some(false) => self.net_stats.broken += 1,
        }
    }

    /// Calls `use_it` with the queue pairs, if there are any, after everything happened that is
    /// due.
    pub fn with_fabric<R>(&mut self, use_it: impl FnOnce(&mut Fabric, Mono) -> R) -> Option<R> {
        let fabric = self.fabric.as_mut()?;
        let now = self.clock.now();
        let before = fabric.next();
        fabric.run(now);
        let result = use_it(fabric, now);
        if fabric.next().is_some_and(|next| before.is_none_or(|before| next < before)) {
            self.device.raise();
        }
        let raised = std::mem::take(&mut fabric.raised);
        for (end, raised) in self.ends.iter().zip(raised) {
            if raised {
                end.arrived.raise();
            }
        }
        Some(result)
    }

    /// Whether neither end can receive anything more.
    pub fn is_over(&self) -> bool {
        let is_over = self.fabric.as_ref().is_none_or(Fabric::is_over);
        is_over && (self.cut || self.ends.iter().all(|end| end.closed))
    }

    /// How long the next push's memory is held before it is read.
    pub fn hold(&mut self) -> Duration {
        let most = u64::try_from(self.faults.hold_max.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(if most == 0 { 0 } else { self.rng.below(most) })
    }

    pub fn cut(&mut self) {
        self.net_stats.cuts += u64::from(!self.cut);
        self.cut = true;
        self.in_transit.clear();
        self.ends.iter().for_each(|end| end.arrived.raise());
    }

    pub fn stop_receiving(&mut self, side: LinkRole) {
        let now = self.clock.now();
        self.ends[index(side)].deaf_since.get_or_insert(now);
        self.stop_fabric(now.after(self.dead_after));
    }

    /// Packets in transit arrive when the partition ends, in their original order.
    pub fn partition(&mut self, time: Duration) {
        let now = self.clock.now();
        let until = now.after(time).max(self.partitioned_until);
        let since =
            self.last_partition.filter(|(_, until)| now < *until).map_or(now, |(since, _)| since);
        (self.last_partition, self.partitioned_until) = (Some((since, until)), until);
        for ((at, number), packet) in std::mem::take(&mut self.in_transit) {
            self.in_transit.insert((at.max(until), number), packet);
        }
        self.ends.iter_mut().for_each(|end| end.last = end.last.max(until));
        self.stop_fabric(until);
    }

    /// Half of the partitions concern the stream only: RDMA has another path.
    fn stop_fabric(&mut self, until: Mono) {
        if let Some(fabric) = self.fabric.as_mut().filter(|_| self.rng.one_in(2)) {
            fabric.partition(until);
        }
    }

    /// Closes this side; notifies the other if possible.
    pub fn close(&mut self, side: LinkRole, goodbye: bool) {
        if !std::mem::replace(&mut self.ends[index(side)].closed, true) {
            self.send(side, Packet::End { goodbye });
        }
        self.in_transit.retain(|_, (to, _)| *to != side);
    }
}
