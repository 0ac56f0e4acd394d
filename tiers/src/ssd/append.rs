//! Laying records out in the open segment and gathering them into large writes.

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::fault::IoFault;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{Generation, GroupId, NamespaceId, SegmentId, SegmentOrder, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, GroupKind, MemberSpec, RecordFacts, RecordKind};
use pagelith_layouts::segment::{self, SegmentIdentity};

/// A record to be appended.
#[derive(Debug)]
pub struct Unit {
    /// What the submitter calls it.
    pub id: u64,
    /// Data or tombstones.
    pub kind: RecordKind,
    /// How the members belong together.
    pub group_kind: GroupKind,
    /// Namespace of all members.
    pub namespace: NamespaceId,
    /// Its generation when they were put.
    pub generation: Generation,
    /// When they were put or removed.
    pub sequence: Sequence,
    /// Group name.
    pub group: GroupId,
    /// Base group of attached members.
    pub base_group: GroupId,
    /// Chain depth.
    pub depth: u32,
    /// Re-appended by reclaim.
    pub moved: bool,
    /// Key, length and block checksums of each member.
    pub members: Vec<UnitMember>,
    /// The payload: each member's bytes padded with zeros to a multiple of 4096, in order; in as many parts
    /// as it takes.
    pub payload: Vec<Part>,
}

/// One object of a unit.
#[derive(Debug)]
pub struct UnitMember {
    /// Whole key.
    pub key: ObjectKey,
    /// Length in bytes.
    pub length: u64,
    /// Checksum of each block.
    pub checksums: Checksums,
}

impl Unit {
    /// Length of its record in bytes.
    pub fn record_bytes(&self) -> u64 {
        let blocks = self.members.iter().map(|m| m.checksums.len() as u64).sum();
        let payload: u64 = self.payload.iter().map(|p| p.len() as u64).sum();
        record::header_bytes(self.members.len() as u64, blocks) + payload
    }
}

/// Where a record came to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Which segment, in which life.
    pub identity: SegmentIdentity,
    /// Byte offset of its header in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A write being gathered: contiguous in the segment.
#[derive(Debug)]
pub struct Gather {
    /// Byte offset in the segment.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Headers and payloads in order.
    pub parts: Vec<Part>,
    /// The records inside: the submitter's name, and where each lies.
    pub units: Vec<(u64, RecordPlace)>,
}

/// What became of a segment's head, which goes out with its first write.
#[derive(Debug)]
pub enum Head {
    /// Not known yet; these records behind it are written. Without the head nobody would look for them.
    Awaited(Vec<(u64, RecordPlace)>),
    /// It is there.
    Written,
    /// It could not be written: recovery takes the segment for unused, and everything in it is lost.
    Failed(IoFault),
}

/// The segment that records are appended to.
#[derive(Debug)]
pub struct OpenSegment {
    /// Which segment, in which life.
    pub identity: SegmentIdentity,
    /// Its place in the log.
    pub order: SegmentOrder,
    segment_bytes: u64,
    next_offset: u64,
    entries: Vec<FooterEntry>,
    min_sequence: u64,
    max_sequence: u64,
    gather: Gather,
    /// Its head.
    pub head: Head,
    /// Writes under way.
    pub writes: usize,
    /// A write failed: nothing more is appended.
    pub failed: bool,
    /// No footer is to be written: what it would vouch for is not known to be durable.
    pub footerless: bool,
}

impl OpenSegment {
    /// An empty segment whose head is the first thing to be written.
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
            gather: Gather { offset: 0, bytes: ALIGN, parts: vec![head.into_part()], units: Vec::new() },
            head: Head::Awaited(Vec::new()),
            writes: 0,
            failed: false,
            footerless: false,
        })
    }

    /// Whether a record of this length with so many members fits beside the footer.
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

    /// Lay a unit out; the caller has checked that it fits. Hands it back if its header cannot be made,
    /// which only a unit that breaks the format's rules can cause. The header is returned too, without its padding.
    pub fn append(&mut self, unit: Unit, spare: Option<AlignedBuf>) -> Result<(RecordPlace, Vec<u8>), Unit> {
        let facts = RecordFacts {
            identity: self.identity,
            offset: self.next_offset,
            kind: unit.kind,
            group_kind: unit.group_kind,
            namespace: unit.namespace,
            generation: unit.generation,
            sequence: unit.sequence,
            group: unit.group,
            base_group: unit.base_group,
            block_bytes: BLOCK_BYTES,
            depth: unit.depth,
            moved: unit.moved,
        };
        let specs: Vec<_> = unit
            .members
            .iter()
            .map(|m| MemberSpec { key: m.key, length: m.length, checksums: &m.checksums })
            .collect();
        let Some(bytes) = record::spec_bytes(&specs) else { return Err(unit) };
        let spare = spare.filter(|b| b.len() == bytes);
        let Some(mut buf) = spare.or_else(|| AlignedBuf::new(bytes).ok()) else { return Err(unit) };
        let Some(record) = record::encode_into(&facts, &specs, &mut buf) else { return Err(unit) };
        let place =
            RecordPlace { identity: self.identity, offset: self.next_offset, bytes: record.record_bytes() };
        self.entries.extend(footer::entries_of(&record));
        let header = record.trimmed().to_vec();
        // Tombstones shadow and are not shadowed: they do not keep other tombstones alive.
        if unit.kind == RecordKind::Data {
            self.min_sequence = self.min_sequence.min(unit.sequence.0);
        }
        self.max_sequence = self.max_sequence.max(unit.sequence.0);
        self.gather.parts.push(buf.into_part());
        self.gather.parts.extend(unit.payload);
        self.gather.units.push((unit.id, place));
        self.gather.bytes += place.bytes;
        self.next_offset += place.bytes;
        Ok((place, header))
    }

    /// These records were not written: nothing more is appended, and the footer will not name them. The smallest
    /// sequence stays as it is: a device that fails a write may have written it all the same.
    pub fn lost(&mut self, units: &[(u64, RecordPlace)]) {
        self.failed = true;
        let of = |e: &FooterEntry| units.iter().any(|(_, p)| p.offset == u64::from(e.record_block) * ALIGN);
        self.entries.retain(|e| !of(e));
    }

    /// Whether a footer is to be written once everything in it is durable.
    pub fn wants_footer(&self) -> bool {
        let headless = match &self.head {
            Head::Failed(_) => true,
            Head::Awaited(_) | Head::Written => false,
        };
        !self.footerless && !headless && !self.entries.is_empty()
    }

    /// Bytes and parts gathered and not yet taken.
    pub fn gathered(&self) -> (u64, usize) {
        (self.gather.bytes, self.gather.parts.len())
    }

    /// Take what was gathered as one write. `None` if there is nothing but the head: an empty segment is not
    /// written at all.
    pub fn take(&mut self) -> Option<Gather> {
        if self.gather.units.is_empty() {
            return None;
        }
        let next = Gather { offset: self.next_offset, bytes: 0, parts: Vec::new(), units: Vec::new() };
        self.writes += 1;
        Some(std::mem::replace(&mut self.gather, next))
    }

    /// The footer's bytes and their byte offset in the segment.
    pub fn footer(&self) -> (Vec<u8>, u64) {
        let bytes = footer::encode(&self.footer_facts(), &self.entries);
        let at = self.segment_bytes - bytes.len() as u64;
        (bytes, at)
    }

    /// What the footer says.
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
