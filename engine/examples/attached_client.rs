//! A store that is served to other processes, and a client of it. The same code runs on the client
//! and on the store itself.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::layouts::{
    ids::PrefixHash,
    key::{ObjectKey, Role},
    namespace::Namespace,
    shard::Shard,
};
use pagelith::server::Serving;
use pagelith::{Options, PageStore, Store};

/// Get a page, or compute and put it.
fn page(store: &dyn PageStore, key: ObjectKey, into: &mut [u8]) -> pagelith::Result<bool> {
    if store.get_one(key, into, Options::default())?.is_hit() {
        return Ok(true);
    }
    into.fill(42);
    store.put_one(key, into, Options::default())?;
    Ok(false)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let store = Store::builder().dram("8MiB").open()?;
    // `pagelith serve` does this in a process of its own.
    let serving = Serving::builder(&store, "tcp:127.0.0.1:0".parse()?).start()?;
    let client = Client::to(serving.address(), None, Duration::from_secs(30))?;

    let model =
        Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
    let key = ObjectKey::new(model, PrefixHash([7; 32]), Role::Target, "kv", "kv", Shard::Whole)?;
    let mut bytes = [0; 4096];
    let hits = [
        page(&client, key, &mut bytes)?,
        page(&client, key, &mut bytes)?,
        page(&store, key, &mut bytes)?,
    ];
    println!("hits: {hits:?}");
    assert_eq!(hits, [false, true, true]);
    drop(client);
    serving.end()?;
    store.close()?;
    Ok(())
}
