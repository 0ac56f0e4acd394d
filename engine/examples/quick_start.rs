//! A store in DRAM and on SSD: put a page, get it, close, and find it again after a reopen.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;

use pagelith::layouts::{
    ids::PrefixHash,
    key::{ObjectKey, Role},
    namespace::Namespace,
    shard::Shard,
};
use pagelith::{Options, PageStore, PutOutcome, Store};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let open = || Store::builder().dram("8MiB").ssd(dir.path(), "64MiB").open();
    let store = open()?;

    // A key names a model, a page by the hash of its prefix, and one component of its pool.
    let model =
        Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
    let page = PrefixHash([7; 32]);
    let key = |component| ObjectKey::new(model, page, Role::Target, "kv", component, Shard::Whole);
    let (k, v) = (key("k")?, key("v")?);

    // Both are visible, or neither.
    let put = store.put_page(&[(k, b"keys"), (v, b"values")], Options::default())?;
    assert_eq!(put, PutOutcome::Stored);
    let mut values = [0; 6];
    assert!(store.get_one(v, &mut values, Options::default())?.is_hit());
    assert_eq!(&values, b"values");

    // A close makes everything durable.
    let report = store.close()?;
    println!("durable objects: {}", report.durable_objects);
    let store = open()?;
    let present = store.exists_batch(&[k, v], Options::default());
    println!("present after the reopen: {present:?}");
    assert_eq!(present, [true, true]);
    store.close()?;
    Ok(())
}
