//! Views of clients: objects in the store's shared memory, read without a copy.

use std::os::unix::fs::FileExt;

use super::*;
use pagelith::ErrorKind;
use pagelith::client::View;

fn view(client: &Client, pages: &[u64]) -> pagelith::Result<Vec<Option<View>>> {
    let keys: Vec<ObjectKey> = pages.iter().map(|page| key(*page)).collect();
    client.view_batch(&keys, Options::default())
}

/// The bytes of a view, by both accessors.
fn bytes_of(view: &View) -> Vec<u8> {
    let mut copied = vec![0; view.len()];
    view.copy_out(0, &mut copied);
    let mapped = view.as_ptr().expect("mapped") as u64;
    let mut seen = vec![0; view.len()];
    let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
    memory.read_exact_at(&mut seen, mapped).expect("it is mapped there");
    assert!(seen == copied);
    copied
}

/// Wait until the store holds nothing for clients.
fn let_go(process: &Process) {
    let began = std::time::Instant::now();
    while process.store.stats().readers > 0 {
        assert!(began.elapsed() < TIMEOUT, "something is held still");
        std::thread::yield_now();
    }
}

#[test]
fn views_keep_their_bytes_after_eviction_and_removal() {
    let process = Process::new(Rights::all(), false);
    let (client, seen) = process.client(Vec::new());
    for (page, len) in (0..).zip(LENGTHS) {
        assert_eq!(put(&client, &[page], &[&content(page, len)]), vec![Ok(PutOutcome::Stored)]);
    }
    let views = view(&client, &[0, 1, 2, 3, 4, 5, 99]).expect("seen");
    seen.take();
    let (there, absent) = views.split_at(LENGTHS.len());
    assert!(matches!(absent, [None]));
    let is_whole = |(page, (view, len)): (u64, (&Option<View>, usize))| {
        let view = view.as_ref().expect("it is in memory");
        assert!(view.is_held() && bytes_of(view) == content(page, len), "page={page}");
    };
    (0..).zip(there.iter().zip(LENGTHS)).for_each(is_whole);
    // Neither later puts nor a removal change the bytes under a view.
    assert_eq!(process.store.remove(&[key(3)], Options::default()), Ok(1));
    let other = content(7, 1 << 20);
    for page in 1000..1040 {
        assert_eq!(put(&client, &[page], &[&other]), vec![Ok(PutOutcome::Stored)], "page={page}");
    }
    (0..).zip(there.iter().zip(LENGTHS)).for_each(is_whole);
    assert_eq!(get(&client, 3, 65_536).0, Ok(GetOutcome::Miss(pagelith::MissCause::Absent)));
    assert!(view(&client, &[3]).expect("answered")[0].is_none());
    assert_eq!(process.store.stats().readers, LENGTHS.len() as u64);
    drop(views);
    assert_eq!(process.store.stats().readers, 0);
    // Objects without a view are evicted as usual.
    for page in 1100..1140 {
        assert_eq!(put(&client, &[page], &[&other]), vec![Ok(PutOutcome::Stored)], "page={page}");
    }
    assert!(view(&client, &[0]).expect("answered")[0].is_none());
}

#[test]
fn views_take_at_most_a_quarter_of_the_arena() {
    let process = Process::new(Rights::all(), false);
    let (client, _) = process.client(Vec::new());
    let (other, _) = process.client(Vec::new());
    let pages: Vec<u64> = (0..8).collect();
    for page in &pages {
        put(&client, &[*page], &[&content(*page, 1 << 20)]);
    }
    let busy = |seen: pagelith::Result<_>| seen.map(|_: Vec<_>| ()).expect_err("too much").kind;
    assert_eq!(busy(view(&client, &pages)), ErrorKind::Busy);
    assert_eq!(process.store.stats().readers, 0, "all of a call or nothing");
    let held = view(&client, &pages[..4]).expect("a quarter");
    assert_eq!(busy(view(&client, &pages[4..5])), ErrorKind::Busy);
    assert_eq!(busy(view(&other, &pages[..1])), ErrorKind::Busy);
    drop(held);
    assert_eq!(view(&other, &pages[4..8]).expect("a quarter").iter().flatten().count(), 4);
}

#[test]
fn views_end_with_their_connection() {
    let process = Process::new(Rights::all(), false);
    let (client, seen) = process.client(Vec::new());
    put(&client, &[1], &[&content(1, 100_000)]);
    let lost = view(&client, &[1]).expect("seen").remove(0).expect("in memory");
    assert!(lost.is_held());
    seen.cut.store(true, Ordering::Relaxed);
    assert!(!lost.is_held(), "the link has ended");
    let_go(&process);
    // A view over the next connection is new, and dropping the lost one releases nothing.
    seen.cut.store(false, Ordering::Relaxed);
    let again = view(&client, &[1]).expect("seen").remove(0).expect("in memory");
    drop(lost);
    assert!(again.is_held() && bytes_of(&again) == content(1, 100_000));
    drop(process);
    assert!(!again.is_held(), "the process has ended");
    // It is still mapped in this process.
    assert_eq!(bytes_of(&again).len(), 100_000);
}

/// An ended connection may look alive: the store's answer determines what is held.
#[test]
fn view_that_the_store_does_not_confirm_is_lost() {
    let process = Process::new(Rights::all(), false);
    let (client, seen) = process.client_within(Duration::from_secs(2), Vec::new());
    put(&client, &[1], &[&content(1, 100_000)]);
    let view = view(&client, &[1]).expect("seen").remove(0).expect("in memory");
    let mut copied = vec![0; 100_000];
    assert!(view.copy_out(0, &mut copied) && copied == content(1, 100_000));
    seen.discard_events.store(true, Ordering::Relaxed);
    assert!(!view.copy_out(0, &mut copied) && !view.is_held());
}

#[test]
fn view_of_a_misreported_place_is_refused() {
    let process = Process::new(Rights::all(), false);
    let (client, seen) = process.client(Vec::new());
    put(&client, &[1], &[&content(1, 100_000)]);
    put(&client, &[2], &[&content(2, 100_000)]);
    seen.shift.store(4096, Ordering::Relaxed);
    assert!(view(&client, &[1]).expect("answered")[0].is_none());
    let_go(&process);
    seen.shift.store(0, Ordering::Relaxed);
    assert!(view(&client, &[1]).expect("answered")[0].is_some());
}

#[test]
fn client_without_shared_memory_gets_no_views() {
    let process =
        Process::new(Rights::of(Namespaces::Listed([NamespaceId([5; 16])].into())), false);
    let (client, _) = process.client(Vec::new());
    put(&client, &[1], &[&content(1, 100_000)]);
    assert_eq!(view(&client, &[1]).map(|_| ()).expect_err("nothing").kind, ErrorKind::Incompatible);
    assert!(view(&client, &[2]).expect("it is not here anyway")[0].is_none());
    assert_eq!(process.store.stats().readers, 0);
}
