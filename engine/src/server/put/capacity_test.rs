//! Puts over a link that has no room for all of their pulls.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::staging::StagingPool;
use pagelith_io::system::SystemEntropy;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::RequestOptions;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, SocketDial};
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener};

use super::run::RUN_GROUPS;
use crate::api::outcome::PutOutcome;
use crate::rpc::Response;
use crate::rpc::client::RpcClient;
use crate::server::Server;
use crate::server::tests::{Pair, TIMEOUT, key};
use crate::store::embedded::Store;

const PUTS: u64 = 3;
/// Objects of a put: two runs.
const OBJECTS: usize = 2 * RUN_GROUPS;
/// Room for the pulls of two puts and of the first run of the third, with some bytes left. The
/// outcome of a put fits too.
const FRAME_BYTES_MAX: usize = 1000;

/// A client and its server, whose link holds so many bytes of frames.
fn connect(store: &Store, clock: &Arc<dyn Clock>, frame_bytes_max: usize) -> (Server, RpcClient) {
    let offer = |instance| Capabilities::of_this_build([instance; 16]);
    let listen = ListenConfig {
        address: "tcp:127.0.0.1:0".parse().expect("an address"),
        admission: ClientAuth::Connection(Rights::all()),
        allow_remote: false,
    };
    let limits = LinkLimits { frame_bytes_max, ..LinkLimits::default() };
    let entropy = Arc::new(SystemEntropy);
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
    let Some(AdmissionResult::Link(link)) = arrivals.pop() else { panic!("refused") };
    let staging = StagingPool::new(16 << 20).expect("memory");
    (Server::new(store, link, staging).expect("serves"), client)
}

#[test]
fn run_whose_pull_has_no_room_retracts_no_earlier_run() {
    let Pair { store, clock, .. } = Pair::new(Rights::all());
    let (mut server, mut client) = connect(&store, &clock, FRAME_BYTES_MAX);
    let bytes = [7; 100];
    for put in 0..PUTS {
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        for object in 0..OBJECTS {
            draft.group(None);
            let key = key(put as u8, &format!("{object}"));
            draft.object(key, bytes.len() as u64, &[checksum(&bytes)]);
        }
        let payload = Box::new(move |_| vec![Part::from_shared(Arc::from(&bytes[..]))]);
        let deadline = clock.now().after(TIMEOUT);
        client.put(put, &draft, payload, RequestOptions::default(), deadline).expect("room");
    }
    client.flush_queue();
    let room = server.link.capacity().exposures;
    let runs = 2 * OBJECTS + RUN_GROUPS..PUTS as usize * OBJECTS;
    // The requests have been sent; a poll may receive a part of them.
    let mut exposed = 0;
    for _ in 0..10_000 {
        if runs.contains(&exposed) {
            break;
        }
        server.poll();
        exposed = room - server.link.capacity().exposures;
    }
    assert!(runs.contains(&exposed), "exposed={exposed}");
    let mut responses = Vec::new();
    while responses.len() < PUTS as usize {
        server.poll();
        client.poll(clock.now(), &mut responses);
    }
    for (put, response) in responses {
        let Response::Put(outcomes) = response else { panic!("unexpected reply") };
        assert!(outcomes.iter().all(|o| *o == Ok(PutOutcome::Stored)), "put={put} {outcomes:?}");
    }
}
