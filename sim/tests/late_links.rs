//! A store on a link whose device accesses memory: the link returns the memory late, and the device
//! reads a client's memory that the client may change.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith::server::Server;
use pagelith::{MachineLimits, PutSlice, Store};
use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::runtime::Env;
use pagelith_io::staging::StagingPool;
use pagelith_layouts::ids::{NamespaceId, OpId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{self, GetItem, RequestBody, RequestOptions};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole, List};
use pagelith_sim::clock::SimClock;
use pagelith_sim::entropy::SimEntropy;
use pagelith_sim::runtime::SimRuntime;
use pagelith_transport::link::{Link, LinkCapacity, LinkCounters, LinkEvent, LinkParams, Push};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rights::Rights;
use pagelith_transport::shown::ShmRef;

const LEN: usize = 10_000;

/// A client that requests one object. The link returns the push of its bytes only after the link
/// was closed, and some time after that, or never.
struct LateLink {
    clock: SimClock,
    store: Arc<Store>,
    params: LinkParams,
    request: Option<Frame>,
    exposed: Vec<Part>,
    pushed: Arc<Mutex<Vec<Push>>>,
    sent: Arc<Mutex<Vec<Frame>>>,
    closed: Arc<AtomicBool>,
    /// Time between the close and the return.
    returns_after: Option<Duration>,
    /// Pinned frames at the moment of the return.
    pinned: Arc<AtomicU64>,
}

impl Link for LateLink {
    fn params(&self) -> &LinkParams {
        &self.params
    }

    fn counts(&self) -> LinkCounters {
        LinkCounters::default()
    }

    fn capacity(&self) -> LinkCapacity {
        let most = if self.closed.load(Relaxed) { 0 } else { 1 << 20 };
        LinkCapacity {
            frames: most,
            frame_bytes: most,
            pushes: most,
            exposures: most,
            operations: 0,
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.sent.lock().expect("one thread").push(frame);
        Ok(())
    }

    fn sends_by_ref(&self, _parts: &[Part]) -> bool {
        false
    }

    fn push(&mut self, push: Push) -> Result<(), Push> {
        self.pushed.lock().expect("one thread").push(push);
        Ok(())
    }

    fn expose(
        &mut self,
        _op: OpId,
        _item: u32,
        _offset: u64,
        parts: Vec<Part>,
    ) -> Result<(), Vec<Part>> {
        self.exposed.extend(parts);
        Ok(())
    }

    fn release_ref(&mut self, _shown: ShmRef) {}

    fn retract(&mut self, _op: OpId) {}

    fn poll(&mut self, events: &mut Vec<LinkEvent>) {
        events.extend(self.request.take().map(LinkEvent::Frame));
    }

    fn wait(&mut self, events: &mut Vec<LinkEvent>, timeout: Duration) {
        self.poll(events);
        self.clock.advance(timeout);
        let Some(left) = self.returns_after.filter(|_| self.closed.load(Relaxed)) else { return };
        self.returns_after = Some(left.saturating_sub(timeout));
        if !left.is_zero() {
            return;
        }
        self.pinned.store(self.store.stats().readers, Relaxed);
        let returned = std::mem::take(&mut *self.pushed.lock().expect("one thread"));
        events.extend(returned.into_iter().map(|push| {
            let Push { op, token, parts, .. } = push;
            LinkEvent::Pushed { op, token, sent: false, parts }
        }));
        events.push(LinkEvent::Ended(LinkError::ClosedLocally));
    }

    fn close(&mut self) {
        self.closed.store(true, Relaxed);
    }
}

/// A server of such a client.
struct LateServer {
    clock: SimClock,
    store: Arc<Store>,
    server: Server,
    pushed: Arc<Mutex<Vec<Push>>>,
    sent: Arc<Mutex<Vec<Frame>>>,
    pinned: Arc<AtomicU64>,
}

/// A server that has pushed an object to such a client.
fn late_server(returns_after: Option<Duration>) -> LateServer {
    let item = GetItem::new(key(1), None, LEN as u64);
    let mut late = server_of(0, &RequestBody::Get(List::of(&[item])), returns_after);
    while late.pushed.lock().expect("one thread").is_empty() {
        late.server.poll();
    }
    late
}

fn key(page: u8) -> ObjectKey {
    let hash = PrefixHash([page; 32]);
    ObjectKey::new(NamespaceId([1; 16]), hash, Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

/// A server with an object, over a link with these features that brings one request.
fn server_of(
    features: u64,
    request: &RequestBody<'_>,
    returns_after: Option<Duration>,
) -> LateServer {
    let clock = SimClock::new();
    let env = Env {
        disk: None,
        clock: Arc::new(clock.clone()),
        entropy: Arc::new(SimEntropy::new(1)),
        runtime: Arc::new(SimRuntime::new(clock.clone(), 1)),
    };
    let mut config = pagelith::Config::default();
    config.dram.bytes = pagelith::Size::mib(4);
    config.index.max_objects = Some(1024);
    let facts = MachineLimits::new(1 << 40, "simulated".into());
    let config = config.validate(&facts).expect("a valid configuration");
    let store = Store::open_in_with_peers(config, env, Vec::new()).expect("opens");
    let object = PutSlice { key: key(1), pieces: &[&[7; LEN]] };
    store.put_batch(&[object], pagelith::Options::default())[0].as_ref().expect("stored");
    let (store, pushed, closed, pinned) =
        (Arc::new(store), Arc::default(), Arc::default(), Arc::default());
    let sent = Arc::default();
    let terms = RequestOptions { deadline_ms: 60_000, ..RequestOptions::default() };
    let request = request::encode(terms, request);
    let link = LateLink {
        clock: clock.clone(),
        store: store.clone(),
        params: LinkParams {
            side: LinkRole::Server,
            peer: "late".into(),
            peer_instance: [3; 16],
            version: 1,
            features,
            missing: Vec::new(),
            alignment: 4096,
            control_bytes_max: 1 << 20,
            operations_max: 100,
            object_bytes_max: 1 << 30,
            key_name: None,
            rights: Rights::all(),
        },
        request: Some(Frame::new(FrameKind::Request, OpId(1), request)),
        exposed: Vec::new(),
        pushed: Arc::clone(&pushed),
        sent: Arc::clone(&sent),
        closed,
        returns_after,
        pinned: Arc::clone(&pinned),
    };
    let staging = StagingPool::new(16 << 20).expect("memory");
    let server = Server::new(&store, Box::new(link), staging).expect("a server");
    LateServer { clock, store, server, pushed, sent, pinned }
}

#[test]
fn dropped_server_keeps_pushed_pages_until_its_link_returns_them() {
    let LateServer { store, server, pinned, .. } = late_server(Some(Duration::from_millis(100)));
    assert_eq!(store.stats().readers, 1, "pinned while it is pushed");
    drop(server);
    assert_eq!((pinned.load(Relaxed), store.stats().readers), (1, 0));
}

#[test]
fn pages_that_a_link_never_returns_stay_pinned_and_do_not_delay_the_drop() {
    let LateServer { clock, store, server, pushed, .. } = late_server(None);
    let began = clock.now();
    drop(server);
    assert!(clock.now().since(began) <= Duration::from_secs(2));
    assert_eq!(pushed.lock().expect("one thread").len(), 1, "the device has the memory");
    assert_eq!(store.stats().readers, 1, "so its page is not reused");
}

/// The server's answer to a put without checksums over a link with these features.
fn answer_to_put_without_checksums(features: u64) -> Frame {
    let mut draft = PutBuilder::new(32 << 10);
    draft.group(None);
    draft.object(key(2), LEN as u64, &[]);
    let request = RequestBody::Put(draft.puts().expect("a put"));
    let mut late = server_of(features, &request, None);
    loop {
        late.server.poll();
        if let Some(answer) = late.sent.lock().expect("one thread").pop() {
            return answer;
        }
    }
}

#[test]
fn put_over_rdma_without_checksums_is_refused_by_name() {
    let refused = answer_to_put_without_checksums(Feature::Rdma.bit());
    assert_eq!(refused.kind, FrameKind::Outcome);
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(text.contains("a put over RDMA needs checksums of its objects"), "{text}");
    assert_eq!(
        answer_to_put_without_checksums(0).kind,
        FrameKind::Pull,
        "over a stream it is pulled"
    );
}
