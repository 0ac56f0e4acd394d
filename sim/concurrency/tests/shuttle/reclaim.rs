//! Segments that are emptied and written over while others read them, pin what lies in them, and remove it. The disk
//! panics when two operations in flight overlap and one is a write, so a segment that is used again too early is seen
//! even where the checksums would have turned it into a miss.

use std::sync::{Arc, Mutex};

use pagelith::config::SsdPolicy;
use pagelith::{Config, Options, PutOutcome, Size};
use pagelith_sim::disk::DiskSnapshot;

use super::explore::explore;
use super::kit::{Play, is_fair, part, thread, together};
use super::world::{World, tiers};

/// Two to a segment.
const LEN: usize = 480 << 10;

fn config() -> Config {
    let mut c = tiers(Size::ZERO);
    c.ssd.policy = SsdPolicy::Recency;
    c
}

/// A store whose every segment but one is full, of objects 1 to 8: the next that is put makes a victim of the first.
fn full_log() -> (World, Arc<Play>) {
    // Made in the first schedule of each program, and copied from then on.
    static FULL: Mutex<Option<DiskSnapshot>> = Mutex::new(None);
    let world = World::new();
    let kept = FULL.lock().expect("snapshot").clone();
    match kept {
        Some(kept) => world.sim.disk.restore(&kept),
        None => {
            let play = Play::new(world.open(&config()), LEN);
            for key in 1..9 {
                assert_eq!(play.put(key, key * 100), Ok(PutOutcome::Stored));
                play.store.flush(Options::default()).expect("flushed");
            }
            let Ok(play) = Arc::try_unwrap(play) else { panic!("shared") };
            let Ok(store) = Arc::try_unwrap(play.store) else { panic!("shared") };
            store.close().expect("closed");
            *FULL.lock().expect("snapshot") = Some(world.sim.disk.snapshot());
        }
    }
    let play = Play::new(world.open(&config()), LEN);
    for key in 1..9 {
        let begun = play.history.begin_put(key, key * 100);
        play.history.end(begun, true);
    }
    (world, play)
}

fn pour(p: &Play, keys: std::ops::Range<u64>) {
    for key in keys {
        let outcome = p.put(key, key * 100);
        assert!(is_fair(&outcome), "{outcome:?}");
        p.store.flush(Options::default()).expect("flushed");
    }
}

/// Reads of what is being reclaimed.
#[test]
fn reclaimed_while_read() {
    explore("reclaimed_while_read", 600, || {
        let (_world, play) = full_log();
        let reader = |keys: [u64; 4]| {
            thread(&play, move |p| {
                keys.into_iter().for_each(|key| {
                    p.get(key);
                });
            })
        };
        together(vec![thread(&play, |p| pour(p, 10..15)), reader([1, 2, 3, 4]), reader([3, 1, 5, 2])]);
        assert!(play.store.stats().segments_reclaimed > 0, "nothing was reclaimed");
        play.ends_clean();
    });
}

/// What a pin counted is there as long as the pin is.
#[test]
fn reclaimed_while_pinned() {
    explore("reclaimed_while_pinned", 600, || {
        let (_world, play) = full_log();
        let pinner = |key: u64| {
            thread(&play, move |p| {
                let pin = p.store.pin(&[part(key, 0)]);
                if pin.pinned() == 1 {
                    for _ in 0..3 {
                        assert_eq!(p.get(key), Some(key * 100), "a pinned object is gone");
                    }
                }
            })
        };
        together(vec![thread(&play, |p| pour(p, 10..14)), pinner(1), pinner(2)]);
        play.ends_clean();
    });
}

/// What is removed while reclaim moves it stays gone.
#[test]
fn removed_while_moved() {
    explore("removed_while_moved", 500, || {
        let (world, play) = full_log();
        // Recently asked for: worth moving.
        play.get(1);
        play.get(2);
        together(vec![
            thread(&play, |p| pour(p, 10..14)),
            thread(&play, |p| {
                p.remove(1);
                assert_eq!(p.get(1), None, "removed and here");
            }),
            thread(&play, |p| {
                p.get(2);
            }),
        ]);
        assert_eq!(play.get(1), None, "removed and here");
        play.store.flush(Options::default()).expect("flushed");
        world.sim.crash_seeded(pagelith_sim::disk::CrashMode::DropAll, 1);
        let Ok(play) = Arc::try_unwrap(play) else { panic!("shared") };
        drop(play.store);
        let play = Arc::new(Play { store: world.open(&config()), history: play.history, len: play.len });
        assert_eq!(play.get(1), None, "removed and back after a crash");
        play.ends_clean();
    });
}
