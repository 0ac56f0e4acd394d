//! Whether the cores of this machine are its own: those of a virtual machine may be given to it by turns, a few milliseconds each, or be the two
//! threads of one core, which no counter of its kernel tells. What two threads do at once takes up to twice as long then, and a ratio of two
//! threads to one says nothing.
#![allow(clippy::disallowed_methods, reason = "the real clock, and a thread a core")]

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long the cores are looked at: some turns of the schedulers that were seen, which are of 4 ms.
const LOOK: Duration = Duration::from_millis(12);
/// How long one of them alone.
const ALONE: Duration = Duration::from_millis(3);
/// Longest time between two looks at the clock of who runs: an interrupt takes less.
const STEP_MAX: Duration = Duration::from_micros(100);
/// Part of the time that a core may be away.
const AWAY_MAX: f64 = 0.1;
/// What two threads that have a core each do is as much as one does alone; of two that share one it is hardly more than half.
const PACE_LEAST: f64 = 0.8;

/// What was seen of a thread.
struct Seen {
    /// Part of the time in which it did not run.
    away: f64,
    /// How much it did while it ran, a second.
    pace: f64,
}

/// Multiplications that do not wait for each other: a core has one place for them, whoever of its threads it works for.
fn work(numbers: &mut [u64; 8]) {
    for _ in 0..64 {
        numbers.iter_mut().for_each(|number| *number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        black_box(&mut *numbers);
    }
}

fn look(time: Duration) -> Seen {
    let (begun, mut away, mut done) = (Instant::now(), Duration::ZERO, 0u32);
    let (mut last, mut numbers) = (begun, [1, 3, 5, 7, 9, 11, 13, 15]);
    while last - begun < time {
        work(&mut numbers);
        done += 1;
        let now = Instant::now();
        away += Some(now - last).filter(|step| *step > STEP_MAX).unwrap_or_default();
        last = now;
    }
    let all = last - begun;
    Seen { away: away.as_secs_f64() / all.as_secs_f64(), pace: f64::from(done) / (all - away).as_secs_f64() }
}

/// Whether two threads that want a core each have one now.
pub fn two_run() -> bool {
    let alone = look(ALONE);
    let both = std::thread::scope(|scope| {
        let other = scope.spawn(|| look(LOOK));
        [look(LOOK), other.join().expect("no panic")]
    });
    both.iter().all(|seen| seen.away < AWAY_MAX && seen.pace >= PACE_LEAST * alone.pace)
}
