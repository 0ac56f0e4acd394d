//! Whether the cores of this machine are its own: those of a virtual machine may be given to it by turns, a few milliseconds each, which no
//! counter of its kernel tells. What two threads do at once takes twice as long then, and a ratio of two threads to one says nothing.
#![allow(clippy::disallowed_methods, reason = "the real clock, and a thread a core")]

use std::time::{Duration, Instant};

/// How long the cores are looked at: some turns of the schedulers that were seen, which are of 4 ms.
const LOOK: Duration = Duration::from_millis(12);
/// Longest time between two looks at the clock of who runs: an interrupt takes less.
const STEP_MAX: Duration = Duration::from_micros(100);
/// Part of the time that a core may be away.
const AWAY_MAX: f64 = 0.1;

/// Part of [`LOOK`] in which this thread did not run.
fn away() -> f64 {
    let (begun, mut away) = (Instant::now(), Duration::ZERO);
    let mut last = begun;
    while last - begun < LOOK {
        let now = Instant::now();
        away += Some(now - last).filter(|step| *step > STEP_MAX).unwrap_or_default();
        last = now;
    }
    away.as_secs_f64() / LOOK.as_secs_f64()
}

/// Whether two threads that want a core each have one now.
pub fn two_run() -> bool {
    let most = std::thread::scope(|scope| {
        let other = scope.spawn(away);
        away().max(other.join().expect("no panic"))
    });
    most < AWAY_MAX
}
