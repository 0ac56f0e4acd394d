//! A model with two pools: KV of every page, and a Mamba checkpoint of some pages. A query finds
//! the longest prefix from which generation can continue.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;

use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{HitPolicy, Options, PageStore, PagesQuery, PoolQuery, PutOutcome, PutSlice, Store};

/// Objects of a page in a pool, by their components.
fn objects(
    model: NamespaceId,
    pool: &str,
    components: &[&str],
) -> Result<Vec<ObjectKey>, Box<dyn Error>> {
    let key = |component: &&str| {
        ObjectKey::new(model, PrefixHash([0; 32]), Role::Target, pool, component, Shard::Whole)
    };
    Ok(components.iter().map(key).collect::<Result<_, _>>()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let store = Store::builder().dram("8MiB").open()?;
    let model =
        Namespace { model: "qwen3-next".into(), page_tokens: 64, ..Namespace::default() }.id();
    let kv = objects(model, "kv", &["k", "v"])?;
    let states = objects(model, "mamba", &["temporal", "conv"])?;
    let pages: Vec<PrefixHash> = (1..=5).map(|page| PrefixHash([page; 32])).collect();
    let options = Options::default().request(store.begin_request());

    // Each rank puts its part of a page; the page becomes visible with the last part.
    for page in &pages {
        let keys: Vec<ObjectKey> = kv.iter().map(|object| object.on_page(*page)).collect();
        let group = PageStore::begin_group(&store, &keys, options)?;
        for key in &keys {
            group.put(&[PutSlice { key: *key, pieces: &[&[1; 4096]] }], options).remove(0)?;
        }
        assert_eq!(group.commit(options)?, PutOutcome::Stored);
    }
    // Checkpoints are attached to the KV of their page: visible only while that is.
    for page in [pages[1], pages[3]] {
        let base = kv[0].on_page(page);
        let put = |object: &ObjectKey| PutSlice { key: object.on_page(page), pieces: &[&[2; 512]] };
        let group: Vec<PutSlice<'_>> = states.iter().map(put).collect();
        store.put_attached(&[(base, &group)], options).remove(0)?;
    }

    // Generation can continue after a page whose own checkpoint is present.
    let pools = [PoolQuery { objects: &states, policy: HitPolicy::TrailingPages(1) }];
    let query = PagesQuery { pages: &pages, anchor: &kv, pools: &pools };
    let found = store.exists_groups(&query, options)?;
    println!(
        "kv of {} pages, usable {}, stops {:?}",
        found.anchor_pages, found.usable_pages, found.stops
    );
    assert_eq!((found.anchor_pages, found.usable_pages, found.stops), (5, 4, vec![2, 4]));
    store.close()?;
    Ok(())
}
