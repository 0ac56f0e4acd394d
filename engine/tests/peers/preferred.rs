//! A peer that is preferred to the owners of pages.

use super::*;

/// Peers with these names, of which `preferred` is preferred.
fn peers(all: &[(&str, &Process)], preferred: &str) -> Vec<Peer> {
    let peer = |(name, process): &(&str, &Process)| {
        let dial =
            SocketDial::new(process.address.clone(), None, offer(), Arc::new(SystemClock::new()));
        Peer {
            name: (*name).into(),
            weight: 1.0,
            preferred: *name == preferred,
            dial: Arc::new(dial),
        }
    };
    all.iter().map(peer).collect()
}

fn front(peers: Vec<Peer>) -> Store {
    Store::open_with_peers(valid(&memory()), peers).expect("opened")
}

fn exists(store: &Store, keys: &[ObjectKey]) -> usize {
    store.exists_batch(keys, Options::default()).into_iter().filter(|here| *here).count()
}

/// Put each page separately; afterwards no offer is pending.
fn put_each(store: &Store, keys: &[ObjectKey]) {
    keys.iter().for_each(|key| put(store, &[*key]));
    until("offers", || {
        store.stats().remote_stored + store.stats().remote_skipped >= store.stats().puts_stored
    });
}

fn pages(from: u64) -> Vec<ObjectKey> {
    (from..from + 40).map(|page| key(page, "k")).collect()
}

#[test]
fn preferred_peer_receives_and_returns_all_pages() {
    let (near, far) = (Process::new(&memory()), Process::new(&memory()));
    let store = front(peers(&[("near", &near), ("far", &far)], "near"));
    let keys = pages(1);
    put_each(&store, &keys);
    assert_eq!((exists(&near.store, &keys), exists(&far.store, &keys)), (40, 0));
    let other = front(peers(&[("near", &near), ("far", &far)], "near"));
    assert_eq!(other.exists_batch(&keys, Options::default()), vec![true; 40]);
    assert_eq!(get(&other, &keys), all(Tier::Remote, 40));
    // A store without a preferred peer looks for each page at its owner, and finds only those that
    // are there.
    let alike = front(peers(&[("near", &near), ("far", &far)], "none"));
    let owned = exists(&alike, &keys);
    assert!((1..40).contains(&owned), "{owned}");
    // Removed pages are gone at every peer.
    store.remove(&keys, Options::default()).expect("removed");
    assert_eq!(
        (exists(&near.store, &keys), exists(&other, &keys)),
        (0, 40),
        "pages of other peers stay theirs"
    );
}

#[test]
fn page_absent_at_the_preferred_peer_is_got_from_its_owner() {
    let (near, far) = (Process::new(&memory()), Process::new(&memory()));
    let others = front(peers(&[("near", &near), ("far", &far)], "none"));
    let keys = pages(100);
    put_each(&others, &keys);
    let with_owners = (exists(&near.store, &keys), exists(&far.store, &keys));
    assert!(
        with_owners.0 > 0 && with_owners.1 > 0 && with_owners.0 + with_owners.1 == 40,
        "{with_owners:?}"
    );
    let store = front(peers(&[("near", &near), ("far", &far)], "near"));
    let absent: Vec<ObjectKey> = pages(1000);
    let asked: Vec<ObjectKey> = keys.iter().chain(&absent).copied().collect();
    assert_eq!(exists(&store, &asked), 40);
    let found = get(&store, &asked);
    assert_eq!((&found[..40], &found[40..]), (&all(Tier::Remote, 40)[..], &vec![None; 40][..]));
    let stats = store.stats();
    assert_eq!(
        (stats.hits_remote, stats.misses.get("absent").copied()),
        (40, Some(40)),
        "each counts once: {stats:?}"
    );
}

/// Two peers have different versions of a page: objects of one are never mixed with objects of the
/// other.
#[test]
fn group_is_got_from_one_peer() {
    let (near, far) = (Process::new(&memory()), Process::new(&memory()));
    let store = front(peers(&[("near", &near), ("far", &far)], "near"));
    for page in 300..340 {
        let keys = ["k", "v", "i"].map(|component| key(page, component));
        put(&near.store, &keys[..2]);
        put(&far.store, &keys);
        assert_eq!(
            get(&store, &keys),
            [Some(Tier::Remote), Some(Tier::Remote), None],
            "page={page}"
        );
    }
    // Separate puts, and one half of a page at each peer.
    let singles: Vec<[ObjectKey; 2]> =
        (400..440).map(|page| [key(page, "k"), key(page, "v")]).collect();
    singles.iter().for_each(|[k, v]| {
        put(&near.store, &[*k]);
        put(&far.store, &[*v]);
    });
    let found = get(&store, &singles.concat());
    let of_far = found.iter().skip(1).step_by(2).flatten().count();
    assert!(found.iter().step_by(2).all(Option::is_some) && (1..40).contains(&of_far), "{found:?}");
}

#[test]
fn owners_replace_an_unreachable_preferred_peer() {
    let (near, far) = (Process::new(&memory()), Process::new(&memory()));
    let all_peers = peers(&[("near", &near), ("far", &far)], "near");
    drop(near);
    let store = front(all_peers);
    let keys = pages(200);
    put_each(&store, &keys);
    let with_far = exists(&far.store, &keys);
    assert!((1..40).contains(&with_far), "its own share: {with_far}");
    let other = front(peers(&[("near", &Process::new(&memory())), ("far", &far)], "near"));
    assert_eq!(get(&other, &keys).into_iter().flatten().count(), with_far);
}

#[test]
fn two_preferred_peers_are_refused() {
    let (near, far) = (Process::new(&memory()), Process::new(&memory()));
    let mut both = peers(&[("near", &near), ("far", &far)], "near");
    both[1].preferred = true;
    let Err(refused) = Store::open_with_peers(valid(&memory()), both) else { panic!("opened") };
    assert!(refused.to_string().contains("two peers are preferred name=far"), "{refused}");
}
