//! Two stores as peers of a third: each owns a part of the pages, and gets of the third find them.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;
use std::time::Duration;

use pagelith::config::PeerConfig;
use pagelith::layouts::{
    ids::PrefixHash,
    key::{ObjectKey, Role},
    namespace::Namespace,
    shard::Shard,
};
use pagelith::server::Serving;
use pagelith::{GetOutcome, Options, PageStore, Store, Tier};

const PAGES: u8 = 16;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let owners = [Store::builder().dram("8MiB").open()?, Store::builder().dram("8MiB").open()?];
    let mut serving = Vec::new();
    for owner in &owners {
        serving.push(Serving::builder(owner, "tcp:127.0.0.1:0".parse()?).start()?);
    }
    // Names determine which peer owns a page, so every store must use the same ones.
    let peer = |(serving, name): (&Serving, &str)| {
        let mut peer = PeerConfig::from(serving.address().clone());
        peer.name = name.to_owned();
        peer
    };
    let peers: Vec<PeerConfig> = serving.iter().zip(["a", "b"]).map(peer).collect();
    let with_peers = || {
        let peers = peers.clone();
        Store::builder().dram("8MiB").set(|config| config.remote.peers = peers).open()
    };

    let model =
        Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
    let key = |page| {
        ObjectKey::new(model, PrefixHash([page; 32]), Role::Target, "kv", "kv", Shard::Whole)
    };
    let writer = with_peers()?;
    for page in 0..PAGES {
        writer.put_one(key(page)?, &[page; 4096], Options::default())?;
    }
    // A close offers the rest of the puts to the peers first.
    writer.close()?;

    let reader = with_peers()?;
    let options = Options::default().timeout(Duration::from_secs(30));
    let mut bytes = [0; 4096];
    for page in 0..PAGES {
        let outcome = reader.get_one(key(page)?, &mut bytes, options)?;
        assert!(matches!(outcome, GetOutcome::Hit { tier: Tier::Remote, .. }), "{outcome:?}");
        assert_eq!(bytes, [page; 4096]);
    }
    let keys: Vec<ObjectKey> = (0..PAGES).map(key).collect::<Result<_, _>>()?;
    let held = |owner: &Store| {
        owner.exists_batch(&keys, Options::default()).into_iter().filter(|here| *here).count()
    };
    println!("pages at the owners: {} and {}", held(&owners[0]), held(&owners[1]));
    assert_eq!(held(&owners[0]) + held(&owners[1]), usize::from(PAGES));
    reader.close()?;
    serving.into_iter().try_for_each(Serving::end)?;
    Ok(())
}
