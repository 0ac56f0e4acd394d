//! A scan reports records in order, disjoint, inside the segment, and whole only if they are.
#![no_main]

use std::cell::RefCell;
use std::convert::Infallible;

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::{BLOCK, IDENTITY, seal};
use pagelith_layouts::checksum::checksum;
use pagelith_layouts::record::Record;
use pagelith_layouts::scan::{SCRATCH_BYTES, ScanItem, scan};

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

fuzz_target!(|data: &[u8]| {
    check(data);
    // Back to front: sealing a header changes bytes that an earlier header may cover.
    let mut sealed = data.to_vec();
    for at in (0..data.len() / BLOCK).rev().map(|i| i * BLOCK) {
        if let Some(claimed) = Record::claimed_header_bytes(&sealed[at..]) {
            let end = (at + claimed as usize).min(sealed.len());
            seal(&mut sealed[at..end], 8);
        }
    }
    check(&sealed);
});

fn check(image: &[u8]) {
    let mut read = |offset: u64, out: &mut [u8]| {
        assert_eq!((offset as usize % BLOCK, out.len() % BLOCK), (0, 0));
        out.copy_from_slice(&image[offset as usize..][..out.len()]);
        Ok::<(), Infallible>(())
    };
    let mut last = 0;
    let mut free_from = BLOCK as u64;
    let mut found = |f: ScanItem<'_>| {
        let offset = match &f {
            ScanItem::Record { record, .. } => record.facts().offset,
            ScanItem::Unrecognized { offset, .. } => *offset,
        };
        assert!(offset > last && offset >= free_from, "in order and apart");
        last = offset;
        if let ScanItem::Record { record, payload } = f {
            assert_eq!(record.expect(IDENTITY, offset), Ok(()));
            assert!(offset + record.record_bytes() <= image.len() as u64);
            assert_eq!(payload.is_ok(), is_whole(&record, image));
            if payload.is_ok() {
                free_from = offset + record.record_bytes();
            }
        }
    };
    SCRATCH.with_borrow_mut(|scratch| {
        scan(IDENTITY, image.len() as u64, scratch, &mut read, &mut found)
            .expect("reads never fail");
    });
}

fn is_whole(record: &Record<'_>, image: &[u8]) -> bool {
    let facts = record.facts();
    record.members().all(|m| {
        let from = (facts.offset + m.payload_offset) as usize;
        let payload = &image[from..from + m.length as usize];
        payload.chunks(facts.block_bytes as usize).map(checksum).eq(record.checksums(&m))
    })
}
