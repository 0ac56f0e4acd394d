//! Memory of operations and unsent outcomes, counted over real links.

use std::sync::Arc;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::system::SystemEntropy;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{self, GetItem, RequestBody, RequestOptions};
use pagelith_layouts::wire::{Frame, FrameKind, List};
use pagelith_transport::auth::{Key, KeyRing};
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rights::Rights;

use super::Server;
use super::load::{ALL_BYTES_MAX, CLIENT_BYTES_MAX, FIRST_BYTES_MAX, LINK_BYTES_MAX};
use crate::config::{Config, MachineLimits};
use crate::server::tests::{Pair, key};
use crate::store::embedded::Store;

/// A clock that stands still, so that no link times out.
struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Mono {
        Mono(1)
    }
}

fn store() -> Store {
    let mut config = Config::default();
    config.dram.bytes = crate::Size::mib(4);
    config.index.max_objects = Some(1000);
    Store::open(config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"))
        .expect("opened")
}

fn connect(store: &Store, admission: ClientAuth, key: Option<Key>) -> (Server, Box<dyn Link>) {
    let clock: Arc<dyn Clock> = Arc::new(StillClock);
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    Pair::connect_link(store, &clock, address, admission, key, &[])
}

/// Sends `frames` and polls until the server has closed the link or `most` outcomes have arrived.
fn outcomes(server: &mut Server, link: &mut dyn Link, frames: Vec<Frame>, most: usize) -> usize {
    frames
        .into_iter()
        .for_each(|frame| assert!(link.send(frame).is_ok(), "the link accepts a request"));
    link.flush_queue();
    let mut outcomes = 0;
    while outcomes < most && server.closed().is_none() {
        server.poll();
        let mut events = Vec::new();
        link.poll(&mut events);
        let is_outcome = |event: &LinkEvent| matches!(event, LinkEvent::Frame(frame) if frame.kind == FrameKind::Outcome);
        outcomes += events.iter().filter(|event| is_outcome(event)).count();
    }
    outcomes
}

#[test]
fn reused_operation_number_closes_the_link_and_releases_its_load() {
    let store = store();
    let keys = vec![key(1, "k"); 100];
    let body = request::encode(RequestOptions::default(), &RequestBody::Exists(List::of(&keys)));
    let request = |op| Frame::new(FrameKind::Request, OpId(op), body.clone());
    let (mut server, mut link) = connect(&store, ClientAuth::Connection(Rights::all()), None);
    // An operation number is free again after its outcome has left.
    for _ in 0..3 {
        assert_eq!(outcomes(&mut server, &mut *link, vec![request(1)], 1), 1);
        assert_eq!(store.shared.bytes.served.bytes(), 0);
    }
    // Both arrive in one poll, and each is answered immediately.
    outcomes(&mut server, &mut *link, vec![request(2), request(2)], 2);
    assert!(
        matches!(server.closed(), Some(LinkError::ProtocolViolation(_))),
        "{:?}",
        server.closed()
    );
    drop(server);
    assert_eq!(store.shared.bytes.served.bytes(), 0);
}

/// Puts whose bytes never arrive, and gets with a wrong length whose long outcomes are not read.
pub(crate) fn bytes_per_link() {
    let (store, puts) = (store(), puts());
    let connect_any = || connect(&store, ClientAuth::Connection(Rights::all()), None);
    let mut others = 0;
    let mut links: Vec<_> = (0..3).map(|_| connect_any()).collect();
    for (server, link) in &mut links {
        ask_all(server, &mut **link, &puts);
        let has = store.shared.bytes.served.bytes() - others;
        assert!(has > LINK_BYTES_MAX * 3 / 4 && has <= LINK_BYTES_MAX, "has={has}");
        others += has;
    }
    drop(links);
    let (mut server, mut link) = connect_any();
    let items = vec![GetItem::new(key(1, "k"), None, 7); 6000];
    let body = request::encode(RequestOptions::default(), &RequestBody::Get(List::of(&items)));
    for op in 1..=200 {
        let _ = link.send(Frame::new(FrameKind::Request, OpId(op), body.clone()));
        link.flush_queue();
        server.poll();
        let unsent: usize = server.outbox.iter().map(|frame| frame.body.len()).sum();
        let queued = server.outcome_capacity.saturating_sub(server.link.capacity().frame_bytes);
        assert!((unsent + queued) as u64 <= LINK_BYTES_MAX, "unsent={unsent} queued={queued}");
    }
    assert!(store.shared.bytes.served.bytes() > 0, "no outcome waits");
    drop(server);
    assert_eq!(store.shared.bytes.served.bytes(), 0, "bytes stay counted after disconnect");
}

/// Six clients request more than the bound for all.
pub(crate) fn bytes_of_all_links() {
    let (store, puts) = (store(), puts());
    let connect_any = || connect(&store, ClientAuth::Connection(Rights::all()), None);
    let mut hostile: Vec<_> = (0..6).map(|_| connect_any()).collect();
    hostile.iter_mut().for_each(|(server, link)| ask_all(server, &mut **link, &puts));
    let (top, firsts) = (store.shared.bytes.served.bytes(), hostile.len() as u64 * FIRST_BYTES_MAX);
    assert!(top > ALL_BYTES_MAX * 3 / 4 && top <= ALL_BYTES_MAX + firsts, "top={top}");
    // Another client begins a small operation meanwhile.
    let (mut server, mut link) = connect_any();
    let body =
        request::encode(RequestOptions::default(), &RequestBody::Exists(List::of(&[key(1, "k")])));
    assert_eq!(
        outcomes(&mut server, &mut *link, vec![Frame::new(FrameKind::Request, OpId(1), body)], 1),
        1
    );
    drop((hostile, server));
    assert_eq!(store.shared.bytes.served.bytes(), 0);
}

/// Puts whose bytes never arrive: six links of one key, and one link of another key.
pub(crate) fn bytes_per_client() {
    let (store, puts) = (store(), puts());
    let key_of = |name, n| Key::new(name, &[n; 32]).expect("a key");
    let ring = || {
        let keys = [(key_of("a", 1), Rights::all()), (key_of("b", 2), Rights::all())];
        ClientAuth::Keys(Arc::new(KeyRing::new(keys, &SystemEntropy).expect("a ring")))
    };
    let waiting = |key: Key| connect(&store, ring(), Some(key));
    let served = || store.shared.bytes.served.bytes();
    let mut hostile: Vec<_> = (0..6).map(|_| waiting(key_of("a", 1))).collect();
    hostile.iter_mut().for_each(|(server, link)| ask_all(server, &mut **link, &puts));
    let top = served();
    let firsts = hostile.len() as u64 * FIRST_BYTES_MAX;
    assert!(top > CLIENT_BYTES_MAX * 3 / 4 && top <= CLIENT_BYTES_MAX + firsts, "top={top}");
    // A link of the other key gets the full bound of a link.
    let (mut server, mut link) = waiting(key_of("b", 2));
    ask_all(&mut server, &mut *link, &puts);
    let others = served() - top;
    assert!(others > LINK_BYTES_MAX * 3 / 4 && others <= LINK_BYTES_MAX, "others={others}");
    drop((hostile, server));
    assert_eq!(served(), 0);
}

/// Requests of many objects that together exceed the bound of a link.
fn puts() -> Vec<Vec<u8>> {
    let put = |n: u32| {
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        draft.group(None);
        (0..400).for_each(|object| {
            draft.object(key(1, &format!("{n}-{object}")), 1, &[checksum(b"x")])
        });
        request::encode(RequestOptions::default(), &RequestBody::Put(draft.puts().expect("puts")))
    };
    (0..120).map(put).collect()
}

/// Sends these requests and none of the pulled bytes.
fn ask_all(server: &mut Server, link: &mut dyn Link, bodies: &[Vec<u8>]) {
    for (n, body) in bodies.iter().enumerate() {
        let mut unsent = Some(Frame::new(FrameKind::Request, OpId(n as u64 + 1), body.clone()));
        while let Some(frame) = unsent.take() {
            unsent = link.send(frame).err();
            if unsent.is_some() {
                link.flush_queue();
                server.poll();
            }
        }
    }
    // Until the server has handled the last of them.
    while link.capacity().frame_bytes < LinkLimits::default().frame_bytes_max {
        link.flush_queue();
        server.poll();
    }
    (0..20).for_each(|_| _ = server.poll());
}
