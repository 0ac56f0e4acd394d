//! Golden files: the bytes of a frame of every kind and form in protocol version 1, in
//! `golden/wire1/`. A reader must read them as long as it supports that version, and the current
//! encoder must write exactly these bytes.
//!
//! `TEST_PAGELITH_BLESS=1 cargo test -p pagelith-layouts --test wire todays_encoder` rewrites them.
//! It must run alone, since the other tests read them. Do this only while no released version wrote
//! the old bytes: after a release, a change of bytes is a new protocol version.

use std::path::PathBuf;

use pagelith_layouts::checksum::{BLOCK_BYTES, key_hash};
use pagelith_layouts::wire::greeting::{Greeting, Refusal};
use pagelith_layouts::wire::hint::WireHint;
use pagelith_layouts::wire::outcome::{
    self, DecodedOutcome, RegionExtent, TierTag, WireEvent, digest,
};
use pagelith_layouts::wire::placement::{self, PlacedBody};
use pagelith_layouts::wire::pull::{self, PullItem};
use pagelith_layouts::wire::put::PutGroupKind;
use pagelith_layouts::wire::rails::Rails;
use pagelith_layouts::wire::request::{self, GetItem, RequestBody, Verb};
use pagelith_layouts::wire::{FrameKind, List, head, rdma_regions, shm_ref};

use super::build::*;
use super::common::{NAMESPACE, bytes, checksums};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire1").join(name)
}

fn files() -> Vec<(String, Vec<u8>)> {
    let named = frames().into_iter().chain([("hello_newer", hello_newer())]);
    named.map(|(name, bytes)| (format!("{name}.bin"), bytes)).collect()
}

/// The body of a golden frame, read by a reader of version 1.
fn body(name: &str) -> (FrameKind, Vec<u8>) {
    let kept = std::fs::read(path(name))
        .unwrap_or_else(|e| panic!("golden file {name} must be there: {e}"));
    let (facts, _, body) = head::split(&kept, Some(1)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(kept.len(), 64 + facts.body_bytes as usize, "{name}");
    (facts.kind, body.to_vec())
}

#[test]
fn todays_encoder_writes_exactly_these_frames() {
    let bless = std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1");
    for (name, bytes) in files() {
        if bless {
            std::fs::write(path(&name), &bytes).expect("the golden folder can be written");
        }
        let kept = std::fs::read(path(&name)).unwrap_or_else(|e| panic!("golden file {name}: {e}"));
        let differs = kept.iter().zip(&bytes).position(|(a, b)| a != b);
        assert!(
            kept == bytes,
            "{name} differs: kept={} written={} first={differs:?}",
            kept.len(),
            bytes.len()
        );
    }
}

#[test]
fn every_golden_frame_is_checked() {
    let kept = std::fs::read_dir(path("")).expect("the golden folder");
    let mut kept: Vec<_> = kept
        .map(|e| e.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect();
    let mut known: Vec<_> = files().into_iter().map(|(name, _)| name).collect();
    kept.sort();
    known.sort();
    assert_eq!(kept, known);
    let kinds: Vec<FrameKind> =
        frames().iter().map(|(name, _)| body(&format!("{name}.bin")).0).collect();
    assert!(FrameKind::ALL.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

#[test]
fn golden_greetings_and_refusals_are_read() {
    assert_eq!(Greeting::decode(&body("hello.bin").1), Ok(greeting()));
    assert_eq!(Greeting::decode(&body("welcome.bin").1), Ok(greeting()));
    assert_eq!(Greeting::decode(&body("hello_named.bin").1), Ok(greeting()));
    assert_eq!(Greeting::host_of(&body("hello_named.bin").1), Some("node-7.example"));
    for unnamed in ["hello.bin", "hello_newer.bin"] {
        assert_eq!(Greeting::host_of(&body(unnamed).1), None, "{unnamed}");
    }
    assert_eq!(Refusal::decode(&body("refusal.bin").1), Ok(refusal()));
    let newer = Greeting::decode(&body("hello_newer.bin").1).expect("the known fields decode");
    assert_eq!((newer.version_min, newer.version_max, newer.features), (2, 3, u64::MAX));
}

#[test]
fn golden_requests_are_read_in_every_field() {
    let read = |name: &str, check: &dyn Fn(RequestBody<'_>)| {
        let (kind, body) = body(&format!("request_{name}.bin"));
        let (terms, ask) = request::decode(&body).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = if name == "get_rate" { RATED } else { TERMS };
        assert_eq!((kind, terms), (FrameKind::Request, expected));
        check(ask);
    };
    read("exists", &|ask| {
        let RequestBody::Exists(keys) = ask else { panic!("{ask:?}") };
        assert_eq!(keys.iter().collect::<Vec<_>>(), super::build::keys());
    });
    read("get", &|ask| {
        let RequestBody::Get(items) = ask else { panic!("{ask:?}") };
        let whole = |i: GetItem| (i.key, i.range(), i.length(), i.byte_range());
        let [k, v, _] = keys();
        let expected = [(k, None, 70_000, 0..70_000), (v, Some(100..4096), 3996, 100..4096)];
        assert_eq!(items.iter().map(whole).collect::<Vec<_>>(), expected);
    });
    read("get_rate", &|ask| assert_eq!(ask.verb(), Verb::Get));
    read("put", &|ask| {
        let RequestBody::Put(puts) = ask else { panic!("{ask:?}") };
        let objects: Vec<_> = puts.objects().collect();
        let shape = objects.iter().map(|o| (o.number, o.key, o.length, o.group, o.checksums.len()));
        let [k, v, draft] = keys();
        let expected = [(0, k, 70_000, 0, 3), (1, v, 4096, 0, 1), (2, draft, 100, 1, 0)];
        assert_eq!(shape.collect::<Vec<_>>(), expected);
        let sums = checksums(&bytes(1, 70_000), BLOCK_BYTES);
        assert_eq!(objects[0].checksums.iter().collect::<Vec<_>>(), sums);
        assert_eq!(
            (puts.group_count(), puts.block_bytes(), puts.group_kind()),
            (2, BLOCK_BYTES, PutGroupKind::Nothing)
        );
        assert_eq!(puts.steady(), None);
    });
    read("put_attached", &|ask| {
        let RequestBody::Put(puts) = ask else { panic!("{ask:?}") };
        assert_eq!((puts.base(0), puts.base(1), puts.required()), (Some(keys()[0]), None, None));
    });
    read("put_parts", &|ask| {
        let RequestBody::Put(puts) = ask else { panic!("{ask:?}") };
        let required = puts.required().map(|keys| keys.iter().collect::<Vec<_>>());
        assert_eq!(
            (puts.group_count(), puts.base(0), required),
            (1, None, Some(keys()[..2].to_vec()))
        );
        assert_eq!(
            puts.objects().map(|o| (o.key, o.length)).collect::<Vec<_>>(),
            [(keys()[1], 4096)]
        );
    });
    read("put_steady", &|ask| {
        let RequestBody::Put(puts) = ask else { panic!("{ask:?}") };
        let shown = puts.objects().map(|o| (o.shown, o.checksums.len())).collect::<Vec<_>>();
        assert_eq!(
            (puts.steady(), puts.open(), shown),
            (Some(9), None, vec![(Some((1, 8192)), 0), (None, 1)])
        );
    });
    read("clear", &|ask| assert_eq!(ask, RequestBody::Clear(NAMESPACE)));
    read("pin", &|ask| assert_eq!(ask, RequestBody::Pin(5, List::of(&keys()))));
    read("unpin", &|ask| assert_eq!(ask, RequestBody::Unpin(5)));
    read("begin", &|ask| assert_eq!(ask, RequestBody::Begin(6, List::of(&keys()[..2]))));
    read("put_into", &|ask| {
        let RequestBody::Put(puts) = ask else { panic!("{ask:?}") };
        assert_eq!(
            (puts.open(), puts.group_kind(), puts.group_count()),
            (Some(6), PutGroupKind::Open(6), 1)
        );
    });
    read("commit", &|ask| assert_eq!(ask, RequestBody::Commit(6)));
    read("abort", &|ask| assert_eq!(ask, RequestBody::Abort(6)));
    read("missing", &|ask| assert_eq!(ask, RequestBody::Missing(6)));
    read("view", &|ask| assert_eq!(ask, RequestBody::View(7, List::of(&keys()[..2]))));
    read("prefetch", &|ask| assert_eq!(ask, RequestBody::Prefetch(List::of(&keys()[..2]))));
    read("events", &|ask| assert_eq!(ask, RequestBody::Events(41)));
    read("hold", &|ask| assert_eq!(ask, RequestBody::Hold(8)));
    read("release", &|ask| assert_eq!(ask, RequestBody::Release(8)));
    read("used", &|ask| assert_eq!(ask, RequestBody::Used(135_536, List::of(&keys()[..2]))));
    read("hint", &|ask| {
        let RequestBody::Hint(number, keys) = ask else { panic!("{ask:?}") };
        assert_eq!((WireHint::from_number(number), keys.len()), (Some(HINT), 2));
    });
    read("lease", &|ask| assert_eq!(ask, RequestBody::Lease(60_000, List::of(&keys()[..2]))));
    for (name, verb) in [
        ("exists_prefix", Verb::ExistsPrefix),
        ("remove", Verb::Remove),
        ("flush", Verb::Flush),
        ("stats", Verb::Stats),
        ("ping", Verb::Ping),
    ] {
        read(name, &|ask| assert_eq!(ask.verb(), verb));
    }
}

#[test]
fn golden_shown_and_taken_frames_are_read() {
    let said = body("shown.bin").1;
    let said = shm_ref::decode(&said).expect("shown");
    assert_eq!((said.item, said.offset, said.length), (1, 4096, 32_868));
    assert_eq!(said.pieces.iter().collect::<Vec<_>>(), pieces());
    let taken = body("taken.bin").1;
    let taken: Vec<_> = shm_ref::decode_released(&taken).expect("taken").collect();
    assert_eq!(taken, released()[..2]);
    let unread = body("taken_unread.bin").1;
    let unread: Vec<_> = shm_ref::decode_released(&unread).expect("taken").collect();
    assert_eq!(unread, released()[2..]);
}

#[test]
fn golden_frames_of_rdma_are_read() {
    assert_eq!(Rails::decode(&body("rails.bin").1), Ok(rails()));
    assert_eq!(rails().rails[1].device(), "mlx5_1");
    let none = Rails::decode(&body("rails_none.bin").1).expect("rails");
    assert_eq!(none, Rails::none("no active port device=mlx5_0"));
    let (items, keys) = regions();
    let read = body("regions.bin").1;
    let read: Vec<_> = rdma_regions::decode(&read)
        .expect("regions")
        .iter()
        .map(|(item, keys)| (item, keys.iter().collect::<Vec<_>>()))
        .collect();
    let expected = [(items[0], &keys[..2]), (items[1], &keys[2..]), (items[2], &[][..])];
    assert_eq!(read, expected.map(|(item, keys)| (item, keys.to_vec())));
    let read = body("targets.bin").1;
    let read = placement::decode_targets(&read).expect("targets");
    assert_eq!(read.iter().collect::<Vec<_>>(), targets());
    assert_eq!(PlacedBody::decode(&body("placed.bin").1), Ok(PLACED));
    let read = body("noticed.bin").1;
    let read = placement::decode_noticed(&read).expect("noticed");
    assert_eq!(read.iter().collect::<Vec<_>>(), noticed());
}

#[test]
fn golden_pulls_and_outcomes_are_read() {
    let pulled = body("pull.bin").1;
    let pulled: Vec<_> = pull::decode(&pulled).expect("a pull").iter().collect();
    assert_eq!(pulled, [PullItem::new(0, 0, 65_536), PullItem::new(1, 0, 4096)]);

    let got = body("outcome_get.bin").1;
    let (verb, DecodedOutcome::Items(read)) = outcome::decode(&got).expect("an outcome") else {
        panic!("items")
    };
    let sums = checksums(&bytes(1, 70_000), BLOCK_BYTES);
    assert_eq!((verb, read.len(), read.block_bytes()), (Verb::Get, 3, BLOCK_BYTES));
    for (found, expected) in read.iter().zip(items(&sums)) {
        assert_eq!(found, expected);
    }
    let hashes: Vec<_> = read.iter().map(|i| i.key_hash).collect();
    assert_eq!(hashes, keys().map(|k| key_hash(&k)));

    let exists = body("outcome_exists.bin").1;
    let (_, DecodedOutcome::Bits(bits)) = outcome::decode(&exists).expect("an outcome") else {
        panic!("bits")
    };
    assert_eq!(bits.iter().collect::<Vec<_>>(), [true, false, true]);
    for (name, number) in [
        ("exists_prefix", 2),
        ("remove", 1),
        ("clear", 2),
        ("ping", 0),
        ("pin", 3),
        ("unpin", 3),
        ("lease", 2),
        ("hold", 0),
        ("release", 1),
    ] {
        let body = body(&format!("outcome_{name}.bin")).1;
        assert_eq!(
            outcome::decode(&body).map(|(_, answer)| answer),
            Ok(DecodedOutcome::Number(number)),
            "{name}"
        );
    }
    let said = body("outcome_events.bin").1;
    let (Verb::Events, DecodedOutcome::Events(said)) = outcome::decode(&said).expect("an outcome")
    else {
        panic!("events")
    };
    assert_eq!((said.next, said.lost), (45, 3));
    let happened = [
        WireEvent::Stored(TierTag::Memory, keys()[0], true),
        WireEvent::Removed(TierTag::Ssd, keys()[1], false),
        WireEvent::Cleared(NAMESPACE),
        WireEvent::Forgot(TierTag::Ssd),
    ];
    assert_eq!(said.iter().collect::<Vec<_>>(), happened);
    let views = body("outcome_view.bin").1;
    let (Verb::View, DecodedOutcome::Views(views)) = outcome::decode(&views).expect("an outcome")
    else {
        panic!("views")
    };
    let sums = checksums(&bytes(1, 70_000), BLOCK_BYTES);
    let location = RegionExtent { region: 0, at: 81_920, length: 70_000, digest: digest(&sums) };
    assert_eq!(
        views.iter().map(|view| view.location()).collect::<Vec<_>>(),
        [Some(location), None]
    );
    assert!(views.iter().all(|view| view.key_hash() == key_hash(&keys()[0])));
    let failed = body("outcome_failed.bin").1;
    let (_, DecodedOutcome::Failed(failure)) = outcome::decode(&failed).expect("an outcome") else {
        panic!("failed")
    };
    assert_eq!(failure.text, "the store is closed");
}
