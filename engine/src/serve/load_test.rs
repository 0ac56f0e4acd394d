//! Memory that clients' operations and unread outcomes take, as it is counted over real links.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::request::{self, Ask, Terms};
use pagelith_layouts::wire::{Frame, Kind, List};
use pagelith_transport::auth::Key;
use pagelith_transport::closed::Closed;
use pagelith_transport::handshake::Admission;
use pagelith_transport::link::{Event, Link};
use pagelith_transport::rights::Rights;

use super::Server;
use crate::config::{Config, Facts};
use crate::remote::tests::{Pair, key};
use crate::store::Store;

/// Time stands still: no link is silent for too long.
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
    Store::open(config.validate(&Facts::of_this_machine().expect("facts")).expect("valid")).expect("opened")
}

fn meet(store: &Store, admission: Admission, key: Option<Key>) -> (Server, Box<dyn Link>) {
    let clock: Arc<dyn Clock> = Arc::new(StillClock);
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    Pair::links(store, &clock, address, admission, key, (&[], Vec::new()))
}

/// Send these and take what comes, until the server has closed the link or this many outcomes are here.
fn outcomes(server: &mut Server, link: &mut dyn Link, frames: Vec<Frame>, most: usize) -> usize {
    frames.into_iter().for_each(|frame| assert!(link.send(frame).is_ok(), "room for a request"));
    link.send_on();
    let mut outcomes = 0;
    while outcomes < most && server.closed().is_none() {
        server.turn();
        let mut events = Vec::new();
        link.poll(&mut events);
        let is_outcome = |event: &Event| matches!(event, Event::Frame(frame) if frame.kind == Kind::Outcome);
        outcomes += events.iter().filter(|event| is_outcome(event)).count();
    }
    outcomes
}

#[test]
fn request_with_the_number_of_an_unsent_outcome_ends_the_link_and_leaves_nothing_counted() {
    let store = store();
    let keys = vec![key(1, "k"); 100];
    let body = request::encode(Terms::default(), &Ask::Exists(List::of(&keys)));
    let request = |op| Frame::new(Kind::Request, OpId(op), body.clone());
    let (mut server, mut link) = meet(&store, Admission::Connection(Rights::all()), None);
    // A number whose outcome has left may be used again.
    for _ in 0..3 {
        assert_eq!(outcomes(&mut server, &mut *link, vec![request(1)], 1), 1);
        assert_eq!(store.shared.served.load(Relaxed), 0);
    }
    // Both arrive in one turn, and each is answered at once.
    outcomes(&mut server, &mut *link, vec![request(2), request(2)], 2);
    assert!(matches!(server.closed(), Some(Closed::Broken(_))), "{:?}", server.closed());
    drop(server);
    assert_eq!(store.shared.served.load(Relaxed), 0);
}
