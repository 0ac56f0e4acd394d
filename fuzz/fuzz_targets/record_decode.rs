//! A record header that decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_fuzz::seal;
use pagelith_layouts::footer::entries_of;
use pagelith_layouts::record::{Member, MemberSpec, Record, encode};

fuzz_target!(|data: &[u8]| {
    check(data);
    let mut sealed = data.to_vec();
    let claimed = Record::claimed_header_bytes(data).unwrap_or(data.len() as u64);
    if let Some(header) = sealed.get_mut(..claimed as usize) {
        if seal(header, 8) {
            check(&sealed);
        }
    }
});

fn check(bytes: &[u8]) {
    let Ok(r) = Record::decode(bytes) else { return };
    let sums: Vec<Vec<_>> = r.members().map(|m| r.checksums(&m).collect()).collect();
    let spec = |(m, checksums): (Member, _)| MemberSpec { key: m.key, length: m.length, checksums };
    let specs: Vec<_> = r.members().zip(sums.iter().map(Vec::as_slice)).map(spec).collect();
    let again = encode(&r.facts(), &specs).expect("a decoded header can be encoded");
    assert_eq!(again, bytes[..r.header_bytes() as usize]);
    assert_eq!(specs.len(), r.member_count());
    assert_eq!(entries_of(&r).count(), r.member_count());
    assert_eq!(r.expect(r.facts().identity, r.facts().offset), Ok(()));
    for m in r.members() {
        assert!(m.payload_offset + m.length <= r.record_bytes());
        assert_eq!(r.find(&m.key).map(|found| found.key), Some(m.key));
    }
}
