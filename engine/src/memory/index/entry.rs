//! One object in the index: the view that callers see, and the 32 bytes it is packed into.
//!
//! ```text
//! words 0 and 1: fingerprint, low half first; 0 = the slot is empty
//! word  2  A: segment 18 | record_sector 16 | payload_sector 16 | flags 4 | tick, high half 10
//! word  3  B: length 28 | frame 24 | zero 2                               | tick, low half 10
//! ```
//!
//! A link sets only its flag in word A, and stores the name of a base group's member in word B.
//!
//! Fields are listed from the lowest bit up.

use super::IndexError;
use crate::config::SEGMENT_MAX;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer::FooterEntry;
use pagelith_layouts::ids::SegmentId;

/// Size of a packed entry, bytes; two share a cache line.
pub(crate) const SLOT_BYTES: usize = SLOT_WORDS * size_of::<u64>();
/// Size of a packed entry, words.
pub(crate) const SLOT_WORDS: usize = 4;

const SEGMENT_BITS: u32 = 18;
const RECORD_BLOCK_BITS: u32 = 16;
const PAYLOAD_BLOCK_BITS: u32 = 16;
const FLAG_BITS: u32 = 4;
const LENGTH_BITS: u32 = 28;
const FRAME_BITS: u32 = 24;
const SPARE_BITS: u32 = 2;
const HALF_TICK_BITS: u32 = 10;
const TICK_BITS: u32 = 2 * HALF_TICK_BITS;

const RECORD_BLOCK_AT: u32 = SEGMENT_BITS;
const PAYLOAD_BLOCK_AT: u32 = RECORD_BLOCK_AT + RECORD_BLOCK_BITS;
const FLAGS_AT: u32 = PAYLOAD_BLOCK_AT + PAYLOAD_BLOCK_BITS;
const TICK_HIGH_AT: u32 = FLAGS_AT + FLAG_BITS;
const FRAME_AT: u32 = LENGTH_BITS;
const SPARE_AT: u32 = FRAME_AT + FRAME_BITS;
const TICK_LOW_AT: u32 = SPARE_AT + SPARE_BITS;

/// One of the four flag bits is spare and zero.
const FLAG_ON_SSD: u64 = 1;
const FLAG_ATTACHED: u64 = 1 << 1;
const FLAG_LINK: u64 = 1 << 2;

const FRAME_NONE: u32 = (1 << FRAME_BITS) - 1;
const TICK_MASK: u32 = (1 << TICK_BITS) - 1;

const _: () = assert!(SEGMENT_MAX == (1 << SEGMENT_BITS) - 1);
/// The highest DRAM frame number an entry can name; the one above it means "in no frame".
pub const FRAME_MAX: u32 = FRAME_NONE - 1;
/// The longest object, bytes: 128 MiB, the limit of the format.
pub const LENGTH_MAX: u32 = 128 << 20;
/// Ticks are counted modulo this; compare them only through [`tick_age`].
pub const TICK_MODULUS: u32 = 1 << TICK_BITS;

const _: () = {
    assert!(TICK_HIGH_AT + HALF_TICK_BITS == u64::BITS, "word A is full");
    assert!(TICK_LOW_AT + HALF_TICK_BITS == u64::BITS, "word B is full");
    assert!(size_of::<u128>() + 2 * size_of::<u64>() == SLOT_BYTES);
    assert!(
        RECORD_BLOCK_BITS == u16::BITS && PAYLOAD_BLOCK_BITS == u16::BITS,
        "no range check is needed"
    );
    assert!(LENGTH_MAX < 1 << LENGTH_BITS);
    assert!(FLAG_LINK < 1 << FLAG_BITS);
};

/// Where an object's bytes are on SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SsdLocation {
    /// Segment number, at most [`SEGMENT_MAX`].
    pub segment: u32,
    /// Offset in the segment of the record's header, in sectors of 4096 bytes.
    pub record_sector: u16,
    /// Distance from the record's header to this object's payload, in sectors.
    pub payload_sector: u16,
}

/// Segment and first sector of a record.
pub type RecordPlace = (u32, u16);

impl SsdLocation {
    /// The place of the record.
    pub fn record(&self) -> RecordPlace {
        (self.segment, self.record_sector)
    }

    /// The location of a payload at offset `delta` of the record at byte `record` of a segment.
    /// Both are multiples of 4096 below 256 MiB.
    pub fn at(segment: SegmentId, record: u64, delta: u64) -> SsdLocation {
        let blocks = |bytes: u64| (bytes / ALIGN) as u16;
        SsdLocation {
            segment: segment.0,
            record_sector: blocks(record),
            payload_sector: blocks(delta),
        }
    }

    /// The location that a footer entry names.
    pub fn of_entry(segment: SegmentId, entry: &FooterEntry) -> SsdLocation {
        let (record_sector, payload_sector) =
            (entry.record_sector as u16, entry.payload_sector as u16);
        SsdLocation { segment: segment.0, record_sector, payload_sector }
    }
}

/// An entry of the index for one object, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Keyed hash of the whole key. Not its identity: two keys may share one. 0 is stored as 1.
    pub fingerprint: u128,
    /// Object length, bytes, 1 to [`LENGTH_MAX`].
    pub length: u32,
    /// Location on SSD, if the object is stored there.
    pub ssd: Option<SsdLocation>,
    /// The DRAM frame that holds it, if one does; at most [`FRAME_MAX`].
    pub frame: Option<u32>,
    /// When it was last used; kept modulo [`TICK_MODULUS`].
    pub tick: u32,
    /// Whether it is attached to a base group, and visible only while that is. Its link names the
    /// base.
    pub attached: bool,
}

/// An object's name in links: the upper half of its fingerprint. It alone determines the home slot.
pub fn name_of(fingerprint: u128) -> u64 {
    (fingerprint >> 64) as u64
}

/// Fingerprint under which the link of an object is stored. Fingerprints are keyed hashes, so no
/// other object has it.
pub(crate) fn link_of(fingerprint: u128) -> u128 {
    stored(!fingerprint)
}

/// Ticks from `tick` to `now`, modulo [`TICK_MODULUS`]: an entry that is not used for a full wrap
/// of the counter looks recent again.
pub fn tick_age(now: u32, tick: u32) -> u32 {
    now.wrapping_sub(tick) & TICK_MASK
}

/// The newest of the ticks of a store, 0 without any. The counter wraps, so it is not the largest:
/// the ticks of a store are close together, and the longest stretch without any follows the newest.
pub fn newest_tick(ticks: impl Iterator<Item = u32>) -> u32 {
    let mut seen = vec![0u64; (TICK_MODULUS / u64::BITS) as usize];
    for tick in ticks.map(|tick| tick & TICK_MASK) {
        seen[(tick / u64::BITS) as usize] |= 1 << (tick % u64::BITS);
    }
    let mut in_order = (0..).zip(&seen).filter(|(_, word)| **word != 0).flat_map(|(n, word)| {
        let bits = (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1);
        bits.map(move |bit| n * u64::BITS + bit)
    });
    let Some(first) = in_order.next() else { return 0 };
    let (mut newest, mut longest, mut last) = (first, 0, first);
    for tick in in_order.chain(std::iter::once(first)) {
        let gap = if tick == first { TICK_MODULUS - last + first } else { tick - last };
        // The gap to the first tick after the wrap comes last, and is chosen if others are as long.
        if gap >= longest {
            (newest, longest) = (last, gap);
        }
        last = tick;
    }
    newest
}

/// The fingerprint as stored: zero marks an empty slot, so a fingerprint of zero is stored as 1.
pub(crate) fn stored(fingerprint: u128) -> u128 {
    fingerprint.max(1)
}

/// A packed entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedEntry {
    pub(crate) fingerprint: u128,
    a: u64,
    b: u64,
}

impl PackedEntry {
    pub(crate) const EMPTY: PackedEntry = PackedEntry { fingerprint: 0, a: 0, b: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.fingerprint == 0
    }

    /// Refuses a field that does not fit: a truncated location would name another object's bytes.
    pub(crate) fn pack(entry: &Entry) -> Result<PackedEntry, IndexError> {
        let location =
            entry.ssd.unwrap_or(SsdLocation { segment: 0, record_sector: 0, payload_sector: 0 });
        in_range("segment", location.segment, 0, SEGMENT_MAX)?;
        in_range("length", entry.length, 1, LENGTH_MAX)?;
        if let Some(frame) = entry.frame {
            in_range("frame", frame, 0, FRAME_MAX)?;
        }
        let mut flags = 0;
        if entry.ssd.is_some() {
            flags |= FLAG_ON_SSD;
        }
        if entry.attached {
            flags |= FLAG_ATTACHED;
        }
        let tick = u64::from(entry.tick & TICK_MASK);
        let a = u64::from(location.segment)
            | u64::from(location.record_sector) << RECORD_BLOCK_AT
            | u64::from(location.payload_sector) << PAYLOAD_BLOCK_AT
            | flags << FLAGS_AT
            | (tick >> HALF_TICK_BITS) << TICK_HIGH_AT;
        // The shift drops the high half of the tick.
        let b = u64::from(entry.length)
            | u64::from(entry.frame.unwrap_or(FRAME_NONE)) << FRAME_AT
            | tick << TICK_LOW_AT;
        Ok(PackedEntry { fingerprint: stored(entry.fingerprint), a, b })
    }

    /// Tick of the last use.
    pub(crate) fn tick(&self) -> u32 {
        let high = bits(self.a, TICK_HIGH_AT, HALF_TICK_BITS) << HALF_TICK_BITS;
        (high | bits(self.b, TICK_LOW_AT, HALF_TICK_BITS)) as u32
    }

    /// The same entry with another tick of its last use.
    pub(crate) fn with_tick(self, tick: u32) -> PackedEntry {
        let tick = u64::from(tick & TICK_MASK);
        let a = self.a & !(u64::MAX << TICK_HIGH_AT) | (tick >> HALF_TICK_BITS) << TICK_HIGH_AT;
        // The shift drops the high half of the tick.
        let b = self.b & !(u64::MAX << TICK_LOW_AT) | tick << TICK_LOW_AT;
        PackedEntry { a, b, ..self }
    }

    /// The link of an object to the base group that has a member with this name.
    pub(crate) fn link(fingerprint: u128, base: u64) -> PackedEntry {
        PackedEntry { fingerprint: link_of(fingerprint), a: FLAG_LINK << FLAGS_AT, b: base }
    }

    /// If this is a link: the fingerprint of the linked object, and the name of its base.
    pub(crate) fn as_link(&self) -> Option<(u128, u64)> {
        (bits(self.a, FLAGS_AT, FLAG_BITS) & FLAG_LINK != 0).then_some((!self.fingerprint, self.b))
    }

    pub(crate) fn unpack(&self) -> Entry {
        let flags = bits(self.a, FLAGS_AT, FLAG_BITS);
        let frame = bits(self.b, FRAME_AT, FRAME_BITS) as u32;
        Entry {
            fingerprint: self.fingerprint,
            length: bits(self.b, 0, LENGTH_BITS) as u32,
            ssd: (flags & FLAG_ON_SSD != 0).then(|| SsdLocation {
                segment: bits(self.a, 0, SEGMENT_BITS) as u32,
                record_sector: bits(self.a, RECORD_BLOCK_AT, RECORD_BLOCK_BITS) as u16,
                payload_sector: bits(self.a, PAYLOAD_BLOCK_AT, PAYLOAD_BLOCK_BITS) as u16,
            }),
            frame: (frame != FRAME_NONE).then_some(frame),
            tick: self.tick(),
            attached: flags & FLAG_ATTACHED != 0,
        }
    }

    pub(crate) fn from_words([low, high, a, b]: [u64; SLOT_WORDS]) -> PackedEntry {
        PackedEntry { fingerprint: fingerprint_of(low, high), a, b }
    }

    pub(crate) fn to_words(self) -> [u64; SLOT_WORDS] {
        [self.fingerprint as u64, name_of(self.fingerprint), self.a, self.b]
    }
}

/// The fingerprint from the first two words of a packed entry, which are all that a probe reads.
pub(crate) fn fingerprint_of(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn bits(word: u64, at: u32, count: u32) -> u64 {
    word >> at & ((1 << count) - 1)
}

fn in_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), IndexError> {
    if value < min || value > max {
        return Err(IndexError::Range { field, value, min, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Entry {
        Entry { fingerprint: 7, length: 1, ssd: None, frame: None, tick: 0, attached: false }
    }

    fn round_trip(entry: Entry) {
        let slot = PackedEntry::pack(&entry).expect("in range");
        assert_eq!(PackedEntry::from_words(slot.to_words()).unpack(), entry);
    }

    /// Each field takes its lowest and highest value while all others are at an extreme, so that a
    /// field one bit too wide or misplaced changes its neighbour.
    #[test]
    fn round_trip_at_all_boundaries() {
        let locations = [
            None,
            Some((0, 0, 0)),
            Some((SEGMENT_MAX, 0, 0)),
            Some((0, u16::MAX, 0)),
            Some((0, 0, u16::MAX)),
            Some((SEGMENT_MAX, u16::MAX, u16::MAX)),
        ];
        let ticks = [0, 1, (1 << HALF_TICK_BITS) - 1, 1 << HALF_TICK_BITS, TICK_MODULUS - 1];
        for fingerprint in [1, u128::from(u64::MAX), 1 << 64, u128::MAX] {
            for location in locations {
                for frame in [None, Some(0), Some(FRAME_MAX)] {
                    for length in [1, LENGTH_MAX - 1, LENGTH_MAX] {
                        for tick in ticks {
                            for attached in [false, true] {
                                let ssd =
                                    location.map(|(segment, record_sector, payload_sector)| {
                                        SsdLocation { segment, record_sector, payload_sector }
                                    });
                                let entry =
                                    Entry { fingerprint, length, ssd, frame, tick, attached };
                                round_trip(entry);
                                let slot =
                                    PackedEntry::pack(&Entry { tick: !tick & TICK_MASK, ..entry });
                                assert_eq!(slot.expect("in range").with_tick(tick).unpack(), entry);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn pack_field_out_of_range_names_field() {
        let at = |segment| Some(SsdLocation { segment, record_sector: 0, payload_sector: 0 });
        let cases = [
            ("length", Entry { length: 0, ..plain() }),
            ("length", Entry { length: LENGTH_MAX + 1, ..plain() }),
            ("segment", Entry { ssd: at(SEGMENT_MAX + 1), ..plain() }),
            ("frame", Entry { frame: Some(FRAME_MAX + 1), ..plain() }),
            ("frame", Entry { frame: Some(u32::MAX), ..plain() }),
        ];
        for (name, entry) in cases {
            match PackedEntry::pack(&entry) {
                Err(IndexError::Range { field, .. }) => assert_eq!(field, name),
                Err(other) => panic!("{entry:?} was refused for another reason: {other}"),
                Ok(_) => panic!("{entry:?} was packed"),
            }
        }
    }

    #[test]
    fn tick_age_counts_across_wrap() {
        let entry = Entry { tick: TICK_MODULUS + 5, ..plain() };
        assert_eq!(PackedEntry::pack(&entry).expect("in range").unpack().tick, 5);
        assert_eq!(tick_age(5, 5), 0);
        assert_eq!(tick_age(3, TICK_MODULUS - 2), 5);
        assert_eq!(tick_age(TICK_MODULUS + 3, TICK_MODULUS - 2), 5, "now may exceed the modulus");
        assert_eq!(tick_age(0, u32::MAX), 1, "the tick may exceed the modulus");
        assert_eq!(tick_age(4, 5), TICK_MODULUS - 1, "a tick ahead of now counts as the oldest");
    }

    #[test]
    fn newest_tick_is_found_across_wrap() {
        let newest = |ticks: &[u32]| newest_tick(ticks.iter().copied());
        let last = TICK_MODULUS - 1;
        assert_eq!((newest(&[]), newest(&[7]), newest(&[last])), (0, 7, last));
        assert_eq!((newest(&[10, 20, 15]), newest(&[0, last])), (20, 0));
        assert_eq!(newest(&[last - 4000, last, 3, 700, last - 1]), 700);
        assert_eq!(newest(&[65_536, 70_000, 400_000]), 400_000, "before the first wrap");
    }

    #[test]
    fn link_differs_from_entry() {
        for fingerprint in [1, u128::from(u64::MAX), 1 << 64, u128::MAX - 1] {
            for base in [0, 1, u64::MAX] {
                let slot = PackedEntry::from_words(PackedEntry::link(fingerprint, base).to_words());
                assert_eq!(slot.as_link(), Some((fingerprint, base)));
            }
        }
        let all = Entry { tick: TICK_MASK, attached: true, ..plain() };
        assert_eq!(PackedEntry::pack(&all).expect("in range").as_link(), None);
    }

    #[test]
    fn zero_fingerprint_slot_is_not_empty() {
        let slot = PackedEntry::pack(&Entry { fingerprint: 0, ..plain() }).expect("in range");
        assert!(!slot.is_empty());
        assert_eq!(slot.unpack().fingerprint, 1);
        assert!(PackedEntry::from_words([0; SLOT_WORDS]).is_empty());
    }
}
