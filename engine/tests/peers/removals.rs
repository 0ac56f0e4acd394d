//! Order and content of the removals sent to peers, with scripted peers and with stores that are
//! each other's peers.

use std::sync::{Mutex, OnceLock};

use pagelith::ErrorKind;
use pagelith::layouts::checksum::key_hash;
use pagelith::layouts::ids::OpId;
use pagelith::layouts::wire::outcome::{
    self, DecodedOutcome, ErrorTag, Failure, Item, ItemOutcome, OutcomeToSend,
};
use pagelith::layouts::wire::request::{self, RequestBody, RequestOptions, Verb};
use pagelith::layouts::wire::{Frame, FrameKind, List};
use pagelith::transport::dial::{Dial, DialProgress, Dialing};
use pagelith::transport::link::{Link, LinkEvent};
use pagelith::transport::link_error::LinkError;

use super::*;

/// Behaviour of a scripted peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerBehaviour {
    /// It carries out every request.
    Good,
    /// Its holds have expired when it is asked.
    Lapses,
    /// It does not support holds.
    Refuses,
    /// Its connection ends when it is asked whether it held.
    Leaves,
    /// The connection that carries the request of this number ends.
    Drops(usize),
    /// It answers puts when permitted.
    Waits,
    /// It answers no puts.
    Silent,
}

/// A peer that stores nothing.
struct Scripted {
    address: Address,
    stop: Arc<AtomicBool>,
    /// For stores with pending offers: whether it has received some, and may answer.
    offered: Arc<AtomicBool>,
    may_answer: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Removal and hold requests at the peers, and put requests that were given up, in order; each with
/// its number.
type Log = Vec<(usize, Verb)>;
type Asked = Arc<Mutex<Log>>;
/// Outcomes of a removal and of a clear.
type Outcomes = [Result<(), ErrorKind>; 2];

impl Scripted {
    fn new(number: usize, manner: PeerBehaviour, asked: &Asked) -> Scripted {
        let listen = ListenConfig {
            address: "tcp:127.0.0.1:0".parse().expect("an address"),
            admission: ClientAuth::Connection(Rights::all()),
            allow_remote: false,
        };
        let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
        let offer = Capabilities::of_this_build([number as u8; 16]);
        let mut listener =
            Listener::new(&listen, offer, entropy, clock, LinkLimits::default()).expect("listens");
        let address = listener.address().clone();
        let flag = || Arc::new(AtomicBool::new(false));
        let (stop, offered, may_answer) = (flag(), flag(), flag());
        let (ends, saw, may) = (stop.clone(), offered.clone(), may_answer.clone());
        let asked = asked.clone();
        let thread = std::thread::spawn(move || {
            let (mut arrivals, mut links) = (Vec::new(), Vec::<Box<dyn Link>>::new());
            let mut later: Vec<(usize, Frame)> = Vec::new();
            let mut requests = 0;
            while !ends.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    links.push(link);
                }
                for (at, link) in links.iter_mut().enumerate() {
                    let mut events = Vec::new();
                    link.poll(&mut events);
                    for event in events {
                        let LinkEvent::Frame(frame) = event else { continue };
                        if frame.kind == FrameKind::Cancel && manner == PeerBehaviour::Silent {
                            asked.lock().expect("a log").push((number, Verb::Put));
                        }
                        if frame.kind != FrameKind::Request {
                            continue;
                        }
                        let (_, ask) = request::decode(&frame.body).expect("a request");
                        let verb = ask.verb();
                        if verb == Verb::Put {
                            saw.store(true, Ordering::Relaxed);
                            if manner == PeerBehaviour::Silent {
                                continue;
                            }
                        } else {
                            asked.lock().expect("a log").push((number, verb));
                        }
                        requests += 1;
                        let leaves = manner == PeerBehaviour::Leaves && verb == Verb::Release;
                        if leaves || manner == PeerBehaviour::Drops(requests) {
                            link.close();
                            break;
                        }
                        let answer = answer(&ask, manner);
                        later.push((at, Frame::new(FrameKind::Outcome, frame.op, answer)));
                    }
                }
                let waits = manner == PeerBehaviour::Waits && !may.load(Ordering::Relaxed);
                for (at, frame) in later.extract_if(.., |_| !waits) {
                    // The connection may have ended.
                    drop(links[at].send(frame));
                }
            }
        });
        Scripted { address, stop, offered, may_answer, thread: Some(thread) }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn answer(ask: &RequestBody<'_>, manner: PeerBehaviour) -> Vec<u8> {
    let refused = Failure { error: ErrorTag::Busy, errno: 0, text: "too many holds" };
    match ask {
        RequestBody::Hold(_) if manner == PeerBehaviour::Refuses => {
            outcome::encode(Verb::Hold, &OutcomeToSend::Failed(refused))
        }
        RequestBody::Release(_) => {
            let lasted = u64::from(manner != PeerBehaviour::Lapses);
            outcome::encode(Verb::Release, &OutcomeToSend::Number(lasted))
        }
        RequestBody::Put(puts) => {
            let stored =
                |key: &ObjectKey| Item { key_hash: key_hash(key), verdict: ItemOutcome::Stored };
            let items: Vec<Item<'_>> = puts.objects().map(|object| stored(&object.key)).collect();
            outcome::encode(Verb::Put, &OutcomeToSend::Items(&items, 0))
        }
        ask => outcome::encode(ask.verb(), &OutcomeToSend::Number(1)),
    }
}

fn peer(number: usize, address: &Address, offer: Capabilities) -> Peer {
    let dial = SocketDial::new(address.clone(), None, offer, Arc::new(SystemClock::new()));
    Peer { name: format!("peer{number}"), weight: 1.0, preferred: false, dial: Arc::new(dial) }
}

/// A store with such peers removes an object and clears a namespace; returns both outcomes, and the
/// requests at each peer.
fn run_removal_and_clear(manners: &[PeerBehaviour], offer: Capabilities) -> (Outcomes, Log) {
    let asked = Asked::default();
    let peers: Vec<Scripted> = manners
        .iter()
        .enumerate()
        .map(|(number, manner)| Scripted::new(number, *manner, &asked))
        .collect();
    let known =
        peers.iter().enumerate().map(|(number, of)| peer(number, &of.address, offer)).collect();
    let store = Store::open_with_peers(valid(&memory()), known).expect("opened");
    let removed =
        store.remove(&[key(1, "k")], Options::default()).map(drop).map_err(|error| error.kind);
    let before = asked.lock().expect("a log").clone();
    let cleared = store.clear(NAMESPACE, Options::default()).map(drop).map_err(|error| error.kind);
    ([removed, cleared], before)
}

#[test]
fn removal_notifies_all_peers_and_holds_until_all_answered() {
    let (outcomes, asked) = run_removal_and_clear(&[PeerBehaviour::Good; 3], offer());
    assert_eq!(outcomes, [Ok(()), Ok(())]);
    for number in 0..3 {
        let own: Vec<Verb> =
            asked.iter().filter(|(of, _)| *of == number).map(|(_, verb)| *verb).collect();
        assert_eq!(own, [Verb::Hold, Verb::Remove, Verb::Release], "peer {number}");
    }
    let at = |verb| {
        asked.iter().enumerate().filter(move |(_, (_, said))| *said == verb).map(|(at, _)| at)
    };
    assert!(at(Verb::Remove).max() < at(Verb::Release).min(), "{asked:?}");
}

#[test]
fn peer_whose_hold_expired_makes_removal_unavailable() {
    for manner in [PeerBehaviour::Lapses, PeerBehaviour::Leaves] {
        let (outcomes, _) = run_removal_and_clear(&[PeerBehaviour::Good, manner], offer());
        assert_eq!(outcomes, [Err(ErrorKind::Unavailable); 2]);
    }
    let (outcomes, asked) =
        run_removal_and_clear(&[PeerBehaviour::Refuses, PeerBehaviour::Good], offer());
    assert_eq!(outcomes, [Err(ErrorKind::Busy); 2]);
    assert!(asked.contains(&(0, Verb::Remove)) && asked.contains(&(1, Verb::Remove)), "{asked:?}");
}

/// An idle connection may end under any request.
#[test]
fn removal_is_resent_to_all_peers_after_a_connection_ends() {
    for number in 1..=3 {
        let (outcomes, asked) =
            run_removal_and_clear(&[PeerBehaviour::Good, PeerBehaviour::Drops(number)], offer());
        assert_eq!(outcomes, [Ok(()); 2], "number={number}");
        let removed = |peer| asked.iter().filter(|said| **said == (peer, Verb::Remove)).count();
        assert_eq!(
            (removed(0), removed(1)),
            (2, if number == 1 { 1 } else { 2 }),
            "number={number}"
        );
    }
    let (outcomes, asked) = run_removal_and_clear(&[PeerBehaviour::Drops(1)], offer());
    assert_eq!((outcomes, &asked[..]), ([Ok(()); 2], &[(0, Verb::Remove); 2][..]));
}

/// Jobs that wait for a page are sent after its repeated offer.
#[test]
fn page_is_offered_once_more_after_its_connection_ends() {
    let asked = Asked::default();
    let drops = Scripted::new(0, PeerBehaviour::Drops(2), &asked);
    let store = Store::open_with_peers(valid(&memory()), vec![peer(0, &drops.address, offer())]);
    let store = store.expect("opened");
    for page in 1..=2 {
        put(&store, &[key(page, "k")]);
        until("the peer has it", || store.stats().remote_stored == page);
    }
    assert_eq!(store.stats().remote_skipped, 0);
}

#[test]
fn single_or_older_peers_are_notified_without_holds() {
    let (outcomes, asked) = run_removal_and_clear(&[PeerBehaviour::Good], offer());
    assert_eq!((outcomes, &asked[..]), ([Ok(()); 2], &[(0, Verb::Remove)][..]));
    let (outcomes, mut asked) =
        run_removal_and_clear(&[PeerBehaviour::Good; 2], offer().without(Feature::Holds));
    asked.sort_by_key(|(of, _)| *of);
    assert_eq!((outcomes, &asked[..]), ([Ok(()); 2], &[(0, Verb::Remove), (1, Verb::Remove)][..]));
}

#[test]
fn unreachable_peer_makes_removal_unavailable() {
    let asked = Asked::default();
    let (good, gone) = (
        Scripted::new(0, PeerBehaviour::Good, &asked),
        Scripted::new(1, PeerBehaviour::Good, &asked),
    );
    let known = vec![peer(0, &good.address, offer()), peer(1, &gone.address, offer())];
    drop(gone);
    let store = Store::open_with_peers(valid(&memory()), known).expect("opened");
    for page in 0..8 {
        let removed = store.remove(&[key(page, "k")], Options::default());
        assert_eq!(removed.expect_err("one is gone").kind, ErrorKind::Unavailable, "page={page}");
    }
    // The other peer was notified, and its hold lasts no longer than that took.
    until("it is released", || {
        let log = asked.lock().expect("a log");
        let count = |verb| log.iter().filter(|(_, said)| *said == verb).count();
        (count(Verb::Remove), count(Verb::Hold), count(Verb::Release)) == (8, 8, 8)
    });
}

/// A client that sends requests in any order.
struct RawClient {
    link: Box<dyn Link>,
    events: Vec<LinkEvent>,
    last: u64,
}

impl RawClient {
    fn of(address: &Address) -> RawClient {
        let dial = SocketDial::new(address.clone(), None, offer(), Arc::new(SystemClock::new()));
        let mut dialling = dial.begin().expect("reached");
        loop {
            dialling = match dialling.wait(WAIT_MAX) {
                DialProgress::Ready(link) => {
                    return RawClient { link, events: Vec::new(), last: 0 };
                }
                DialProgress::Waiting(dialling) => dialling,
                DialProgress::Failed(why) => panic!("{why}"),
            };
        }
    }

    fn ask(&mut self, ask: &RequestBody<'_>) -> OpId {
        self.last += 1;
        let terms = RequestOptions { from_store: true, ..RequestOptions::default() };
        let frame = Frame::new(FrameKind::Request, OpId(self.last), request::encode(terms, ask));
        assert!(self.link.send(frame).is_ok(), "room");
        OpId(self.last)
    }

    /// The next response: the request and its number.
    fn next(&mut self) -> (OpId, u64) {
        while self.events.is_empty() {
            self.link.wait(&mut self.events, WAIT_MAX);
        }
        let LinkEvent::Frame(frame) = self.events.remove(0) else { panic!("no answer") };
        let (_, DecodedOutcome::Number(number)) = outcome::decode(&frame.body).expect("an outcome")
        else {
            panic!("no number")
        };
        (frame.op, number)
    }
}

/// A store sends a removal to a peer only after its earlier offer to that peer has ended; otherwise
/// the offer could store the object again.
#[test]
fn removal_reaches_a_peer_after_earlier_offers() {
    let asked = Asked::default();
    let silent = Scripted::new(0, PeerBehaviour::Silent, &asked);
    let mut config = memory();
    // The removal ends the offer; the notification was answered long before.
    config.deadline_ms = 10_000;
    let store = Store::open_with_peers(valid(&config), vec![peer(0, &silent.address, offer())]);
    let store = store.expect("opened");
    put(&store, &[key(1, "k")]);
    until("it is offered", || silent.offered.load(Ordering::Relaxed));
    let patient = Options::default().timeout(WAIT_MAX);
    assert!(store.remove(&[key(1, "k")], patient).is_ok());
    assert_eq!(*asked.lock().expect("a log"), [(0, Verb::Put), (0, Verb::Remove)]);
}

/// A store that receives a removal answers once its own earlier offers have ended: other peers may
/// have been notified already.
#[test]
fn notified_peer_answers_after_its_own_offers() {
    let asked = Asked::default();
    let waits = Scripted::new(0, PeerBehaviour::Waits, &asked);
    let front = Store::open_with_peers(valid(&memory()), vec![peer(0, &waits.address, offer())]);
    let run_removal_and_clear = Process::of(front.expect("opened"));
    let mut asker = RawClient::of(&run_removal_and_clear.address);
    for clears in [false, true] {
        waits.may_answer.store(false, Ordering::Relaxed);
        waits.offered.store(false, Ordering::Relaxed);
        put(&run_removal_and_clear.store, &[key(1, "k")]);
        until("it is offered", || waits.offered.load(Ordering::Relaxed));
        let keys = [key(1, "k")];
        let removal = match clears {
            true => asker.ask(&RequestBody::Clear(NAMESPACE)),
            false => asker.ask(&RequestBody::Remove(List::of(&keys))),
        };
        // In memory it is removed at once. Requests sent after that are answered, and the removal
        // is not.
        for _ in 0..2 {
            let ping = asker.ask(&RequestBody::Ping);
            assert_eq!(asker.next().0, ping, "clears={clears}");
        }
        waits.may_answer.store(true, Ordering::Relaxed);
        assert_eq!(asker.next().0, removal, "clears={clears}");
        // Without offers in flight it is answered at once.
        waits.may_answer.store(false, Ordering::Relaxed);
        let removal = asker.ask(&RequestBody::Remove(List::of(&keys)));
        assert_eq!(asker.next().0, removal, "clears={clears}");
    }
}

#[test]
fn ended_connection_releases_its_holds() {
    let process = Process::new(&memory());
    let front = process.front(&memory(), offer());
    let mut asker = RawClient::of(&process.address);
    let hold = asker.ask(&RequestBody::Hold(1));
    assert_eq!(asker.next(), (hold, 0));
    put(&front, &[key(1, "k")]);
    let ended = |stats: pagelith::Stats| stats.remote_stored + stats.remote_skipped;
    until("it has its outcome", || ended(front.stats()) == 1);
    assert_eq!(process.store.exists_batch(&[key(1, "k")], Options::default()), [false]);
    drop(asker);
    // An offered object is stored again once the peer knows of the removal.
    for page in 2.. {
        assert!(page < 100_000, "it is held on");
        put(&front, &[key(page, "k")]);
        until("it has its outcome", || ended(front.stats()) == page);
        if front.stats().remote_stored > 0 {
            return;
        }
    }
}

/// A store whose address is known before it is served.
#[derive(Default)]
struct LateDial(OnceLock<SocketDial>);

impl Dial for LateDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.0.get().ok_or(LinkError::Disconnected)?.begin()
    }
}

/// Stores that are each other's peers.
fn mutual(count: usize) -> Vec<Process> {
    let dials: Vec<Arc<LateDial>> = (0..count).map(|_| Arc::default()).collect();
    let others = |own: usize| {
        let all = dials.iter().enumerate().filter(|(number, _)| *number != own);
        all.map(|(number, dial)| Peer {
            name: format!("peer{number}"),
            weight: 1.0,
            preferred: false,
            dial: dial.clone(),
        })
        .collect()
    };
    let open =
        |own| Process::of(Store::open_with_peers(valid(&memory()), others(own)).expect("opened"));
    let all: Vec<Process> = (0..count).map(open).collect();
    for (process, dial) in all.iter().zip(&dials) {
        let served =
            SocketDial::new(process.address.clone(), None, offer(), Arc::new(SystemClock::new()));
        assert!(dial.0.set(served).is_ok());
    }
    all
}

fn are_gone(all: &[Process], keys: &[ObjectKey]) {
    for (number, process) in all.iter().enumerate() {
        let here = process.store.exists_batch(keys, Options::default());
        assert!(here.iter().all(|here| !here), "store {number}: {here:?}");
    }
}

#[test]
fn removal_drops_the_copy_at_a_third_store() {
    let all = mutual(3);
    // Pages of each store with either of the others as owner.
    let keys: Vec<ObjectKey> = (0..12).map(|page| key(page, "k")).collect();
    for (page, key) in keys.iter().enumerate() {
        put(&all[page % 3].store, &[*key]);
    }
    until("all were offered", || {
        all.iter().map(|process| process.store.stats().remote_stored).sum::<u64>() == 12
    });
    for process in &all {
        keys.iter().for_each(|key| assert_eq!(get(&process.store, &[*key]).len(), 1));
    }
    for (at, keys) in keys.chunks(4).enumerate() {
        all[at].store.remove(keys, Options::default()).expect("removed");
        are_gone(&all, keys);
    }
    put(&all[0].store, &keys[..1]);
    all[2].store.clear(NAMESPACE, Options::default()).expect("cleared");
    are_gone(&all, &keys);
}

/// No removal waits for another one that waits for it.
#[test]
fn concurrent_removals_at_two_stores_do_not_deadlock() {
    for count in [2, 3] {
        let all = mutual(count);
        for round in 0..20 {
            let key_of = |number: usize| key(100 * round + number as u64, "k");
            std::thread::scope(|scope| {
                for (number, process) in all.iter().enumerate() {
                    scope.spawn(move || {
                        put(&process.store, &[key_of(number)]);
                        let removed = process.store.remove(&[key_of(number)], Options::default());
                        removed.expect("all peers are notified");
                    });
                }
            });
            let keys: Vec<ObjectKey> = (0..count).map(key_of).collect();
            are_gone(&all, &keys);
        }
    }
}
