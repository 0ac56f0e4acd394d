//! A header of a batch, and where its bytes are from.

use pagelith_io::buffer::Part;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;

use crate::read::plan::HeaderPlace;
use crate::state::scratch::Scratch;
use crate::state::shared::Shared;

/// A header of the batch: where it lies, and its bytes once they came.
#[derive(Debug)]
pub(crate) struct Header {
    pub place: HeaderPlace,
    pub bytes: Option<HeaderBytes>,
    /// Objects without an outcome that need it. With none its memory goes back at once: scratch has room for
    /// some hundred headers, and a batch may have thousands.
    pub users: usize,
    /// It will be known next time.
    noted: bool,
}

impl Header {
    /// Of the record at this place; nobody needs it yet.
    pub fn at(place: HeaderPlace) -> Header {
        Header { place, bytes: None, users: 0, noted: false }
    }

    /// Whether it was known before.
    pub fn is_known(&self) -> bool {
        self.bytes.as_ref().is_some_and(HeaderBytes::is_known)
    }

    /// What is known of it is about to be judged, for an object that has it at this place.
    pub fn expect(&self, shared: &Shared, place: Option<(SegmentIdentity, u64)>) {
        let read = place.filter(|_| !self.noted && matches!(self.bytes, Some(HeaderBytes::Read(_))));
        read.into_iter().for_each(|(identity, offset)| shared.headers.prefetch_insert(identity, offset));
    }

    /// It led to a hit: from now on it is known.
    pub fn note(&mut self, shared: &Shared) {
        let read = match &self.bytes {
            Some(HeaderBytes::Read(part)) if !self.noted => Record::of_trimmed(part.bytes()),
            Some(HeaderBytes::Read(_) | HeaderBytes::Known(_)) | None => None,
        };
        read.iter().for_each(|record| shared.headers.insert_read(record));
        self.noted = true;
    }
}

/// The bytes of a header.
#[derive(Debug)]
pub(crate) enum HeaderBytes {
    /// Read from the device; of scratch.
    Read(Part),
    /// Known before, and found good then: without its padding.
    Known(Box<[u8]>),
}

impl HeaderBytes {
    /// How long it says it is, if that is longer than what was read.
    pub fn longer(&self) -> Option<u64> {
        match self {
            HeaderBytes::Read(part) => {
                Record::claimed_header_bytes(part.bytes()).filter(|n| *n > part.len() as u64)
            }
            HeaderBytes::Known(_) => None,
        }
    }

    /// The header, found good now if not before.
    pub fn record(&self) -> Result<Record<'_>, FormatError> {
        match self {
            HeaderBytes::Read(part) => Record::decode(part.bytes()),
            HeaderBytes::Known(trimmed) => Record::of_trimmed(trimmed).ok_or(FormatError::Short {
                structure: "known header",
                need: 0,
                have: trimmed.len() as u64,
            }),
        }
    }

    /// Whether it was known before.
    fn is_known(&self) -> bool {
        match self {
            HeaderBytes::Read(_) => false,
            HeaderBytes::Known(_) => true,
        }
    }

    /// Nobody needs it any more.
    pub fn give_back(self, scratch: &mut Scratch) {
        match self {
            HeaderBytes::Read(part) => scratch.give_back(part),
            HeaderBytes::Known(_) => {}
        }
    }
}
