//! One segment as it lies on disk: what manifest, head and footer say of it, and its records.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts, FooterTail};
use pagelith_layouts::format::Structure;
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder, StoreId};
use pagelith_layouts::manifest::{Manifest, Superblock};
use pagelith_layouts::record::RecordHead;
use pagelith_layouts::scan::{self, Found};
use pagelith_layouts::segment::{self, SegmentHead, SegmentIdentity};

use super::OnDisk;

/// What the last block of a segment says. It never holds anything but a footer.
pub(crate) enum Footer {
    /// No footer was ever written there.
    None,
    /// The footer of this incarnation.
    Sealed {
        /// Its facts.
        facts: FooterFacts,
        /// Its entries.
        entries: Vec<FooterEntry>,
    },
    /// A whole footer of an older incarnation: this one is not sealed.
    Older,
    /// Something else. An older incarnation's footer may be so if records of this one lie over its start.
    Broken {
        /// Why it was refused.
        error: FormatError,
        /// Byte offset in the segment where it would begin.
        from: u64,
        /// The incarnation that it names.
        incarnation: Incarnation,
        /// Where it says that the last record ends.
        data_end: u64,
    },
}

/// What its head says of a segment.
pub(crate) enum Head {
    /// It is the one that the manifest knows.
    Current,
    /// It is an older incarnation's, or nothing: nothing of this incarnation was written.
    Older,
    /// It is none, or contradicts the manifest.
    Broken(FormatError),
}

/// A segment that was used at least once.
pub(crate) struct Segment {
    /// Who it is, as the manifest says.
    pub(crate) identity: SegmentIdentity,
    /// When it was opened, as the manifest says.
    pub(crate) order: SegmentOrder,
    /// Its head.
    pub(crate) head: Head,
    /// Its footer.
    pub(crate) footer: Footer,
    superblock: Superblock,
}

impl Segment {
    /// Read head and footer of a segment; `None` if it was never used.
    pub(crate) fn load(disk: &OnDisk, manifest: &Manifest, id: SegmentId) -> anyhow::Result<Option<Segment>> {
        let Some((incarnation, order)) = manifest.segment(id).filter(|(i, _)| i.0 > 0) else {
            return Ok(None);
        };
        let identity = SegmentIdentity { store: manifest.store(), segment: id, incarnation };
        let superblock = *manifest.superblock();
        let mut segment = Segment { identity, order, head: Head::Older, footer: Footer::None, superblock };
        segment.head = segment.read_head(disk)?;
        segment.footer = segment.read_footer(disk)?;
        Ok(Some(segment))
    }

    fn read_head(&self, disk: &OnDisk) -> anyhow::Result<Head> {
        let mut block = vec![0; ALIGN as usize];
        disk.read_segment(self.identity.segment, &self.superblock, 0, &mut block)?;
        let differs = |field, found: u64, expected: u64| {
            let (found, expected) = (found.to_string(), expected.to_string());
            Head::Broken(FormatError::Identity { structure: "segment header", field, found, expected })
        };
        let current = self.identity.incarnation;
        Ok(match segment::decode_head(&block, self.identity.store, self.identity.segment) {
            Err(FormatError::Empty { .. }) => Head::Older,
            Err(error) => Head::Broken(error),
            Ok((found, _, _)) if found < current => Head::Older,
            Ok((found, _, _)) if found > current => differs("incarnation", found.0, current.0),
            Ok((_, order, _)) if order != self.order => differs("order", order.0, self.order.0),
            Ok((_, _, bytes)) if bytes != self.superblock.segment_bytes => {
                differs("segment_bytes", bytes, self.superblock.segment_bytes)
            }
            Ok(_) => Head::Current,
        })
    }

    fn read_footer(&self, disk: &OnDisk) -> anyhow::Result<Footer> {
        let segment_bytes = self.superblock.segment_bytes;
        let mut bytes = vec![0; ALIGN as usize];
        disk.read_segment(self.identity.segment, &self.superblock, segment_bytes - ALIGN, &mut bytes)?;
        let tail = &bytes[bytes.len() - FooterTail::BYTES..];
        if tail.iter().all(|b| *b == 0) {
            return Ok(Footer::None);
        }
        let field = |name| field_u64(&FooterTail::STRUCTURE, name, tail);
        let (incarnation, data_end) = (Incarnation(field("incarnation")), field("data_end"));
        let claimed = footer::claimed_bytes(&bytes, segment_bytes).unwrap_or(ALIGN);
        let from = segment_bytes - claimed;
        bytes.resize(claimed as usize, 0);
        disk.read_segment(self.identity.segment, &self.superblock, from, &mut bytes)?;
        Ok(match footer::decode(&bytes, self.identity, segment_bytes) {
            Ok((facts, entries)) => Footer::Sealed { facts, entries },
            Err(_) if incarnation < self.identity.incarnation && self.is_footer_of(incarnation, &bytes) => {
                Footer::Older
            }
            Err(error) => Footer::Broken { error, from, incarnation, data_end },
        })
    }

    fn is_footer_of(&self, incarnation: Incarnation, bytes: &[u8]) -> bool {
        let identity = SegmentIdentity { incarnation, ..self.identity };
        footer::decode(bytes, identity, self.superblock.segment_bytes).is_ok()
    }

    /// Whether its head is what it should be.
    pub(crate) fn head_is_current(&self) -> bool {
        matches!(self.head, Head::Current)
    }

    /// Whether its head makes a store that is opened pass the segment over: a whole one of another incarnation, or
    /// none.
    pub(crate) fn head_hides(&self) -> bool {
        matches!(&self.head, Head::Older | Head::Broken(FormatError::Identity { field: "incarnation", .. }))
    }

    /// Walk the segment's records, verifying headers and payloads.
    pub(crate) fn scan(&self, disk: &OnDisk, found: &mut dyn FnMut(Found<'_>)) -> anyhow::Result<()> {
        let end = match &self.footer {
            Footer::Sealed { entries, .. } => {
                self.superblock.segment_bytes - footer::footer_bytes(entries.len() as u64)
            }
            _ => self.superblock.segment_bytes,
        };
        let mut scratch = vec![0; scan::SCRATCH_BYTES];
        let mut read = |offset: u64, buf: &mut [u8]| {
            disk.read_segment(self.identity.segment, &self.superblock, offset, buf)
        };
        scan::scan(self.identity, end, &mut scratch, &mut read, found)
    }
}

/// The head of a segment that says itself which one it is: whole, of whatever store and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawHead {
    /// Store.
    pub(crate) store: StoreId,
    /// Segment.
    pub(crate) segment: SegmentId,
    /// Incarnation.
    pub(crate) incarnation: Incarnation,
    /// Its place in the log.
    pub(crate) order: SegmentOrder,
    /// Length of a segment in bytes.
    pub(crate) segment_bytes: u64,
}

impl RawHead {
    /// Read a block as a head.
    pub(crate) fn read(block: &[u8]) -> Option<RawHead> {
        let at = |name| SegmentHead::STRUCTURE.fields.iter().find(|f| f.name == name).map(|f| f.offset);
        let store = StoreId(*block.get(at("store")?..)?.first_chunk()?);
        let segment = SegmentId(u32::from_le_bytes(*block.get(at("segment")?..)?.first_chunk()?));
        let (incarnation, order, segment_bytes) = segment::decode_head(block, store, segment).ok()?;
        Some(RawHead { store, segment, incarnation, order, segment_bytes })
    }
}

/// The incarnation that a footer names, whole or not.
pub(crate) fn claimed_incarnation(footer: &[u8]) -> Incarnation {
    let tail = footer.len().checked_sub(FooterTail::BYTES).map_or(&[][..], |at| &footer[at..]);
    Incarnation(field_u64(&FooterTail::STRUCTURE, "incarnation", tail))
}

/// Whether a ruin that a scan of a segment found is one of its present life.
pub(crate) fn is_ruin_of(
    disk: &OnDisk,
    superblock: &Superblock,
    segment: &Segment,
    offset: u64,
    error: &FormatError,
) -> bool {
    if let FormatError::Identity { .. } = error {
        // Whole, and says itself that it is another's.
        return false;
    }
    let mut block = vec![0; ALIGN as usize];
    let id = segment.identity;
    let read = disk.read_segment(id.segment, superblock, offset, &mut block);
    read.is_ok() && field_u64(&RecordHead::STRUCTURE, "incarnation", &block) == id.incarnation.0
}

/// A field of a structure that may be damaged, as it stands there; 0 if the bytes end before it. For judging
/// what a ruin once was, never for anything that has to be right.
pub(crate) fn field_u64(structure: &Structure, name: &str, bytes: &[u8]) -> u64 {
    let field = structure.fields.iter().find(|f| f.name == name && f.size == 8);
    let raw = field.and_then(|f| bytes.get(f.offset..f.offset + 8)?.try_into().ok());
    raw.map_or(0, u64::from_le_bytes)
}
