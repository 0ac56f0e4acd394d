//! A store, a server and a client in one thread, over loopback.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Clock;
use pagelith_io::shm::SharedRegion;
use pagelith_io::staging::StagingPool;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::address::Address;
use pagelith_transport::auth::Key;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::Link;
use pagelith_transport::pending::HandshakeProgress;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener, connect};

use crate::api::error::ErrorKind;
use crate::api::outcome::{GetOutcome, MissCause, PutOutcome, Tier};
use crate::api::request::{GetSlice, Options, PutSlice};
use crate::config::{Config, MachineLimits};
use crate::rpc::call;
use crate::rpc::call::{ControlReply, ItemRequest, Response};
use crate::rpc::client::RpcClient;
use crate::server::Server;
use crate::state::frame_access::UnpublishedExtent;
use crate::store::embedded::Store;

const NAMESPACE: NamespaceId = NamespaceId([5; 16]);
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
const STAGING: usize = 16 << 20;
static CLIENTS: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);

pub(crate) struct Pair {
    pub(crate) store: Store,
    pub(crate) server: Server,
    pub(crate) caller: RpcClient,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Pair {
    pub(crate) fn new(rights: Rights) -> Pair {
        Pair::verifying(rights, Config::default().dram.verify_ratio)
    }

    fn verifying(rights: Rights, verify_ratio: f64) -> Pair {
        Pair::at("tcp:127.0.0.1:0".parse().expect("an address"), rights, verify_ratio, &[])
    }

    /// With a Unix socket the store shares its memory.
    pub(crate) fn at(
        address: Address,
        rights: Rights,
        verify_ratio: f64,
        shared_regions: &[Arc<SharedRegion>],
    ) -> Pair {
        let shared = matches!(address, Address::Unix(_));
        let mut config = Config::default();
        config.dram.verify_ratio = verify_ratio;
        config.dram.shared = shared;
        config.dram.bytes = crate::Size::mib(64);
        config.index.max_objects = Some(10_000);
        let facts = MachineLimits::of_this_machine().expect("facts");
        let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (server, caller) = Pair::connect(&store, &clock, address, rights, shared_regions);
        Pair { store, server, caller, clock }
    }

    /// Connects a client to a store; returns its server and the client.
    pub(crate) fn connect(
        store: &Store,
        clock: &Arc<dyn Clock>,
        address: Address,
        rights: Rights,
        of_client: &[Arc<SharedRegion>],
    ) -> (Server, RpcClient) {
        let admission = ClientAuth::Connection(rights);
        let (server, link) = Pair::connect_link(store, clock, address, admission, None, of_client);
        (server, RpcClient::new(link))
    }

    /// Connects a client to a store; returns its server and the client's end of the link.
    pub(crate) fn connect_link(
        store: &Store,
        clock: &Arc<dyn Clock>,
        address: Address,
        admission: ClientAuth,
        key: Option<Key>,
        of_client: &[Arc<SharedRegion>],
    ) -> (Server, Box<dyn Link>) {
        let limits = LinkLimits::default();
        let listen = ListenConfig { address, admission, allow_remote: false };
        let (staging, memory) = StagingPool::shared(STAGING).expect("memory");
        let regions =
            store.shared_memory().into_iter().flat_map(|arena| [arena, memory.clone()]).collect();
        let offer = |instance| Capabilities::of_this_build([instance; 16]);
        let mut listener =
            Listener::new(&listen, offer(1), Arc::new(SystemEntropy), clock.clone(), limits)
                .expect("listens")
                .with_shared_regions(regions);
        // Each client is another process.
        let client = offer(CLIENTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let pending = connect(
            listener.address(),
            client,
            key,
            None,
            &SystemEntropy,
            (clock.clone(), limits),
            of_client,
        );
        let mut progress = HandshakeProgress::Waiting(pending.expect("connects"));
        let (mut client, mut arrivals) = (None, Vec::new());
        while client.is_none() || arrivals.is_empty() {
            listener.wait(&mut arrivals, Duration::from_millis(1));
            progress = match progress {
                HandshakeProgress::Waiting(pending) => pending.poll(),
                HandshakeProgress::Ready(link) => {
                    client = Some(link);
                    break;
                }
                HandshakeProgress::Failed(why) => panic!("{why}"),
            };
        }
        while arrivals.is_empty() {
            listener.wait(&mut arrivals, Duration::from_millis(1));
        }
        let Some(AdmissionResult::Link(link)) = arrivals.pop() else { panic!("refused") };
        let server = Server::new(store, link, staging).expect("serves");
        (server, client.expect("a link"))
    }

    /// Polls both ends until the operation has its reply.
    pub(crate) fn reply(&mut self) -> Response {
        let mut replies = Vec::new();
        while replies.is_empty() {
            self.server.poll();
            self.caller.poll(self.clock.now(), &mut replies);
        }
        assert_eq!((replies.len(), self.caller.pending_calls()), (1, 0));
        replies.remove(0).1
    }

    pub(crate) fn get(
        &mut self,
        wanted: Vec<(ObjectKey, Option<std::ops::Range<u64>>, Vec<usize>)>,
    ) -> Vec<(Got, Vec<u8>)> {
        let wanted = wanted.into_iter().map(|(key, range, lengths)| ItemRequest {
            key,
            range,
            parts: parts(&lengths),
            by_value: false,
        });
        let deadline = self.clock.now().after(TIMEOUT);
        self.caller
            .get(1, wanted.collect(), RequestOptions::default(), deadline)
            .expect("link capacity");
        let Response::Get(got) = self.reply() else { panic!("unexpected reply") };
        let bytes = |parts: &[Part]| parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        got.into_iter().map(|got| (got.outcome, bytes(&got.parts))).collect()
    }

    fn got(&mut self, wanted: ItemRequest) -> call::ItemResult {
        let deadline = self.clock.now().after(TIMEOUT);
        self.caller
            .get(1, vec![wanted], RequestOptions::default(), deadline)
            .expect("link capacity");
        let Response::Get(mut got) = self.reply() else { panic!("unexpected reply") };
        got.remove(0)
    }

    /// Puts groups of objects; `lie` changes a byte of each in transit.
    pub(crate) fn put(&mut self, groups: &[GroupDraft], corrupt: bool) -> Vec<Stored> {
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        let mut all = Vec::new();
        for (base, group) in groups {
            draft.group(*base);
            for (key, bytes) in group {
                let sums: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
                draft.object(*key, bytes.len() as u64, &sums);
                let mut sent = bytes.clone();
                sent[bytes.len() / 2] ^= u8::from(corrupt);
                all.push(sent);
            }
        }
        let pulled = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = pulled.clone();
        let lend = Box::new(move |item: u32| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            vec![Part::from_shared(Arc::from(&all[item as usize][..]))]
        });
        let deadline = self.clock.now().after(TIMEOUT);
        self.caller
            .put(1, &draft, lend, RequestOptions::default(), deadline)
            .expect("link capacity");
        let Response::Put(outcomes) = self.reply() else { panic!("unexpected reply") };
        let pulled = pulled.load(std::sync::atomic::Ordering::Relaxed);
        outcomes.into_iter().map(|outcome| (outcome, pulled)).collect()
    }
}

/// The base of a group, if any, and its objects.
type GroupDraft = (Option<ObjectKey>, Vec<(ObjectKey, Vec<u8>)>);
type Got = crate::api::error::Result<GetOutcome>;
type Stored = (crate::api::error::Result<PutOutcome>, usize);

pub(crate) fn parts(lengths: &[usize]) -> Vec<Part> {
    lengths.iter().map(|len| AlignedBuf::new(*len).expect("memory").into_part()).collect()
}

pub(crate) fn key(page: u8, component: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, PrefixHash([page; 32]), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

pub(crate) fn object(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 253) as u8 ^ seed).collect()
}

#[test]
fn get_fills_any_scatter_list() {
    let mut pair = Pair::new(Rights::all());
    let lengths = [1, 4095, 32_768, 100_000, 5_000_001];
    for (page, len) in lengths.into_iter().enumerate() {
        let put = PutSlice { key: key(page as u8, "k"), pieces: &[&object(page as u8, len)] };
        pair.store.put_batch(&[put], Options::default()).remove(0).expect("put");
    }
    let mut wanted = Vec::new();
    for (page, len) in lengths.into_iter().enumerate() {
        let half = vec![len / 3, len - len / 3];
        wanted.push((
            key(page as u8, "k"),
            None,
            half.into_iter().filter(|len| *len > 0).collect(),
        ));
    }
    wanted.push((key(9, "k"), None, vec![10]));
    wanted.push((key(3, "k"), Some(40_000..70_001), vec![1, 30_000]));
    wanted.push((key(4, "k"), Some(4_194_000..4_194_400), vec![400]));
    wanted.push((key(3, "k"), None, vec![99_999]));
    wanted.push((key(4, "k"), None, vec![5_000_000]));
    let got = pair.get(wanted);
    for (page, len) in lengths.into_iter().enumerate() {
        assert_eq!(got[page].0, Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: len as u64 }));
        assert!(got[page].1 == object(page as u8, len), "page={page}");
    }
    assert_eq!(got[5].0, Ok(GetOutcome::Miss(MissCause::Absent)));
    assert!(
        got[6].1 == object(3, 100_000)[40_000..70_001]
            && got[7].1 == object(4, 5_000_001)[4_194_000..4_194_400]
    );
    for (wrong, _) in &got[8..] {
        assert_eq!(wrong.as_ref().expect_err("another length").kind, ErrorKind::Invalid);
    }
}

/// A link filled with pushes that the client does not read, of objects that only the link keeps in
/// the arena.
fn pair_with_full_link() -> Pair {
    let mut pair = Pair::new(Rights::all());
    const LEN: usize = 1_000_000;
    for page in 0..40 {
        pair.store.put_batch(
            &[PutSlice { key: key(page, "k"), pieces: &[&object(page, LEN)] }],
            Options::default(),
        );
    }
    let wanted = |page| ItemRequest {
        key: key(page, "k"),
        range: None,
        parts: parts(&[LEN]),
        by_value: false,
    };
    let deadline = pair.clock.now().after(TIMEOUT);
    pair.caller
        .get(1, (0..40).map(wanted).collect(), RequestOptions::default(), deadline)
        .expect("link capacity");
    pair.caller.poll(pair.clock.now(), &mut Vec::new());
    // The client does not read: the socket fills up, and the remaining pushes wait.
    for _ in 0..1000 {
        pair.server.poll();
    }
    pair.store.clear(NAMESPACE, Options::default()).expect("cleared");
    let held = pair.store.stats().dram_bytes;
    assert!(held > 0 && held <= 64 << 20 >> 3, "an eighth of the arena at most: {held}");
    pair
}

#[test]
fn arena_frames_pushed_to_a_client_are_bounded_and_free_after_disconnect() {
    let Pair { store, mut server, caller, .. } = pair_with_full_link();
    drop(caller);
    while server.closed().is_none() {
        server.poll();
    }
    assert_eq!(store.stats().dram_bytes, 0, "frames stay guarded after disconnect");
}

#[test]
fn arena_frames_pushed_to_a_client_are_free_after_server_drop() {
    let Pair { store, server, caller: _caller, .. } = pair_with_full_link();
    drop(server);
    assert_eq!(store.stats().dram_bytes, 0, "frames stay guarded for a dropped link");
}

/// Overwrites the bytes of the only object in the store.
pub(crate) fn overwrite(store: &Store, bytes: &[u8]) {
    let extent =
        store.shared.lock().dram.frames.iter().map(|(_, f)| f.data.members[0].extent).next();
    let filled =
        UnpublishedExtent::new(extent.expect("a frame")).fill(&store.shared.memory, &[bytes]);
    assert!(filled.is_some());
}

/// The client detects the mismatch and asks again, which makes the store verify the object.
#[test]
fn get_of_changed_memory_returns_damaged() {
    for (ratio, range) in
        [(1.0, None), (0.0, None), (1.0, Some(40_000..70_000)), (0.0, Some(40_000..70_000))]
    {
        let mut pair = Pair::verifying(Rights::all(), ratio);
        let mut bytes = object(1, 100_000);
        let put = PutSlice { key: key(1, "k"), pieces: &[&bytes] };
        pair.store.put_batch(&[put], Options::default()).remove(0).expect("put");
        bytes[50_000] ^= 1;
        overwrite(&pair.store, &bytes);
        let length =
            range.clone().map_or(100_000, |r: std::ops::Range<u64>| (r.end - r.start) as usize);
        let wanted = |sent| ItemRequest {
            key: key(1, "k"),
            range: range.clone(),
            parts: parts(&[length]),
            by_value: sent,
        };
        let mut got = pair.got(wanted(false));
        let damaged = Ok(GetOutcome::Miss(MissCause::Damaged));
        assert_eq!(got.outcome, damaged, "ratio={ratio} range={range:?}");
        // The store always verifies a block that is sent in part, and drops a damaged object, which
        // can be put again.
        let is_dropped = range.is_some();
        assert_eq!(pair.store.exists_batch(&[key(1, "k")], Options::default()), [!is_dropped]);
        if got.retry {
            assert_eq!(got.request, (key(1, "k"), None, false));
            got = pair.got(wanted(true));
            assert_eq!((&got.outcome, got.retry), (&damaged, false), "ratio={ratio}");
        }
        assert_eq!(pair.store.exists_batch(&[key(1, "k")], Options::default()), [false]);
        pair.server.poll();
        assert_eq!(pair.store.stats().readers, 0);
    }
}

#[test]
fn repeated_put_pulls_no_bytes() {
    let mut pair = Pair::new(Rights::all());
    let group = |page: u8| {
        vec![(key(page, "k"), object(page, 70_000)), (key(page, "v"), object(!page, 33_000))]
    };
    let groups = [(None, group(1)), (None, group(2))];
    let stored = |outcome| vec![(Ok(outcome), 4); 4];
    assert_eq!(pair.put(&groups, false), stored(PutOutcome::Stored));
    let again: Vec<_> = pair.put(&groups, false);
    assert_eq!(again, vec![(Ok(PutOutcome::AlreadyPresent), 0); 4]);
    let mut bytes = vec![0; 33_000];
    let get = GetSlice { key: key(2, "v"), range: None, pieces: &mut [&mut bytes] };
    assert!(
        pair.store.get_batch(&mut [get], Options::default())[0].as_ref().is_ok_and(|o| o.is_hit())
    );
    assert!(bytes == object(!2, 33_000));
    let attached = [(Some(key(1, "k")), vec![(key(1, "state"), object(7, 5000))])];
    assert_eq!(pair.put(&attached, false), vec![(Ok(PutOutcome::Stored), 1)]);
    let other = [(None, vec![(key(1, "k"), object(1, 69_999))])];
    let (outcome, _) = pair.put(&other, false).remove(0);
    assert_eq!(outcome.expect_err("another length").kind, ErrorKind::Invalid);
}

#[test]
fn objects_stored_alone_become_a_group_when_put_together() {
    let mut pair = Pair::new(Rights::all());
    let group = vec![(key(1, "k"), object(1, 70_000)), (key(1, "v"), object(2, 100))];
    for (key, bytes) in &group {
        let put = PutSlice { key: *key, pieces: &[bytes] };
        pair.store.put_batch(&[put], Options::default()).remove(0).expect("put");
    }
    let outcomes = pair.put(&[(None, group)], false);
    assert!(outcomes.iter().all(|(outcome, _)| outcome.is_ok()), "{outcomes:?}");
    // A group is removed as a whole.
    assert_eq!(pair.store.remove(&[key(1, "k")], Options::default()), Ok(1));
    assert_eq!(pair.store.exists_batch(&[key(1, "v")], Options::default()), [false]);
}

#[test]
fn put_with_bytes_changed_in_transit_is_not_stored() {
    let mut pair = Pair::new(Rights::all());
    let group = vec![(key(1, "k"), object(1, 70_000)), (key(1, "v"), object(2, 100))];
    let outcomes = pair.put(&[(None, group)], true);
    for (outcome, _) in outcomes {
        assert_eq!(outcome.expect_err("refused").kind, ErrorKind::Unavailable);
    }
    assert_eq!(
        pair.store.exists_batch(&[key(1, "k"), key(1, "v")], Options::default()),
        [false, false]
    );
}

#[test]
fn exists_remove_and_clear_reach_the_store() {
    let mut pair = Pair::new(Rights::all());
    let deadline = pair.clock.now().after(TIMEOUT);
    for page in 0..3 {
        pair.put(&[(None, vec![(key(page, "k"), object(page, 100))])], false);
    }
    let keys = [key(0, "k"), key(9, "k"), key(2, "k")];
    pair.caller.exists(1, &keys, RequestOptions::default(), deadline).expect("link capacity");
    let Response::Exists(found) = pair.reply() else { panic!("unexpected reply") };
    assert_eq!(found, Ok(vec![true, false, true]));
    pair.caller
        .send_control(1, &RequestBody::Remove(List::of(&keys)), RequestOptions::default(), deadline)
        .expect("link capacity");
    let Response::Control(removed) = pair.reply() else { panic!("unexpected reply") };
    assert_eq!(
        (removed, pair.store.exists_batch(&keys, Options::default())),
        (Ok(ControlReply::Number(2)), vec![false; 3])
    );
    pair.caller
        .send_control(1, &RequestBody::Clear(NAMESPACE), RequestOptions::default(), deadline)
        .expect("link capacity");
    assert!(matches_number(&pair.reply()));
    assert!(!pair.store.exists_batch(&[key(1, "k")], Options::default())[0]);
}

#[test]
fn reserved_verb_is_refused_and_the_link_goes_on() {
    let mut pair = Pair::new(Rights::all());
    pair.put(&[(None, vec![(key(1, "k"), object(1, 100))])], false);
    let deadline = pair.clock.now().after(TIMEOUT);
    let keys = [key(1, "k")];
    pair.caller
        .send_control(
            1,
            &RequestBody::Used(1, List::of(&keys)),
            RequestOptions::default(),
            deadline,
        )
        .expect("link capacity");
    let Response::Control(Err(error)) = pair.reply() else { panic!("answered") };
    assert_eq!(error.kind, ErrorKind::Incompatible, "{error}");
    assert!(error.message.contains("verb=Used"), "{error}");
    pair.caller.exists(1, &keys, RequestOptions::default(), deadline).expect("link capacity");
    let Response::Exists(found) = pair.reply() else { panic!("unexpected reply") };
    assert_eq!(found, Ok(vec![true]));
}

fn matches_number(reply: &Response) -> bool {
    match reply {
        Response::Control(reply) => reply.is_ok(),
        Response::Exists(_) | Response::Get(_) | Response::Put(_) => false,
    }
}

#[test]
fn request_without_right_is_denied() {
    let mut pair = Pair::new(Rights { remove: false, ..Rights::all() });
    let deadline = pair.clock.now().after(TIMEOUT);
    pair.caller
        .send_control(
            1,
            &RequestBody::Remove(List::of(&[key(0, "k")])),
            RequestOptions::default(),
            deadline,
        )
        .expect("link capacity");
    let Response::Control(Err(error)) = pair.reply() else { panic!("allowed") };
    assert_eq!(error.kind, ErrorKind::Denied);
}

#[test]
fn get_buffers_return_after_deadline_or_server_close() {
    let mut pair = Pair::new(Rights::all());
    pair.put(&[(None, vec![(key(1, "k"), object(1, 1_000_000))])], false);
    let wanted = |pair: &mut Pair, after| {
        let deadline = pair.clock.now().after(after);
        let wanted = ItemRequest {
            key: key(1, "k"),
            range: None,
            parts: parts(&[600_000, 400_000]),
            by_value: false,
        };
        pair.caller
            .get(1, vec![wanted], RequestOptions::default(), deadline)
            .expect("link capacity");
    };
    // The server is not polled.
    wanted(&mut pair, Duration::ZERO);
    let mut replies = Vec::new();
    pair.caller.poll(pair.clock.now(), &mut replies);
    let Some((1, Response::Get(got))) = replies.pop() else { panic!("no reply") };
    assert_eq!(got[0].outcome, Ok(GetOutcome::Miss(MissCause::Late)));
    assert_eq!(got[0].parts.iter().map(Part::len).sum::<usize>(), 1_000_000);
    // Bytes that it sends after that are discarded, and the link stays usable.
    let (outcome, bytes) = pair.get(vec![(key(1, "k"), None, vec![1_000_000])]).remove(0);
    assert!(outcome.is_ok_and(|o| o.is_hit()) && bytes == object(1, 1_000_000));
    wanted(&mut pair, TIMEOUT);
    pair.server.close();
    while replies.is_empty() {
        pair.caller.wait(pair.clock.now(), TIMEOUT, &mut replies);
    }
    let Some((1, Response::Get(got))) = replies.pop() else { panic!("no reply") };
    assert_eq!(got[0].outcome.as_ref().expect_err("a dead peer").kind, ErrorKind::Unavailable);
    assert_eq!((got[0].parts.len(), pair.caller.closed().is_some()), (2, true));
    let deadline = pair.clock.now().after(TIMEOUT);
    let reply = pair.caller.send_control(
        1,
        &RequestBody::Remove(List::of(&[key(1, "k")])),
        RequestOptions::default(),
        deadline,
    );
    assert!(reply.is_err());
}
