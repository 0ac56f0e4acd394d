//! Time and randomness of the machine.

use std::time::Instant;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::clock::{Clock, Mono};
use crate::entropy::Entropy;
pub use crate::threads::Threads;

/// CLOCK_MONOTONIC, counted from the creation of this value. It stops while the machine is
/// suspended.
#[derive(Clone, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts at 0 now.
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Mono {
        Mono::default().after(self.start.elapsed())
    }
}

/// The kernel's generator, getrandom(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    /// # Panics
    /// If the kernel has no getrandom (older than 3.17, or filtered): keys made without it would be
    /// predictable.
    fn fill(&self, out: &mut [u8]) {
        let mut filled = 0;
        while filled < out.len() {
            match getrandom(&mut out[filled..], GetRandomFlags::empty()) {
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(e) => panic!("getrandom failed: errno={}", e.raw_os_error()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_is_monotonic() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last, "now={now:?} last={last:?}");
            last = now;
        }
    }

    #[test]
    fn entropy_fills_every_byte_without_repeats() {
        let mut seen = vec![0u8; 4096];
        // Each byte of a filled buffer is zero once in 256 times, so in all four buffers once in
        // 2^32.
        for _ in 0..4 {
            let mut buf = vec![0; seen.len()];
            SystemEntropy.fill(&mut buf);
            seen.iter_mut().zip(&buf).for_each(|(s, b)| *s |= b);
        }
        let untouched = seen.iter().filter(|b| **b == 0).count();
        assert!(untouched <= 2, "untouched={untouched}");
        assert_ne!(SystemEntropy.bytes16(), SystemEntropy.bytes16());
        SystemEntropy.fill(&mut []);
    }
}
