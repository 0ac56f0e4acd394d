//! Memory that what clients ask for takes: of operations under way, and of outcomes that a client has not read yet.
//!
//! Invariants:
//! - A request is counted before anything is set up for it, by the most that it and its outcome can take. One that finds no room is
//!   answered `Busy`, which takes next to nothing, and does nothing.
//! - A request stays counted until the outcome has left this process, or the link is gone: a client that does not read makes room for
//!   nothing.
//! - `under_way` is the sum of `of` and of what was cancelled and goes on: a number that is counted is not given to another request before
//!   its outcome has left.
//! - A link that has nothing under way may always begin one small operation, whatever other links have.
//! - One client leaves half of what there is to others, whatever number of links it has.

use pagelith_io::sync::{Arc, AtomicU64};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::{EventItem, OutcomeItem, ViewItem};
use pagelith_layouts::wire::request::Ask;
use pagelith_transport::limits::{RECEIVED_BYTES_MAX, WRITTEN_BYTES_MAX};
use rustc_hash::FxHashMap;

use super::get::REQUESTED_OBJECT_BYTES;
use super::load_totals::ServedBytes;
use super::outbox::OUTCOME_BYTES_MAX;
use super::put::OFFERED_BYTES;
use crate::api::error::{Error, Result};
use crate::api::events;

/// Most bytes of all links of a store together.
pub const ALL_BYTES_MAX: u64 = 128 << 20;
/// Most bytes of all links of a client: a key, or without keys a process.
pub const CLIENT_BYTES_MAX: u64 = ALL_BYTES_MAX / 2;
/// Most bytes of a link.
pub const LINK_BYTES_MAX: u64 = 32 << 20;
/// So much a link may begin beside what others have, while it has nothing under way.
pub const FIRST_BYTES_MAX: u64 = 256 << 10;
/// Most bytes of a link outside of [`ALL_BYTES_MAX`]: what arrives and is not counted yet, the outcome that is being written, and what it may
/// begin beside others.
pub const OUTSIDE_BYTES_MAX: u64 =
    (RECEIVED_BYTES_MAX + WRITTEN_BYTES_MAX + OUTCOME_BYTES_MAX) as u64 + FIRST_BYTES_MAX;
/// Bytes that every operation takes, counters as an answer among them.
const OPERATION_BYTES: u64 = 4096;
/// Bytes that an item's outcome takes: as it is kept, with a text if it failed, and while it is written.
const OUTCOME_BYTES: usize = 3 * OutcomeItem::BYTES + 160;

/// Memory that a link has.
pub(crate) struct LinkLoad {
    /// What all links of its client have.
    client: Arc<AtomicU64>,
    ops: FxHashMap<OpId, u64>,
    /// The sum of it, and what was cancelled and goes on.
    under_way: u64,
    /// Outcomes that the link has not sent.
    unsent: u64,
}

impl LinkLoad {
    /// Nothing, of a link of the client whose count this is.
    pub fn new(client: Arc<AtomicU64>) -> LinkLoad {
        LinkLoad { client, ops: FxHashMap::default(), under_way: 0, unsent: 0 }
    }

    /// Whether an operation of this number is under way, or its outcome has not left.
    pub fn contains(&self, id: OpId) -> bool {
        self.ops.contains_key(&id)
    }

    /// Count an operation of so many bytes in, or say that there is no room for it.
    pub fn begin(&mut self, all: &ServedBytes, id: OpId, bytes: u64) -> Result<()> {
        let own = self.under_way + self.unsent;
        let is_first = own == 0 && bytes <= FIRST_BYTES_MAX;
        if own + bytes > LINK_BYTES_MAX || !all.begin(&self.client, bytes, is_first) {
            let detail = format!(
                "too much is asked for at once: read outcomes, or ask for less bytes={bytes} link={own} link_max={LINK_BYTES_MAX} \
                 client_max={CLIENT_BYTES_MAX} all_max={ALL_BYTES_MAX}"
            );
            return Err(Error::busy(detail));
        }
        self.under_way += bytes;
        self.ops.insert(id, bytes);
        Ok(())
    }

    /// An operation was answered, and goes on: what it takes.
    pub fn detach_cancelled(&mut self, id: OpId) -> u64 {
        self.ops.remove(&id).unwrap_or(0)
    }

    /// One that had been cancelled is over.
    pub fn release_cancelled(&mut self, all: &ServedBytes, bytes: u64) {
        self.under_way -= bytes;
        all.change(&self.client, bytes, 0);
    }

    /// The link has the outcome of an operation, and so many bytes of outcomes by now that it has not sent.
    pub fn record_sent(&mut self, all: &ServedBytes, id: Option<OpId>, unsent: u64) {
        let bytes = id.and_then(|id| self.ops.remove(&id)).unwrap_or(0);
        let before = bytes + self.unsent;
        // Every turn of every link comes by here; the counter is the store's.
        if bytes == 0 && unsent == before {
            return;
        }
        self.under_way -= bytes;
        self.unsent = unsent;
        all.change(&self.client, before, unsent);
    }

    /// The link is gone.
    pub fn release_all(&mut self, all: &ServedBytes) {
        all.change(&self.client, self.under_way + self.unsent, 0);
        self.ops.clear();
        (self.under_way, self.unsent) = (0, 0);
    }
}

/// The most that a request of so many bytes can take, with its outcome.
pub(crate) fn cost(ask: &Ask<'_>, body: usize) -> u64 {
    const KEY: usize = 3 * ObjectKey::BYTES;
    let items = match ask {
        Ask::Get(items) => {
            let blocks = |s: std::ops::Range<u64>| {
                s.end.div_ceil(BLOCK_BYTES.into()) - s.start / u64::from(BLOCK_BYTES)
            };
            // As the record has them, as they are sent, and in the outcome.
            let sums: u64 = items.iter().map(|item| 3 * 16 * blocks(item.stretch())).sum();
            sums + (items.len() * (REQUESTED_OBJECT_BYTES + OUTCOME_BYTES)) as u64
        }
        // Their checksums are in the body.
        Ask::Put(puts) => (body + puts.items().len() * (OFFERED_BYTES + OUTCOME_BYTES)) as u64,
        Ask::Exists(keys) | Ask::ExistsPrefix(keys) | Ask::Remove(keys) | Ask::Prefetch(keys) => {
            (keys.len() * KEY) as u64
        }
        Ask::Pin(_, keys) | Ask::Lease(_, keys) | Ask::Begin(_, keys) => (keys.len() * KEY) as u64,
        Ask::View(_, keys) => (keys.len() * (KEY + 3 * ViewItem::BYTES)) as u64,
        Ask::Events(_) => (events::PIECE * (KEY + 3 * EventItem::BYTES)) as u64,
        Ask::Clear(_) | Ask::Flush | Ask::Stats | Ask::Ping | Ask::Unpin(_) | Ask::Used(..) => 0,
        Ask::Commit(_) | Ask::Abort(_) | Ask::Missing(_) | Ask::Hold(_) | Ask::Release(_) => 0,
    };
    OPERATION_BYTES + body as u64 + items
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn link_that_reads_nothing_uses_only_its_share() {
        let all = ServedBytes::default();
        // Each is a client of its own.
        let of = |n: usize| LinkLoad::new(all.client(&n.to_string().into()));
        let mut links: Vec<LinkLoad> = (0..6).map(of).collect();
        let mut begin = |link: usize, id: u64, bytes: u64| links[link].begin(&all, OpId(id), bytes).is_ok();
        const MIB: u64 = 1 << 20;
        assert!((1..=32).all(|id| begin(0, id, MIB)) && !begin(0, 33, 1));
        // Four of them have all there is; who has nothing under way begins something small, once.
        assert!((1..4).all(|link| (1..=32).all(|id| begin(link, id, MIB))));
        assert!(!begin(4, 1, FIRST_BYTES_MAX + 1) && begin(4, 2, FIRST_BYTES_MAX) && !begin(4, 3, 1));
        assert_eq!(all.bytes(), ALL_BYTES_MAX + FIRST_BYTES_MAX);
        // An outcome that was made and not sent takes what it is; it is free when it has left.
        links[0].record_sent(&all, Some(OpId(1)), MIB / 4);
        assert!(links[0].begin(&all, OpId(34), MIB).is_err(), "others have the rest");
        links[0].record_sent(&all, None, 0);
        links[4].release_all(&all);
        assert!(links[0].begin(&all, OpId(34), MIB).is_ok());
        // An operation that was cancelled and goes on counts until it is over.
        let bytes = links[1].detach_cancelled(OpId(1));
        links[1].record_sent(&all, Some(OpId(1)), 0);
        assert_eq!((bytes, all.bytes()), (MIB, ALL_BYTES_MAX));
        links[1].release_cancelled(&all, bytes);
        links.iter_mut().for_each(|link| link.release_all(&all));
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn client_with_many_links_uses_at_most_half() {
        let all = ServedBytes::default();
        let [a, b] = ["a", "b"].map(|name| all.client(&name.into()));
        let mut of_a: Vec<LinkLoad> = (0..6).map(|_| LinkLoad::new(a.clone())).collect();
        let mut of_b = LinkLoad::new(b);
        const MIB: u64 = 1 << 20;
        let mut begin = |link: usize, id: u64, bytes: u64| of_a[link].begin(&all, OpId(id), bytes).is_ok();
        assert!((0..2).all(|link| (1..=32).all(|id| begin(link, id, MIB))));
        assert!(!begin(2, 1, FIRST_BYTES_MAX + 1), "the client has its share");
        assert!(begin(2, 2, FIRST_BYTES_MAX) && !begin(2, 3, 1), "each link begins something small, once");
        assert!((1..=32).all(|id| of_b.begin(&all, OpId(id), MIB).is_ok()), "the other client has room");
        // The count goes with the last of its links.
        of_a.iter_mut().chain([&mut of_b]).for_each(|link| link.release_all(&all));
        assert_eq!((all.bytes(), a.load(Relaxed)), (0, 0));
    }
}
