//! An offer from one store to another, and a removal over a second, newer link while the offered
//! bytes are in transit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagelith_io::buffer::AlignedBuf;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::rights::Rights;

use super::tests::{Pair, TIMEOUT};
use crate::api::error::ErrorKind;
use crate::api::outcome::PutOutcome;
use crate::api::request::{Options, PutSlice};
use crate::rpc::Response;

const NAMESPACE: NamespaceId = NamespaceId([6; 16]);

fn key(component: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, PrefixHash([1; 32]), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

fn put(pair: &Pair, key: ObjectKey) {
    let put = PutSlice { key, pieces: &[&[3; 500]] };
    assert_eq!(pair.store.put_batch(&[put], Options::default()), [Ok(PutOutcome::Stored)]);
}

/// Makes an offer, waits until the peer has pulled it, and removes `removed` (clears for `None`)
/// over a newer link before the bytes arrive. Returns the outcome of the offer and whether the
/// object exists afterwards. `base` is put before the offer, and again after the removal.
fn offer_then_remove(
    from_store: bool,
    base: Option<ObjectKey>,
    removed: Option<ObjectKey>,
) -> (crate::api::error::Result<PutOutcome>, bool) {
    let tcp = || "tcp:127.0.0.1:0".parse().expect("an address");
    let mut pair = Pair::at(tcp(), Rights::all(), 1.0, &[]);
    base.into_iter().for_each(|base| put(&pair, base));
    let (mut server, mut newer) =
        Pair::connect(&pair.store, &pair.clock, tcp(), Rights::all(), &[]);
    if from_store {
        pair.caller = pair.caller.for_store();
        newer = newer.for_store();
    }
    let deadline = pair.clock.now().after(TIMEOUT);
    let bytes = vec![7; 5000];
    let mut draft = PutBuilder::new(BLOCK_BYTES);
    draft.group(base);
    draft.object(key("k"), bytes.len() as u64, &[checksum(&bytes)]);
    let asked = Arc::new(AtomicBool::new(false));
    let saw = asked.clone();
    let lend = Box::new(move |_| {
        saw.store(true, Ordering::Relaxed);
        let mut buf = AlignedBuf::new(bytes.len()).expect("memory");
        buf.copy_from_slice(&bytes);
        vec![buf.into_part()]
    });
    pair.caller.put(1, &draft, lend, RequestOptions::default(), deadline).expect("link capacity");
    let mut replies = Vec::new();
    while !asked.load(Ordering::Relaxed) {
        pair.server.poll();
        pair.caller.poll(pair.clock.now(), &mut replies);
    }
    let removed_keys: Vec<ObjectKey> = removed.into_iter().collect();
    let ask = match removed {
        Some(_) => RequestBody::Remove(List::of(&removed_keys)),
        None => RequestBody::Clear(NAMESPACE),
    };
    newer.send_control(1, &ask, RequestOptions::default(), deadline).expect("link capacity");
    while replies.is_empty() {
        server.poll();
        newer.poll(pair.clock.now(), &mut replies);
    }
    assert!(
        matches!(replies.pop(), Some((1, Response::Control(Ok(_))))),
        "the removal is acknowledged"
    );
    base.into_iter()
        .filter(|base| removed.is_none_or(|key| key == *base))
        .for_each(|base| put(&pair, base));
    let Response::Put(mut outcomes) = pair.reply() else { panic!("unexpected reply") };
    let outcome = outcomes.remove(0);
    (outcome, pair.store.exists_batch(&[key("k")], Options::default())[0])
}

#[test]
fn offer_pulled_before_a_removal_is_not_stored_after_it() {
    // The fence has one version for all keys: an offer of another key is refused too, and may be
    // repeated.
    for removed in [Some(key("k")), None, Some(key("v"))] {
        for base in [None, Some(key("base"))] {
            let (outcome, here) = offer_then_remove(true, base, removed);
            assert_eq!(
                (outcome.expect_err("too late").kind, here),
                (ErrorKind::Busy, false),
                "{removed:?}"
            );
        }
    }
    let base = Some(key("base"));
    let (outcome, here) = offer_then_remove(true, base, base);
    assert_eq!((outcome.expect_err("too late").kind, here), (ErrorKind::Busy, false));
    // A client's put that is not answered at the time of the removal may be ordered after it.
    assert_eq!(offer_then_remove(false, None, Some(key("k"))), (Ok(PutOutcome::Stored), true));
}
