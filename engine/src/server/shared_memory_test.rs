//! References into the store's shared memory, and how clients use them.

use std::time::Duration;

use pagelith_io::buffer::SharedParts;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::RequestOptions;
use pagelith_transport::address::Address;
use pagelith_transport::rights::Rights;

use super::tests::{Pair, TIMEOUT, key, object, overwrite, parts};
use crate::api::outcome::{GetOutcome, MissCause, Tier};
use crate::api::request::{Options, PutSlice};
use crate::rpc::call::{ItemRequest, PayloadFn, Response};

const LEN: usize = 100_000;

/// A pair over shared memory, and the directory of its socket.
fn shared_memory_pair(verify_ratio: f64) -> (Pair, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let pair = Pair::at(Address::Unix(dir.path().join("socket")), Rights::all(), verify_ratio, &[]);
    (pair, dir)
}

fn put(pair: &Pair, bytes: &[u8]) {
    let put = PutSlice { key: key(1, "k"), pieces: &[bytes] };
    pair.store.put_batch(&[put], Options::default()).remove(0).expect("put");
}

/// Gets the object: its outcome, its bytes, and whether a repeated get that copies is worthwhile.
fn get(
    pair: &mut Pair,
    sent: bool,
) -> (Result<GetOutcome, crate::api::error::Error>, Vec<u8>, bool) {
    let wanted =
        ItemRequest { key: key(1, "k"), range: None, parts: parts(&[LEN]), by_value: sent };
    let deadline = pair.clock.now().after(TIMEOUT);
    pair.caller.get(1, vec![wanted], RequestOptions::default(), deadline).expect("link capacity");
    let Response::Get(mut got) = pair.reply() else { panic!("unexpected reply") };
    let got = got.remove(0);
    (got.outcome, got.parts[0].bytes().to_vec(), got.retry)
}

/// A client that gets a reference to changed bytes copies none of them, and makes the store verify
/// the object.
#[test]
fn changed_shared_memory_is_a_miss_and_dropped_by_a_copied_get() {
    let hit = Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: LEN as u64 });
    let miss = |cause| Ok(GetOutcome::Miss(cause));
    for ratio in [0.0, 1.0] {
        let (mut pair, _dir) = shared_memory_pair(ratio);
        let mut bytes = object(1, LEN);
        put(&pair, &bytes);
        assert_eq!(get(&mut pair, false), (hit.clone(), bytes.clone(), false));
        bytes[50_000] ^= 1;
        overwrite(&pair.store, &bytes);
        let nothing = vec![0; LEN];
        assert_eq!(
            get(&mut pair, false),
            (miss(MissCause::Damaged), nothing.clone(), true),
            "ratio={ratio}"
        );
        assert_eq!(
            get(&mut pair, true),
            (miss(MissCause::Damaged), nothing, false),
            "ratio={ratio}"
        );
        assert_eq!(
            get(&mut pair, false).0,
            miss(MissCause::Absent),
            "the store has verified the object ratio={ratio}"
        );
        pair.server.poll();
        assert_eq!((pair.store.stats().readers, pair.store.stats().dram_bytes), (0, 0));
    }
}

/// A client that never releases a reference keeps it until its deadline, and no longer.
#[test]
fn reference_never_released_by_the_client_ends_at_the_deadline() {
    let (mut pair, _dir) = shared_memory_pair(1.0);
    put(&pair, &object(1, LEN));
    let wanted =
        ItemRequest { key: key(1, "k"), range: None, parts: parts(&[LEN]), by_value: false };
    let (soon, terms) =
        (Duration::from_secs(2), RequestOptions { deadline_ms: 2000, ..RequestOptions::default() });
    pair.caller.get(1, vec![wanted], terms, pair.clock.now().after(soon)).expect("link capacity");
    pair.caller.poll(pair.clock.now(), &mut Vec::new());
    while pair.server.ops() == 0 && pair.store.stats().readers == 0 {
        pair.server.poll();
    }
    assert_eq!(
        pair.store.stats().readers,
        1,
        "the frame is guarded while the client has a reference"
    );
    let until = pair.clock.now().after(TIMEOUT);
    while pair.store.stats().readers > 0 {
        pair.server.poll();
        assert!(pair.clock.now() < until, "the frame stays guarded");
    }
}

/// Reserved memory is released when its client disconnects.
#[test]
fn reserved_put_memory_is_free_after_disconnect() {
    let (mut pair, _dir) = shared_memory_pair(1.0);
    let mut draft = PutBuilder::new(BLOCK_BYTES);
    for page in 0..8 {
        draft.group(None);
        draft.object(key(page, "k"), 1 << 20, &[checksum(&[0; 32_768]); 32]);
    }
    let deadline = pair.clock.now().after(TIMEOUT);
    // The client sends no bytes.
    pair.caller
        .put(1, &draft, Box::new(|_| Vec::new()), RequestOptions::default(), deadline)
        .expect("link capacity");
    pair.caller.poll(pair.clock.now(), &mut Vec::new());
    let arriving =
        |pair: &Pair| pair.store.shared.bytes.reserved.load(std::sync::atomic::Ordering::Relaxed);
    while arriving(&pair) == 0 {
        pair.server.poll();
    }
    assert_eq!(arriving(&pair), 8 << 20);
    assert_eq!(
        pair.store.exists_batch(&[key(0, "k")], Options::default()),
        [false],
        "visible before it is stored"
    );
    let Pair { store, mut server, caller, .. } = pair;
    drop(caller);
    while server.closed().is_none() {
        server.poll();
    }
    assert_eq!(store.shared.bytes.reserved.load(std::sync::atomic::Ordering::Relaxed), 0);
    let all = store.shared.lock().dram.space.free_bytes();
    assert_eq!(all, store.shared.config.arena_bytes(), "arena memory is lost");
}

/// A client may cancel a put by reference during the copy, which only the checksums reveal.
#[test]
fn put_by_reference_without_checksums_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut buffers, region) = pagelith_io::buffer::AlignedBuf::shown(1, LEN).expect("memory");
    let bytes = object(1, LEN);
    buffers[0].copy_from_slice(&bytes);
    let address = Address::Unix(dir.path().join("socket"));
    let mut pair = Pair::at(address, Rights::all(), 1.0, &[region]);
    let all: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
    let memory = SharedParts::new(vec![buffers.remove(0).into_part()]);
    for (page, sums, has_reference, is_put) in [
        (1, &all[..], true, true),
        (2, &all[..], false, true),
        (3, &[], true, false),
        (4, &[], false, false),
    ] {
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        draft.group(None);
        draft.object(key(page, "k"), LEN as u64, sums);
        if has_reference {
            draft.shown(0, 0);
        }
        let (source, deadline) = (memory.clone(), pair.clock.now().after(TIMEOUT));
        let lend = Box::new(move |_| source.parts());
        pair.caller
            .put(1, &draft, lend, RequestOptions::default(), deadline)
            .expect("link capacity");
        let Response::Put(outcomes) = pair.reply() else { panic!("unexpected reply") };
        assert_eq!(outcomes[0].is_ok(), is_put, "page={page} {outcomes:?}");
        assert_eq!(
            pair.store.exists_batch(&[key(page, "k")], Options::default()),
            [is_put],
            "page={page}"
        );
    }
}

/// A client with several gets receives the first reply before the bytes of the next are copied.
#[test]
fn finished_get_is_answered_before_the_next_starts() {
    let (mut pair, _dir) = shared_memory_pair(1.0);
    let bytes = object(1, LEN);
    put(&pair, &bytes);
    let deadline = pair.clock.now().after(TIMEOUT);
    for token in 1..=3 {
        let wanted =
            ItemRequest { key: key(1, "k"), range: None, parts: parts(&[LEN]), by_value: false };
        pair.caller
            .get(token, vec![wanted], RequestOptions::default(), deadline)
            .expect("link capacity");
    }
    pair.caller.flush_queue();
    while pair.server.poll() || pair.store.stats().readers < 3 {}
    let mut replies = Vec::new();
    for done in 1..=3 {
        pair.caller.poll(pair.clock.now(), &mut replies);
        assert_eq!(replies.len(), done);
    }
    for (token, reply) in replies {
        let Response::Get(got) = reply else { panic!("unexpected reply token={token}") };
        assert!(
            got[0].outcome.as_ref().is_ok_and(GetOutcome::is_hit)
                && got[0].parts[0].bytes() == bytes
        );
    }
}

/// Each poll copies and answers one put, so that other requests wait for one copy only.
#[test]
fn poll_copies_one_put_and_answers_concurrent_requests() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut buffers, region) = pagelith_io::buffer::AlignedBuf::shown(1, LEN).expect("memory");
    let bytes = object(1, LEN);
    buffers[0].copy_from_slice(&bytes);
    let mut pair =
        Pair::at(Address::Unix(dir.path().join("socket")), Rights::all(), 1.0, &[region]);
    put(&pair, &bytes);
    let sums: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
    let memory = SharedParts::new(vec![buffers.remove(0).into_part()]);
    let deadline = pair.clock.now().after(TIMEOUT);
    for page in 2..5 {
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        draft.group(None);
        draft.object(key(page, "k"), LEN as u64, &sums);
        draft.shown(0, 0);
        let source = memory.clone();
        let lend: PayloadFn = Box::new(move |_| source.parts());
        pair.caller
            .put(page.into(), &draft, lend, RequestOptions::default(), deadline)
            .expect("link capacity");
    }
    let wanted =
        ItemRequest { key: key(1, "k"), range: None, parts: parts(&[LEN]), by_value: false };
    pair.caller.get(9, vec![wanted], RequestOptions::default(), deadline).expect("link capacity");
    pair.caller.flush_queue();
    let (mut replies, mut left) = (Vec::new(), Vec::new());
    while pair.server.ops() > 0 || left.is_empty() {
        assert!(pair.server.poll(), "operations remain");
        left.push(pair.server.ops());
        // The first reply arrives before the second put is copied.
        while replies.is_empty() {
            pair.caller.wait(pair.clock.now(), TIMEOUT, &mut replies);
        }
    }
    assert_eq!((left, replies[0].0), (vec![2, 1, 0], 2));
    while pair.caller.pending_calls() > 0 {
        pair.server.poll();
        pair.caller.poll(pair.clock.now(), &mut replies);
    }
    for (token, reply) in &replies {
        match reply {
            Response::Put(outcomes) => assert!(outcomes[0].is_ok(), "token={token} {outcomes:?}"),
            Response::Get(got) => assert!(got[0].outcome.as_ref().is_ok_and(GetOutcome::is_hit)),
            other => panic!("{other:?}"),
        }
    }
}
