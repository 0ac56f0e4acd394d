//! Plans the reads of a batch: adjacent records become one read, each header is read once, and a
//! payload that does not fit the caller's memory directly is staged. Pure: locations in, reads out.

use std::ops::Range;

use pagelith_layouts::align::{ALIGN, align_up};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::SegmentId;

/// Longest read that adjacent pieces are coalesced into, in bytes. Above some hundred KiB a longer
/// read gains nothing on NVMe, and a failed or late read should not affect many objects.
pub(crate) const JOIN_BYTES_MAX: u64 = 1 << 20;
/// Longest gap between a record's start and a payload that is read with the header, in bytes.
/// Beyond it the header is read by itself.
pub(crate) const LEAD_BYTES_MAX: u64 = 64 * 1024;

/// The requested part of one object, and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadTarget {
    /// The number of the object in its batch, and of its plan ([`Attempts::plan_number`]).
    ///
    /// [`Attempts::plan_number`]: crate::read::item::Attempts
    pub item: usize,
    pub plan_number: u32,
    pub segment: SegmentId,
    /// Offset of the record in the segment, and of the payload in the record, both in bytes. The
    /// fields of [`SsdLocation`](crate::memory::index::SsdLocation) are in sectors.
    pub record: u64,
    pub payload_offset: u64,
    /// The ranges of the payload to read, each a multiple of 4096 from an aligned start.
    pub chunks: Vec<Range<u64>>,
    /// Number of parts of the caller's memory for a direct read; `None` for a staged one.
    pub direct_parts: Option<usize>,
    /// Whether the end of the last part is too short to be read into.
    pub unaligned_tail: bool,
    /// Sub-batch of the staging budget; 0 for direct reads.
    pub sub_batch: usize,
    /// The header cache has the record's header.
    pub header_cached: bool,
}

/// A piece of a read, in the order of offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The front of a record with its header, into scratch memory.
    Header { header: usize, bytes: u64 },
    /// A whole requested range, directly into the caller's memory except for an unaligned tail.
    Direct { item: usize, plan_number: u32, bytes: u64, unaligned_tail: bool },
    /// A chunk through staging.
    Staged { item: usize, plan_number: u32, chunk: Range<u64> },
}

impl Piece {
    pub fn bytes(&self) -> u64 {
        match self {
            Piece::Header { bytes, .. } | Piece::Direct { bytes, .. } => *bytes,
            Piece::Staged { chunk, .. } => chunk.end - chunk.start,
        }
    }

    pub fn is_direct(&self) -> bool {
        match self {
            Piece::Direct { .. } => true,
            Piece::Header { .. } | Piece::Staged { .. } => false,
        }
    }

    pub fn is_staged(&self) -> bool {
        match self {
            Piece::Staged { .. } => true,
            Piece::Header { .. } | Piece::Direct { .. } => false,
        }
    }
}

/// One read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRead {
    pub segment: SegmentId,
    /// Byte offset in the segment.
    pub offset: u64,
    pub bytes: u64,
    /// Scatter parts that the operation needs.
    pub parts: usize,
    pub pieces: Vec<Piece>,
    /// May be submitted once this sub-batch is the current one.
    pub sub_batch: usize,
}

/// A record whose header is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderLocation {
    pub segment: SegmentId,
    /// Offset of the record in the segment, in bytes.
    pub record: u64,
}

/// The reads for `targets`, and the headers they bring. New headers are numbered from
/// `headers_before`, the number that the batch already has. Also returns each target's header, in
/// the order of `targets`. A cached header is read all the same if it lies between the reads before
/// and after it: one read costs less than two.
pub(crate) fn plan(
    targets: &[ReadTarget],
    headers_before: usize,
    parts_max: usize,
) -> (Vec<PlannedRead>, Vec<HeaderLocation>, Vec<usize>) {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by_key(|&i| {
        let t = &targets[i];
        (t.segment, t.record, t.payload_offset, t.chunks.first().map_or(0, |c| c.start))
    });
    let mut reads: Vec<PlannedRead> = Vec::new();
    let mut headers: Vec<HeaderLocation> = Vec::new();
    let mut header_of = vec![0; targets.len()];
    for (at, &i) in order.iter().enumerate() {
        let t = &targets[i];
        let location = HeaderLocation { segment: t.segment, record: t.record };
        if headers.last() != Some(&location) {
            headers.push(location);
            let bytes = if t.payload_offset <= LEAD_BYTES_MAX { t.payload_offset } else { ALIGN };
            let header = headers_before + headers.len() - 1;
            // The header is in the sub-batch of the first target that needs it. In a later
            // sub-batch, the earlier target would wait for a sub-batch that itself waits for that
            // target.
            let sharing = order[at..].iter().map(|&i| &targets[i]);
            let sharing = sharing.take_while(|o| (o.segment, o.record) == (t.segment, t.record));
            let sub_batch = sharing.map(|o| o.sub_batch).min().unwrap_or(t.sub_batch);
            let first = ReadGroup { segment: t.segment, sub_batch };
            if !t.header_cached || header_bridges_reads(&reads, t, bytes) {
                push_piece(
                    &mut reads,
                    first,
                    t.record,
                    Piece::Header { header, bytes },
                    1,
                    parts_max,
                );
            }
        }
        header_of[i] = headers_before + headers.len() - 1;
        for chunk in &t.chunks {
            let at = t.record + t.payload_offset + chunk.start;
            let (piece, parts) = match t.direct_parts {
                Some(parts) => {
                    let bytes = chunk.end - chunk.start;
                    (
                        Piece::Direct {
                            item: t.item,
                            plan_number: t.plan_number,
                            bytes,
                            unaligned_tail: t.unaligned_tail,
                        },
                        parts,
                    )
                }
                None => (
                    Piece::Staged {
                        item: t.item,
                        plan_number: t.plan_number,
                        chunk: chunk.clone(),
                    },
                    1,
                ),
            };
            push_piece(
                &mut reads,
                ReadGroup { segment: t.segment, sub_batch: t.sub_batch },
                at,
                piece,
                parts,
                parts_max,
            );
        }
    }
    (reads, headers, header_of)
}

/// Whether a record's header of `bytes` bytes starts where the last read ends, and ends where the
/// requested payload begins, and that read has room for a whole further object.
fn header_bridges_reads(reads: &[PlannedRead], t: &ReadTarget, bytes: u64) -> bool {
    let wanted = t.chunks.first().filter(|chunk| t.payload_offset == bytes && chunk.start == 0);
    reads.last().zip(wanted).is_some_and(|(last, chunk)| {
        let continues = last.segment == t.segment && last.offset + last.bytes == t.record;
        continues
            && last.sub_batch == t.sub_batch
            && last.bytes + bytes + chunk.end <= JOIN_BYTES_MAX
    })
}

/// The segment and sub-batch of a piece; only pieces with equal ones are coalesced.
#[derive(Clone, Copy)]
struct ReadGroup {
    segment: SegmentId,
    sub_batch: usize,
}

/// Append a piece to the last read if it continues that read, else begin a new read.
fn push_piece(
    reads: &mut Vec<PlannedRead>,
    t: ReadGroup,
    offset: u64,
    piece: Piece,
    parts: usize,
    parts_max: usize,
) {
    let bytes = piece.bytes();
    if let Some(last) = reads.last_mut() {
        let continues = last.segment == t.segment && last.offset + last.bytes == offset;
        // A header is always coalesced with the payload after it, of any length: one read brings
        // both.
        let with_header =
            matches!(last.pieces[..], [Piece::Header { .. }]) && last.bytes <= LEAD_BYTES_MAX;
        let small = last.bytes + bytes <= JOIN_BYTES_MAX || with_header;
        // A staged read waits for its sub-batch; other pieces should not wait with it.
        let same_sub_batch = last.sub_batch == t.sub_batch || last.pieces.is_empty();
        // Chunks of a streamed object are separate reads: coalesced they could exceed the staging
        // memory, and then would never be submitted.
        let streams = match (last.pieces.last(), &piece) {
            (Some(Piece::Staged { item: before, .. }), Piece::Staged { item, .. }) => {
                before == item
            }
            _ => false,
        };
        if continues && small && same_sub_batch && !streams && last.parts + parts <= parts_max {
            last.bytes += bytes;
            last.parts += parts;
            last.pieces.push(piece);
            return;
        }
    }
    let sub_batch = t.sub_batch;
    reads.push(PlannedRead {
        segment: t.segment,
        offset,
        bytes,
        parts,
        pieces: [piece].into(),
        sub_batch,
    });
}

/// The range that is read for a requested range: its whole blocks, padded to 4096.
pub(crate) fn widen_to_blocks(want: &Range<u64>, length: u64) -> Range<u64> {
    let block = u64::from(BLOCK_BYTES);
    let start = want.start / block * block;
    let end = want.end.div_ceil(block).saturating_mul(block).min(length);
    start..start + align_up(end - start)
}

/// The bytes of all blocks that the range overlaps, in three ranges: the blocks that are requested
/// whole, and before and after them the blocks of which only a part is. Any may be empty.
pub(crate) fn split_at_blocks(want: &Range<u64>, length: u64) -> [Range<u64>; 3] {
    let block = u64::from(BLOCK_BYTES);
    let wide = widen_to_blocks(want, length);
    let end = wide.end.min(length);
    let whole_end = if want.end == end { end } else { want.end / block * block };
    let whole_start =
        want.start.div_ceil(block).saturating_mul(block).min(whole_end.max(wide.start));
    [
        wide.start..whole_start,
        whole_start..whole_end.max(whole_start),
        whole_end.max(whole_start)..end,
    ]
}

/// Whether the range is whole blocks, so that it can be verified in the destination.
pub(crate) fn is_whole_blocks(want: &Range<u64>, length: u64) -> bool {
    let block = u64::from(BLOCK_BYTES);
    want.start.is_multiple_of(block) && (want.end.is_multiple_of(block) || want.end == length)
}

/// Split a range into chunks of at most `chunk` bytes.
pub(crate) fn split_chunks(range: Range<u64>, chunk: u64) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = (at + chunk).min(range.end);
        out.push(at..end);
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(item: usize, record: u64, payload_offset: u64, bytes: u64) -> ReadTarget {
        ReadTarget {
            item,
            plan_number: 0,
            segment: SegmentId(1),
            record,
            payload_offset,
            chunks: split_chunks(0..bytes, bytes),
            direct_parts: Some(1),
            unaligned_tail: false,
            sub_batch: 0,
            header_cached: false,
        }
    }

    #[test]
    fn range_splits_at_whole_blocks() {
        let block = u64::from(BLOCK_BYTES);
        let of = |want: Range<u64>| split_at_blocks(&want, 3 * block + 5);
        assert_eq!(of(0..3 * block + 5), [0..0, 0..3 * block + 5, 3 * block + 5..3 * block + 5]);
        assert_eq!(of(1..3 * block), [0..block, block..3 * block, 3 * block..3 * block]);
        assert_eq!(
            of(block..2 * block + 1),
            [block..block, block..2 * block, 2 * block..3 * block]
        );
        assert_eq!(of(3 * block + 1..3 * block + 5)[0], 3 * block..3 * block + 5);
        for want in [1..2, 1..block + 1, block - 1..block + 1, 3 * block + 1..3 * block + 4] {
            let [before, whole, after] = of(want.clone());
            assert!(whole.is_empty(), "{want:?}");
            assert_eq!(
                (before.start, before.end),
                (widen_to_blocks(&want, 3 * block + 5).start, after.start),
                "{want:?}"
            );
            assert_eq!(after.end, want.end.next_multiple_of(block).min(3 * block + 5), "{want:?}");
        }
    }

    #[test]
    fn cached_header_is_read_only_between_two_payloads() {
        let one = 4096 + 65536;
        let cached =
            |item, record| ReadTarget { header_cached: true, ..target(item, record, 4096, 65536) };
        let (reads, headers, _) = plan(&[cached(0, 4096)], 0, 64);
        assert_eq!((reads.len(), headers.len()), (1, 1));
        assert_eq!((reads[0].offset, reads[0].bytes, reads[0].pieces.len()), (8192, 65536, 1));
        // Adjacent records are one read, which begins after the first header.
        let (reads, ..) = plan(&[cached(0, 4096), cached(1, 4096 + one)], 0, 64);
        assert_eq!((reads.len(), reads[0].offset, reads[0].bytes), (1, 8192, 65536 + one));
        // Records with a gap are two reads, and so are adjacent ones that exceed the longest read.
        let (reads, ..) = plan(&[cached(0, 4096), cached(1, 8192 + one)], 0, 64);
        assert!(reads.iter().all(|f| f.bytes == 65536) && reads.len() == 2);
        // A short payload is not a header, which would be coalesced with any payload after it.
        let long = ReadTarget {
            payload_offset: 4096 + 65536,
            chunks: split_chunks(0..2 << 20, 2 << 20),
            ..cached(1, 4096)
        };
        assert_eq!(plan(&[cached(0, 4096), long], 0, 64).0.len(), 2);
        let run: Vec<_> = (0..20).map(|i| cached(i, 4096 + i as u64 * one)).collect();
        let (reads, ..) = plan(&run, 0, 1024);
        assert!(reads.iter().all(|f| f.bytes <= JOIN_BYTES_MAX), "{reads:?}");
        assert!(reads.iter().all(|f| f.pieces.len() % 2 == 1), "a header at an edge: {reads:?}");
    }

    #[test]
    fn group_is_one_read_with_one_header() {
        let (k, v) = (target(0, 4096, 4096, 32768), target(1, 4096, 4096 + 32768, 32768));
        let (reads, headers, of) = plan(&[v.clone(), k.clone()], 0, 64);
        assert_eq!((headers.len(), of), (1, vec![0, 0]));
        assert_eq!(reads.len(), 1);
        assert_eq!((reads[0].offset, reads[0].bytes), (4096, 4096 + 65536));
        let items: Vec<_> = reads[0].pieces.iter().map(Piece::bytes).collect();
        assert_eq!(items, vec![4096, 32768, 32768]);
    }

    #[test]
    fn header_is_read_in_stage_of_first_target_that_needs_it() {
        let staged = |item, payload_offset, sub_batch| ReadTarget {
            direct_parts: None,
            sub_batch,
            ..target(item, 4096, payload_offset, 32768)
        };
        // The last member is requested first; the first member's payload has the later sub-batch.
        let (v, k) = (staged(0, 4096 + 32768, 1), staged(1, 4096, 2));
        let (reads, headers, of) = plan(&[v, k], 0, 64);
        assert_eq!((headers.len(), of), (1, vec![0, 0]));
        let with_header =
            reads.iter().find(|f| f.pieces.contains(&Piece::Header { header: 0, bytes: 4096 }));
        assert_eq!(with_header.map(|f| (f.sub_batch, f.pieces.len())), Some((1, 1)), "{reads:?}");
    }

    #[test]
    fn adjacent_records_join_up_to_limit() {
        let one = 4096 + 65536;
        let run: Vec<_> = (0..20).map(|i| target(i, 4096 + i as u64 * one, 4096, 65536)).collect();
        let (reads, headers, _) = plan(&run, 0, 1024);
        assert_eq!(headers.len(), 20);
        assert!(reads.iter().all(|f| f.bytes <= JOIN_BYTES_MAX + LEAD_BYTES_MAX), "{reads:?}");
        assert_eq!(reads.iter().map(|f| f.bytes).sum::<u64>(), 20 * one);
        assert_eq!(reads.len(), 2);
        let apart = [target(0, 4096, 4096, 65536), target(1, 4096 + one + 4096, 4096, 65536)];
        assert_eq!(plan(&apart, 0, 1024).0.len(), 2);
    }

    #[test]
    fn far_payload_has_separate_header_read() {
        let far = target(0, 4096, 4096 + (1 << 20), 65536);
        let (reads, ..) = plan(&[far], 3, 64);
        assert_eq!(reads.len(), 2);
        assert_eq!(reads[0].pieces[..], [Piece::Header { header: 3, bytes: 4096 }]);
    }

    #[test]
    fn excess_parts_begin_another_read() {
        let run: Vec<_> = (0..4).map(|i| target(i, 4096 + i as u64 * 8192, 4096, 4096)).collect();
        let (reads, ..) = plan(&run, 0, 4);
        assert_eq!(reads.len(), 2);
        assert!(reads.iter().all(|f| f.parts <= 4));
    }

    #[test]
    fn ranges_widen_to_blocks() {
        assert_eq!(widen_to_blocks(&(0..1), 100_000), 0..32768);
        assert_eq!(widen_to_blocks(&(32767..32769), 100_000), 0..65536);
        assert_eq!(widen_to_blocks(&(99_999..100_000), 100_000), 98304..98304 + 4096);
        assert!(is_whole_blocks(&(0..100_000), 100_000));
        assert!(is_whole_blocks(&(32768..65536), 100_000));
        assert!(!is_whole_blocks(&(1..65536), 100_000));
        assert!(!is_whole_blocks(&(0..65537), 100_000));
    }

    #[test]
    fn chunks_cover_without_gaps() {
        assert_eq!(split_chunks(0..10, 4)[..], [0..4, 4..8, 8..10]);
        assert_eq!(split_chunks(4..8, 4)[..], [4..8; 1]);
    }
}
