//! Planning the reads of a batch: neighbours on SSD become one read, headers are read once, and what does
//! not fit the caller's memory as it is goes through staging. Pure: places in, reads out.

use std::ops::Range;

use pagelith_layouts::align::{ALIGN, align_up};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::SegmentId;

/// Longest read that neighbours are joined into, in bytes. Past some hundred KiB a longer read gains
/// nothing on NVMe, and a failed or late read should not take many objects with it.
pub(crate) const JOIN_BYTES_MAX: u64 = 1 << 20;
/// Longest stretch in front of a payload that is read along with it for the header's sake, in bytes; beyond
/// it the header is read by itself.
pub(crate) const LEAD_BYTES_MAX: u64 = 64 * 1024;

/// What is wanted of one object, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadTarget {
    /// The object's number in its batch, and which of its tries this is.
    pub slot: usize,
    pub round: u32,
    pub segment: SegmentId,
    /// Byte offset of the record in the segment, and of the payload in the record.
    pub record: u64,
    pub payload_delta: u64,
    /// The stretches of the payload to read, each a multiple of 4096 from an aligned start.
    pub chunks: Vec<Range<u64>>,
    /// Straight into the caller's memory, in this many parts; `None` through staging.
    pub direct_parts: Option<usize>,
    /// Whether the last of those parts has an end too short to be read into.
    pub unaligned_tail: bool,
    /// Which sub-batch of the staging budget it belongs to; 0 for direct ones.
    pub stage: usize,
    /// The record's header need not be read.
    pub header_cached: bool,
}

/// A stretch of a read, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The front of a record, with its header, into scratch.
    Header { header: usize, bytes: u64 },
    /// A whole wanted stretch, straight into the caller's memory, but for a ragged end.
    Direct { slot: usize, round: u32, bytes: u64, unaligned_tail: bool },
    /// A chunk through staging.
    Staged { slot: usize, round: u32, chunk: Range<u64> },
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
pub(crate) struct Fetch {
    pub segment: SegmentId,
    /// Byte offset in the segment.
    pub offset: u64,
    pub bytes: u64,
    /// Scatter parts that it takes.
    pub parts: usize,
    pub pieces: Vec<Piece>,
    /// It may be submitted once this sub-batch's turn has come.
    pub stage: usize,
}

/// A record whose header is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderPlace {
    pub segment: SegmentId,
    pub record: u64,
}

/// The reads for `targets`, and the headers they bring. `headers_before` is how many the batch has already;
/// new ones are numbered from there. Returns each target's header too, in the order of `targets`. A header that is known is
/// read all the same where it lies between what is read before and behind it: one read is less work than two.
pub(crate) fn plan(
    targets: &[ReadTarget],
    headers_before: usize,
    parts_max: usize,
) -> (Vec<Fetch>, Vec<HeaderPlace>, Vec<usize>) {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by_key(|&i| {
        let t = &targets[i];
        (t.segment, t.record, t.payload_delta, t.chunks.first().map_or(0, |c| c.start))
    });
    let mut fetches: Vec<Fetch> = Vec::new();
    let mut headers: Vec<HeaderPlace> = Vec::new();
    let mut header_of = vec![0; targets.len()];
    for (at, &i) in order.iter().enumerate() {
        let t = &targets[i];
        let place = HeaderPlace { segment: t.segment, record: t.record };
        if headers.last() != Some(&place) {
            headers.push(place);
            let bytes = if t.payload_delta <= LEAD_BYTES_MAX { t.payload_delta } else { ALIGN };
            let header = headers_before + headers.len() - 1;
            // As soon as the first of those that need it has its turn: were it read with one of a later
            // turn, the earlier one would wait for a turn that waits for it.
            let sharing = order[at..].iter().map(|&i| &targets[i]);
            let sharing = sharing.take_while(|o| (o.segment, o.record) == (t.segment, t.record));
            let stage = sharing.map(|o| o.stage).min().unwrap_or(t.stage);
            let first = ReadGroup { segment: t.segment, stage };
            if !t.header_cached || header_bridges_reads(&fetches, t, bytes) {
                push_piece(&mut fetches, first, t.record, Piece::Header { header, bytes }, 1, parts_max);
            }
        }
        header_of[i] = headers_before + headers.len() - 1;
        for chunk in &t.chunks {
            let at = t.record + t.payload_delta + chunk.start;
            let (piece, parts) = match t.direct_parts {
                Some(parts) => {
                    let bytes = chunk.end - chunk.start;
                    (
                        Piece::Direct {
                            slot: t.slot,
                            round: t.round,
                            bytes,
                            unaligned_tail: t.unaligned_tail,
                        },
                        parts,
                    )
                }
                None => (Piece::Staged { slot: t.slot, round: t.round, chunk: chunk.clone() }, 1),
            };
            push_piece(
                &mut fetches,
                ReadGroup { segment: t.segment, stage: t.stage },
                at,
                piece,
                parts,
                parts_max,
            );
        }
    }
    (fetches, headers, header_of)
}

/// Whether a record's header of so many `bytes` lies where the last read ends and what is wanted of the record begins, and
/// there is room in that read for a whole object more.
fn header_bridges_reads(fetches: &[Fetch], t: &ReadTarget, bytes: u64) -> bool {
    let wanted = t.chunks.first().filter(|chunk| t.payload_delta == bytes && chunk.start == 0);
    fetches.last().zip(wanted).is_some_and(|(last, chunk)| {
        let continues = last.segment == t.segment && last.offset + last.bytes == t.record;
        continues && last.stage == t.stage && last.bytes + bytes + chunk.end <= JOIN_BYTES_MAX
    })
}

/// Where a piece is read from, and when.
#[derive(Clone, Copy)]
struct ReadGroup {
    segment: SegmentId,
    stage: usize,
}

/// Join a piece to the last read if it continues it, else begin a new one.
fn push_piece(
    fetches: &mut Vec<Fetch>,
    t: ReadGroup,
    offset: u64,
    piece: Piece,
    parts: usize,
    parts_max: usize,
) {
    let bytes = piece.bytes();
    if let Some(last) = fetches.last_mut() {
        let continues = last.segment == t.segment && last.offset + last.bytes == offset;
        // A header always goes with the payload behind it, however long: one read brings both.
        let with_header = matches!(last.pieces[..], [Piece::Header { .. }]) && last.bytes <= LEAD_BYTES_MAX;
        let small = last.bytes + bytes <= JOIN_BYTES_MAX || with_header;
        // A staged read waits for its turn; nobody else should wait with it.
        let same_turn = last.stage == t.stage || last.pieces.is_empty();
        // Chunks of an object that streams are read one by one: together they may need more memory than there
        // is, and then none of them would ever be read.
        let streams = match (last.pieces.last(), &piece) {
            (Some(Piece::Staged { slot: before, .. }), Piece::Staged { slot, .. }) => before == slot,
            _ => false,
        };
        if continues && small && same_turn && !streams && last.parts + parts <= parts_max {
            last.bytes += bytes;
            last.parts += parts;
            last.pieces.push(piece);
            return;
        }
    }
    let stage = t.stage;
    fetches.push(Fetch { segment: t.segment, offset, bytes, parts, pieces: [piece].into(), stage });
}

/// How a wanted range of an object is read: the stretch of its payload in whole blocks, padded to 4096.
pub(crate) fn widen_to_blocks(want: &Range<u64>, length: u64) -> Range<u64> {
    let block = u64::from(BLOCK_BYTES);
    let start = want.start / block * block;
    let end = want.end.div_ceil(block).saturating_mul(block).min(length);
    start..start + align_up(end - start)
}

/// The bytes of all blocks that a wanted range lies in, in stretches: blocks of which all is wanted together, and those of which a part is
/// before and behind them. Some may be empty.
pub(crate) fn split_at_blocks(want: &Range<u64>, length: u64) -> [Range<u64>; 3] {
    let block = u64::from(BLOCK_BYTES);
    let wide = widen_to_blocks(want, length);
    let end = wide.end.min(length);
    let whole_end = if want.end == end { end } else { want.end / block * block };
    let whole_start = want.start.div_ceil(block).saturating_mul(block).min(whole_end.max(wide.start));
    [wide.start..whole_start, whole_start..whole_end.max(whole_start), whole_end.max(whole_start)..end]
}

/// Whether a wanted range is whole blocks, so that it can be verified where it lands.
pub(crate) fn is_whole_blocks(want: &Range<u64>, length: u64) -> bool {
    let block = u64::from(BLOCK_BYTES);
    want.start.is_multiple_of(block) && (want.end.is_multiple_of(block) || want.end == length)
}

/// Split a stretch into chunks of at most `chunk` bytes.
pub(crate) fn split_chunks(stretch: Range<u64>, chunk: u64) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut at = stretch.start;
    while at < stretch.end {
        let end = (at + chunk).min(stretch.end);
        out.push(at..end);
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(slot: usize, record: u64, payload_delta: u64, bytes: u64) -> ReadTarget {
        ReadTarget {
            slot,
            round: 0,
            segment: SegmentId(1),
            record,
            payload_delta,
            chunks: split_chunks(0..bytes, bytes),
            direct_parts: Some(1),
            unaligned_tail: false,
            stage: 0,
            header_cached: false,
        }
    }

    #[test]
    fn a_wanted_range_is_cut_where_whole_blocks_of_it_begin_and_end() {
        let block = u64::from(BLOCK_BYTES);
        let of = |want: Range<u64>| split_at_blocks(&want, 3 * block + 5);
        assert_eq!(of(0..3 * block + 5), [0..0, 0..3 * block + 5, 3 * block + 5..3 * block + 5]);
        assert_eq!(of(1..3 * block), [0..block, block..3 * block, 3 * block..3 * block]);
        assert_eq!(of(block..2 * block + 1), [block..block, block..2 * block, 2 * block..3 * block]);
        assert_eq!(of(3 * block + 1..3 * block + 5)[0], 3 * block..3 * block + 5);
        for want in [1..2, 1..block + 1, block - 1..block + 1, 3 * block + 1..3 * block + 4] {
            let [before, whole, behind] = of(want.clone());
            assert!(whole.is_empty(), "{want:?}");
            assert_eq!(
                (before.start, before.end),
                (widen_to_blocks(&want, 3 * block + 5).start, behind.start),
                "{want:?}"
            );
            assert_eq!(behind.end, want.end.next_multiple_of(block).min(3 * block + 5), "{want:?}");
        }
    }

    #[test]
    fn a_header_that_is_known_is_read_only_between_two_payloads() {
        let one = 4096 + 65536;
        let cached = |slot, record| ReadTarget { header_cached: true, ..target(slot, record, 4096, 65536) };
        let (fetches, headers, _) = plan(&[cached(0, 4096)], 0, 64);
        assert_eq!((fetches.len(), headers.len()), (1, 1));
        assert_eq!((fetches[0].offset, fetches[0].bytes, fetches[0].pieces.len()), (8192, 65536, 1));
        // Neighbours are one read, which begins behind the first one's header.
        let (fetches, ..) = plan(&[cached(0, 4096), cached(1, 4096 + one)], 0, 64);
        assert_eq!((fetches.len(), fetches[0].offset, fetches[0].bytes), (1, 8192, 65536 + one));
        // Strangers are two, and so are neighbours that are more than a read together.
        let (fetches, ..) = plan(&[cached(0, 4096), cached(1, 8192 + one)], 0, 64);
        assert!(fetches.iter().all(|f| f.bytes == 65536) && fetches.len() == 2);
        // A short payload is no header, which would go with what is behind it however long.
        let long = ReadTarget {
            payload_delta: 4096 + 65536,
            chunks: split_chunks(0..2 << 20, 2 << 20),
            ..cached(1, 4096)
        };
        assert_eq!(plan(&[cached(0, 4096), long], 0, 64).0.len(), 2);
        let run: Vec<_> = (0..20).map(|i| cached(i, 4096 + i as u64 * one)).collect();
        let (fetches, ..) = plan(&run, 0, 1024);
        assert!(fetches.iter().all(|f| f.bytes <= JOIN_BYTES_MAX), "{fetches:?}");
        assert!(fetches.iter().all(|f| f.pieces.len() % 2 == 1), "a header at an edge: {fetches:?}");
    }

    #[test]
    fn a_group_is_one_read_with_one_header() {
        let (k, v) = (target(0, 4096, 4096, 32768), target(1, 4096, 4096 + 32768, 32768));
        let (fetches, headers, of) = plan(&[v.clone(), k.clone()], 0, 64);
        assert_eq!((headers.len(), of), (1, vec![0, 0]));
        assert_eq!(fetches.len(), 1);
        assert_eq!((fetches[0].offset, fetches[0].bytes), (4096, 4096 + 65536));
        let slots: Vec<_> = fetches[0].pieces.iter().map(Piece::bytes).collect();
        assert_eq!(slots, vec![4096, 32768, 32768]);
    }

    #[test]
    fn a_header_is_read_in_the_turn_of_the_first_that_needs_it() {
        let staged = |slot, payload_delta, stage| ReadTarget {
            direct_parts: None,
            stage,
            ..target(slot, 4096, payload_delta, 32768)
        };
        // Asked for last member first: the first member's payload has the later turn.
        let (v, k) = (staged(0, 4096 + 32768, 1), staged(1, 4096, 2));
        let (fetches, headers, of) = plan(&[v, k], 0, 64);
        assert_eq!((headers.len(), of), (1, vec![0, 0]));
        let with_header =
            fetches.iter().find(|f| f.pieces.contains(&Piece::Header { header: 0, bytes: 4096 }));
        assert_eq!(with_header.map(|f| (f.stage, f.pieces.len())), Some((1, 1)), "{fetches:?}");
    }

    #[test]
    fn neighbours_join_up_to_the_limit_and_strangers_do_not() {
        let one = 4096 + 65536;
        let run: Vec<_> = (0..20).map(|i| target(i, 4096 + i as u64 * one, 4096, 65536)).collect();
        let (fetches, headers, _) = plan(&run, 0, 1024);
        assert_eq!(headers.len(), 20);
        assert!(fetches.iter().all(|f| f.bytes <= JOIN_BYTES_MAX + LEAD_BYTES_MAX), "{fetches:?}");
        assert_eq!(fetches.iter().map(|f| f.bytes).sum::<u64>(), 20 * one);
        assert_eq!(fetches.len(), 2);
        let apart = [target(0, 4096, 4096, 65536), target(1, 4096 + one + 4096, 4096, 65536)];
        assert_eq!(plan(&apart, 0, 1024).0.len(), 2);
    }

    #[test]
    fn a_far_payload_has_its_header_read_by_itself() {
        let far = target(0, 4096, 4096 + (1 << 20), 65536);
        let (fetches, ..) = plan(&[far], 3, 64);
        assert_eq!(fetches.len(), 2);
        assert_eq!(fetches[0].pieces[..], [Piece::Header { header: 3, bytes: 4096 }]);
    }

    #[test]
    fn too_many_parts_begin_another_read() {
        let run: Vec<_> = (0..4).map(|i| target(i, 4096 + i as u64 * 8192, 4096, 4096)).collect();
        let (fetches, ..) = plan(&run, 0, 4);
        assert_eq!(fetches.len(), 2);
        assert!(fetches.iter().all(|f| f.parts <= 4));
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
