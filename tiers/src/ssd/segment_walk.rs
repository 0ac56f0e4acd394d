//! Walks a segment header by header, for reclaim and scrub, which have no footer or do not trust
//! it. The walk does no I/O: it names the next range to read and is fed the bytes.
//!
//! Payloads are skipped without verification. A sector that is not a header of this incarnation is
//! skipped too.

use pagelith_layouts::align::{ALIGN, align_down};
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;

/// Bytes of a segment to read at a time.
pub const WINDOW: u64 = 128 * 1024;

/// A walk through one segment.
#[derive(Debug)]
pub struct HeaderWalk {
    identity: SegmentIdentity,
    end: u64,
    at: u64,
    /// Length of the header at `at` if it is longer than the bytes read so far; else 0.
    need: u64,
}

impl HeaderWalk {
    /// A walk from the end of the segment's header to byte `end`.
    pub fn new(identity: SegmentIdentity, end: u64) -> HeaderWalk {
        HeaderWalk { identity, end: align_down(end), at: ALIGN, need: 0 }
    }

    /// The next range to read: byte offset and length in the segment, multiples of 4096. `None` at
    /// the end.
    pub fn next_read(&self) -> Option<(u64, u64)> {
        let left = self.end.checked_sub(self.at).filter(|left| *left > 0)?;
        Some((self.at, self.need.max(WINDOW).min(left)))
    }

    /// Feed the bytes of the range of [`HeaderWalk::next_read`]. `found` is called for each record
    /// whose complete header is in these bytes.
    pub fn feed(&mut self, bytes: &[u8], found: &mut dyn FnMut(&Record<'_>)) {
        let from = self.at;
        self.need = 0;
        while self.at < self.end {
            let Some(rest) = bytes.get((self.at - from) as usize..).filter(|rest| !rest.is_empty())
            else {
                return;
            };
            let room = self.end - self.at;
            // Clients choose payload bytes. A forged header does not have the store's random
            // identifier, so it cannot cause a long read.
            let ours = Record::claimed_store(rest) == Some(self.identity.store);
            let claimed = Record::claimed_header_bytes(rest).filter(|_| ours);
            if let Some(need) = claimed.filter(|n| *n > rest.len() as u64 && *n <= room) {
                self.need = need;
                return;
            }
            let record =
                Record::decode(rest).ok().filter(|r| r.expect(self.identity, self.at).is_ok());
            match record.filter(|r| r.record_bytes() <= room) {
                Some(record) => {
                    found(&record);
                    self.at += record.record_bytes();
                }
                None => self.at += ALIGN,
            }
        }
    }

    /// The range of [`HeaderWalk::next_read`] could not be read: continue after its first sector.
    pub fn skip(&mut self) {
        self.at += ALIGN;
        self.need = 0;
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{
        Generation, GroupId, Incarnation, PrefixHash, SegmentId, Sequence, StoreId,
    };
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::namespace::Namespace;
    use pagelith_layouts::record::{self, GroupKind, MemberSpec, RecordFacts, RecordKind};
    use pagelith_layouts::shard::Shard;

    use super::*;

    const END: u64 = 4 << 20;

    fn identity() -> SegmentIdentity {
        SegmentIdentity {
            store: StoreId([7; 16]),
            segment: SegmentId(3),
            incarnation: Incarnation(2),
        }
    }

    /// Write a record with `members` members of `length` bytes at `offset`; returns its end.
    fn put(
        segment: &mut [u8],
        identity: SegmentIdentity,
        offset: u64,
        members: usize,
        length: u64,
    ) -> u64 {
        let namespace = Namespace::default().id();
        let key = |n: usize| {
            let component = format!("c{n}");
            ObjectKey::new(
                namespace,
                PrefixHash([1; 32]),
                Role::Target,
                "kv",
                &component,
                Shard::Whole,
            )
            .expect("a key")
        };
        let sums = vec![[0; 16]; length.div_ceil(32 << 10) as usize];
        let keys: Vec<_> = (0..members).map(key).collect();
        let specs: Vec<_> =
            keys.iter().map(|k| MemberSpec { key: *k, length, checksums: &sums }).collect();
        let facts = RecordFacts {
            identity,
            offset,
            kind: RecordKind::Data,
            group_kind: if members > 1 { GroupKind::Base } else { GroupKind::Single },
            namespace,
            generation: Generation::FIRST,
            sequence: Sequence(offset),
            group: GroupId(offset),
            base_group: GroupId(0),
            block_bytes: 32 << 10,
            depth: 0,
            reinserted: false,
        };
        let header = record::encode(&facts, &specs).expect("a header");
        segment[offset as usize..][..header.len()].copy_from_slice(&header);
        offset + Record::decode(&header).expect("a record").record_bytes()
    }

    fn walk(segment: &[u8]) -> (Vec<u64>, usize) {
        let mut walk = HeaderWalk::new(identity(), END);
        let (mut found, mut reads) = (Vec::new(), 0);
        while let Some((at, len)) = walk.next_read() {
            reads += 1;
            walk.feed(&segment[at as usize..(at + len) as usize], &mut |r| {
                found.push(r.facts().offset)
            });
        }
        (found, reads)
    }

    #[test]
    fn walk_finds_records_across_windows_and_after_damage() {
        let mut segment = vec![0; END as usize];
        let mut at = ALIGN;
        let mut expected = Vec::new();
        for (members, length) in
            [(1, 9000), (40, 100), (1, 200_000), (600, 10), (2, 40_000), (1, 1)]
        {
            expected.push(at);
            at = put(&mut segment, identity(), at, members, length);
            assert!(at < END);
        }
        assert_eq!(walk(&segment).0, expected);
        // A damaged header affects only its own record.
        segment[expected[2] as usize + 50] ^= 1;
        expected.remove(2);
        assert_eq!(walk(&segment).0, expected);
    }

    #[test]
    fn walk_skips_records_of_other_incarnation_or_place() {
        let mut segment = vec![0; END as usize];
        let old = SegmentIdentity { incarnation: Incarnation(1), ..identity() };
        let at = put(&mut segment, old, ALIGN, 1, 9000);
        let next = put(&mut segment, identity(), at, 1, 9000);
        let copy = segment[at as usize..next as usize].to_vec();
        segment[next as usize..][..copy.len()].copy_from_slice(&copy);
        assert_eq!(walk(&segment).0, [at]);
    }

    #[test]
    fn walk_reads_empty_segment_once() {
        let (found, reads) = walk(&vec![0; END as usize]);
        assert_eq!((found.len(), reads as u64), (0, (END - ALIGN).div_ceil(WINDOW)));
    }
}
