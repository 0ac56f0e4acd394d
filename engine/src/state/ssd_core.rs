//! The SSD tier's part of the core.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::SegmentPolicy;
use pagelith_tiers::ssd::guards::SegmentGuards;
use pagelith_tiers::ssd::segments::SegmentTable;

use crate::state::damage::Damage;
use crate::state::health::Health;
use crate::state::jobs::JobQueue;
use crate::state::written_namespaces::WrittenNamespaces;

/// Recency ticks per lap of the log. The tick counter of the index wraps after 2^20 ticks, 256
/// laps.
const TICKS_PER_LAP: u64 = 4096;

pub(crate) struct SsdCore {
    pub segments: SegmentTable,
    /// Guards with which gets pin segments without the lock.
    pub guards: Arc<SegmentGuards>,
    pub policy: Box<dyn SegmentPolicy>,
    pub queue: JobQueue,
    pub health: Health,
    /// Number and bytes of objects that were written but not yet synced.
    pub unsynced: (u64, u64),
    pub ticks: TickClock,
    /// While a checkpoint copies the index: records (segment, sector) of entries that were removed
    /// or moved meanwhile.
    pub withdrawn_records: Option<HashSet<(u32, u16)>>,
    /// Namespaces of which objects were written.
    pub written: WrittenNamespaces,
    /// Segments whose entries must be removed from the index; `None` stands for all segments. The
    /// first one stays until all its entries are removed.
    pub purges: VecDeque<Option<SegmentId>>,
    /// Damaged locations that recovery after a crash must not use again.
    pub damage: Damage,
}

/// The clock of recency: it advances with the bytes appended to the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickClock {
    first: u64,
    /// Appended bytes per tick.
    tick_bytes: u64,
    /// Bytes appended since the store was opened.
    appended_bytes: u64,
}

impl TickClock {
    /// A clock that starts at tick `first`, for a log of `capacity` bytes.
    pub fn new(first: u64, capacity: u64) -> TickClock {
        let tick_bytes = (capacity / TICKS_PER_LAP).max(1);
        TickClock { first, tick_bytes, appended_bytes: 0 }
    }

    pub fn append(&mut self, bytes: u64) {
        self.appended_bytes += bytes;
    }

    /// The current tick.
    pub fn now(&self) -> u64 {
        self.first + self.appended_bytes / self.tick_bytes
    }
}
