//! Several threads that change the index by turns and at once: what one of them does is done whole, and nothing of another's.
#![allow(clippy::disallowed_methods, reason = "real threads are what is tested")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::several::Refused;
use super::tests::{Random, check_structure, sorted, visited};
use super::*;

fn entry(fingerprint: u128, frame: u32, length: u32) -> Entry {
    Entry { fingerprint, length, ssd: None, frame: Some(frame), tick: 0, freq: 0, attached: false }
}

/// Any of so many fingerprints, all over the ring; the last ones wrap around its end.
fn fingerprint(of: u64) -> u128 {
    let high = if of.is_multiple_of(5) { u64::MAX - of } else { Random(of).next() };
    u128::from(high) << 64 | u128::from(of + 1)
}

/// One thread's history beside a plain map from frames to what they have.
#[test]
fn a_history_of_frames_that_come_and_go_is_that_of_a_map() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut index = Index::new(40).expect("memory");
        let writer = index.writer();
        let mut frames: BTreeMap<u32, Vec<u128>> = BTreeMap::new();
        let mut on_ssd: Vec<u128> = Vec::new();
        for frame in 0..400 {
            let mut of: Vec<u128> = (0..=random.below(3)).map(|_| fingerprint(random.below(60))).collect();
            of.sort_unstable();
            of.dedup();
            let entries: Vec<Entry> = of.iter().map(|f| entry(*f, frame, 1)).collect();
            let there: usize = frames.values().map(Vec::len).sum::<usize>() + on_ssd.len();
            let mut allowance = writer.allow(of.len());
            let met = of.iter().any(|f| on_ssd.contains(f) || frames.values().flatten().any(|g| f == g));
            match writer.begin_insert(&entries, &allowance) {
                // One that is not inserted leaves everything as it was.
                Ok(inserting) if random.below(4) == 0 => drop(inserting),
                Ok(inserting) => {
                    inserting.insert(&mut allowance);
                    assert!(!met && there + of.len() <= 40);
                    frames.insert(frame, of);
                }
                Err(Refused::Met) => assert!(met),
                Err(Refused::Full) => assert!(there + of.len() > 40),
                Err(Refused::Busy) => panic!("nobody else is there"),
            }
            drop(allowance);
            if random.below(2) == 0
                && let Some((&gone, of)) =
                    frames.iter().nth(random.below(frames.len().max(1) as u64) as usize)
            {
                let of = of.clone();
                // Some of what it has is on SSD too, and stays there.
                if random.below(2) == 0 {
                    let place = SsdPlace { segment: 1, record_block: 0, payload_delta: 0 };
                    let here = |e: &Entry| e.frame == Some(gone);
                    assert_eq!(index.update(of[0], here, |e| e.ssd = Some(place)).ok(), Some(true));
                    index.publish();
                    on_ssd.push(of[0]);
                }
                let mut allowance = writer.allow(0);
                assert!(writer.remove_frame(of.iter().copied(), gone, false, &mut allowance, |_| ()));
                frames.remove(&gone);
            }
            check_structure(&index);
            let seen = sorted(visited(&index, 0, index.home_slots()).into_iter());
            let all = frames.values().map(Vec::len).sum::<usize>() + on_ssd.len();
            assert_eq!((seen.len(), index.len()), (all, all as u64));
            for (frame, of) in &frames {
                assert!(of.iter().all(|f| index.find(*f).eq([entry(*f, *frame, 1)])), "seed {seed}");
            }
            for of in &on_ssd {
                assert!(index.find(*of).all(|e| e.frame.is_none() && e.ssd.is_some()));
            }
            // Frames leave room sooner or later.
            if on_ssd.len() > 20 {
                on_ssd.drain(..).for_each(|f| assert!(index.remove(f, |_| true).is_some()));
                index.publish();
            }
        }
    }
}

/// Writers each have pairs of entries of their own, in stripes that they share; a reader sees both of a pair or none.
#[test]
fn writers_at_once_lose_nothing_and_their_groups_are_seen_whole() {
    const WRITERS: u64 = 3;
    const PAIRS: u64 = 24;
    const TURNS: u64 = 20_000;
    let mut index = Index::new(2 * WRITERS * PAIRS + 16).expect("memory");
    let (writer, reader) = (index.writer(), index.reader());
    let pair = |of: u64| [fingerprint(2 * of), fingerprint(2 * of + 1)];
    let (ended, seen) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    std::thread::scope(|scope| {
        let change = |of: u64| {
            let mut random = Random(of);
            let mut there = [false; PAIRS as usize];
            let mut turns = 0;
            // Others are there, but not for ever.
            while turns < TURNS {
                let number = random.below(PAIRS);
                let which = of * PAIRS + number;
                let frame = which as u32;
                let is_there = &mut there[number as usize];
                let mut allowance = writer.allow(2);
                let done = match *is_there {
                    true => {
                        writer.remove_frame(pair(which).into_iter(), frame, false, &mut allowance, |_| ())
                    }
                    false => {
                        match writer.begin_insert(&pair(which).map(|f| entry(f, frame, 1)), &allowance) {
                            Ok(inserting) => {
                                inserting.insert(&mut allowance);
                                true
                            }
                            Err(Refused::Busy) => false,
                            Err(refused) => panic!("{refused:?}"),
                        }
                    }
                };
                *is_there ^= done;
                if !done {
                    std::thread::yield_now();
                }
                turns += u64::from(done);
            }
            there
        };
        let look = || {
            let mut random = Random(99);
            while !ended.load(Ordering::Relaxed) {
                let which = random.below(WRITERS * PAIRS);
                let marks = Marks::default();
                let found = pair(which).map(|f| reader.find(f, &marks).next().is_some());
                if reader.holds(&marks) {
                    assert_eq!(found[0], found[1], "half of a group was seen");
                    seen[usize::from(found[0])].fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let looking = scope.spawn(look);
        let writers: Vec<_> = (0..WRITERS).map(|of| scope.spawn(move || change(of))).collect();
        let there: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        ended.store(true, Ordering::Relaxed);
        looking.join().expect("groups are whole");
        for (of, there) in (0..).zip(there) {
            for (number, there) in (0..).zip(there.expect("no panic")) {
                let which = of * PAIRS + number;
                for f in pair(which) {
                    let expected = there.then_some(entry(f, which as u32, 1));
                    assert!(index.find(f).eq(expected), "an entry was lost, or is there twice");
                }
            }
        }
    });
    check_structure(&index);
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 0), "the reader saw nothing of it");
    index.publish();
}
