//! The SSD tier's part of the core.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::{SegmentPolicy, TickClock};
use pagelith_tiers::ssd::guards::SegmentGuards;
use pagelith_tiers::ssd::segments::SegmentTable;

use crate::memory::undecided::UndecidedRecords;
use crate::state::damage::Damage;
use crate::state::health::Health;
use crate::state::jobs::JobQueue;
use crate::state::replaced_objects::ReplacedObjects;
use crate::state::tick_history::TickHistory;
use crate::state::written_namespaces::WrittenNamespaces;

pub(crate) struct SsdCore {
    pub segments: SegmentTable,
    /// Counts of readers that entered segments without the lock.
    pub guards: Arc<SegmentGuards>,
    pub policy: Box<dyn SegmentPolicy>,
    pub queue: JobQueue,
    pub health: Health,
    /// Number and bytes of objects that were written and are not durable yet.
    pub unsynced: (u64, u64),
    /// Attached objects among them that wait for their base only.
    pub undecided: UndecidedRecords,
    pub ticks: TickClock,
    /// Ticks at earlier times, for limits of namespaces.
    pub tick_history: TickHistory,
    /// While a checkpoint copies the index: records (segment, sector) of entries that were removed
    /// or reinserted meanwhile.
    pub withdrawn_records: Option<HashSet<(u32, u16)>>,
    /// Namespaces of which objects were written.
    pub written: WrittenNamespaces,
    /// Segments whose entries must be removed from the index; `None` stands for all segments. The
    /// first one stays until all its entries are removed.
    pub purges: VecDeque<Option<SegmentId>>,
    pub replaced: ReplacedObjects,
    /// Damaged locations that recovery after a crash must not use again.
    pub damage: Damage,
}
