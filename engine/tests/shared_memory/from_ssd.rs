//! Hits from SSD of clients that map the store's memory: read into staging, and copied from there.

use std::os::unix::fs::FileExt;

use super::*;

/// A store process without DRAM.
fn cold(tune: impl FnOnce(&mut Config)) -> Process {
    Process::tuned(Rights::all(), true, |config| {
        config.dram.bytes = Size::ZERO;
        tune(config);
    })
}

/// On SSD, and nowhere else.
fn put_on_ssd(client: &Client, page: u64, bytes: &[u8]) {
    assert_eq!(put(client, &[page], &[bytes]), vec![Ok(PutOutcome::Stored)]);
    client.flush(Options::default()).expect("flushed");
}

/// Get bytes of an object into whole pages, `before` bytes after the beginning of one.
fn get_at(
    client: &Client,
    page: u64,
    range: Option<std::ops::Range<u64>>,
    len: usize,
    before: usize,
) -> (pagelith::Result<GetOutcome>, Vec<u8>) {
    let mut pages = AlignedBuf::new(before + len).expect("memory");
    pages.fill(0xee);
    let get = GetSlice { key: key(page), range, pieces: &mut [&mut pages[before..]] };
    let outcome = client.get_batch(&mut [get], Options::default()).remove(0);
    (outcome, pages[before..].to_vec())
}

#[test]
fn ssd_hits_of_every_length_return_all_bytes() {
    let process = cold(|_| {});
    let (client, _) = process.client(Vec::new());
    let mut bytes = 0;
    for (page, len) in (0..).zip(LENGTHS.into_iter().chain([5_000_000])) {
        put_on_ssd(&client, page, &content(page, len));
        assert_eq!(
            get_at(&client, page, None, len, 0),
            (hit(Tier::Ssd, len), content(page, len)),
            "len={len}"
        );
        bytes += len as u64;
    }
    let stats = process.store.stats();
    assert_eq!((stats.bytes_ssd, stats.misses.len()), (bytes, 0));
}

#[test]
fn batch_of_ssd_hits_fills_every_destination() {
    const LEN: usize = 100_001;
    let process = cold(|_| {});
    let (client, _) = process.client(Vec::new());
    let pages: Vec<u64> = (0..300).collect();
    pages
        .iter()
        .for_each(|page| assert!(put(&client, &[*page], &[&content(*page, LEN)])[0].is_ok()));
    client.flush(Options::default()).expect("flushed");
    let mut buffers = AlignedBuf::many(pages.len(), LEN).expect("memory");
    let mut pieces: Vec<[&mut [u8]; 1]> =
        buffers.iter_mut().map(|buffer| [&mut buffer[..]]).collect();
    let mut gets: Vec<_> = pages
        .iter()
        .rev()
        .zip(&mut pieces)
        .map(|(page, pieces)| GetSlice { key: key(*page), range: None, pieces })
        .collect();
    let got = client.get_batch(&mut gets, Options::default());
    assert!(got.iter().all(|got| *got == hit(Tier::Ssd, LEN)), "{got:?}");
    pages
        .iter()
        .rev()
        .zip(&buffers)
        .for_each(|(page, got)| assert!(got[..] == content(*page, LEN)));
}

#[test]
fn ranges_and_unaligned_destinations_are_got_without_retry() {
    const LEN: usize = 200_000;
    let process = cold(|_| {});
    let (client, seen) = process.client(Vec::new());
    let object = content(1, LEN);
    put_on_ssd(&client, 1, &object);
    for (range, before) in [
        (0..LEN, 0),
        (0..LEN, 64),
        (0..65_536, 0),
        (32_768..65_536, 0),
        (163_840..LEN, 0),
        (32_768..65_535, 0),
        (1..32_768, 0),
        (4096..65_536, 0),
    ] {
        seen.take();
        let (outcome, bytes) =
            get_at(&client, 1, Some(range.start as u64..range.end as u64), range.len(), before);
        assert_eq!(outcome, hit(Tier::Ssd, range.len()), "{range:?}");
        assert!(bytes == object[range.clone()], "{range:?}");
        // Bytes copied from another place would fail verification, and be requested again.
        assert_eq!(seen.take(), [1, 0, 0, 0], "{range:?} before={before}");
    }
    let (outcome, _) = get_at(&client, 1, None, LEN - 1, 0);
    assert_eq!(outcome.expect_err("another length").kind, pagelith::ErrorKind::Invalid);
    let (outcome, _) = get_at(&client, 1, Some(0..262_144), 262_144, 0);
    assert_eq!(outcome.expect_err("beyond the object").kind, pagelith::ErrorKind::Invalid);
    assert_eq!(
        get_at(&client, 2, None, LEN, 0).0,
        Ok(GetOutcome::Miss(pagelith::MissCause::Absent))
    );
}

#[test]
fn object_damaged_on_ssd_is_a_miss_and_dropped() {
    const LEN: usize = 100_001;
    let process = cold(|_| {});
    let (client, _) = process.client(Vec::new());
    for (page, at) in (0..).zip([0, 32_767, 32_768, LEN - 1]) {
        let object = content(page, LEN);
        put_on_ssd(&client, page, &object);
        // Its header is known by now.
        assert_eq!(get_at(&client, page, None, LEN, 0), (hit(Tier::Ssd, LEN), object.clone()));
        flip(&process, &object, at);
        let miss = Ok(GetOutcome::Miss(pagelith::MissCause::Damaged));
        let (outcome, bytes) = get_at(&client, page, None, LEN, 0);
        assert_eq!(outcome, miss, "at={at}");
        assert!(bytes.iter().all(|byte| *byte == 0xee), "nothing is delivered at={at}");
        assert_eq!(
            client.exists_batch(&[key(page)], Options::default()),
            Ok(vec![false]),
            "at={at}"
        );
        assert_eq!(process.store.stats().damaged, page + 1, "at={at}");
    }
}

/// Change a bit of an object in place.
fn flip(process: &Process, object: &[u8], at: usize) {
    let dir = process.dir.path().join("store");
    let files =
        std::fs::read_dir(&dir).expect("the store").map(|entry| entry.expect("a file").path());
    let segments = files.max_by_key(|path| path.metadata().expect("a file").len()).expect("files");
    let all = std::fs::read(&segments).expect("readable");
    let starts =
        (0..all.len() - object.len()).step_by(4096).filter(|from| all[*from..].starts_with(object));
    let starts: Vec<usize> = starts.collect();
    assert_eq!(starts.len(), 1, "its location");
    let place = (starts[0] + at) as u64;
    let file = std::fs::OpenOptions::new().write(true).open(&segments).expect("writable");
    file.write_all_at(&[object[at] ^ 1], place).expect("written");
    file.sync_all().expect("on the drive");
}

#[test]
fn object_got_during_reclaim_is_a_miss_or_whole() {
    const LEN: usize = 1 << 20;
    let process = cold(|config| config.ssd.bytes = Size::mib(64));
    let (client, _) = process.client(Vec::new());
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (reader, _) = process.client(Vec::new());
        let (stop, written) = (&stop, &written);
        scope.spawn(move || {
            let mut hits = 0;
            while !stop.load(Ordering::Relaxed) || hits == 0 {
                let newest = written.load(Ordering::Acquire);
                for page in newest.saturating_sub(50)..newest {
                    let (outcome, bytes) = get_at(&reader, page, None, LEN, 0);
                    match outcome.expect("the store answers") {
                        GetOutcome::Hit { .. } => {
                            assert!(bytes == content(page, LEN), "page={page}");
                            hits += 1;
                        }
                        GetOutcome::Miss(cause) => {
                            assert_ne!(cause, pagelith::MissCause::Damaged, "page={page}");
                        }
                    }
                }
            }
        });
        for page in 0..400 {
            assert!(put(&client, &[page], &[&content(page, LEN)])[0].is_ok());
            written.store(page + 1, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(process.store.stats().segments_reclaimed > 0);
}
