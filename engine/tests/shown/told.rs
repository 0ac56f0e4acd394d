//! Clients that are told what lies where in the store's memory copy hits from there without asking.

use pagelith::{Destination, Done, ErrorKind, Get, GetDone, MissCause, PutGroup, Source};

use super::*;

/// A store that tells, and a client.
pub fn telling(tune: impl FnOnce(&mut Config)) -> (Process, Attached, Arc<Seen>) {
    let dir = Arc::new(tempfile::tempdir().expect("a directory"));
    let process = Process::at(dir, Rights::all(), (false, true), tune);
    let (client, seen) = process.client(Vec::new());
    (process, client, seen)
}

/// Put in the store's own process, as groups of two objects.
pub fn put_pages(store: &Store, pages: std::ops::Range<u64>, len: usize) {
    pages.for_each(|page| assert_eq!(put_page(store, page, len), Ok(PutOutcome::Stored)));
}

fn put_page(store: &Store, page: u64, len: usize) -> pagelith::Result<PutOutcome> {
    let bytes = content(page, len);
    let pieces: [&[u8]; 1] = [&bytes];
    let group = ["k", "v"].map(|component| PutSlice { key: part(page, component), pieces: &pieces });
    store.put_groups(&[&group], Options::default()).remove(0)
}

/// Others stop when this goes, with a panic too: who waits for them would wait for ever.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn gets(keys: impl IntoIterator<Item = ObjectKey>, len: usize) -> Vec<Get> {
    let destination = || Destination::owned(AlignedBuf::new(len).expect("memory"));
    keys.into_iter().map(|key| Get { key, range: None, destination: destination() }).collect()
}

pub fn both(pages: std::ops::Range<u64>) -> impl Iterator<Item = ObjectKey> {
    pages.flat_map(|page| ["k", "v"].map(|component| part(page, component)))
}

fn outcomes(done: Vec<GetDone>) -> Vec<pagelith::Result<GetOutcome>> {
    done.into_iter().map(|done| done.outcome).collect()
}

#[test]
fn hits_are_got_of_a_store_that_does_nothing() {
    let (process, client, seen) = telling(|_| {});
    let lengths = [1, 4096, 32_768, 65_536, 65_537, 100_001, 1 << 20, 3_000_000];
    for (page, len) in (0..).zip(lengths) {
        let bytes = content(page, len);
        let put = PutSlice { key: key(page), pieces: &[&bytes] };
        assert_eq!(process.store.put_batch(&[put], Options::default()), [Ok(PutOutcome::Stored)]);
    }
    client.ping(Options::default()).expect("there is a link");
    process.hear(false);
    let asked = seen.asked.load(Ordering::Relaxed);
    for (page, len) in (0..).zip(lengths) {
        assert_eq!(get(&client, page, len), (hit(Tier::Memory, len), content(page, len)), "len={len}");
        // Into pieces that begin and end anywhere.
        let (mut head, mut tail) = (vec![0; len / 3], vec![0; len - len / 3]);
        let get = GetSlice { key: key(page), range: None, pieces: &mut [&mut head, &mut tail] };
        assert_eq!(client.get_batch(&mut [get], Options::default()), [hit(Tier::Memory, len)]);
        assert_eq!([head, tail].concat(), content(page, len), "len={len}");
    }
    // Of sixteen batches a store is told now and then: it is no question.
    let told = seen.asked.load(Ordering::Relaxed) - asked;
    assert_eq!((told, seen.take()[0]), (16, 0), "nothing was shown");
    process.hear(true);
    let got = lengths.len() as u64 * 2;
    client.ping(Options::default()).expect("what was told came before");
    let stats = process.store.stats();
    let bytes: usize = lengths.iter().sum();
    assert_eq!((stats.hits_memory, stats.bytes_memory), (got, 2 * bytes as u64));
}

#[test]
fn what_does_not_lie_there_as_it_is_wanted_is_for_the_store_to_say() {
    let (process, client, seen) = telling(|_| {});
    put_pages(&process.store, 0..1, 100_000);
    client.ping(Options::default()).expect("there is a link");
    let mut some = vec![0; 50];
    let ranged = GetSlice { key: part(0, "k"), range: Some(70_000..70_050), pieces: &mut [&mut some] };
    assert_eq!(client.get_batch(&mut [ranged], Options::default()), [hit(Tier::Memory, 50)]);
    assert_eq!(some, content(0, 100_000)[70_000..70_050]);
    assert_eq!(get(&client, 0, 99_999).0.expect_err("of another length").kind, ErrorKind::Invalid);
    // As long as the object, and not of it.
    let mut beyond = vec![0; 100_000];
    let ranged = GetSlice { key: part(0, "k"), range: Some(50..100_050), pieces: &mut [&mut beyond] };
    let refused = client.get_batch(&mut [ranged], Options::default()).remove(0);
    assert_eq!(refused.expect_err("there are no such bytes").kind, ErrorKind::Invalid);
    assert_eq!(get(&client, 9, 10).0, Ok(GetOutcome::Miss(MissCause::Absent)));
    assert_eq!(seen.take()[0], 1, "the range was shown");
    // What is copied from beside where it lies is not what was told, and is shown by the store.
    seen.beside.store(4096, Ordering::Relaxed);
    assert_eq!(get(&client, 0, 100_000), (hit(Tier::Memory, 100_000), content(0, 100_000)));
    assert_eq!(seen.take()[0], 1);
    seen.beside.store(0, Ordering::Relaxed);
    assert_eq!(get(&client, 0, 100_000), (hit(Tier::Memory, 100_000), content(0, 100_000)));
    assert_eq!(seen.take()[0], 0);
}

/// Of a page, what is asked for together comes from one of the two: the store says at one moment whether it is here.
#[test]
fn a_page_that_does_not_lie_there_as_a_whole_is_asked_for_as_a_whole() {
    let (process, client, seen) = telling(|_| {});
    put_pages(&process.store, 0..2, 10_000);
    // What is attached is not told of.
    let bytes = content(1, 10_000);
    let attached = [PutSlice { key: part(1, "m"), pieces: &[&bytes] }];
    let put = process.store.put_attached(&[(part(1, "k"), &attached)], Options::default());
    assert_eq!(put, [Ok(PutOutcome::Stored)]);
    client.ping(Options::default()).expect("there is a link");
    process.hear(false);
    let mut session = client.session();
    // The last of several, for which nobody is waited.
    let tickets = [(); 3].map(|()| session.submit_get(gets(both(0..2), 10_000), Options::default()));
    let last = session.wait(tickets[2], Duration::ZERO);
    let keys = [part(0, "k"), part(1, "v"), part(1, "m")];
    let asked = session.submit_get(gets(keys, 10_000), Options::default());
    let unanswered = session.wait(asked, Duration::ZERO);
    process.hear(true);
    let Some(Done::Get(done)) = last else { panic!("somebody was asked") };
    assert_eq!(outcomes(done), vec![hit(Tier::Memory, 10_000); 4]);
    assert!(unanswered.is_none(), "what is attached was not asked for");
    let Some(Done::Get(done)) = session.wait(asked, TIMEOUT) else { panic!("a get") };
    assert_eq!(outcomes(done), vec![hit(Tier::Memory, 10_000); 3]);
    assert_eq!(seen.take()[0], 2, "all of that page was shown, and nothing of the other");
}

/// What goes between the look and the copy is asked for, with what belongs to it.
#[test]
fn what_was_removed_before_it_was_copied_is_no_hit() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..3, 70_000);
    client.ping(Options::default()).expect("there is a link");
    let mut session = client.session();
    for remove in [true, false] {
        put_pages(&process.store, if remove { 3..4 } else { 1..2 }, 70_000);
        let ticket = session.submit_get(gets(both(0..3), 70_000), Options::default());
        let gone = if remove { 1 } else { 3 };
        if remove {
            assert_eq!(process.store.remove(&[part(1, "v")], Options::default()), Ok(1));
        } else {
            assert!(process.store.clear(NamespaceId([5; 16]), Options::default()).is_ok());
        }
        let Some(Done::Get(done)) = session.wait(ticket, TIMEOUT) else { panic!("a get") };
        let is_here = |page: u64| remove && page != gone;
        let expected = |page: u64| match is_here(page) {
            true => hit(Tier::Memory, 70_000),
            false => Ok(GetOutcome::Miss(MissCause::Absent)),
        };
        let expected: Vec<_> = (0..3).flat_map(|page| [expected(page), expected(page)]).collect();
        assert_eq!(outcomes(done), expected, "remove={remove}");
    }
}

/// A store that went may be there again, and others may have removed from it what lies in the old one's memory still.
#[test]
fn the_memory_of_a_store_that_is_gone_is_not_believed() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..4, 10_000);
    client.ping(Options::default()).expect("there is a link");
    assert_eq!(
        outcomes(client.get(gets(both(0..4), 10_000), Options::default())),
        vec![hit(Tier::Memory, 10_000); 8]
    );
    let dir = process.dir.clone();
    drop(process);
    let process = Process::at(dir, Rights::all(), (false, true), |_| {});
    put_pages(&process.store, 3..5, 10_000);
    let done = outcomes(client.get(gets(both(0..5), 10_000), Options::default()));
    assert_eq!(done[..6], vec![Ok(GetOutcome::Miss(MissCause::Absent)); 6]);
    assert_eq!(done[6..], vec![hit(Tier::Memory, 10_000); 4]);
}

/// Pages come and go while threads of a client get them: what is a hit has its bytes.
#[test]
fn hits_have_their_bytes_while_the_arena_turns_over() {
    const LEN: usize = 50_000;
    let (process, client, seen) = telling(|_| {});
    let all = 3 * (16 << 20) / (2 * LEN as u64);
    let stop = AtomicBool::new(false);
    let (hits, rounds) = std::thread::scope(|scope| {
        let get = |first: u64| {
            let (mut hits, mut round) = (0u64, 0u64);
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let pages: Vec<u64> = (0..8).map(|i| (first + round * 7 + i * 5) % all).collect();
                let keys = pages.iter().flat_map(|page| [part(*page, "k"), part(*page, "v")]);
                let done = client.get(gets(keys, LEN), Options::default());
                for (page, two) in pages.iter().zip(done.chunks(2)) {
                    for done in two {
                        match &done.outcome {
                            Ok(GetOutcome::Hit { .. }) => hits += 1,
                            Ok(GetOutcome::Miss(MissCause::Absent)) => continue,
                            other => panic!("{other:?}"),
                        }
                        let bytes: Vec<u8> = done.destination.pieces().flatten().copied().collect();
                        assert!(bytes == content(*page, LEN), "page={page}");
                    }
                }
            }
            (hits, round)
        };
        let getters = [scope.spawn(move || get(0)), scope.spawn(move || get(all / 2))];
        let stops = Stops(&stop);
        let mut stored = 0;
        for round in 0..3 * all {
            // What is got all the while may be here still, a lap later.
            let put = put_page(&process.store, round % all, LEN);
            assert!(matches!(put, Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent)), "{put:?}");
            stored += u64::from(put == Ok(PutOutcome::Stored));
        }
        assert!(stored > 2 * all, "the arena turns over: stored={stored} of={}", 3 * all);
        drop(stops);
        getters
            .into_iter()
            .map(|getter| getter.join().expect("every hit was right"))
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert!(hits > 0 && rounds > 0, "hits={hits} rounds={rounds}");
    let shown = seen.take()[0];
    assert!(shown < hits, "most were copied without asking hits={hits} shown={shown}");
}

/// Who may not see everything is told nothing.
#[test]
fn who_has_rights_in_some_namespaces_is_told_nothing() {
    let dir = Arc::new(tempfile::tempdir().expect("a directory"));
    let some = Rights::of(Namespaces::These([NamespaceId([5; 16])].into()));
    let process = Process::at(dir, some, (false, true), |_| {});
    let (client, seen) = process.client(Vec::new());
    put_pages(&process.store, 0..1, 100_000);
    client.ping(Options::default()).expect("there is a link");
    assert_eq!(get(&client, 0, 100_000), (hit(Tier::Memory, 100_000), content(0, 100_000)));
    assert_eq!(seen.take(), [0, 1, 0, 0], "it was sent");
}

/// Several batches in flight, some of them puts: each is done once, and gets that need nobody do not wait for others.
#[test]
fn batches_in_flight_are_done_each_once() {
    let (process, client, _) = telling(|_| {});
    put_pages(&process.store, 0..8, 20_000);
    client.ping(Options::default()).expect("there is a link");
    let mut session = client.session();
    let mut tickets = Vec::new();
    for round in 0..12u64 {
        tickets.push(session.submit_get(gets(both(round % 4..round % 4 + 5), 20_000), Options::default()));
        let bytes = content(100 + round, 20_000);
        let mut buffer = AlignedBuf::new(20_000).expect("memory");
        buffer.copy_from_slice(&bytes);
        let put = pagelith::Put { key: part(100 + round, "k"), source: Source::owned(buffer) };
        tickets.push(session.submit_put(vec![PutGroup::new(vec![put])], Options::default()));
    }
    let mut done = Vec::new();
    while let Some((ticket, what)) = session.wait_any(TIMEOUT) {
        match what {
            Done::Get(gets) => assert_eq!(outcomes(gets), vec![hit(Tier::Memory, 20_000); 10]),
            Done::Put(puts) => assert!(puts.iter().all(|put| put.outcome == Ok(PutOutcome::Stored))),
            other => panic!("{other:?}"),
        }
        done.push(ticket);
    }
    done.sort_unstable();
    tickets.sort_unstable();
    assert_eq!(done, tickets);
}
