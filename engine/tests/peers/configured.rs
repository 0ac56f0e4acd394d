//! Peers from the configuration.

use std::os::unix::fs::PermissionsExt;

use pagelith::ErrorKind;
use pagelith::config::PeerConfig;
use pagelith::transport::auth::{Key, KeyRing};

use super::*;

fn peer(name: &str, process: &Process) -> PeerConfig {
    let mut peer = PeerConfig::from(process.address.clone());
    peer.name = name.to_owned();
    peer
}

fn front(peers: Vec<PeerConfig>) -> Store {
    let mut config = memory();
    config.remote.peers = peers;
    Store::open(valid(&config)).expect("opened")
}

/// Number of these pages at each peer, once all were offered.
fn shares(store: &Store, pages: &[ObjectKey], at: [&Process; 2]) -> [usize; 2] {
    pages.iter().for_each(|key| put(store, &[*key]));
    until("offers", || {
        store.stats().remote_stored + store.stats().remote_skipped >= store.stats().puts_stored
    });
    let exists = |at: &Process| {
        at.store.exists_batch(pages, Options::default()).into_iter().filter(|here| *here).count()
    };
    at.map(exists)
}

#[test]
fn configured_peers_share_pages_by_name_and_weight() {
    let (one, two) = (Process::new(&memory()), Process::new(&memory()));
    let pages: Vec<ObjectKey> = (1..=100).map(|page| key(page, "k")).collect();
    let mut heavy = peer("b", &two);
    heavy.weight = 9.0;
    let store = front(vec![peer("a", &one), heavy.clone()]);
    let [light, most] = shares(&store, &pages, [&one, &two]);
    assert!(light + most == 100 && (80..=97).contains(&most), "{light} {most}");
    // Another store with the same names finds all of them, in any order and by any addresses.
    let other = front(vec![heavy.clone(), peer("a", &one)]);
    assert_eq!(get(&other, &pages), all(Tier::Remote, 100));
    // With other names it does not, since the names determine the owners.
    let mut renamed = heavy;
    renamed.name = "a".to_owned();
    let stranger = front(vec![peer("b", &one), renamed]);
    let found =
        stranger.exists_batch(&pages, Options::default()).into_iter().filter(|here| *here).count();
    assert!(found < 100, "{found}");
}

#[test]
fn preferred_peer_gets_all_pages() {
    let (one, two) = (Process::new(&memory()), Process::new(&memory()));
    let pages: Vec<ObjectKey> = (200..240).map(|page| key(page, "k")).collect();
    let store = front(vec![peer("a", &one), {
        let mut peer = peer("b", &two);
        peer.preferred = true;
        peer
    }]);
    assert_eq!(shares(&store, &pages, [&one, &two]), [0, 40]);
}

/// Peers given in code replace those of the configuration.
#[test]
fn explicit_peers_replace_configured_ones() {
    let (configured, given) = (Process::new(&memory()), Process::new(&memory()));
    let mut config = memory();
    config.remote.peers = vec![peer("a", &configured)];
    let store = given.front(&config, offer());
    let pages = [key(300, "k"), key(301, "k")];
    assert_eq!(shares(&store, &pages, [&configured, &given]), [0, 2]);
}

#[test]
fn key_file_is_read_at_open_and_must_be_private() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("key");
    let secret = [7; 32];
    let hex = "07".repeat(32);
    let mut config = memory();
    config.remote.key = Some(path.clone());
    let ring = KeyRing::new(
        [(Key::new("rank-0", &secret).expect("a key"), Rights::all())],
        &SystemEntropy,
    );
    let process = Process::admitting(
        Store::open(valid(&memory())).expect("opened"),
        ClientAuth::Keys(Arc::new(ring.expect("a ring"))),
    );
    config.remote.peers = vec![peer("a", &process)];
    let open = || Store::open(valid(&config));
    let refused = |why: &str| {
        let error = open().expect_err("refused");
        assert!(
            error.message.starts_with("remote.key: ") && error.message.contains(why),
            "{error}"
        );
        assert!(!error.message.contains(&hex), "a secret is said: {error}");
        error.kind
    };
    assert_eq!(refused("No such file"), ErrorKind::Unavailable);
    std::fs::write(&path, format!("[[key]]\nname = \"rank-0\"\nsecret = \"{hex}\"\n"))
        .expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("shared");
    assert_eq!(refused("other users can read"), ErrorKind::Denied);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("kept to oneself");
    let store = open().expect("opened");
    let pages = [key(400, "k")];
    put(&store, &pages);
    until("offers", || store.stats().remote_stored == 1);
    assert_eq!(process.store.exists_batch(&pages, Options::default()), [true]);
    std::fs::write(&path, format!("[[key]]\nname = \"rank-0\"\nsecret = \"{hex}0\"\n"))
        .expect("written");
    assert_eq!(refused("secret is not 64 hexadecimal digits"), ErrorKind::Invalid);
}
