//! Clients that are told what lies where in the store's memory look that up without asking.

use pagelith::ErrorKind;

use super::told::{both, put_pages, telling};
use super::*;

fn within(timeout: Duration) -> Options {
    Options { timeout: Some(timeout), ..Options::default() }
}

#[test]
fn what_is_told_is_looked_up_of_a_store_that_does_nothing() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..40, 5000);
    client.ping(Options::default()).expect("there is a link");
    process.hear(false);
    let keys: Vec<_> = both(0..40).collect();
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![true; 80]));
    assert_eq!(client.exists_batch(&keys[7..8], Options::default()), Ok(vec![true]));
    assert_eq!(client.exists_prefix(&keys, Options::default()), Ok(80));
    // What is not told of may be here: that is for the store to say, of all that is asked about, since it is to be true at one moment.
    let unknown = [keys[0], part(99, "k")];
    let asked = client.exists_batch(&unknown, within(Duration::from_millis(20)));
    assert_eq!(asked.expect_err("nobody answers").kind, ErrorKind::Unavailable);
    let asked = client.exists_prefix(&unknown, within(Duration::from_millis(20)));
    assert_eq!(asked.expect_err("nobody answers").kind, ErrorKind::Unavailable);
    process.hear(true);
    assert_eq!(client.exists_batch(&unknown, Options::default()), Ok(vec![true, false]));
    assert_eq!(client.exists_prefix(&unknown, Options::default()), Ok(1));
    assert_eq!(client.exists_batch(&[], Options::default()), Ok(vec![]));
    // Nothing was got.
    assert_eq!(process.store.stats().hits_memory, 0);
}

#[test]
fn what_is_not_here_any_more_is_not_found() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..3, 5000);
    client.ping(Options::default()).expect("there is a link");
    let keys: Vec<_> = both(0..3).collect();
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![true; 6]));
    assert_eq!(process.store.remove(&keys[2..3], Options::default()), Ok(1));
    let here = [true, true, false, false, true, true];
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(here.to_vec()));
    assert_eq!(client.exists_prefix(&keys, Options::default()), Ok(2));
    process.store.clear(NamespaceId([5; 16]), Options::default()).expect("cleared");
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![false; 6]));
    // Another process in its place has nothing of what lies in the first one's memory.
    put_pages(&process.store, 0..3, 5000);
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![true; 6]));
    let dir = process.dir.clone();
    drop(process);
    let _process = Process::at(dir, Rights::all(), (false, true), |_| {});
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![false; 6]));
}

/// The store hears of it before it is asked anything: what was looked up leaves last.
#[test]
fn what_was_looked_up_counts_as_asked_for() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..6, 1 << 20);
    client.ping(Options::default()).expect("there is a link");
    process.hear(false);
    let first: Vec<_> = both(0..2).collect();
    assert_eq!(client.exists_batch(&first, Options::default()), Ok(vec![true; 4]));
    process.hear(true);
    client.ping(Options::default()).expect("what was told came before");
    put_pages(&process.store, 6..10, 1 << 20);
    let here = |page| process.store.exists_batch(&[part(page, "k")], Options::default()) == [true];
    assert!(here(0) && here(1) && !here(2) && !here(3), "those that were put next are the oldest");
}

/// A client that looks faster than the store hears asks, and so waits for it.
#[test]
fn a_store_that_hears_nothing_is_asked_in_the_end() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..150, 5000);
    client.ping(Options::default()).expect("there is a link");
    process.hear(false);
    let keys: Vec<_> = both(0..150).collect();
    let looks = (0..100).map(|_| client.exists_batch(&keys, within(Duration::from_millis(20))));
    let told = looks.take_while(|here| *here == Ok(vec![true; 300])).count();
    assert!((1..100).contains(&told), "told={told}");
    process.hear(true);
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![true; 300]));
}
