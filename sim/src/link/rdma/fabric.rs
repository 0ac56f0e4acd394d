//! The two queue pairs of a connection, one at each end, and what the server's device does with the
//! work requests that the server posts.
//!
//! Invariants:
//! - Work requests take effect in the order in which they are posted, except that the bytes of
//!   WRITEs land in any order before the notice that follows them arrives.
//! - After the client's queue pair is down nothing lands. After the server's is down nothing more
//!   is read from the server's memory; bytes that were read before still land.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::checksum64;
use pagelith_layouts::wire::LinkRole;

use super::memory::RegisteredRegion;
use super::stats::{FabricStats, RdmaFaults};
use crate::entropy::SplitMix64;
use crate::link::exposed::write_at;

/// Most pieces in which the bytes of one work request move.
const PIECES_MAX: u64 = 4;
/// Longest time between two pieces at the server's device, in nanoseconds.
const GAP: u64 = 3_000;
/// Time after which a notice that found no receive is sent again, and how often (RNR retry).
const RECEIVE_RETRY: Duration = Duration::from_millis(8);
const RECEIVE_RETRIES: u32 = 7;
/// Time until the server's device gives up a client that does not answer, in milliseconds.
const RETRIES_MS: [u64; 2] = [300, 950];
/// Time that flushing the server's queue takes, in microseconds.
const FLUSH_US: [u64; 2] = [600, 14_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePair {
    Up,
    GoingDown,
    Down,
}

enum Event {
    /// The server's device reads piece `.1` of WRITE `.0`.
    Send(u64, usize),
    /// Bytes of WRITE `.0` arrive at this address.
    Land(u64, u64, Vec<u8>),
    /// The server's device gets piece `.1` of READ `.0`.
    Fetch(u64, usize),
    Complete(u64),
    /// The server's device sends a notice after the bytes that land until then.
    SendNotice(Mono),
    /// A notice arrives, for the n-th time.
    ArriveNotice(u32),
    Down(LinkRole),
    /// The server's device gives the client up.
    GiveUp,
}

/// Bytes that move at once.
struct Piece {
    /// Offset in the server's memory of the transfer.
    at: u64,
    address: u64,
    len: u64,
    lands: Mono,
    /// Checksum of the bytes when the WRITE was posted.
    sum: u64,
}

/// A WRITE or READ that has not completed.
struct Transfer {
    parts: Vec<Part>,
    pieces: Vec<Piece>,
}

/// The end of a work request: its memory is the server's again.
pub(in crate::link) struct Completion {
    /// The number of the work request.
    pub id: u64,
    /// Whether it was executed; otherwise it was flushed.
    pub executed: bool,
    /// The server's memory.
    pub parts: Vec<Part>,
}

/// Both queue pairs and all that is in transit.
pub(in crate::link) struct Fabric {
    regions: Vec<RegisteredRegion>,
    /// Memory that the client has exposed: address and length. Only for the check of landings.
    exposed: BTreeMap<u64, u64>,
    faults: RdmaFaults,
    rng: SplitMix64,
    queue_pairs: [QueuePair; 2],
    events: BTreeMap<(Mono, u64), Event>,
    last_event: u64,
    transfers: BTreeMap<u64, Transfer>,
    last_transfer: u64,
    /// When the last piece leaves the server, the last piece lands, the last notice arrives, and
    /// the last completion comes.
    sends_until: Mono,
    lands_until: Mono,
    notices_until: Mono,
    completes_until: Mono,
    completions: VecDeque<Completion>,
    /// Receives posted at the client.
    receives: u64,
    /// Notices that arrived and were not polled.
    notices: u64,
    /// The server's device gave the client up, or was refused.
    failed: bool,
    gives_up: bool,
    pub stats: FabricStats,
    pub trace: u64,
    /// Which ends have news, the client's first.
    pub raised: [bool; 2],
}

fn index(side: LinkRole) -> usize {
    usize::from(side == LinkRole::Server)
}

impl Fabric {
    pub fn new(regions: Vec<RegisteredRegion>, faults: RdmaFaults, seed: u64) -> Fabric {
        let (exposed, events, transfers, completions) = Default::default();
        let (sends_until, lands_until, notices_until, completes_until) = Default::default();
        Fabric {
            regions,
            exposed,
            faults,
            rng: SplitMix64::new(seed),
            queue_pairs: [QueuePair::Up; 2],
            events,
            last_event: 0,
            transfers,
            last_transfer: 0,
            sends_until,
            lands_until,
            notices_until,
            completes_until,
            completions,
            receives: 0,
            notices: 0,
            failed: false,
            gives_up: false,
            stats: FabricStats::default(),
            trace: 0,
            raised: [false; 2],
        }
    }

    fn state(&self, side: LinkRole) -> QueuePair {
        self.queue_pairs[index(side)]
    }

    pub fn is_down(&self, side: LinkRole) -> bool {
        self.state(side) == QueuePair::Down
    }

    /// Whether the server's queue pair failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether both queue pairs are down, and nothing more happens.
    pub fn is_over(&self) -> bool {
        self.is_down(LinkRole::Client) && self.is_down(LinkRole::Server)
    }

    /// The address at which each region begins, as the client reports it to the server.
    pub fn bases(&self) -> Vec<u64> {
        self.regions.iter().map(RegisteredRegion::base).collect()
    }

    /// The region of the `len` bytes at `address`, and their offset in it, if they are registered.
    pub fn region_offset(&self, address: u64, len: u64) -> Option<(u32, u64)> {
        let regions = self.regions.iter().zip(0..);
        let find = |(region, number): (&RegisteredRegion, u32)| {
            Some((number, region.offset_of(address, len)?))
        };
        regions.filter_map(find).next()
    }

    /// The client exposes memory.
    pub fn expose(&mut self, address: u64, len: u64) {
        self.exposed.insert(address, len);
    }

    /// The client's link hands exposed memory back.
    pub fn hand_back(&mut self, address: u64) {
        self.exposed.remove(&address);
    }

    fn is_exposed(&self, address: u64, len: u64) -> bool {
        let before = self.exposed.range(..=address).next_back();
        before.is_some_and(|(from, exposed)| address + len <= from + exposed)
    }

    fn at(&mut self, time: Mono, event: Event) {
        self.last_event += 1;
        self.events.insert((time, self.last_event), event);
    }

    fn nanos(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_nanos(least + self.rng.below((most - least).max(1)))
    }

    fn landing(&mut self) -> Duration {
        let most = u64::try_from(self.faults.landing_max.as_nanos()).unwrap_or(u64::MAX);
        // Most pieces land soon.
        let most = if self.rng.one_in(8) { most } else { most / 16 };
        let stalls = self.rng.below(1_000_000) < self.faults.stall.into();
        let stall = if stalls { self.nanos(20_000_000, 500_000_000) } else { Duration::ZERO };
        self.nanos(500, most.max(501)) + stall
    }

    /// The client posts this many receives more.
    pub fn post_receives(&mut self, count: u64) {
        self.receives += count;
    }

    /// Post a transfer between the server's `parts` and the client's memory. `targets` has the
    /// offset in `parts`, the address and the length of each piece of memory. Returns its number.
    pub fn post(
        &mut self,
        now: Mono,
        is_write: bool,
        parts: Vec<Part>,
        targets: &[(u64, u64, u64)],
    ) -> u64 {
        self.last_transfer += 1;
        let id = self.last_transfer;
        if self.state(LinkRole::Server) != QueuePair::Up {
            self.completions.push_back(Completion { id, executed: false, parts });
            return id;
        }
        let mut pieces = Vec::new();
        for (at, address, len) in targets {
            let mut done = 0;
            let most = len.div_ceil(1 + self.rng.below(PIECES_MAX)).max(1);
            while done < *len {
                let count = most.min(len - done);
                let sends = self.sends_until.max(now).after(self.nanos(100, GAP));
                let lands = sends.after(self.landing());
                let mut bytes = vec![0; if is_write { count as usize } else { 0 }];
                copy_out(&parts, at + done, &mut bytes);
                let sum = checksum64(&bytes);
                self.sends_until = sends;
                self.lands_until = self.lands_until.max(lands);
                let number = pieces.len();
                let event = match is_write {
                    true => Event::Send(id, number),
                    false => Event::Fetch(id, number),
                };
                self.at(if is_write { sends } else { lands }, event);
                let (at, address) = (at + done, address + done);
                pieces.push(Piece { at, address, len: count, lands, sum });
                done += count;
            }
        }
        // A READ completes after its bytes are there, a WRITE when the client's device has them.
        let moved = if is_write { self.sends_until } else { self.lands_until };
        self.completes_until = moved.max(self.completes_until).after(self.nanos(500, 2 * GAP));
        self.at(self.completes_until, Event::Complete(id));
        match is_write {
            true => self.stats.placed += 1,
            false => self.stats.fetched += 1,
        }
        self.note(&format!("post {now:?} {id} {is_write}"));
        self.transfers.insert(id, Transfer { parts, pieces });
        id
    }

    /// Post a notice after everything that was posted before.
    pub fn post_notice(&mut self, now: Mono) {
        if self.state(LinkRole::Server) == QueuePair::Up {
            self.sends_until = self.sends_until.max(now).after(self.nanos(100, GAP));
            self.at(self.sends_until, Event::SendNotice(self.lands_until));
        }
    }

    /// The completions of the server's work requests, in order.
    pub fn take_completions(&mut self) -> VecDeque<Completion> {
        std::mem::take(&mut self.completions)
    }

    /// The notices that arrived at the client since the last call.
    pub fn take_notices(&mut self) -> u64 {
        std::mem::take(&mut self.notices)
    }

    /// Take the queue pair of one side down, which takes a while; true if it was up.
    pub fn take_down(&mut self, side: LinkRole, now: Mono) -> bool {
        if self.state(side) != QueuePair::Up {
            return false;
        }
        self.queue_pairs[index(side)] = QueuePair::GoingDown;
        let [least, most] = FLUSH_US.map(|us| us * 1000);
        let time = match side {
            LinkRole::Server => self.nanos(least, most),
            LinkRole::Client => {
                let most = u64::try_from(self.faults.take_down_max.as_nanos()).unwrap_or(u64::MAX);
                self.nanos(300_000, most.max(300_001))
            }
        };
        self.at(now.after(time), Event::Down(side));
        true
    }

    /// The server's process ended: its device reads nothing more. Bytes in transit land.
    pub fn crash_server(&mut self) {
        self.transfers.clear();
        self.completions.clear();
        self.queue_pairs[index(LinkRole::Server)] = QueuePair::Down;
        self.raised[index(LinkRole::Server)] = true;
    }

    /// Nothing moves before `until`.
    pub fn partition(&mut self, until: Mono) {
        for ((time, number), event) in std::mem::take(&mut self.events) {
            let is_local = matches!(event, Event::Down(_) | Event::GiveUp);
            let time = if is_local { time } else { time.max(until) };
            self.events.insert((time, number), event);
        }
        let Fabric { sends_until, lands_until, notices_until, completes_until, .. } = self;
        for last in [sends_until, lands_until, notices_until, completes_until] {
            *last = (*last).max(until);
        }
    }

    /// The next moment at which something happens.
    pub fn next(&self) -> Option<Mono> {
        self.events.keys().next().map(|(time, _)| *time)
    }

    /// Let everything happen that is due.
    pub fn run(&mut self, now: Mono) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((time, _), event) = entry.remove_entry();
            self.happen(time, event);
        }
    }

    fn happen(&mut self, time: Mono, event: Event) {
        match event {
            Event::Send(id, piece) => self.send(id, piece),
            Event::Land(id, address, bytes) => self.land(time, id, address, &bytes),
            Event::Fetch(id, piece) => self.fetch(time, id, piece),
            Event::Complete(id) if !self.transfers.contains_key(&id) => {}
            Event::Complete(_) | Event::SendNotice(_) if self.is_down(LinkRole::Client) => {
                self.give_up_later(time);
            }
            Event::Complete(id) => {
                if let Some(transfer) = self.transfers.remove(&id) {
                    self.note(&format!("complete {time:?} {id}"));
                    let parts = transfer.parts;
                    self.completions.push_back(Completion { id, executed: true, parts });
                    self.raised[index(LinkRole::Server)] = true;
                }
            }
            Event::SendNotice(after) if self.state(LinkRole::Server) != QueuePair::Down => {
                let delay = self.nanos(500, 2 * GAP);
                self.notices_until = self.notices_until.max(after).max(time).after(delay);
                self.at(self.notices_until, Event::ArriveNotice(0));
            }
            Event::SendNotice(_) => {}
            Event::ArriveNotice(times) => self.arrive_notice(time, times),
            Event::Down(side) => self.down(time, side),
            Event::GiveUp => {
                self.failed = true;
                self.down(time, LinkRole::Server);
            }
        }
    }

    fn send(&mut self, id: u64, piece: usize) {
        let Some(Transfer { parts, pieces, .. }) = self.transfers.get(&id) else { return };
        let Piece { at, address, len, lands, sum } = pieces[piece];
        let mut bytes = vec![0; len as usize];
        copy_out(parts, at, &mut bytes);
        self.stats.changed += u64::from(checksum64(&bytes) != sum);
        if self.rng.below(1_000_000) < self.faults.flip.into() {
            let bit = self.rng.below(len * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.stats.flipped += 1;
        }
        self.at(lands, Event::Land(id, address, bytes));
    }

    fn land(&mut self, time: Mono, id: u64, address: u64, bytes: &[u8]) {
        if self.is_down(LinkRole::Client) {
            self.stats.stopped += 1;
            return;
        }
        self.note(&format!("land {time:?} {id} {}", checksum64(bytes)));
        self.stats.landed_late += u64::from(!self.transfers.contains_key(&id));
        let len = bytes.len() as u64;
        let Some((region, at)) = self.region_offset(address, len) else { return self.refuse(time) };
        self.stats.strayed += u64::from(!self.is_exposed(address, len));
        self.regions[region as usize].write(at, bytes);
    }

    fn fetch(&mut self, time: Mono, id: u64, piece: usize) {
        let Some(Transfer { pieces, .. }) = self.transfers.get(&id) else { return };
        if self.is_down(LinkRole::Client) {
            return;
        }
        let Piece { at, address, len, .. } = pieces[piece];
        let Some((region, offset)) = self.region_offset(address, len) else {
            return self.refuse(time);
        };
        let mut bytes = vec![0; len as usize];
        self.regions[region as usize].read(offset, &mut bytes);
        if let Some(Transfer { parts, .. }) = self.transfers.get_mut(&id) {
            write_at(parts, at, &bytes);
        }
    }

    /// Remote access error: both queue pairs fail.
    fn refuse(&mut self, time: Mono) {
        self.stats.outside += 1;
        self.failed = true;
        self.down(time, LinkRole::Client);
        self.down(time, LinkRole::Server);
    }

    fn arrive_notice(&mut self, time: Mono, times: u32) {
        if self.is_down(LinkRole::Client) {
            return self.give_up_later(time);
        }
        match self.receives.checked_sub(1) {
            Some(left) => {
                self.receives = left;
                self.notices += 1;
                self.stats.notices += 1;
                self.raised[index(LinkRole::Client)] = true;
            }
            None if times < RECEIVE_RETRIES => {
                self.at(time.after(RECEIVE_RETRY), Event::ArriveNotice(times + 1));
            }
            None => {
                self.stats.unreceived += 1;
                self.at(time, Event::GiveUp);
            }
        }
    }

    /// The client's device answers no more: the server's notices it after some retries.
    fn give_up_later(&mut self, time: Mono) {
        if !std::mem::replace(&mut self.gives_up, true) {
            let [least, most] = RETRIES_MS.map(|ms| ms * 1_000_000);
            let until = time.after(self.nanos(least, most));
            self.at(until, Event::GiveUp);
        }
    }

    fn down(&mut self, time: Mono, side: LinkRole) {
        self.note(&format!("down {time:?} {side:?}"));
        self.queue_pairs[index(side)] = QueuePair::Down;
        if side == LinkRole::Server {
            let flushed = std::mem::take(&mut self.transfers);
            self.completions.extend(flushed.into_iter().map(|(id, transfer)| Completion {
                id,
                executed: false,
                parts: transfer.parts,
            }));
        }
        self.raised[index(side)] = true;
    }

    fn note(&mut self, line: &str) {
        self.trace = checksum64(format!("{} {line}", self.trace).as_bytes());
    }
}

/// Copy bytes out of `parts`, from `at` on.
fn copy_out(parts: &[Part], at: u64, to: &mut [u8]) {
    let (mut skip, mut to) = (at as usize, to);
    for part in parts {
        let bytes = part.bytes();
        let from = bytes.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(bytes.len());
        let (now, later) = to.split_at_mut(from.len().min(to.len()));
        now.copy_from_slice(&from[..now.len()]);
        to = later;
    }
}
