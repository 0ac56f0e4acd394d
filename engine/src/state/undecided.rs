//! Reports on attached records that a sync has covered before their base. Each is in one report: as
//! durable, as refused or as lost. Those that were removed or cleared, or are written again, are in
//! none.

use pagelith_layouts::ids::NamespaceId;

use crate::api::outcome::FlushReport;
use crate::memory::departed::Departure;
use crate::memory::index::{Entry, SsdLocation, name_of};
use crate::memory::undecided::UndecidedRecord;
use crate::state::core::Core;
use crate::state::unsynced::{SyncedObjects, UnsyncedRecord};

impl Core {
    /// A sync has covered an attached record. Its objects that SSD still has wait for their base.
    pub fn await_base(&mut self, written: &UnsyncedRecord, synced: &SyncedObjects, base: u64) {
        self.end_unsynced(written);
        let (objects, bytes) = (synced.durable, synced.bytes);
        self.subtract_unsynced(
            (written.members.len() as u64).saturating_sub(objects),
            written.bytes.saturating_sub(bytes),
        );
        if let (Some(place), Some(ssd)) = (synced.place, self.ssd.as_mut()) {
            let namespace = written.namespace.map(|(namespace, _)| namespace);
            ssd.undecided.insert(place, UndecidedRecord { namespace, objects, bytes, base });
        }
    }

    /// This base is durable: end the records that wait for it as durable too. Those that are not
    /// read any more stay, until the purge of their segment decides.
    pub fn end_durable_of(&mut self, base: u64) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        let records = ssd.undecided.remove_of_base(base);
        for (place, record) in records {
            if self.is_offline(place) {
                self.ssd.iter_mut().for_each(|ssd| ssd.undecided.insert(place, record));
            } else {
                self.end_undecided(&record, &FlushReport::durable(record.objects, record.bytes));
            }
        }
    }

    /// End the records that wait for this base, with a report on each.
    pub fn end_undecided_of(&mut self, base: u64, report: impl Fn(u64) -> FlushReport) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        for (_, record) in ssd.undecided.remove_of_base(base) {
            self.end_undecided(&record, &report(record.objects));
        }
    }

    /// An object leaves its location on SSD, or the index.
    pub fn note_undecided(&mut self, entry: &Entry, departure: Departure) {
        let is_written_again = self.is_written_again(entry);
        let Some(ssd) = self.ssd.as_mut().filter(|ssd| ssd.undecided.needs_bases()) else { return };
        if !entry.attached {
            ssd.undecided.base_left(name_of(entry.fingerprint), departure);
            return;
        }
        let place = entry.ssd.map(|at| at.record());
        let Some(record) = place.and_then(|at| ssd.undecided.remove(at)) else { return };
        let report = match departure {
            Departure::Removed => FlushReport::default(),
            Departure::Damaged | Departure::Lost if is_written_again => FlushReport::default(),
            Departure::Damaged | Departure::Lost => FlushReport::lost(record.objects),
            Departure::EvictedMemory
            | Departure::EvictedSsd
            | Departure::Refused
            | Departure::NotTaken
            | Departure::Incomplete => FlushReport::refused(record.objects),
        };
        self.end_undecided(&record, &report);
    }

    /// An object has another location on SSD.
    pub fn move_undecided(&mut self, entry: &Entry, to: SsdLocation) {
        let Some(ssd) = self.ssd.as_mut().filter(|_| entry.attached) else { return };
        let from = entry.ssd.map(|at| at.record());
        // The first member of a group takes the others along.
        if let Some(record) = from.and_then(|from| ssd.undecided.remove(from)) {
            ssd.undecided.insert(to.record(), record);
        }
    }

    /// A namespace was cleared.
    pub fn clear_undecided(&mut self, namespace: NamespaceId) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        for record in ssd.undecided.remove_of_namespace(namespace) {
            self.end_undecided(&record, &FlushReport::default());
        }
    }

    fn end_undecided(&mut self, record: &UndecidedRecord, report: &FlushReport) {
        self.subtract_unsynced(record.objects, record.bytes);
        record.namespace.iter().for_each(|namespace| self.flushes.add(*namespace, report));
    }
}
