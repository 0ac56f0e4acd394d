//! Connections that the peer closed because they were idle: the next request uses a new one.

use pagelith_sim::clock::SimClock;

use super::*;

/// A peer whose connections use a clock of the test.
fn timed() -> (Process, SimClock) {
    let (store, clock) = (Store::open(valid(&memory())).expect("opened"), SimClock::new());
    let admission = ClientAuth::Connection(Rights::all());
    (
        Process::timed(
            store,
            admission,
            Capabilities::of_this_build([1; 16]),
            Arc::new(clock.clone()),
        ),
        clock,
    )
}

/// Let the peer find its connections idle, as it does in time: it pings, and closes them without an
/// answer. This side finds both together, the ping first.
fn go_idle(peer: &Process, clock: &SimClock) {
    let limits = LinkLimits::default();
    clock.advance(limits.ping_after);
    let turns = peer.turns.load(Ordering::Acquire);
    until("it has asked", || peer.turns.load(Ordering::Acquire) > turns + 1);
    clock.advance(limits.dead_after);
    until("it has closed them", || peer.links.load(Ordering::Acquire) == 0);
}

#[test]
fn lookup_and_get_after_idle_time_find_the_peers_pages() {
    let (peer, clock) = timed();
    let mut config = memory();
    config.dram.promote = Promote::Never;
    let front = peer.front(&config, offer());
    put(&peer.store, &[key(1, "k")]);
    let mut session = front.session().expect("a session");
    assert_eq!(get_over(&mut session, key(1, "k")), Some(Tier::Remote));
    go_idle(&peer, &clock);
    assert_eq!(get_over(&mut session, key(1, "k")), Some(Tier::Remote));
    go_idle(&peer, &clock);
    let ticket = session.submit_exists(&[key(1, "k"), key(2, "k")], Options::default());
    let Some(CompletedBatch::Exists(found)) = session.wait(ticket, WAIT_MAX) else {
        panic!("it ends")
    };
    assert_eq!(found, [true, false]);
}

/// Connections of several threads end together: this does not mean that the peer is gone.
#[test]
fn simultaneous_end_of_idle_connections_causes_no_misses() {
    let (peer, clock) = timed();
    let mut config = memory();
    config.dram.promote = Promote::Never;
    let front = peer.front(&config, offer());
    put(&peer.store, &[key(1, "k")]);
    let mut sessions: Vec<_> = (0..6).map(|_| front.session().expect("a session")).collect();
    for session in &mut sessions {
        assert_eq!(get_over(session, key(1, "k")), Some(Tier::Remote));
    }
    go_idle(&peer, &clock);
    let asked: Vec<_> = sessions
        .iter_mut()
        .map(|session| {
            let destination = Destination::owned(AlignedBuf::new(LEN).expect("memory"));
            session.submit_get(
                vec![Get { key: key(1, "k"), range: None, destination }],
                Options::default(),
            )
        })
        .collect();
    // Each session finds its connection ended before any has a new one, unless this thread stalls.
    let mut ended: Vec<_> = sessions.iter().map(|_| None).collect();
    for _ in 0..3 {
        for (session, ended) in sessions.iter_mut().zip(&mut ended) {
            *ended = ended.take().or_else(|| session.poll().map(|(_, batch)| batch));
        }
    }
    for ((session, ticket), ended) in sessions.iter_mut().zip(asked).zip(ended) {
        let ended = ended.or_else(|| session.wait(ticket, WAIT_MAX));
        let Some(CompletedBatch::Get(done)) = ended else { panic!("it ends") };
        assert_eq!(done[0].outcome, Ok(GetOutcome::Hit { tier: Tier::Remote, bytes: LEN as u64 }));
    }
}

/// The task that sends offers and removals answers its peers' pings: its connections are never
/// idle, but may end all the same.
fn end_links(peer: &Process) {
    peer.cut.store(true, Ordering::Relaxed);
    until("they have ended", || {
        !peer.cut.load(Ordering::Relaxed) && peer.links.load(Ordering::Acquire) == 0
    });
}

#[test]
fn removal_and_clear_reach_the_peer_after_connections_ended() {
    let peer = Process::new(&memory());
    let front = peer.front(&memory(), offer());
    put(&front, &[key(1, "k")]);
    put(&front, &[key(2, "k")]);
    until("the peer has them", || front.stats().remote_stored == 2);
    end_links(&peer);
    assert_eq!(front.remove(&[key(1, "k")], Options::default()), Ok(1));
    assert_eq!(
        peer.store.exists_batch(&[key(1, "k"), key(2, "k")], Options::default()),
        [false, true]
    );
    end_links(&peer);
    front.clear(NAMESPACE, Options::default()).expect("cleared");
    assert_eq!(peer.store.exists_batch(&[key(2, "k")], Options::default()), [false]);
    end_links(&peer);
    put(&front, &[key(3, "k")]);
    until("the peer has it", || front.stats().remote_stored == 3);
    assert_eq!(front.stats().remote_skipped, 0);
}
