//! A record header of a batch, and the origin of its bytes.

use pagelith_io::buffer::Part;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;

use crate::read::plan::HeaderLocation;
use crate::state::scratch::Scratch;
use crate::state::shared::Shared;

/// A header of the batch: its location, and its bytes once they were read.
#[derive(Debug)]
pub(crate) struct Header {
    pub location: HeaderLocation,
    pub bytes: Option<HeaderBytes>,
    /// Objects without an outcome that need it. At 0 its memory is returned at once: scratch has
    /// room for some hundred headers, and a batch may have thousands.
    pub users: usize,
}

impl Header {
    /// The header of the record at this location, without users.
    pub fn new(location: HeaderLocation) -> Header {
        Header { location, bytes: None, users: 0 }
    }

    /// Whether the bytes are from the header cache.
    pub fn was_cached(&self) -> bool {
        self.bytes.as_ref().is_some_and(HeaderBytes::was_cached)
    }

    /// Prefetch the cache lines for an insertion into the header cache; called before the object at
    /// this location is verified.
    pub fn prepare_caching(&self, shared: &Shared, location: Option<(SegmentIdentity, u64)>) {
        let to_insert = matches!(self.bytes, Some(HeaderBytes::Read { inserted: false, .. }));
        if let (true, Some((identity, offset))) = (to_insert, location) {
            shared.ssd.headers.prefetch_insert(identity, offset);
        }
    }

    /// Insert it into the header cache, once, after a hit.
    pub fn insert_into_cache(&mut self, shared: &Shared) {
        if let Some(HeaderBytes::Read { part, inserted: inserted @ false }) = &mut self.bytes {
            let record = Record::of_trimmed(part.bytes());
            record.iter().for_each(|record| shared.ssd.headers.insert_read(record));
            *inserted = true;
        }
    }
}

/// The bytes of a header.
#[derive(Debug)]
pub(crate) enum HeaderBytes {
    /// Read from the device, into scratch memory; perhaps inserted into the header cache.
    Read { part: Part, inserted: bool },
    /// From the header cache, without its padding: this process wrote it, or read and verified it
    /// before.
    Cached(Box<[u8]>),
}

impl HeaderBytes {
    /// The header's length by its own claim, if more than what was read.
    pub fn longer_claimed_bytes(&self) -> Option<u64> {
        match self {
            HeaderBytes::Read { part, .. } => {
                Record::claimed_header_bytes(part.bytes()).filter(|n| *n > part.len() as u64)
            }
            HeaderBytes::Cached(_) => None,
        }
    }

    /// The header, verified now unless it is from the header cache.
    pub fn record(&self) -> Result<Record<'_>, FormatError> {
        match self {
            HeaderBytes::Read { part, .. } => Record::decode(part.bytes()),
            HeaderBytes::Cached(trimmed) => Record::of_trimmed(trimmed).ok_or(FormatError::Short {
                structure: "cached header",
                need: 0,
                have: trimmed.len() as u64,
            }),
        }
    }

    /// Whether the bytes are from the header cache.
    fn was_cached(&self) -> bool {
        match self {
            HeaderBytes::Read { .. } => false,
            HeaderBytes::Cached(_) => true,
        }
    }

    /// Return its memory.
    pub fn release(self, scratch: &mut Scratch) {
        match self {
            HeaderBytes::Read { part, .. } => scratch.give_back(part),
            HeaderBytes::Cached(_) => {}
        }
    }
}
