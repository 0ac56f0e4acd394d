//! One segment on disk: its manifest entry, head, footer and records.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts, FooterTail};
use pagelith_layouts::format::Structure;
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder, StoreId};
use pagelith_layouts::manifest::{Manifest, Superblock};
use pagelith_layouts::record::{Record, RecordHead};
use pagelith_layouts::scan::{self, ScanItem};
use pagelith_layouts::segment::{self, SegmentHead, SegmentIdentity};

use super::OnDisk;

/// The footer of a segment. The last block of a segment never contains anything else.
pub(crate) enum Footer {
    /// No footer was ever written.
    None,
    /// The footer of this incarnation.
    Sealed {
        /// Its facts.
        facts: FooterFacts,
        /// Its entries.
        entries: Vec<FooterEntry>,
    },
    /// An intact footer of an older incarnation: the current incarnation is not sealed.
    Older,
    /// Anything else. This may be an older footer whose start was overwritten by records of the
    /// current incarnation.
    Broken {
        /// The decoding error.
        error: FormatError,
        /// Byte offset in the segment where the footer would begin.
        from: u64,
        /// Its incarnation field.
        incarnation: Incarnation,
        /// Its `data_end` field: the end of the last record.
        data_end: u64,
    },
}

/// The head of a segment.
pub(crate) enum Head {
    /// Matches the manifest.
    Current,
    /// Empty or of an older incarnation: nothing of the current incarnation was written.
    Older,
    /// Damaged, or contradicts the manifest.
    Broken(FormatError),
}

/// A segment that was used at least once.
pub(crate) struct Segment {
    /// Its identity by the manifest.
    pub(crate) identity: SegmentIdentity,
    /// Its position in the log by the manifest.
    pub(crate) order: SegmentOrder,
    pub(crate) head: Head,
    pub(crate) footer: Footer,
    /// Whether an intact record of this incarnation is the first one.
    has_first_record: bool,
    superblock: Superblock,
}

impl Segment {
    /// Read head and footer of a segment; `None` if it was never used. An error if the device can
    /// read neither.
    pub(crate) fn load(
        disk: &OnDisk,
        manifest: &Manifest,
        id: SegmentId,
    ) -> anyhow::Result<Option<Segment>> {
        let Some((incarnation, order)) = manifest.segment(id).filter(|(i, _)| i.0 > 0) else {
            return Ok(None);
        };
        let identity = SegmentIdentity { store: manifest.store(), segment: id, incarnation };
        let superblock = *manifest.superblock();
        let mut block = vec![0; ALIGN as usize];
        let mut read = |at: u64| disk.read_segment(id, &superblock, at, &mut block);
        if let Err(error) = read(0)
            && read(superblock.segment_bytes - ALIGN).is_err()
        {
            return Err(error);
        }
        let mut segment = Segment {
            identity,
            order,
            head: Head::Older,
            footer: Footer::None,
            has_first_record: false,
            superblock,
        };
        segment.head = segment.read_head(disk)?;
        segment.footer = segment.read_footer(disk)?;
        segment.has_first_record = segment.read_first_record(disk);
        Ok(Some(segment))
    }

    fn read_head(&self, disk: &OnDisk) -> anyhow::Result<Head> {
        let mut block = vec![0; ALIGN as usize];
        disk.read_segment_blocks(self.identity.segment, &self.superblock, 0, &mut block)?;
        let differs = |field, found: u64, expected: u64| {
            let (found, expected) = (found.to_string(), expected.to_string());
            Head::Broken(FormatError::Identity {
                structure: "segment header",
                field,
                found,
                expected,
            })
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
        disk.read_segment_blocks(
            self.identity.segment,
            &self.superblock,
            segment_bytes - ALIGN,
            &mut bytes,
        )?;
        let tail = &bytes[bytes.len() - FooterTail::BYTES..];
        if tail.iter().all(|b| *b == 0) {
            return Ok(Footer::None);
        }
        let field = |name| field_u64(&FooterTail::STRUCTURE, name, tail);
        let (incarnation, data_end) = (Incarnation(field("incarnation")), field("data_end"));
        let claimed = footer::claimed_bytes(&bytes, segment_bytes).unwrap_or(ALIGN);
        let from = segment_bytes - claimed;
        bytes.resize(claimed as usize, 0);
        disk.read_segment_blocks(self.identity.segment, &self.superblock, from, &mut bytes)?;
        Ok(match footer::decode(&bytes, self.identity, segment_bytes) {
            Ok((facts, entries)) => Footer::Sealed { facts, entries },
            Err(_)
                if incarnation < self.identity.incarnation
                    && self.is_footer_of(incarnation, &bytes) =>
            {
                Footer::Older
            }
            Err(error) => Footer::Broken { error, from, incarnation, data_end },
        })
    }

    fn read_first_record(&self, disk: &OnDisk) -> bool {
        let mut header = vec![0; ALIGN as usize];
        let read = |header: &mut [u8]| {
            disk.read_segment(self.identity.segment, &self.superblock, ALIGN, header).is_ok()
        };
        if !read(&mut header) {
            return false;
        }
        let claimed = Record::claimed_header_bytes(&header).unwrap_or(ALIGN);
        header.resize(claimed as usize, 0);
        ALIGN + claimed <= self.superblock.segment_bytes
            && read(&mut header)
            && Record::decode(&header).is_ok_and(|r| r.expect(self.identity, ALIGN).is_ok())
    }

    fn is_footer_of(&self, incarnation: Incarnation, bytes: &[u8]) -> bool {
        let identity = SegmentIdentity { incarnation, ..self.identity };
        footer::decode(bytes, identity, self.superblock.segment_bytes).is_ok()
    }

    /// Whether the head matches the manifest.
    pub(crate) fn head_is_current(&self) -> bool {
        matches!(self.head, Head::Current)
    }

    /// Whether there is a damaged footer that is not known to be older.
    pub(crate) fn has_damaged_footer(&self) -> bool {
        matches!(&self.footer, Footer::Broken { incarnation, .. } if *incarnation >= self.identity.incarnation)
    }

    /// Whether an open of the store skips the segment because of its head: there is none, or an
    /// intact one of another incarnation, and neither a footer nor a first record proves the use.
    pub(crate) fn head_hides(&self) -> bool {
        let headless = matches!(
            &self.head,
            Head::Older | Head::Broken(FormatError::Identity { field: "incarnation", .. })
        );
        headless && !matches!(self.footer, Footer::Sealed { .. }) && !self.has_first_record
    }

    /// Walk the segment's records, verifying headers and payloads.
    pub(crate) fn scan(
        &self,
        disk: &OnDisk,
        found: &mut dyn FnMut(ScanItem<'_>),
    ) -> anyhow::Result<()> {
        let end = match &self.footer {
            Footer::Sealed { entries, .. } => {
                self.superblock.segment_bytes - footer::footer_bytes(entries.len() as u64)
            }
            _ => self.superblock.segment_bytes,
        };
        let mut scratch = vec![0; scan::SCRATCH_BYTES];
        let mut read = |offset: u64, buf: &mut [u8]| {
            disk.read_segment_blocks(self.identity.segment, &self.superblock, offset, buf)
        };
        scan::scan(self.identity, end, &mut scratch, &mut read, found)
    }
}

/// An intact segment header, of any store and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawHead {
    /// Store.
    pub(crate) store: StoreId,
    /// Segment.
    pub(crate) segment: SegmentId,
    /// Incarnation.
    pub(crate) incarnation: Incarnation,
    /// Its position in the log.
    pub(crate) order: SegmentOrder,
    /// Length of a segment in bytes.
    pub(crate) segment_bytes: u64,
}

impl RawHead {
    /// Decode a block as a head.
    pub(crate) fn read(block: &[u8]) -> Option<RawHead> {
        let at =
            |name| SegmentHead::STRUCTURE.fields.iter().find(|f| f.name == name).map(|f| f.offset);
        let store = StoreId(*block.get(at("store")?..)?.first_chunk()?);
        let segment = SegmentId(u32::from_le_bytes(*block.get(at("segment")?..)?.first_chunk()?));
        let (incarnation, order, segment_bytes) =
            segment::decode_head(block, store, segment).ok()?;
        Some(RawHead { store, segment, incarnation, order, segment_bytes })
    }
}

/// The incarnation field of a footer, which may be damaged.
pub(crate) fn claimed_incarnation(footer: &[u8]) -> Incarnation {
    let tail = footer.len().checked_sub(FooterTail::BYTES).map_or(&[][..], |at| &footer[at..]);
    Incarnation(field_u64(&FooterTail::STRUCTURE, "incarnation", tail))
}

/// Whether a damaged header that a scan found belongs to the current incarnation of the segment.
pub(crate) fn is_damaged_header_of(
    disk: &OnDisk,
    superblock: &Superblock,
    segment: &Segment,
    offset: u64,
    error: &FormatError,
) -> bool {
    if let FormatError::Identity { .. } = error {
        // An intact header with another identity.
        return false;
    }
    let mut block = vec![0; ALIGN as usize];
    let id = segment.identity;
    let read = disk.read_segment(id.segment, superblock, offset, &mut block);
    read.is_ok() && field_u64(&RecordHead::STRUCTURE, "incarnation", &block) == id.incarnation.0
}

/// The raw value of a field of a structure that may be damaged; 0 if the bytes end before it. Only
/// a hint about damaged structures, never a trusted value.
pub(crate) fn field_u64(structure: &Structure, name: &str, bytes: &[u8]) -> u64 {
    let field = structure.fields.iter().find(|f| f.name == name && f.size == 8);
    let raw = field.and_then(|f| bytes.get(f.offset..f.offset + 8)?.try_into().ok());
    raw.map_or(0, u64::from_le_bytes)
}
