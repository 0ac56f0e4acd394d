//! The open segment: lays out records and coalesces them into large writes.

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::fault::IoFault;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{Generation, GroupId, NamespaceId, SegmentId, SegmentOrder, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, GroupKind, MemberSpec, RecordFacts, RecordKind};
use pagelith_layouts::segment::{self, SegmentIdentity};

/// A record to append.
#[derive(Debug)]
pub struct NewRecord {
    /// Identifier chosen by the submitter.
    pub id: u64,
    /// Data or tombstones.
    pub kind: RecordKind,
    /// Kind of group that the members form.
    pub group_kind: GroupKind,
    /// Namespace of all members.
    pub namespace: NamespaceId,
    /// Generation of the namespace when they were put.
    pub generation: Generation,
    /// Sequence of the put or remove.
    pub sequence: Sequence,
    /// Identifier of the group: the sequence of its put or remove.
    pub group: GroupId,
    /// The name of the base group of attached members, which is a hash; else zero.
    pub base_group: GroupId,
    /// Chain depth.
    pub depth: u32,
    /// Whether reclaim reinserts it.
    pub reinserted: bool,
    /// Key, length and block checksums of each member.
    pub members: Vec<RecordMember>,
    /// The payload: each member's bytes padded with zeros to a multiple of 4096, in order, in any
    /// number of parts.
    pub payload: Vec<Part>,
}

/// One object of a record.
#[derive(Debug)]
pub struct RecordMember {
    /// Whole key.
    pub key: ObjectKey,
    /// Length in bytes.
    pub length: u64,
    /// Checksum of each block.
    pub checksums: Checksums,
}

impl NewRecord {
    /// Length of the record in bytes.
    pub fn record_bytes(&self) -> u64 {
        let blocks = self.members.iter().map(|m| m.checksums.len() as u64).sum();
        let payload: u64 = self.payload.iter().map(|p| p.len() as u64).sum();
        record::header_bytes(self.members.len() as u64, blocks) + payload
    }
}

/// Location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    /// Store, segment and incarnation.
    pub identity: SegmentIdentity,
    /// Byte offset of its header in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A coalesced write that is not submitted yet; contiguous in the segment.
#[derive(Debug)]
pub struct CoalescedWrite {
    /// Byte offset in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Headers and payloads, in order.
    pub parts: Vec<Part>,
    /// The records in it: the submitter's identifier, and the location of each.
    pub records: Vec<(u64, RecordLocation)>,
}

/// State of a segment's header, which is part of the segment's first write.
#[derive(Debug)]
pub enum HeaderWrite {
    /// Not written yet. Writes of these records have completed, but recovery does not find records
    /// of a segment without a header.
    Awaited(Vec<(u64, RecordLocation)>),
    /// Written.
    Written,
    /// The write failed: recovery takes the segment for unused, and all of its records are lost.
    Failed(IoFault),
}

/// The segment that records are appended to.
#[derive(Debug)]
pub struct OpenSegment {
    /// Store, segment and incarnation.
    pub identity: SegmentIdentity,
    /// Position of the segment in the log.
    pub order: SegmentOrder,
    segment_bytes: u64,
    next_offset: u64,
    entries: Vec<FooterEntry>,
    min_sequence: u64,
    max_sequence: u64,
    coalesced: CoalescedWrite,
    /// State of its header.
    pub header: HeaderWrite,
    /// Number of writes in flight.
    pub writes: usize,
    /// A write failed: nothing more is appended.
    pub failed: bool,
    /// No footer is written, because the records that it would list may not be durable.
    pub skip_footer: bool,
}

impl OpenSegment {
    /// An empty segment. Its header is part of the first coalesced write.
    pub fn new(
        identity: SegmentIdentity,
        order: SegmentOrder,
        segment_bytes: u64,
    ) -> std::io::Result<OpenSegment> {
        let mut head = AlignedBuf::new(ALIGN as usize)?;
        head.copy_from_slice(&segment::encode_head(identity, order, segment_bytes));
        Ok(OpenSegment {
            identity,
            order,
            segment_bytes,
            next_offset: ALIGN,
            entries: Vec::new(),
            min_sequence: u64::MAX,
            max_sequence: 0,
            coalesced: CoalescedWrite {
                offset: 0,
                bytes: ALIGN,
                parts: vec![head.into_part()],
                records: Vec::new(),
            },
            header: HeaderWrite::Awaited(Vec::new()),
            writes: 0,
            failed: false,
            skip_footer: false,
        })
    }

    /// Whether a record of `record_bytes` with `members` members fits, together with the footer.
    pub fn fits(&self, record_bytes: u64, members: usize) -> bool {
        let footer = footer::footer_bytes((self.entries.len() + members) as u64);
        !self.failed && self.next_offset + record_bytes + footer <= self.segment_bytes
    }

    /// Whether any record was appended.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The segment's number.
    pub fn segment(&self) -> SegmentId {
        self.identity.segment
    }

    /// Append a record; the caller has checked that it fits. Returns the record's location and its
    /// header without padding. Returns the record if its header cannot be encoded, which happens
    /// only if the record breaks a rule of the format.
    pub fn append(
        &mut self,
        record: NewRecord,
        spare: Option<AlignedBuf>,
    ) -> Result<(RecordLocation, Vec<u8>), NewRecord> {
        let facts = RecordFacts {
            identity: self.identity,
            offset: self.next_offset,
            kind: record.kind,
            group_kind: record.group_kind,
            namespace: record.namespace,
            generation: record.generation,
            sequence: record.sequence,
            group: record.group,
            base_group: record.base_group,
            block_bytes: BLOCK_BYTES,
            depth: record.depth,
            reinserted: record.reinserted,
        };
        let specs: Vec<_> = record
            .members
            .iter()
            .map(|m| MemberSpec { key: m.key, length: m.length, checksums: &m.checksums })
            .collect();
        let Some(bytes) = record::spec_bytes(&specs) else { return Err(record) };
        let spare = spare.filter(|b| b.len() == bytes);
        let Some(mut buf) = spare.or_else(|| AlignedBuf::new(bytes).ok()) else {
            return Err(record);
        };
        let Some(encoded) = record::encode_into(&facts, &specs, &mut buf) else {
            return Err(record);
        };
        let location = RecordLocation {
            identity: self.identity,
            offset: self.next_offset,
            bytes: encoded.record_bytes(),
        };
        self.entries.extend(footer::entries_of(&encoded));
        let header = encoded.trimmed().to_vec();
        // `min_sequence` decides whether older tombstones are still needed. Tombstones are never
        // shadowed, so they do not count.
        if record.kind == RecordKind::Data {
            self.min_sequence = self.min_sequence.min(record.sequence.0);
        }
        self.max_sequence = self.max_sequence.max(record.sequence.0);
        self.coalesced.parts.push(buf.into_part());
        self.coalesced.parts.extend(record.payload);
        self.coalesced.records.push((record.id, location));
        self.coalesced.bytes += location.bytes;
        self.next_offset += location.bytes;
        Ok((location, header))
    }

    /// Mark the segment as failed and remove these records, which were not written, from its
    /// footer. `min_sequence` does not change: a device that fails a write may have written the
    /// bytes anyway.
    pub fn drop_unwritten(&mut self, records: &[(u64, RecordLocation)]) {
        self.failed = true;
        let dropped = |e: &FooterEntry| {
            records.iter().any(|(_, p)| p.offset == u64::from(e.record_sector) * ALIGN)
        };
        self.entries.retain(|e| !dropped(e));
    }

    /// Whether a footer must be written once its records are durable.
    pub fn wants_footer(&self) -> bool {
        let headless = match &self.header {
            HeaderWrite::Failed(_) => true,
            HeaderWrite::Awaited(_) | HeaderWrite::Written => false,
        };
        !self.skip_footer && !headless && !self.entries.is_empty()
    }

    /// Number of bytes and parts coalesced and not yet taken.
    pub fn coalesced(&self) -> (u64, usize) {
        (self.coalesced.bytes, self.coalesced.parts.len())
    }

    /// Take the parts as one coalesced write. `None` if there is nothing but the header: an empty
    /// segment is never written.
    pub fn take(&mut self) -> Option<CoalescedWrite> {
        if self.coalesced.records.is_empty() {
            return None;
        }
        let next = CoalescedWrite {
            offset: self.next_offset,
            bytes: 0,
            parts: Vec::new(),
            records: Vec::new(),
        };
        self.writes += 1;
        Some(std::mem::replace(&mut self.coalesced, next))
    }

    /// The footer's bytes and their byte offset in the segment.
    pub fn footer(&self) -> (Vec<u8>, u64) {
        let bytes = footer::encode(&self.footer_facts(), &self.entries);
        let at = self.segment_bytes - bytes.len() as u64;
        (bytes, at)
    }

    /// The fields of the footer.
    pub fn footer_facts(&self) -> FooterFacts {
        FooterFacts {
            identity: self.identity,
            order: self.order,
            min_sequence: Sequence(self.min_sequence),
            max_sequence: Sequence(self.max_sequence),
            data_end: self.next_offset,
        }
    }
}
