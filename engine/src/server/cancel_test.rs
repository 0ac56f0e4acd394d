//! Cancels operations at any moment of their course: the link gets its whole capacity back.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part, SharedParts};
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum, checksum64};
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::address::Address;
use pagelith_transport::rights::Rights;

use super::tests::{Pair, TIMEOUT, key, object, parts};
use crate::api::request::Options;
use crate::rpc::call::{ItemRequest, PayloadFn, Response};

/// More than one frame of a stream, and several blocks.
const LEN: usize = 200_000;
const PAGES: u8 = 12;

/// The capacity of a cancelled operation of any kind is in use until its outcome arrives, and free
/// afterwards.
#[test]
fn link_capacity_is_restored_after_cancelled_operations() {
    let mut pair = Pair::new(Rights::all());
    pair.put(&[(None, vec![(key(1, "k"), object(1, 1_000_000))])], false);
    for round in 0..2 {
        let soon = pair.clock.now();
        for token in 0.. {
            if !pair.caller.has_capacity(1 << 10) {
                break;
            }
            let caller = &mut pair.caller;
            let asked = match token % 4 {
                0 => {
                    let wanted = ItemRequest {
                        key: key(1, "k"),
                        range: None,
                        parts: parts(&[1_000_000]),
                        by_value: false,
                    };
                    caller
                        .get(token, vec![wanted], RequestOptions::default(), soon)
                        .map_err(|(error, _)| error)
                }
                1 => {
                    let mut draft = PutBuilder::new(BLOCK_BYTES);
                    draft.group(None);
                    draft.object(key(2, "k"), 100, &[checksum(&object(2, 100))]);
                    let lend = Box::new(|_| panic!("cancelled before its bytes were pulled"));
                    caller.put(token, &draft, lend, RequestOptions::default(), soon)
                }
                2 => caller.exists(token, &[key(1, "k")], RequestOptions::default(), soon),
                _ => {
                    caller.send_control(token, &RequestBody::Flush, RequestOptions::default(), soon)
                }
            };
            asked.expect("link capacity");
        }
        let mut replies = Vec::new();
        pair.caller.poll(pair.clock.now(), &mut replies);
        assert_eq!((replies.len() > 100, pair.caller.pending_calls()), (true, 0), "round={round}");
        assert!(
            pair.caller.expects_response() && !pair.caller.has_capacity(1 << 10),
            "no outcome arrived"
        );
        let until = pair.clock.now().after(TIMEOUT);
        while pair.caller.expects_response() {
            assert!(pair.clock.now() < until, "round={round}: an outcome is missing");
            pair.server.poll();
            pair.caller.poll(pair.clock.now(), &mut replies);
        }
    }
    assert!(
        pair.get(vec![(key(1, "k"), None, vec![1_000_000])])[0]
            .0
            .as_ref()
            .is_ok_and(|got| got.is_hit())
    );
}

/// Operations of all kinds with short deadlines, while both ends are polled irregularly: those that
/// complete are right, and the others leave nothing allocated.
#[test]
fn operations_cancelled_at_any_moment_leave_no_memory_in_use() {
    for (shows, seed) in
        [false, true].into_iter().flat_map(|shows| (1..4).map(move |seed| (shows, seed)))
    {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut buffers, region) = AlignedBuf::shown(usize::from(PAGES), LEN).expect("memory");
        let mut memory = Vec::new();
        for (page, mut buffer) in (0..).zip(buffers.drain(..)) {
            buffer.copy_from_slice(&object(page, LEN));
            memory.push(SharedParts::new(vec![buffer.into_part()]));
        }
        let mut pair = match shows {
            true => {
                Pair::at(Address::Unix(dir.path().join("socket")), Rights::all(), 1.0, &[region])
            }
            false => {
                Pair::at("tcp:127.0.0.1:0".parse().expect("an address"), Rights::all(), 1.0, &[])
            }
        };
        let before = pair.caller.capacity();
        let mut drawn = seed << 32;
        let mut below = move |most: u64| {
            drawn += 1;
            checksum64(&u64::to_le_bytes(drawn)) % most
        };
        let (mut replies, mut of, mut hits, mut late) = (Vec::new(), BTreeMap::new(), 0, 0);
        for token in 0..2000 {
            if !pair.caller.has_capacity(1 << 16) {
                pair.server.poll();
                pair.caller.poll(pair.clock.now(), &mut replies);
                continue;
            }
            // Some have a long deadline, so that there are hits on any machine.
            let time = match below(6) {
                0 => TIMEOUT,
                _ => Duration::from_micros(below(4) * below(400)),
            };
            let (terms, deadline) = (RequestOptions::default(), pair.clock.now().after(time));
            let terms = RequestOptions {
                deadline_ms: if below(4) == 0 { 1 } else { terms.deadline_ms },
                ..terms
            };
            let page = below(PAGES.into()) as u8;
            let keys = [key(page, "k"), key(page / 2, "k")];
            of.insert(token, page);
            let caller = &mut pair.caller;
            let asked = match below(10) {
                0..4 => {
                    let sent = below(4) == 0;
                    let wanted = ItemRequest {
                        key: keys[0],
                        range: None,
                        parts: parts(&[LEN / 4, LEN - LEN / 4]),
                        by_value: sent,
                    };
                    caller.get(token, vec![wanted], terms, deadline).map_err(|(error, _)| error)
                }
                4..7 => {
                    let (mut draft, bytes) = (PutBuilder::new(BLOCK_BYTES), object(page, LEN));
                    draft.group(None);
                    let sums: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
                    draft.object(keys[0], LEN as u64, &sums);
                    let source = memory[usize::from(page)].clone();
                    let lend: PayloadFn = Box::new(move |_| source.parts());
                    caller.put(token, &draft, lend, terms, deadline)
                }
                7 => caller.exists(token, &keys, terms, deadline),
                8 => caller.send_control(
                    token,
                    &RequestBody::Remove(List::of(&keys[..1])),
                    terms,
                    deadline,
                ),
                _ => caller.send_control(token, &RequestBody::Flush, terms, deadline),
            };
            asked.expect("link capacity");
            for _ in 0..below(4) {
                pair.server.poll();
            }
            for _ in 0..below(3) {
                pair.caller.poll(pair.clock.now(), &mut replies);
            }
            for (token, reply) in replies.drain(..) {
                let Response::Get(got) = reply else { continue };
                let bytes: Vec<u8> =
                    got[0].parts.iter().flat_map(|part: &Part| part.bytes().to_vec()).collect();
                match &got[0].outcome {
                    Ok(outcome) if outcome.is_hit() => {
                        assert!(
                            bytes == object(of[&token], LEN),
                            "shows={shows} seed={seed}: wrong bytes"
                        );
                        hits += 1;
                    }
                    _ => late += 1,
                }
            }
        }
        assert!(hits > 20 && late > 20, "shows={shows} seed={seed}: hits={hits} late={late}");
        pair.caller.expire_calls(pair.clock.now());
        let until = pair.clock.now().after(TIMEOUT);
        let is_as_before = |pair: &Pair| {
            let stats = pair.store.stats();
            let nothing =
                (pair.server.ops(), stats.readers, pair.caller.pending_calls()) == (0, 0, 0);
            nothing && pair.caller.capacity() == before
        };
        // The memory of an operation answered in one poll returns in the next; the first one
        // returns true.
        let mut changed = true;
        while changed || !is_as_before(&pair) {
            changed = pair.server.poll();
            pair.caller.poll(pair.clock.now(), &mut replies);
            let room = pair.caller.capacity();
            assert!(pair.clock.now() < until, "shows={shows} seed={seed}: {room:?} of {before:?}");
        }
        let arriving = pair.store.shared.bytes.reserved.load(Ordering::Relaxed);
        assert_eq!(arriving, 0, "shows={shows} seed={seed}");
        pair.store.clear(key(0, "k").namespace(), Options::default()).expect("cleared");
        let free = pair.store.shared.lock().dram.space.free_bytes();
        assert_eq!(
            free,
            pair.store.shared.config.arena_bytes(),
            "shows={shows} seed={seed}: memory is lost"
        );
        assert!(
            memory.into_iter().all(|memory| memory.into_parts().is_some()),
            "a put still reads its source"
        );
    }
}
