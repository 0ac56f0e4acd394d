//! Judging what a read brought: is this header the one of that key, put under that generation, at this
//! place; and are these bytes what it vouches for.

use pagelith_layouts::checksum::{Checksum, StreamChecksum, checksum};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{Member, Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};

/// What the index promised about an object on SSD, beside its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Which segment, in which life.
    pub identity: SegmentIdentity,
    /// Byte offset of the record in the segment.
    pub offset: u64,
    /// Byte offset of the payload in the record.
    pub payload_delta: u64,
    /// Generation of its namespace.
    pub generation: Generation,
    /// Length in bytes.
    pub length: u64,
}

/// What a header turned out to be.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "made once a read and taken apart at once, never stored")]
pub enum Verdict<'a> {
    /// The object's; payload is still to be verified.
    Match(Record<'a>, Member),
    /// A whole header of this place that names other objects: another key with an equal fingerprint.
    OtherKey,
    /// Not what was written here.
    Damaged(FormatError),
}

/// Judge a header that lies, or lay, where `expected` says of the object `key`.
pub fn judge<'a>(record: Record<'a>, key: &ObjectKey, expected: &Expected) -> Verdict<'a> {
    if let Err(error) = record.expect(expected.identity, expected.offset) {
        return Verdict::Damaged(error);
    }
    let facts = record.facts();
    let wrong = |field, value: String| {
        Verdict::Damaged(FormatError::Field { structure: "record header", field, value })
    };
    if facts.kind != RecordKind::Data {
        return wrong("kind", format!("{:?}", facts.kind));
    }
    let any_key = || record.members().find(|m| m.payload_offset == expected.payload_delta);
    let found = if mutant::on(Mutant::KeyUnchecked) { any_key() } else { record.find(key) };
    let Some(member) = found else { return Verdict::OtherKey };
    // The key is in the record, and the index entry is that of another of its members.
    let other = |m: Member| m.payload_offset == expected.payload_delta && m.key != *key;
    if record.members().any(other) && !mutant::on(Mutant::KeyUnchecked) {
        return Verdict::OtherKey;
    }
    if facts.generation != expected.generation && !mutant::on(Mutant::GenerationUnchecked) {
        // The fingerprint holds the generation, so this is another key's entry as well.
        return Verdict::OtherKey;
    }
    if member.length != expected.length {
        return wrong("length", member.length.to_string());
    }
    if member.payload_offset != expected.payload_delta {
        return wrong("payload_offset", member.payload_offset.to_string());
    }
    Verdict::Match(record, member)
}

/// Verifies blocks as their bytes come by, in pieces of any size.
pub struct Verifier<S> {
    /// Of the blocks still to come.
    sums: S,
    block_bytes: usize,
    /// Bytes still to come.
    left: u64,
    /// Bytes of the current block that came already.
    partial: usize,
    /// Of those bytes; made only for a block that comes in several pieces.
    stream: Option<StreamChecksum>,
    block: u64,
}

impl<S: Iterator<Item = Checksum>> Verifier<S> {
    /// For `length` bytes that begin with block `first_block` of an object with these checksums of all its
    /// blocks.
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

    /// Take the next bytes; fails at the first block that does not match, or with bytes too many.
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

    /// Whether every byte came and matched.
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
    fn any_split_verifies_and_any_flip_does_not() {
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
            assert_eq!(verdicts.last(), Some(&Err(FormatError::Payload { block: 2 })), "step={step}");
        }
    }

    #[test]
    fn a_range_begins_at_its_block_and_takes_no_more() {
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
