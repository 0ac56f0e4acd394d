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

use pagelith_io::sync::AtomicU64;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::outcome::{EventItem, OutcomeItem, ViewItem};
use pagelith_layouts::wire::request::Ask;
use rustc_hash::FxHashMap;
use std::sync::atomic::Ordering::Relaxed;

use super::get::WANTED_BYTES;
use super::put::OFFERED_BYTES;
use crate::error::{Error, Result};
use crate::events;

/// Most bytes of all links of a store together.
pub const ALL_BYTES_MAX: u64 = 128 << 20;
/// Most bytes of a link.
pub const LINK_BYTES_MAX: u64 = 32 << 20;
/// So much a link may begin beside what others have, while it has nothing under way.
pub const FIRST_BYTES_MAX: u64 = 256 << 10;
/// Bytes that every operation takes, counters as an answer among them.
const OPERATION_BYTES: u64 = 4096;
/// Bytes that an item's outcome takes: as it is kept, with a text if it failed, and while it is written.
const OUTCOME_BYTES: usize = 3 * OutcomeItem::BYTES + 160;

/// Memory that a link has.
#[derive(Default)]
pub(super) struct Load {
    of: FxHashMap<OpId, u64>,
    /// The sum of it, and what was cancelled and goes on.
    under_way: u64,
    /// Outcomes that the link has not sent.
    unsent: u64,
}

impl Load {
    /// Whether an operation of this number is under way, or its outcome has not left.
    pub fn counts(&self, id: OpId) -> bool {
        self.of.contains_key(&id)
    }

    /// Count an operation of so many bytes in, or say that there is no room for it.
    pub fn begin(&mut self, all: &AtomicU64, id: OpId, bytes: u64) -> Result<()> {
        let own = self.under_way + self.unsent;
        let is_first = own == 0 && bytes <= FIRST_BYTES_MAX;
        let fits = |now: u64| (is_first || now + bytes <= ALL_BYTES_MAX).then_some(now + bytes);
        if own + bytes > LINK_BYTES_MAX || all.fetch_update(Relaxed, Relaxed, fits).is_err() {
            let max = LINK_BYTES_MAX;
            let detail = format!(
                "too much is asked for at once: read outcomes, or ask for less bytes={bytes} link={own} max={max}"
            );
            return Err(Error::busy(detail));
        }
        self.under_way += bytes;
        self.of.insert(id, bytes);
        Ok(())
    }

    /// An operation was answered, and goes on: what it takes.
    pub fn cancelled(&mut self, id: OpId) -> u64 {
        self.of.remove(&id).unwrap_or(0)
    }

    /// One that had been cancelled is over.
    pub fn over(&mut self, all: &AtomicU64, bytes: u64) {
        self.under_way -= bytes;
        all.fetch_sub(bytes, Relaxed);
    }

    /// The link has the outcome of an operation, and so many bytes of outcomes by now that it has not sent.
    pub fn answered(&mut self, all: &AtomicU64, id: Option<OpId>, unsent: u64) {
        let bytes = id.and_then(|id| self.of.remove(&id)).unwrap_or(0);
        let before = bytes + self.unsent;
        // Every turn of every link comes by here; the counter is the store's.
        if bytes == 0 && unsent == before {
            return;
        }
        self.under_way -= bytes;
        self.unsent = unsent;
        if unsent >= before {
            all.fetch_add(unsent - before, Relaxed);
        } else {
            all.fetch_sub(before - unsent, Relaxed);
        }
    }

    /// The link is gone.
    pub fn let_go(&mut self, all: &AtomicU64) {
        let Load { under_way, unsent, .. } = std::mem::take(self);
        all.fetch_sub(under_way + unsent, Relaxed);
    }
}

/// The most that a request of so many bytes can take, with its outcome.
pub(super) fn cost(ask: &Ask<'_>, body: usize) -> u64 {
    const KEY: usize = 3 * ObjectKey::BYTES;
    let items = match ask {
        Ask::Get(items) => {
            let blocks = |s: std::ops::Range<u64>| {
                s.end.div_ceil(BLOCK_BYTES.into()) - s.start / u64::from(BLOCK_BYTES)
            };
            // As the record has them, as they are sent, and in the outcome.
            let sums: u64 = items.iter().map(|item| 3 * 16 * blocks(item.stretch())).sum();
            sums + (items.len() * (WANTED_BYTES + OUTCOME_BYTES)) as u64
        }
        // Their checksums are in the body.
        Ask::Put(puts) => (body + puts.items().len() * (OFFERED_BYTES + OUTCOME_BYTES)) as u64,
        Ask::Exists(keys) | Ask::ExistsPrefix(keys) | Ask::Remove(keys) | Ask::Prefetch(keys) => {
            (keys.len() * KEY) as u64
        }
        Ask::Pin(_, keys) | Ask::Lease(_, keys) | Ask::Begin(_, keys) | Ask::Used(_, keys) => {
            (keys.len() * KEY) as u64
        }
        Ask::View(_, keys) => (keys.len() * (KEY + 3 * ViewItem::BYTES)) as u64,
        Ask::Events(_) => (events::PIECE * (KEY + 3 * EventItem::BYTES)) as u64,
        Ask::Clear(_) | Ask::Flush | Ask::Stats | Ask::Ping | Ask::Unpin(_) => 0,
        Ask::Commit(_) | Ask::Abort(_) | Ask::Missing(_) | Ask::Hold(_) | Ask::Release(_) => 0,
    };
    OPERATION_BYTES + body as u64 + items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_that_reads_nothing_has_its_share_and_others_have_theirs() {
        let all = AtomicU64::new(0);
        let mut links: Vec<Load> = (0..6).map(|_| Load::default()).collect();
        let mut begin = |link: usize, id: u64, bytes: u64| links[link].begin(&all, OpId(id), bytes).is_ok();
        const MIB: u64 = 1 << 20;
        assert!((1..=32).all(|id| begin(0, id, MIB)) && !begin(0, 33, 1));
        // Four of them have all there is; who has nothing under way begins something small, once.
        assert!((1..4).all(|link| (1..=32).all(|id| begin(link, id, MIB))));
        assert!(!begin(4, 1, FIRST_BYTES_MAX + 1) && begin(4, 2, FIRST_BYTES_MAX) && !begin(4, 3, 1));
        assert_eq!(all.load(Relaxed), ALL_BYTES_MAX + FIRST_BYTES_MAX);
        // An outcome that was made and not sent takes what it is; it is free when it has left.
        links[0].answered(&all, Some(OpId(1)), MIB / 4);
        assert!(links[0].begin(&all, OpId(34), MIB).is_err(), "others have the rest");
        links[0].answered(&all, None, 0);
        links[4].let_go(&all);
        assert!(links[0].begin(&all, OpId(34), MIB).is_ok());
        // An operation that was cancelled and goes on counts until it is over.
        let bytes = links[1].cancelled(OpId(1));
        links[1].answered(&all, Some(OpId(1)), 0);
        assert_eq!((bytes, all.load(Relaxed)), (MIB, ALL_BYTES_MAX));
        links[1].over(&all, bytes);
        links.iter_mut().for_each(|link| link.let_go(&all));
        assert_eq!(all.load(Relaxed), 0);
    }
}
