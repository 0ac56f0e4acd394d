//! Scans for records without a footer find exactly the intact ones, with any bytes between them.

mod common;

use std::convert::Infallible;

use common::*;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::record::*;
use pagelith_layouts::scan::{SCRATCH_BYTES, ScanItem, scan};
use pagelith_layouts::segment::SegmentIdentity;

/// Result of a scan: offsets of records with a valid payload, (offset, member) of records with an
/// invalid one, and offset and reason of unrecognized bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    intact: Vec<u64>,
    torn: Vec<(u64, usize)>,
    junk: Vec<(u64, FormatError)>,
}

fn report(identity: SegmentIdentity, image: &[u8], end: u64) -> Report {
    let mut report = Report::default();
    let mut read = |offset: u64, out: &mut [u8]| {
        assert_eq!((offset % ALIGN, out.len() as u64 % ALIGN), (0, 0), "reads are aligned");
        let from = offset as usize;
        out.copy_from_slice(&image[from..from + out.len()]);
        Ok::<(), Infallible>(())
    };
    let mut found = |found: ScanItem<'_>| match found {
        ScanItem::Record { record, payload: Ok(()) } => report.intact.push(record.facts().offset),
        ScanItem::Record { record, payload: Err((member, _)) } => {
            report.torn.push((record.facts().offset, member))
        }
        ScanItem::Unrecognized { offset, error } => report.junk.push((offset, error)),
    };
    scan(identity, end, &mut vec![0; SCRATCH_BYTES], &mut read, &mut found)
        .expect("reads never fail");
    report
}

/// A segment of adjacent single records of these lengths, in blocks of 8 KiB; returns their offsets
/// and the segment.
fn segment_of(lengths: &[usize]) -> (Vec<u64>, Vec<u8>) {
    let mut image = vec![0; ALIGN as usize];
    let mut offsets = Vec::new();
    for (i, length) in lengths.iter().enumerate() {
        let offset = image.len() as u64;
        let facts = RecordFacts { block_bytes: 8192, ..facts(identity(1, 2), offset) };
        let object =
            Object { key: key(i as u8, Role::Target, "kv", "k"), bytes: bytes(i as u64, *length) };
        image.extend(record(&facts, &[object]));
        offsets.push(offset);
    }
    (offsets, image)
}

#[test]
fn scan_finds_records_after_torn_one() {
    let (offsets, mut image) = segment_of(&[5000, 20_000, 1, 4096]);
    let end = image.len() as u64;
    assert_eq!(report(identity(1, 2), &image, end).intact, offsets);
    image[offsets[1] as usize + 4096 + 19_999] ^= 1;
    let r = report(identity(1, 2), &image, end);
    assert_eq!(
        (r.intact, r.torn),
        (vec![offsets[0], offsets[2], offsets[3]], vec![(offsets[1], 0)])
    );
}

#[test]
fn scan_reports_damaged_header_and_loses_only_its_record() {
    let (offsets, good) = segment_of(&[5000, 5000, 5000]);
    let second = offsets[1] as usize;
    for (at, reason) in [
        (at(&RecordHead::STRUCTURE, "sequence"), "checksum of record header does not match"),
        (
            at(&RecordHead::STRUCTURE, "header_bytes"),
            "record header is malformed field=header_bytes",
        ),
        (
            at(&RecordHead::STRUCTURE, "store"),
            "identity of record header does not match field=store",
        ),
        (4095, "checksum of record header does not match"),
    ] {
        let mut image = good.clone();
        image[second + at] ^= 1;
        let r = report(identity(1, 2), &image, good.len() as u64);
        assert_eq!(r.intact, [offsets[0], offsets[2]]);
        let [(offset, error)] = &r.junk[..] else { panic!("one ruin, not {:?}", r.junk) };
        assert_eq!(*offset, offsets[1]);
        assert!(error.to_string().starts_with(reason), "{error}");
    }
}

#[test]
fn records_of_other_incarnation_place_or_store_are_junk() {
    let (offsets, image) = segment_of(&[5000, 5000]);
    let foreign = SegmentIdentity { store: StoreId([9; 16]), ..identity(1, 2) };
    for (place, field) in
        [(identity(1, 3), "incarnation"), (identity(2, 2), "segment"), (foreign, "store")]
    {
        let r = report(place, &image, image.len() as u64);
        assert_eq!((r.intact, r.torn), (vec![], vec![]));
        assert_eq!(r.junk.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), offsets);
        assert!(
            r.junk.iter().all(|(_, e)| e.to_string().contains(&format!("field={field} "))),
            "{:?}",
            r.junk
        );
    }
    // The same bytes one block later: a misdirected write.
    let mut moved = vec![0; ALIGN as usize];
    moved.extend_from_slice(&image);
    let r = report(identity(1, 2), &moved, moved.len() as u64);
    assert_eq!((r.intact.len(), r.junk.len()), (0, 2));
}

#[test]
fn record_inside_payload_is_not_reported() {
    // A client that knows the store's identifier puts an object that contains a complete record of
    // another namespace.
    let forged_at = 3 * ALIGN;
    let inner = record(
        &facts(identity(1, 2), forged_at),
        &[Object { key: key(9, Role::Target, "kv", "k"), bytes: bytes(9, 100) }],
    );
    let mut payload = bytes(1, ALIGN as usize);
    payload.extend_from_slice(&inner);
    let mut image = vec![0; ALIGN as usize];
    image.extend(record(
        &facts(identity(1, 2), ALIGN),
        &[Object { key: key(1, Role::Target, "kv", "k"), bytes: payload }],
    ));
    let r = report(identity(1, 2), &image, image.len() as u64);
    assert_eq!((r.intact, r.junk), (vec![ALIGN], vec![]));
}

/// A header whose payload was lost does not hide records in the place of its payload.
#[test]
fn scan_tries_every_block_after_torn_header() {
    let (offsets, mut image) = segment_of(&[60_000, 5000]);
    let inside = offsets[0] + 3 * ALIGN;
    let object = Object { key: key(9, Role::Target, "kv", "k"), bytes: bytes(9, 100) };
    let whole = record(&facts(identity(1, 2), inside), &[object]);
    image[inside as usize..][..whole.len()].copy_from_slice(&whole);
    let r = report(identity(1, 2), &image, image.len() as u64);
    assert_eq!((r.intact, r.torn), (vec![inside, offsets[1]], vec![(offsets[0], 0)]));
}

#[test]
fn record_beyond_segment_end_is_not_reported() {
    let (offsets, image) = segment_of(&[5000, 20_000]);
    for end in [image.len() as u64 - ALIGN, offsets[1] + ALIGN, offsets[1] + ALIGN + 1] {
        let r = report(identity(1, 2), &image, end);
        assert_eq!((r.intact, r.torn), (vec![offsets[0]], vec![]), "end={end}");
        assert_eq!(r.junk.len(), 1);
    }
    for end in [0, 1, ALIGN - 1, ALIGN, ALIGN + 1, offsets[0] + 4095] {
        assert_eq!(report(identity(1, 2), &image, end), Report::default(), "end={end}");
    }
}

#[test]
fn object_longer_than_scratch_is_verified_completely() {
    let (offsets, mut image) = segment_of(&[SCRATCH_BYTES * 2 + 777, 5000]);
    let end = image.len() as u64;
    assert_eq!(report(identity(1, 2), &image, end).intact, offsets);
    image[ALIGN as usize * 2 + SCRATCH_BYTES * 2 + 776] ^= 0x80;
    let r = report(identity(1, 2), &image, end);
    assert_eq!((r.intact, r.torn), (vec![offsets[1]], vec![(offsets[0], 0)]));
}

#[test]
fn failed_read_ends_scan() {
    let (_, image) = segment_of(&[5000, 5000]);
    let mut read = |_: u64, _: &mut [u8]| Err("sick");
    let mut found = |f: ScanItem<'_>| panic!("nothing was read, found {f:?}");
    let end = image.len() as u64;
    assert_eq!(
        scan(identity(1, 2), end, &mut vec![0; SCRATCH_BYTES], &mut read, &mut found),
        Err("sick")
    );
}

#[test]
#[should_panic(expected = "scan needs more scratch")]
fn scan_with_too_little_scratch_panics() {
    let mut read = |_: u64, _: &mut [u8]| Ok::<(), Infallible>(());
    let _ = scan(identity(1, 2), 8192, &mut [0; 8191], &mut read, &mut |_| {});
}

#[test]
fn scratch_of_segment_length_suffices() {
    let (offsets, image) = segment_of(&[20_000, 5000]);
    let mut read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&image[offset as usize..][..out.len()]);
        Ok::<(), Infallible>(())
    };
    let mut whole = Vec::new();
    let mut found = |f: ScanItem<'_>| match f {
        ScanItem::Record { record, payload: Ok(()) } => whole.push(record.facts().offset),
        other => panic!("only whole records, not {other:?}"),
    };
    let mut scratch = vec![0; image.len()];
    scan(identity(1, 2), image.len() as u64, &mut scratch, &mut read, &mut found)
        .expect("reads never fail");
    assert_eq!(whole, offsets);
}
