//! A survey of all intact headers in a segment, of any incarnation: the highest incarnation, and
//! the highest generation of each namespace.

use std::collections::BTreeMap;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer;
use pagelith_layouts::ids::{
    Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder, StoreId,
};
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;

use crate::on_disk::OnDisk;
use crate::on_disk::segment::RawHead;

/// Blocks read at once.
const BLOCKS: u64 = 256;

/// The result of a survey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// The highest incarnation in any header; 0 if there is none.
    pub(super) incarnation: Incarnation,
    /// The log position of that incarnation, if its head or footer is intact.
    pub(super) order: Option<SegmentOrder>,
    /// The highest generation of each namespace.
    pub(super) generations: BTreeMap<NamespaceId, Generation>,
    /// Objects in records of the highest incarnation.
    pub(super) objects: u64,
}

impl Survey {
    fn note_incarnation(&mut self, incarnation: Incarnation, order: Option<SegmentOrder>) {
        if incarnation > self.incarnation {
            (self.incarnation, self.order, self.objects) = (incarnation, None, 0);
        }
        if incarnation == self.incarnation {
            self.order = self.order.or(order);
        }
    }

    fn record(&mut self, record: &Record<'_>) {
        let facts = record.facts();
        self.note_incarnation(facts.identity.incarnation, None);
        let is_data = facts.kind == RecordKind::Data;
        if facts.identity.incarnation == self.incarnation && is_data {
            self.objects += record.member_count() as u64;
        }
        let known = self.generations.entry(facts.namespace).or_insert(Generation::FIRST);
        *known = (*known).max(facts.generation);
    }
}

/// Survey a whole segment. Unreadable parts are skipped.
pub(super) fn survey(
    disk: &OnDisk,
    superblock: &Superblock,
    store: StoreId,
    id: SegmentId,
) -> Survey {
    let mut found = Survey::default();
    let read =
        |offset: u64, buf: &mut [u8]| disk.read_segment_blocks(id, superblock, offset, buf).is_ok();
    let mut block = vec![0; ALIGN as usize];
    let head = read(0, &mut block).then(|| RawHead::read(&block)).flatten();
    if let Some(head) = head.filter(|h| (h.store, h.segment) == (store, id)) {
        found.note_incarnation(head.incarnation, Some(head.order));
    }
    let mut at = 0;
    let mut many = vec![0; (BLOCKS * ALIGN) as usize];
    while at < superblock.segment_bytes {
        let now = (superblock.segment_bytes - at).min(many.len() as u64);
        let many = &mut many[..now as usize];
        if read(at, many) {
            for (i, block) in many.chunks_exact(ALIGN as usize).enumerate() {
                let offset = at + i as u64 * ALIGN;
                let Some(claimed) = Record::claimed_header_bytes(block) else { continue };
                let mut header = vec![0; claimed as usize];
                if offset + claimed > superblock.segment_bytes || !read(offset, &mut header) {
                    continue;
                }
                let Ok(record) = Record::decode(&header) else { continue };
                let identity = record.facts().identity;
                if (identity.store, identity.segment, record.facts().offset) == (store, id, offset)
                {
                    found.record(&record);
                }
            }
        }
        at += now;
    }
    footer(disk, superblock, store, id, &mut found);
    found
}

fn footer(
    disk: &OnDisk,
    superblock: &Superblock,
    store: StoreId,
    id: SegmentId,
    found: &mut Survey,
) {
    let bytes = superblock.segment_bytes;
    let mut tail = vec![0; ALIGN as usize];
    if disk.read_segment(id, superblock, bytes - ALIGN, &mut tail).is_err() {
        return;
    }
    let Some(claimed) = footer::claimed_bytes(&tail, bytes) else { return };
    let mut whole = vec![0; claimed as usize];
    if disk.read_segment(id, superblock, bytes - claimed, &mut whole).is_err() {
        return;
    }
    let incarnation = crate::on_disk::segment::claimed_incarnation(&whole);
    let identity = SegmentIdentity { store, segment: id, incarnation };
    let Ok((facts, entries)) = footer::decode(&whole, identity, bytes) else { return };
    found.note_incarnation(incarnation, Some(facts.order));
    for e in entries {
        let known = found.generations.entry(e.key.namespace()).or_insert(Generation::FIRST);
        *known = (*known).max(Generation(e.generation));
    }
}
