//! Checks whether this machine's cores are its own. A virtual machine's cores may be time-shared in
//! turns of a few milliseconds, or be the two threads of one core, which no counter of its kernel
//! shows. Two concurrent threads then take up to twice as long, and a ratio of two threads to one
//! is meaningless.
#![allow(clippy::disallowed_methods, reason = "the real clock, and a thread a core")]

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Duration of the check: several turns of the schedulers that were seen, which are of 4 ms.
const CHECK_TIME: Duration = Duration::from_millis(12);
/// Duration of the check of one core alone.
const CHECK_TIME_ALONE: Duration = Duration::from_millis(3);
/// Longest time between two clock reads of a running thread: an interrupt takes less.
const STEP_MAX: Duration = Duration::from_micros(100);
/// Largest share of the time in which a core may be unavailable.
const UNAVAILABLE_MAX: f64 = 0.1;
/// Two threads with one core each do as much per thread as one alone; two that share a core hardly
/// more than half.
const RATE_MIN: f64 = 0.8;

/// The measurement of a thread.
struct Measured {
    /// Share of the time in which it did not run.
    unavailable: f64,
    /// Work per second while it ran.
    rate: f64,
}

/// Independent multiplications: a core has one unit for them, shared by its hardware threads.
fn work(numbers: &mut [u64; 8]) {
    for _ in 0..64 {
        numbers
            .iter_mut()
            .for_each(|number| *number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        black_box(&mut *numbers);
    }
}

fn measure(time: Duration) -> Measured {
    let (begun, mut unavailable, mut done) = (Instant::now(), Duration::ZERO, 0u32);
    let (mut last, mut numbers) = (begun, [1, 3, 5, 7, 9, 11, 13, 15]);
    while last - begun < time {
        work(&mut numbers);
        done += 1;
        let now = Instant::now();
        unavailable += Some(now - last).filter(|step| *step > STEP_MAX).unwrap_or_default();
        last = now;
    }
    let all = last - begun;
    Measured {
        unavailable: unavailable.as_secs_f64() / all.as_secs_f64(),
        rate: f64::from(done) / (all - unavailable).as_secs_f64(),
    }
}

/// Whether two threads get one core each now.
pub fn has_two_cores() -> bool {
    let alone = measure(CHECK_TIME_ALONE);
    let both = std::thread::scope(|scope| {
        let other = scope.spawn(|| measure(CHECK_TIME));
        [measure(CHECK_TIME), other.join().expect("no panic")]
    });
    both.iter().all(|seen| seen.unavailable < UNAVAILABLE_MAX && seen.rate >= RATE_MIN * alone.rate)
}
