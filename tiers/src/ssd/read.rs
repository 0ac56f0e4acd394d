//! Verification of data read from SSD: the header must be that of the key, generation and location,
//! and the payload must match the header's checksums.

use pagelith_layouts::checksum::{Checksum, StreamChecksum, checksum};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{Member, Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};

/// The facts about an object on SSD that the index has, except its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Store, segment and incarnation.
    pub identity: SegmentIdentity,
    /// Byte offset of the record in the segment.
    pub offset: u64,
    /// Byte offset of the payload in the record.
    pub payload_offset: u64,
    /// Generation of its namespace.
    pub generation: Generation,
    /// Length in bytes.
    pub length: u64,
}

/// Result of verifying a header.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "made once a read and taken apart at once, never stored"
)]
pub enum HeaderCheck<'a> {
    /// The header of the object; its payload is not verified yet.
    Match(Record<'a>, Member),
    /// A valid header of this location that names other objects: another key with an equal
    /// fingerprint.
    OtherKey,
    /// The bytes are not those that were written to this location.
    Damaged(FormatError),
}

/// Verify that `record`, read from the location in `expected`, is the header of the object `key`.
pub fn check_header<'a>(
    record: Record<'a>,
    key: &ObjectKey,
    expected: &Expected,
) -> HeaderCheck<'a> {
    if let Err(error) = record.expect(expected.identity, expected.offset) {
        return HeaderCheck::Damaged(error);
    }
    let facts = record.facts();
    let wrong = |field, value: String| {
        HeaderCheck::Damaged(FormatError::Field { structure: "record header", field, value })
    };
    if facts.kind != RecordKind::Data {
        return wrong("kind", format!("{:?}", facts.kind));
    }
    let any_key = || record.members().find(|m| m.payload_offset == expected.payload_offset);
    let found = if mutant::on(Mutant::KeyUnchecked) { any_key() } else { record.find(key) };
    let Some(member) = found else { return HeaderCheck::OtherKey };
    // The record has the key, but the index entry belongs to another member of the record.
    let other = |m: Member| m.payload_offset == expected.payload_offset && m.key != *key;
    if record.members().any(other) && !mutant::on(Mutant::KeyUnchecked) {
        return HeaderCheck::OtherKey;
    }
    if facts.generation != expected.generation && !mutant::on(Mutant::GenerationUnchecked) {
        // The fingerprint covers the generation, so this too is the entry of another key.
        return HeaderCheck::OtherKey;
    }
    if member.length != expected.length {
        return wrong("length", member.length.to_string());
    }
    if member.payload_offset != expected.payload_offset {
        return wrong("payload_offset", member.payload_offset.to_string());
    }
    HeaderCheck::Match(record, member)
}

/// Verifies blocks as their bytes arrive, in pieces of any size.
pub struct Verifier<S> {
    /// Checksums of the blocks that are not complete.
    sums: S,
    block_bytes: usize,
    /// Number of bytes that have not arrived.
    left: u64,
    /// Number of bytes of the current block that have arrived.
    partial: usize,
    /// Checksum of those bytes; used only for a block that arrives in several pieces.
    stream: Option<StreamChecksum>,
    block: u64,
}

impl<S: Iterator<Item = Checksum>> Verifier<S> {
    /// A verifier for `length` bytes from the start of block `first_block`; `sums` has the
    /// checksums of all blocks of the object.
    pub fn new(
        sums: impl IntoIterator<IntoIter = S>,
        first_block: u64,
        length: u64,
        block_bytes: u32,
    ) -> Verifier<S> {
        let mut sums = sums.into_iter();
        if first_block > 0 {
            sums.nth(first_block as usize - 1);
        }
        Verifier {
            sums,
            block_bytes: block_bytes as usize,
            left: length,
            partial: 0,
            stream: None,
            block: first_block,
        }
    }

    /// Verify the next bytes. Fails at the first block that does not match, or if there are too
    /// many bytes.
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<(), FormatError> {
        while !bytes.is_empty() {
            let block_left = (self.block_bytes - self.partial).min(self.left as usize);
            let take = block_left.min(bytes.len());
            if take == 0 {
                return Err(FormatError::Payload { block: self.block });
            }
            let (now, later) = bytes.split_at(take);
            bytes = later;
            self.left -= take as u64;
            let ends = take == block_left;
            let sum = if self.partial == 0 && ends {
                checksum(now)
            } else {
                let stream = self.stream.get_or_insert_default();
                stream.update(now);
                self.partial += take;
                if !ends {
                    continue;
                }
                stream.finish()
            };
            if self.sums.next() != Some(sum) && !mutant::on(Mutant::PayloadUnchecked) {
                return Err(FormatError::Payload { block: self.block });
            }
            self.partial = 0;
            self.block += 1;
        }
        Ok(())
    }

    /// Whether every byte has arrived and matched.
    pub fn is_complete(&self) -> bool {
        self.left == 0 && self.partial == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(len: usize, block: usize) -> (Vec<u8>, Vec<Checksum>) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let sums = bytes.chunks(block).map(checksum).collect();
        (bytes, sums)
    }

    #[test]
    fn verifier_accepts_any_split_and_detects_flips() {
        let (mut bytes, sums) = object(10_000, 4096);
        for step in [1, 7, 4095, 4096, 4097, 10_000] {
            let mut v = Verifier::new(sums.clone(), 0, 10_000, 4096);
            bytes.chunks(step).for_each(|c| v.update(c).expect("whole"));
            assert!(v.is_complete(), "step={step}");
        }
        bytes[9_999] ^= 1;
        for step in [1, 4096, 10_000] {
            let mut v = Verifier::new(sums.clone(), 0, 10_000, 4096);
            let verdicts: Vec<_> = bytes.chunks(step).map(|c| v.update(c)).collect();
            assert_eq!(
                verdicts.last(),
                Some(&Err(FormatError::Payload { block: 2 })),
                "step={step}"
            );
        }
    }

    #[test]
    fn verifier_of_range_starts_at_block_and_refuses_extra_bytes() {
        let (bytes, sums) = object(10_000, 4096);
        let mut v = Verifier::new(sums.clone(), 1, 4096, 4096);
        assert_eq!(v.update(&bytes[4096..8192]), Ok(()));
        assert!(v.is_complete());
        assert_eq!(v.update(&bytes[8192..]), Err(FormatError::Payload { block: 2 }));
        let mut cut = Verifier::new(sums, 0, 10_000, 4096);
        assert_eq!(cut.update(&bytes[..9_000]), Ok(()));
        assert!(!cut.is_complete());
    }
}
