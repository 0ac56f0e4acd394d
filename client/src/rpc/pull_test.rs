//! Pulls of a server that asks for more than a put has.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum, key_hash};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::outcome::{Item, ItemOutcome, OutcomeToSend, encode};
use pagelith_layouts::wire::pull::{self, PullItem};
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestOptions, Verb};
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, SocketDial};
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener};

use super::Response;
use super::client::RpcClient;
use crate::api::error::{ErrorKind, Result};
use crate::api::outcome::PutOutcome;

const LEN: u64 = 1000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client and the server's end of its link.
fn linked(clock: &Arc<dyn Clock>) -> (RpcClient, Box<dyn Link>) {
    let offer = |instance| Capabilities::of_this_build([instance; 16]);
    let listen = ListenConfig {
        address: "tcp:127.0.0.1:0".parse().expect("an address"),
        admission: ClientAuth::Connection(Rights::all()),
        allow_remote: false,
    };
    let (entropy, limits) = (Arc::new(SystemEntropy), LinkLimits::default());
    let mut listener =
        Listener::new(&listen, offer(1), entropy, clock.clone(), limits).expect("listens");
    let dial = SocketDial::new(listener.address().clone(), None, offer(2), clock.clone());
    let (mut dialing, mut arrivals) = (dial.begin().expect("begun"), Vec::new());
    let client = loop {
        listener.poll(&mut arrivals);
        dialing = match dialing.wait(Duration::from_millis(1)) {
            DialProgress::Ready(link) => break RpcClient::new(link),
            DialProgress::Waiting(dialing) => dialing,
            DialProgress::Failed(why) => panic!("{why}"),
        };
    };
    while arrivals.is_empty() {
        listener.wait(&mut arrivals, Duration::from_millis(1));
    }
    let Some(AdmissionResult::Link(server)) = arrivals.pop() else { panic!("refused") };
    (client, server)
}

/// Put one object to a server that sends these pulls, one frame each, and then its outcome: stored.
/// Returns the outcome of the put, and whether the client closed the link.
fn put_pulled_by(pulls: &[&[PullItem]]) -> (Result<PutOutcome>, bool) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (mut client, mut server) = linked(&clock);
    let hash = PrefixHash([2; 32]);
    let key = ObjectKey::new(NamespaceId([1; 16]), hash, Role::Target, "kv", "k", Shard::Whole)
        .expect("a key");
    let bytes = vec![3; LEN as usize];
    let mut draft = PutBuilder::new(BLOCK_BYTES);
    draft.group(None);
    draft.object(key, LEN, &[checksum(&bytes)]);
    let payload = Box::new(move |_| vec![Part::from_shared(Arc::from(&bytes[..]))]);
    let end = clock.now().after(TIMEOUT);
    client.put(1, &draft, payload, RequestOptions::default(), end).expect("room");
    let (mut responses, mut events) = (Vec::new(), Vec::new());
    let op = loop {
        client.poll(clock.now(), &mut responses);
        server.wait(&mut events, Duration::from_millis(1));
        if let Some(LinkEvent::Frame(frame)) = events.pop() {
            break frame.op;
        }
        assert!(clock.now() < end, "no request came");
    };
    for pull in pulls {
        server.send(Frame::new(FrameKind::Pull, op, pull::encode(pull))).expect("room");
    }
    let stored = [Item { key_hash: key_hash(&key), verdict: ItemOutcome::Stored }];
    let outcome = encode(Verb::Put, &OutcomeToSend::Items(&stored, BLOCK_BYTES));
    server.send(Frame::new(FrameKind::Outcome, op, outcome)).expect("room");
    while responses.is_empty() {
        server.poll(&mut events);
        client.wait(clock.now(), Duration::from_millis(1), &mut responses);
    }
    let Some((_, Response::Put(mut outcomes))) = responses.pop() else { panic!("no put") };
    (outcomes.remove(0), client.closed().is_some())
}

#[test]
fn object_pulled_in_ranges_that_add_up_to_it_is_stored() {
    let range = |offset, length| PullItem::new(0, offset, length);
    for pulls in [
        &[&[range(0, LEN)][..]][..],
        &[&[range(0, 400), range(400, 600)]],
        &[&[range(400, 600)], &[range(0, 400)]],
        &[],
    ] {
        assert_eq!(put_pulled_by(pulls), (Ok(PutOutcome::Stored), false), "{pulls:?}");
    }
}

#[test]
fn object_pulled_beyond_its_length_ends_the_link() {
    let range = |offset, length| PullItem::new(0, offset, length);
    for pulls in [
        &[&[range(0, LEN)][..], &[range(0, LEN)]][..],
        &[&[range(0, LEN), range(0, LEN)]],
        &[&[range(0, 600)], &[range(0, 401)]],
        &[&[range(0, LEN)], &[range(LEN - 1, 1)]],
    ] {
        let (outcome, is_closed) = put_pulled_by(pulls);
        let kind = outcome.map_err(|error| error.kind);
        assert_eq!((kind, is_closed), (Err(ErrorKind::Unavailable), true), "{pulls:?}");
    }
}
