//! Connections that the store closed because they were idle, or that end during a call: the next
//! call uses a new one.

use pagelith::io::buffer::AlignedBuf;
use pagelith::layouts::wire::FrameKind;
use pagelith::transport::link::{Link, LinkEvent};
use pagelith::{CompletedBatch, Destination, Get, Put, PutGroup, Result, Source};
use pagelith_sim::clock::SimClock;
use tempfile::TempDir;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    /// Rings in shared memory.
    Rings,
    /// The same, and the store shows its arena.
    SharedArena,
}

/// A store process whose connections use a clock of the test.
struct Timed {
    address: Address,
    clock: SimClock,
    stop: Arc<AtomicBool>,
    /// How often it polled its connections, and how many it had then.
    turns: Arc<AtomicU64>,
    links: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Timed {
    fn over(way: Transport) -> Timed {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.dram.bytes = Size::mib(16);
        config.dram.shared = way == Transport::SharedArena;
        config.index.max_objects = Some(1000);
        config.events.max = 1000;
        let valid =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
        let store = Store::open(valid).expect("opened");
        let address = match way {
            Transport::Tcp => anywhere(),
            Transport::Rings | Transport::SharedArena => Address::Unix(dir.path().join("socket")),
        };
        let admission = ClientAuth::Connection(Rights::all());
        let listen = ListenConfig { address, admission, allow_remote: false };
        let (clock, offer) = (SimClock::new(), Capabilities::of_this_build([1; 16]));
        let (entropy, own) = (Arc::new(SystemEntropy), Arc::new(clock.clone()));
        let (staging, memory) = StagingPool::shared(16 << 20).expect("memory");
        let shown = store.shared_memory().map(|arena| vec![arena, memory]).unwrap_or_default();
        let mut listener = Listener::new(&listen, offer, entropy, own, LinkLimits::default())
            .expect("listens")
            .with_shared_regions(shown);
        let address = listener.address().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let (turns, links) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (ends, turned, open) = (stop.clone(), turns.clone(), links.clone());
        let thread = std::thread::spawn(move || {
            let (mut arrivals, mut servers) = (Vec::new(), Vec::<Server>::new());
            while !ends.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    servers.push(Server::new(&store, link, staging.clone()).expect("serves"));
                }
                servers.iter_mut().for_each(|server| while server.poll() {});
                servers.retain(|server| server.closed().is_none());
                open.store(servers.len() as u64, Ordering::Release);
                turned.fetch_add(1, Ordering::Release);
            }
        });
        Timed { address, clock, stop, turns, links, thread: Some(thread), _dir: dir }
    }

    /// Let it find its connections idle, as it does in time: it pings, and closes them without an
    /// answer. The client finds both together, the ping first.
    fn find_links_idle(&self) {
        let limits = LinkLimits::default();
        self.clock.advance(limits.ping_after);
        let turns = self.turns.load(Ordering::Acquire);
        until(|| self.turns.load(Ordering::Acquire) > turns + 1);
        self.clock.advance(limits.dead_after);
        until(|| self.links.load(Ordering::Acquire) == 0);
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn until(is_so: impl Fn() -> bool) {
    let clock = SystemClock::new();
    while !is_so() {
        assert!(clock.now().since(Default::default()) < WAIT_MAX, "timed out");
        std::thread::yield_now();
    }
}

fn plain() -> Options {
    Options::default()
}

/// Whether a call has the intended outcome. Only pages 1 and 2 are present.
type Call = fn(&Client) -> Result<bool>;

const CALLS: &[(&str, Call)] = &[
    ("get", |client| Ok(get(client, 1)?.is_hit())),
    ("put", |client| Ok(put(client, 3)? == PutOutcome::Stored)),
    ("put_parts", |client| {
        let (bytes, required) = (vec![4; LEN], [key(4), key(5)]);
        let part = [PutSlice { key: key(4), pieces: &[&bytes] }];
        Ok(client.put_parts(&required[..1], &[&part], plain()).remove(0)? == PutOutcome::Stored)
    }),
    (
        "exists_batch",
        |client| Ok(client.exists_batch(&[key(1), key(9)], plain())? == [true, false]),
    ),
    ("exists_prefix", |client| Ok(client.exists_prefix(&[key(1), key(2), key(9)], plain())? == 2)),
    ("prefetch", |client| client.prefetch(&[key(1)], plain()).map(|_| true)),
    ("lease", |client| Ok(client.lease(&[key(1)], Duration::from_millis(1), plain())? == 1)),
    ("pin", |client| Ok(client.pin(&[key(1)], plain())?.pinned() == 1)),
    ("begin_group", |client| {
        client.begin_group(&[key(7)], plain())?.abort()?;
        Ok(true)
    }),
    ("take_events", |client| client.take_events(1, plain()).map(|_| true)),
    ("flush", |client| client.flush(plain()).map(|_| true)),
    ("stats", |client| client.stats(plain()).map(|_| true)),
    ("ping", |client| client.ping(plain()).map(|()| true)),
    ("remove", |client| Ok(client.remove(&[key(1)], plain())? == 1 && !get(client, 1)?.is_hit())),
    ("clear", |client| {
        client.clear(NamespaceId([5; 16]), plain())?;
        Ok(!get(client, 2)?.is_hit())
    }),
];

fn attached(address: &Address) -> Client {
    Client::to(address, None, WAIT_MAX).expect("attached")
}

/// Make every connection that a client may have, and the pages of the calls.
fn prepared(client: &Client) {
    for page in [1, 2] {
        put(client, page).expect("put");
    }
    drop(client.pin(&[key(1)], plain()).expect("pinned"));
    client.begin_group(&[key(8)], plain()).expect("begun").abort().expect("given up");
    client.remove(&[key(3), key(4)], plain()).expect("removed");
}

#[test]
fn every_call_works_after_idle_time() {
    for way in [Transport::Tcp, Transport::Rings, Transport::SharedArena] {
        let process = Timed::over(way);
        let client = attached(&process.address);
        for (name, call) in CALLS {
            prepared(&client);
            process.find_links_idle();
            assert_eq!(call(&client), Ok(true), "{name} over {way:?}");
        }
    }
}

#[test]
fn view_after_idle_time_uses_the_new_connection() {
    let process = Timed::over(Transport::SharedArena);
    let client = attached(&process.address);
    prepared(&client);
    drop(client.view_batch(&[key(1)], plain()).expect("seen"));
    process.find_links_idle();
    let views = client.view_batch(&[key(1), key(9)], plain()).expect("seen");
    assert!(views[0].as_ref().is_some_and(|view| view.is_held()) && views[1].is_none());
}

/// Connections of several threads end together: this does not mean that the store is gone.
#[test]
fn simultaneous_end_of_idle_connections_fails_no_call() {
    let process = Timed::over(Transport::Tcp);
    let client = attached(&process.address);
    prepared(&client);
    let mut sessions: Vec<_> = (0..8).map(|_| client.session()).collect();
    let submit_get = |session: &mut pagelith::client::Session| {
        let destination = Destination::owned(AlignedBuf::new(LEN).expect("memory"));
        session.submit_get(vec![Get { key: key(1), range: None, destination }], plain())
    };
    let submit_put = |session: &mut pagelith::client::Session, page: u8| {
        let put = Put { key: key(page), source: Source::shared(vec![page; LEN].into()) };
        session.submit_put(vec![PutGroup::new(vec![put])], plain())
    };
    for session in &mut sessions {
        let ticket = submit_get(session);
        assert!(matches!(session.wait(ticket, WAIT_MAX), Some(CompletedBatch::Get(_))));
    }
    process.find_links_idle();
    let mut tickets = Vec::new();
    for (page, session) in (10..).zip(&mut sessions) {
        tickets.push(if page % 2 == 0 { submit_get(session) } else { submit_put(session, page) });
    }
    // Each finds its connection ended, most of them before any has a new one.
    let mut done: Vec<_> = sessions.iter().map(|_| None).collect();
    for _ in 0..3 {
        for (session, done) in sessions.iter_mut().zip(&mut done) {
            *done = done.take().or_else(|| session.poll().map(|(_, batch)| batch));
        }
    }
    for ((session, ticket), done) in sessions.iter_mut().zip(tickets).zip(done) {
        match done.or_else(|| session.wait(ticket, WAIT_MAX)).expect("it ends") {
            CompletedBatch::Get(done) => {
                assert!(done[0].outcome.as_ref().is_ok_and(GetOutcome::is_hit))
            }
            CompletedBatch::Put(done) => assert_eq!(done[0].outcome, Ok(PutOutcome::Stored)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn call_is_not_repeated_after_its_second_connection_ends() {
    let admission = ClientAuth::Connection(Rights::all());
    let listen = ListenConfig { address: anywhere(), admission, allow_remote: false };
    let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
    let offer = Capabilities::of_this_build([1; 16]);
    let mut listener =
        Listener::new(&listen, offer, entropy, clock, LinkLimits::default()).expect("listens");
    let address = listener.address().clone();
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut arrivals, mut links) = (Vec::new(), Vec::<Box<dyn Link>>::new());
            while !stop.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    links.push(link);
                }
                // Any request ends the connection.
                links.retain_mut(|link| {
                    let mut events = Vec::new();
                    link.poll(&mut events);
                    let is_request = |event: &LinkEvent| {
                        matches!(event, LinkEvent::Frame(frame) if frame.kind == FrameKind::Request)
                    };
                    let is_asked = events.iter().any(is_request);
                    asked.fetch_add(u64::from(is_asked), Ordering::SeqCst);
                    !is_asked
                });
            }
        });
        let calls: [(&str, Call); 4] = [
            ("get", |client| get(client, 1).map(|_| true)),
            ("exists", |client| client.exists_batch(&[key(1)], plain()).map(|_| true)),
            ("remove", |client| client.remove(&[key(1)], plain()).map(|_| true)),
            ("flush", |client| client.flush(plain()).map(|_| true)),
        ];
        let outcomes = calls.map(|(name, call)| {
            let client = attached(&address);
            let before = asked.load(Ordering::SeqCst);
            let kind = call(&client).map_err(|error| error.kind);
            (name, kind, asked.load(Ordering::SeqCst) - before)
        });
        stop.store(true, Ordering::Relaxed);
        for (name, outcome, asked) in outcomes {
            assert_eq!((outcome, asked), (Err(ErrorKind::Unavailable), 2), "{name}");
        }
    });
}
