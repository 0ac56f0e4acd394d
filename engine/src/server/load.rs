//! Memory used by a client's operations in progress and by its unsent outcomes.
//!
//! Invariants:
//! - A request is counted before anything is allocated for it, by the maximum that it and its
//!   outcome can take. A request that does not fit is answered `Busy` and has no effect.
//! - A request stays counted until its outcome has left this process, or the link is closed: a
//!   client that does not read frees no memory.
//! - `in_progress` = sum of `ops` + bytes of cancelled operations that still run. The number of a
//!   counted operation is not accepted for another request before its outcome has left.
//! - A link without operations may always begin one small operation, whatever other links use.
//! - One client leaves half of the total to others, however many links it has.

use pagelith_io::sync::{Arc, AtomicU64};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::{EventItem, OutcomeItem, ViewItem};
use pagelith_layouts::wire::request::RequestBody;
use pagelith_transport::limits::{RECEIVED_BYTES_MAX, WRITTEN_BYTES_MAX};
use rustc_hash::FxHashMap;

use super::get::REQUESTED_OBJECT_BYTES;
use super::outbox::OUTCOME_BYTES_MAX;
use super::put::INCOMING_BYTES;
use crate::api::error::{Error, Result};
use crate::state::event_log;
use crate::state::load_totals::LoadTotals;
pub use crate::state::load_totals::{ALL_BYTES_MAX, CLIENT_BYTES_MAX};

/// Maximum number of bytes of a link.
pub const LINK_BYTES_MAX: u64 = 32 << 20;
/// A link without operations may begin this many bytes in excess of the other bounds.
pub const FIRST_BYTES_MAX: u64 = 256 << 10;
/// Maximum number of bytes of a link that [`ALL_BYTES_MAX`] does not include: received frames that
/// are not counted yet, the outcome being written, and the excess of `FIRST_BYTES_MAX`.
pub const OUTSIDE_BYTES_MAX: u64 =
    (RECEIVED_BYTES_MAX + WRITTEN_BYTES_MAX + OUTCOME_BYTES_MAX) as u64 + FIRST_BYTES_MAX;
/// Bytes that each operation takes; includes a `stats` outcome.
const OPERATION_BYTES: u64 = 4096;
/// Bytes of an item's outcome: as it is kept, with the text of an error, and while it is encoded.
const OUTCOME_BYTES: usize = 3 * OutcomeItem::BYTES + 160;

/// Memory used by a link.
pub(crate) struct LinkLoad {
    /// Bytes of all links of the client.
    client: Arc<AtomicU64>,
    ops: FxHashMap<OpId, u64>,
    /// Sum of `ops`, and of cancelled operations that still run.
    in_progress: u64,
    /// Bytes of outcomes that the link has not written.
    unsent: u64,
}

impl LinkLoad {
    /// A link of the client with this counter, without operations.
    pub fn new(client: Arc<AtomicU64>) -> LinkLoad {
        LinkLoad { client, ops: FxHashMap::default(), in_progress: 0, unsent: 0 }
    }

    /// Whether this operation number is in use: its outcome has not left.
    pub fn contains(&self, id: OpId) -> bool {
        self.ops.contains_key(&id)
    }

    /// Counts an operation of `bytes` bytes, or returns `Busy` if it does not fit.
    pub fn begin(&mut self, all: &LoadTotals, id: OpId, bytes: u64) -> Result<()> {
        let used = self.in_progress + self.unsent;
        let is_first = used == 0 && bytes <= FIRST_BYTES_MAX;
        if used + bytes > LINK_BYTES_MAX || !all.begin(&self.client, bytes, is_first) {
            let detail = format!(
                "operations in progress use too much memory: read outcomes, or request less bytes={bytes} \
                 link={used} link_max={LINK_BYTES_MAX} client_max={CLIENT_BYTES_MAX} all_max={ALL_BYTES_MAX}"
            );
            return Err(Error::busy(detail));
        }
        self.in_progress += bytes;
        self.ops.insert(id, bytes);
        Ok(())
    }

    /// A cancelled operation still runs: returns its bytes, which stay counted.
    pub fn detach_cancelled(&mut self, id: OpId) -> u64 {
        // Its number stays in use until its outcome has left.
        self.ops.get_mut(&id).map(std::mem::take).unwrap_or(0)
    }

    /// A cancelled operation has ended.
    pub fn release_cancelled(&mut self, all: &LoadTotals, bytes: u64) {
        if bytes > 0 {
            self.in_progress -= bytes;
            all.change(&self.client, bytes, 0);
        }
    }

    /// The link took the outcome of `id`; `unsent` bytes of outcomes are not written yet.
    pub fn record_sent(&mut self, all: &LoadTotals, id: Option<OpId>, unsent: u64) {
        let bytes = id.and_then(|id| self.ops.remove(&id)).unwrap_or(0);
        let before = bytes + self.unsent;
        // Each poll of each link calls this, and the counter is shared by the whole store.
        if bytes == 0 && unsent == before {
            return;
        }
        self.in_progress -= bytes;
        self.unsent = unsent;
        all.change(&self.client, before, unsent);
    }

    /// The link is closed.
    pub fn release_all(&mut self, all: &LoadTotals) {
        all.change(&self.client, self.in_progress + self.unsent, 0);
        self.ops.clear();
        (self.in_progress, self.unsent) = (0, 0);
    }
}

/// The maximum memory that a request with a body of `bytes` bytes takes, including its outcome.
pub(crate) fn cost(body: &RequestBody<'_>, bytes: usize) -> u64 {
    const KEY: usize = 3 * ObjectKey::BYTES;
    let items = match body {
        RequestBody::Get(items) => {
            let blocks = |s: std::ops::Range<u64>| {
                s.end.div_ceil(BLOCK_BYTES.into()) - s.start / u64::from(BLOCK_BYTES)
            };
            // Stored with the object, sent, and in the outcome.
            let sums: u64 = items.iter().map(|item| 3 * 16 * blocks(item.byte_range())).sum();
            sums + (items.len() * (REQUESTED_OBJECT_BYTES + OUTCOME_BYTES)) as u64
        }
        // The checksums are part of the body.
        RequestBody::Put(puts) => {
            (bytes + puts.items().len() * (INCOMING_BYTES + OUTCOME_BYTES)) as u64
        }
        RequestBody::Exists(keys)
        | RequestBody::ExistsPrefix(keys)
        | RequestBody::Remove(keys)
        | RequestBody::Prefetch(keys) => (keys.len() * KEY) as u64,
        RequestBody::Pin(_, keys)
        | RequestBody::Lease(_, keys)
        | RequestBody::Begin(_, keys)
        | RequestBody::Hint(_, keys) => (keys.len() * KEY) as u64,
        RequestBody::View(_, keys) => (keys.len() * (KEY + 3 * ViewItem::BYTES)) as u64,
        RequestBody::Events(_) => (event_log::PIECE * (KEY + 3 * EventItem::BYTES)) as u64,
        RequestBody::Clear(_)
        | RequestBody::Flush
        | RequestBody::Stats
        | RequestBody::Ping
        | RequestBody::Unpin(_)
        | RequestBody::Used(..) => 0,
        RequestBody::Commit(_)
        | RequestBody::Abort(_)
        | RequestBody::Missing(_)
        | RequestBody::Hold(_)
        | RequestBody::Release(_) => 0,
    };
    OPERATION_BYTES + bytes as u64 + items
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn link_that_reads_nothing_uses_only_its_share() {
        let all = LoadTotals::default();
        // Each link is a client of its own.
        let of = |n: usize| LinkLoad::new(all.client(&n.to_string().into()));
        let mut links: Vec<LinkLoad> = (0..6).map(of).collect();
        let mut begin =
            |link: usize, id: u64, bytes: u64| links[link].begin(&all, OpId(id), bytes).is_ok();
        const MIB: u64 = 1 << 20;
        assert!((1..=32).all(|id| begin(0, id, MIB)) && !begin(0, 33, 1));
        // Four links use the total; a link without operations may begin one small operation.
        assert!((1..4).all(|link| (1..=32).all(|id| begin(link, id, MIB))));
        assert!(
            !begin(4, 1, FIRST_BYTES_MAX + 1) && begin(4, 2, FIRST_BYTES_MAX) && !begin(4, 3, 1)
        );
        assert_eq!(all.bytes(), ALL_BYTES_MAX + FIRST_BYTES_MAX);
        // An outcome counts its own length until it has left.
        links[0].record_sent(&all, Some(OpId(1)), MIB / 4);
        assert!(links[0].begin(&all, OpId(34), MIB).is_err(), "other links use the rest");
        links[0].record_sent(&all, None, 0);
        links[4].release_all(&all);
        assert!(links[0].begin(&all, OpId(34), MIB).is_ok());
        // A cancelled operation counts until it has ended.
        let bytes = links[1].detach_cancelled(OpId(1));
        links[1].record_sent(&all, Some(OpId(1)), 0);
        assert_eq!((bytes, all.bytes()), (MIB, ALL_BYTES_MAX));
        links[1].release_cancelled(&all, bytes);
        links.iter_mut().for_each(|link| link.release_all(&all));
        assert_eq!(all.bytes(), 0);
    }

    #[test]
    fn client_with_many_links_uses_at_most_half() {
        let all = LoadTotals::default();
        let [a, b] = ["a", "b"].map(|name| all.client(&name.into()));
        let mut of_a: Vec<LinkLoad> = (0..6).map(|_| LinkLoad::new(a.clone())).collect();
        let mut of_b = LinkLoad::new(b);
        const MIB: u64 = 1 << 20;
        let mut begin =
            |link: usize, id: u64, bytes: u64| of_a[link].begin(&all, OpId(id), bytes).is_ok();
        assert!((0..2).all(|link| (1..=32).all(|id| begin(link, id, MIB))));
        assert!(!begin(2, 1, FIRST_BYTES_MAX + 1), "the bound of the client holds");
        assert!(
            begin(2, 2, FIRST_BYTES_MAX) && !begin(2, 3, 1),
            "each link begins one small operation"
        );
        assert!(
            (1..=32).all(|id| of_b.begin(&all, OpId(id), MIB).is_ok()),
            "the other client is not affected"
        );
        // The client's counter returns to zero with its last link.
        of_a.iter_mut().chain([&mut of_b]).for_each(|link| link.release_all(&all));
        assert_eq!((all.bytes(), a.load(Relaxed)), (0, 0));
    }
}
