//! How long a get takes if its peer is lost during it: killed, or stopped, so that its host replies
//! and the process does not (like a hanging process; a disconnected host looks the same to the
//! client). The peer is its own process, reached over TCP and over a Unix socket with rings. Each
//! get is of 64 objects of 1 MiB, and the peer is lost at a random moment within the duration of
//! such a get.
//!
//! `cargo bench -p pagelith-micro --bench lost_peer [-- TRIALS]` (50 of each). Each line shows the
//! number of affected gets, their duration (median, longest), and by how much of its deadline the
//! longest was late. Hits are compared byte by byte; memory of finished gets is checked again after
//! the peer continued.
#![allow(clippy::disallowed_methods, reason = "measures processes and threads by the real clock")]
#![allow(clippy::print_stdout, reason = "prints a table")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use pagelith::client::Client;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::rpc::Peer;
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{AlignedBuf, Config, GetSlice, MachineLimits, Options, PutSlice, Size, Store};
use rustix::process::{Pid, Signal, kill_process};

use common::{keys, mix};

const OBJECTS: usize = 64;
const OBJECT_BYTES: usize = 1 << 20;
const TRIALS: u64 = 50;
const WAIT: Duration = Duration::from_millis(10);
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Fills memory that no one may write any more.
const UNTOUCHED: u8 = 0xa5;

/// How the peer is lost.
#[derive(Clone, Copy, PartialEq)]
enum Lost {
    Killed,
    Stopped,
}

fn store(dram: u64, peers: Vec<Peer>) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(dram);
    // Objects from the peer are not cached: the next get requests them again.
    config.dram.promote = pagelith::config::Promote::Never;
    config.index.max_objects = Some(65_536);
    let config =
        config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("room for it");
    Store::open_with_peers(config, peers).expect("a store")
}

/// The peer's process: serves clients until it is lost.
fn run_peer(address: Address) -> ! {
    let store: &'static Store = Box::leak(Box::new(store(256 << 20, Vec::new())));
    let listen = ListenConfig {
        address,
        admission: ClientAuth::Connection(Rights::all()),
        allow_remote: false,
    };
    let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
    let offer = Capabilities::of_this_build([1; 16]);
    let mut listener =
        Listener::new(&listen, offer, entropy, clock, LinkLimits::default()).expect("listens");
    let staging = StagingPool::new(64 << 20).expect("memory");
    println!("{}", listener.address());
    let mut arrivals = Vec::new();
    loop {
        listener.wait(&mut arrivals, WAIT);
        for arrival in arrivals.drain(..) {
            let AdmissionResult::Link(link) = arrival else { panic!("refused") };
            let mut server = Server::new(store, link, staging.clone()).expect("serves");
            std::thread::spawn(move || {
                while server.closed().is_none() {
                    server.wait(WAIT);
                }
            });
        }
    }
}

/// A peer with all objects.
struct Process {
    child: Child,
    address: Address,
}

impl Process {
    fn with_objects(listen: &str, buffers: &[AlignedBuf]) -> Process {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["peer", listen])
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawned");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output"))
            .read_line(&mut line)
            .expect("a line");
        let address: Address = line.trim().parse().expect("an address");
        let there = Client::to(&address, None, TIME_LIMIT).expect("attached");
        let keys = keys(0..OBJECTS as u64);
        let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [&buffer[..]]).collect();
        let puts: Vec<_> =
            keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
        assert!(there.put_batch(&puts, Options::default()).iter().all(Result::is_ok));
        Process { child, address }
    }

    /// An empty store with this peer.
    fn asked_by(&self) -> Store {
        let clock = Arc::new(SystemClock::new());
        let dial = SocketDial::new(
            self.address.clone(),
            None,
            Capabilities::of_this_build([2; 16]),
            clock,
        );
        let peer =
            Peer { name: "peer".into(), weight: 1.0, preferred: false, dial: Arc::new(dial) };
        store(1 << 20, vec![peer])
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gets every object from the peer; returns the duration, and which were hits.
fn get(store: &Store, buffers: &mut [AlignedBuf], timeout: Duration) -> (Duration, Vec<bool>) {
    let keys = keys(0..OBJECTS as u64);
    let mut pieces: Vec<[&mut [u8]; 1]> =
        buffers.iter_mut().map(|buffer| [&mut buffer[..]]).collect();
    let mut gets: Vec<_> = keys
        .iter()
        .zip(&mut pieces)
        .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
        .collect();
    let options = Options::default().timeout(timeout);
    let begun = Instant::now();
    let outcomes = store.get_batch(&mut gets, options);
    let took = begun.elapsed();
    (took, outcomes.iter().map(|o| o.as_ref().expect("an outcome").is_hit()).collect())
}

fn buffers() -> Vec<AlignedBuf> {
    (0..OBJECTS).map(|_| AlignedBuf::new(OBJECT_BYTES).expect("memory")).collect()
}

/// A get whose peer is lost after `after`; `None` if the get finished before.
fn trial(
    peer: &Process,
    how: Lost,
    after: Duration,
    deadline: Duration,
    values: &[AlignedBuf],
) -> Option<Duration> {
    // A new store for each trial: it has no failed requests yet.
    let near = peer.asked_by();
    let mut buffers = buffers();
    let (_, hits) = get(&near, &mut buffers, TIME_LIMIT);
    assert!(hits.iter().all(|hit| *hit), "all is at the peer");
    buffers.iter_mut().for_each(|buffer| buffer.fill(UNTOUCHED));
    let together = Barrier::new(2);
    let (took, hits) = std::thread::scope(|scope| {
        scope.spawn(|| {
            together.wait();
            let begun = Instant::now();
            while begun.elapsed() < after {
                std::hint::spin_loop();
            }
            peer.signal(if how == Lost::Killed { Signal::KILL } else { Signal::STOP });
        });
        together.wait();
        get(&near, &mut buffers, deadline)
    });
    for ((hit, buffer), value) in hits.iter().zip(&buffers).zip(values) {
        assert!(!hit || buffer[..] == value[..], "a hit has other bytes than were put");
    }
    buffers.iter_mut().for_each(|buffer| buffer.fill(UNTOUCHED));
    if how == Lost::Stopped {
        peer.signal(Signal::CONT);
        // Data that the peer still had to send arrives before the reply to this get, over the same
        // link or another.
        let mut others = self::buffers();
        get(&near, &mut others, TIME_LIMIT);
    }
    assert!(
        buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == UNTOUCHED)),
        "touched late"
    );
    hits.iter().any(|hit| !hit).then_some(took)
}

fn main() {
    if let Some(listen) = std::env::args().skip_while(|arg| arg != "peer").nth(1) {
        run_peer(listen.parse().expect("an address"));
    }
    let trials = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(TRIALS);
    let mut values = buffers();
    for (number, value) in values.iter_mut().enumerate() {
        for (at, word) in value.chunks_mut(8).enumerate() {
            word.copy_from_slice(&mix((number * OBJECT_BYTES + at) as u64).to_le_bytes());
        }
    }
    let socket = std::env::temp_dir().join(format!("pagelith-lost-peer-{}", std::process::id()));
    let unix = format!("unix:{}", socket.display());
    println!(
        "| link | the peer is | deadline, ms | gets met | median, ms | longest, ms | longest over the deadline |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    for (link, listen) in [("TCP", "tcp:127.0.0.1:0"), ("Unix socket", &unix)] {
        for (how, name) in [(Lost::Killed, "killed"), (Lost::Stopped, "stopped")] {
            for deadline in [100, 300, 1000].map(Duration::from_millis) {
                let mut peer = Process::with_objects(listen, &values);
                // The duration of an undisturbed get.
                let whole = whole(&peer);
                let mut took = Vec::new();
                for number in 0..trials {
                    let after = whole.mul_f64((mix(number) >> 11) as f64 / (1u64 << 53) as f64);
                    took.extend(trial(&peer, how, after, deadline, &values));
                    if how == Lost::Killed {
                        drop(peer);
                        peer = Process::with_objects(listen, &values);
                    }
                }
                took.sort();
                let ms = |time: Option<&Duration>| {
                    time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
                };
                let (median, longest) = (ms(took.get(took.len() / 2)), ms(took.last()));
                let limit = deadline.as_secs_f64() * 1e3;
                let over = (longest / limit - 1.0).max(0.0) * 100.0;
                let met = took.len();
                println!(
                    "| {link} | {name} | {limit} | {met} | {median:.1} | {longest:.1} | {over:.1} % |"
                );
            }
        }
    }
    let _ = std::fs::remove_file(socket);
}

/// The median duration of a get of every object.
fn whole(peer: &Process) -> Duration {
    let (near, mut buffers) = (peer.asked_by(), buffers());
    let mut took: Vec<Duration> = (0..5).map(|_| get(&near, &mut buffers, TIME_LIMIT).0).collect();
    took.sort();
    took[2]
}
