use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use pagelith_layouts::checksum::{blocks_in, checksum};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::Role;
use pagelith_layouts::shard::Shard;

use super::*;

const MIB: u64 = 1 << 20;

fn key(number: u32) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    ObjectKey::new(NamespaceId([1; 16]), PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

fn look(region: &Region) -> Arc<View> {
    View::shared(region.as_fd().try_clone_to_owned().expect("a descriptor"), None).expect("a view")
}

fn of(catalog: &Catalog) -> CatalogView {
    CatalogView::of(look(catalog.region())).expect("a catalog")
}

fn sums(number: u32, length: u64) -> Vec<Checksum> {
    let sum = |block: std::ops::Range<u64>| checksum(&[number as u8, (block.start / 32_768) as u8]);
    blocks_in(0..length, BLOCK_BYTES).map(sum).collect()
}

fn find(view: &CatalogView, number: u32) -> Option<Found> {
    view.find([&key(number)]).pop().expect("one of one")
}

#[test]
fn what_is_posted_is_found_until_it_is_withdrawn() {
    let mut catalog = Catalog::new(100, 8 * MIB).expect("memory");
    let view = of(&catalog);
    let lengths = [1, 4096, 32_768, 32_769, 65_536, 65_537, 100_000, MIB, 3 * MIB];
    let mut place = 0;
    for (number, length) in (0u32..).zip(lengths) {
        assert_eq!(find(&view, number), None);
        let sums = sums(number, length);
        assert!(catalog.post(number, &Posted { key: &key(number), place, length, sums: &sums }));
        place += length.next_multiple_of(PAGE);
    }
    let keys: Vec<ObjectKey> = (0..40).map(key).collect();
    let found = view.find(&keys);
    place = 0;
    for (number, length) in (0u32..).zip(lengths) {
        let found = found[number as usize].as_ref().expect("it is posted");
        assert_eq!((found.place, found.length), (place, length), "{number}");
        assert_eq!(found.sums.as_slice(), sums(number, length), "{number}");
        assert!(view.behind().holds(found));
        place += length.next_multiple_of(PAGE);
    }
    assert!(found.len() == 40 && found[9..].iter().all(Option::is_none));
    catalog.withdraw(6);
    catalog.withdraw(77);
    let here = |number: &u32| find(&view, *number).is_some();
    assert_eq!((0..9).filter(here).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 7, 8]);
    let still = found.iter().flatten().filter(|found| view.behind().holds(found)).count();
    assert_eq!(still, 8, "who had found it hears of it");
}

#[test]
fn a_row_that_is_used_again_is_another_one() {
    let mut catalog = Catalog::new(1, MIB).expect("memory");
    let view = of(&catalog);
    for round in 0..100 {
        let posted = Posted { key: &key(5), place: 8192, length: 10, sums: &sums(5, 10) };
        assert!(catalog.post(round % 3, &posted));
        let found = find(&view, 5).expect("it is posted");
        assert!(!catalog.post(7, &Posted { key: &key(6), ..posted }), "there is one row");
        catalog.withdraw(round % 3);
        assert!(catalog.post(0, &posted));
        assert!(!view.behind().holds(&found), "the same key at the same place is posted anew");
        catalog.withdraw(0);
    }
}

#[test]
fn what_an_owner_posted_goes_together() {
    let mut catalog = Catalog::new(1000, 64 * MIB).expect("memory");
    let view = of(&catalog);
    for number in 0..600 {
        let place = u64::from(number) * 8192;
        let posted = Posted { key: &key(number), place, length: 5000, sums: &sums(number, 5000) };
        assert!(catalog.post(number / 3, &posted));
    }
    (0..200).step_by(2).for_each(|owner| catalog.withdraw(owner));
    let here = |number: u32| find(&view, number).is_some();
    assert!((0..600).all(|number| here(number) == (number / 3 % 2 == 1)));
}

#[test]
fn what_has_no_place_is_not_posted_and_harms_nothing() {
    let mut catalog = Catalog::new(64, 64 * MIB).expect("memory");
    let view = of(&catalog);
    let mut posted = Vec::new();
    for number in 0..200 {
        let one =
            Posted { key: &key(number), place: u64::from(number) * 4096, length: 9, sums: &sums(number, 9) };
        posted.extend(catalog.post(number, &one).then_some(number));
    }
    assert!(posted.len() <= 64 && posted.len() > 48, "{}", posted.len());
    let here: Vec<u32> = (0..200).filter(|number| find(&view, *number).is_some()).collect();
    assert_eq!(here, posted);
    posted.iter().for_each(|owner| catalog.withdraw(*owner));
    let misfits = [(1, 9), (64 * MIB, 100_000), (0, 40_000)];
    for (place, length) in misfits {
        let sums = sums(1, if length == 40_000 { 9 } else { length });
        assert!(!catalog.post(1, &Posted { key: &key(1), place, length, sums: &sums }), "{place} {length}");
    }
    let all = (0..64).filter(|number| {
        let place = u64::from(*number) * 4096;
        catalog.post(*number, &Posted { key: &key(*number), place, length: 9, sums: &sums(*number, 9) })
    });
    assert!(all.count() > 48, "no row was lost by what was refused");
}

#[test]
fn whatever_the_memory_has_is_no_catalog_or_is_looked_at_inside() {
    let small = Region::new(64).expect("memory");
    assert!(CatalogView::of(look(&small)).is_none());
    let zeros = Region::new(1 << 20).expect("memory");
    assert!(CatalogView::of(look(&zeros)).is_none());
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    let mut seen = 0;
    for round in 0..200 {
        let mut catalog = Catalog::new(20, MIB).expect("memory");
        for number in 0..10 {
            let place = u64::from(number) * 65_536;
            let sums = sums(number, 65_536);
            catalog.post(number, &Posted { key: &key(number), place, length: 65_536, sums: &sums });
        }
        let first = catalog.shape.first_row();
        let words = catalog.words();
        for _ in 0..round {
            // Rows and cells mostly: anything may be in them.
            let at = if next() % 8 == 0 {
                next() as usize % 3
            } else {
                HEAD_WORDS + next() as usize % (first + 400 - HEAD_WORDS)
            };
            let value = match next() % 3 {
                0 => next() << 20,
                1 => words[at].load(Relaxed) ^ 1 << (next() % 64),
                _ => words[HEAD_WORDS + next() as usize % 500].load(Relaxed),
            };
            words[at].store(value, Relaxed);
        }
        if let Some(view) = CatalogView::of(look(catalog.region())) {
            let keys: Vec<ObjectKey> = (0..10).map(key).collect();
            assert!(view.find(&keys).iter().flatten().all(|found| found.length > 0));
            seen += view.find(&keys).iter().flatten().filter(|found| view.behind().holds(found)).count();
        }
    }
    assert!(seen > 0, "nothing was left of any");
}

/// Two keys of one bucket and tag are found at each other's rows: the whole key decides. An object without a byte is none.
#[test]
fn a_row_of_another_key_or_of_nothing_is_not_what_is_looked_for() {
    let mut catalog = Catalog::new(4, MIB).expect("memory");
    let view = of(&catalog);
    assert!(catalog.post(1, &Posted { key: &key(1), place: 0, length: 40_000, sums: &sums(1, 40_000) }));
    let row = catalog.shape.row(0);
    for at in (row + KEY..row + KEY + KEY_WORDS).chain([row + LENGTH]) {
        let word = &catalog.words()[at];
        let was = word.swap(if at == row + LENGTH { 0 } else { word.load(Relaxed) ^ 1 << 63 }, Relaxed);
        assert_eq!(find(&view, 1), None, "word {}", at - row);
        word.store(was, Relaxed);
        assert!(find(&view, 1).is_some());
    }
}

/// What a build of the first layout shows: another one finds what is in it, and writes the same. `TEST_PAGELITH_BLESS=1` writes it anew.
#[test]
#[cfg(target_endian = "little")]
#[allow(clippy::disallowed_methods, reason = "the repository's own file, and a look at the environment")]
fn the_first_layout_is_read_and_written() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::io::{pread, pwrite};
    let mut catalog = Catalog::new(8, 1 << 17).expect("memory");
    for (number, place, length) in [(1, 0, 5), (2, 4096, 40_000), (3, 49_152, 81_920)] {
        let posted = Posted { key: &key(number), place, length, sums: &sums(number, length) };
        assert!(catalog.post(number, &posted));
    }
    catalog.withdraw(2);
    let mut bytes = vec![0; catalog.region().len()];
    assert_eq!(pread(catalog.region().as_fd(), &mut bytes[..], 0), Ok(bytes.len()));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shm/catalog/layout1.bin");
    if std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, &bytes).expect("written");
    }
    let golden = std::fs::read(&path).expect("the golden file");
    assert!(golden == bytes, "another layout needs another number");
    let fd = memfd_create("golden", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
    assert_eq!(pwrite(&fd, &golden, 0), Ok(golden.len()));
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seals");
    let view = CatalogView::of(View::shared(fd, None).expect("a view")).expect("a catalog");
    let found = [1, 2, 3]
        .map(|number| find(&view, number).map(|found| (found.place, found.length, found.sums.to_vec())));
    assert_eq!(found, [Some((0, 5, sums(1, 5))), None, Some((49_152, 81_920, sums(3, 81_920)))]);
}

/// One thread posts, withdraws and writes over what lay there; two look and copy meanwhile.
#[test]
#[allow(clippy::disallowed_methods, reason = "threads are what is tested")]
fn what_holds_behind_a_copy_is_what_was_posted() {
    const PLACES: u32 = 4;
    const LENGTH: usize = 4096;
    let mut catalog = Catalog::new(PLACES as usize, u64::from(PLACES) * PAGE).expect("memory");
    let memory: Vec<AtomicU64> = (0..PLACES as usize * LENGTH / 8).map(|_| AtomicU64::new(0)).collect();
    let (view, over) = (of(&catalog), AtomicBool::new(false));
    let keys: Vec<ObjectKey> = (0..8).map(key).collect();
    std::thread::scope(|scope| {
        let look = || {
            let (mut held, mut changed) = (0u64, 0u64);
            while !over.load(Relaxed) || held == 0 {
                for (number, found) in (0u64..).zip(view.find(&keys)) {
                    let Some(found) = found else { continue };
                    let first = found.place as usize / 8;
                    let copy: Vec<u64> =
                        memory[first..first + LENGTH / 8].iter().map(|word| word.load(Relaxed)).collect();
                    if view.behind().holds(&found) {
                        // The key is in every word, and all words are of one round.
                        assert_eq!(copy[0] % 8, number, "another object's bytes");
                        assert!(copy.iter().all(|word| *word == copy[0]), "of two rounds");
                        held += 1;
                    } else {
                        changed += 1;
                    }
                }
            }
            (held, changed)
        };
        let lookers = [scope.spawn(look), scope.spawn(look)];
        for round in 0..40_000u64 {
            let (number, place) = (round * 5 % 8, (round % u64::from(PLACES)) as u32);
            catalog.withdraw(place);
            catalog.settle();
            let first = place as usize * LENGTH / 8;
            let value = round * 8 + number;
            memory[first..first + LENGTH / 8].iter().for_each(|word| word.store(value, Relaxed));
            let (key, place_at) = (&keys[number as usize], u64::from(place) * PAGE);
            catalog
                .post(place, &Posted { key, place: place_at, length: LENGTH as u64, sums: &sums(1, 4096) });
        }
        over.store(true, Relaxed);
        for looker in lookers {
            let (held, _) = looker.join().expect("no copy was wrong");
            assert!(held > 0);
        }
    });
}

/// One thread has one of two objects there at a time and never both; another looks for them, and much between them.
#[test]
#[allow(clippy::disallowed_methods, reason = "threads are what is tested")]
fn all_are_there_if_they_are_at_one_moment() {
    let mut catalog = Catalog::new(64, MIB).expect("memory");
    let post = |catalog: &mut Catalog, number: u32| {
        let place = u64::from(number) * PAGE;
        assert!(catalog.post(number, &Posted { key: &key(number), place, length: 9, sums: &sums(1, 9) }));
    };
    (1..31).for_each(|number| post(&mut catalog, number));
    let (view, over) = (of(&catalog), AtomicBool::new(false));
    let keys: Vec<ObjectKey> = (0..32).map(key).collect();
    assert!(view.has_all(&[]) && view.has_all(&keys[1..31]) && !view.has_all(&keys[1..]));
    let met = [0, 1].map(|_| AtomicBool::new(false));
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            while !over.load(Relaxed) {
                met[0].fetch_or(view.has_all(&keys[..31]), Relaxed);
                met[1].fetch_or(view.has_all(&keys[1..]), Relaxed);
                assert!(!view.has_all(&keys), "they are never there together");
            }
        });
        for round in 0..40_000 {
            for (number, met) in [0, 31].into_iter().zip(&met) {
                post(&mut catalog, number);
                // In the end each is there until it was met.
                while round == 39_999 && !met.load(Relaxed) && !looker.is_finished() {
                    std::thread::yield_now();
                }
                catalog.withdraw(number);
                catalog.settle();
            }
        }
        over.store(true, Relaxed);
        looker.join().expect("it never saw both");
    });
}
