//! A gate that many go in and out by, until somebody wants what is behind it alone.
//!
//! Phase-fair (B. B. Brandenburg, J. H. Anderson, "Spin-based reader-writer synchronization for multiprocessor real-time systems",
//! Real-Time Systems 46, 2010, the lock PF-T): whoever comes while it is closed is let in when it is opened, before it is closed
//! again, and whoever closes it waits for nobody who came later. So neither side keeps the other out.
//!
//! One closes it at a time: the caller sees to that. Two words are written by everybody who goes in and out, once each: what is done inside
//! has to be worth some hundred nanoseconds.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sync::{AtomicU32, Condvar, Mutex, PoisonError, yield_now};

/// It is closed, or about to be.
const CLOSED: u32 = 1;
/// Another each time that it is closed: who waits sees that it was open in between.
const PHASE: u32 = 2;
/// Somebody sleeps until it is opened.
const ASLEEP: u32 = 4;
/// One who came, above those bits.
const ONE: u32 = 8;
const BITS: u32 = CLOSED | PHASE | ASLEEP;

/// How often who waits for it to open looks before it sleeps: some microseconds, as long as most closings.
const LOOKS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 200 };
/// How often who waits for others to leave looks before it lets them have its core.
const YIELDS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 200 };

/// The gate. Open at first.
#[derive(Debug, Default)]
pub struct Gate {
    /// How many ever came, whether it is closed, and the phase.
    came: AtomicU32,
    /// How many ever left.
    left: AtomicU32,
    /// The phase of the next closing; of who closes it alone.
    phase: AtomicU32,
    /// Had by who is about to sleep.
    bed: Mutex<()>,
    opened: Condvar,
}

/// Somebody inside.
#[derive(Debug)]
#[must_use]
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.left.fetch_add(ONE, Release);
    }
}

impl Gate {
    /// Go in; waits while it is closed. Who is inside must not close it.
    pub fn enter(&self) -> Inside<'_> {
        // Wraps around, as `left` does.
        let found = self.came.fetch_add(ONE, Acquire) & (CLOSED | PHASE);
        if found & CLOSED != 0 {
            self.wait(found);
        }
        Inside(self)
    }

    fn wait(&self, found: u32) {
        let is_closed = |came: u32| came & (CLOSED | PHASE) == found;
        for _ in 0..LOOKS {
            if !is_closed(self.came.load(Acquire)) {
                return;
            }
            std::hint::spin_loop();
        }
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut came = self.came.load(Acquire);
        while is_closed(came) {
            // Whoever opens it finds this, and wakes nobody before they have the bed.
            match self.came.compare_exchange(came, came | ASLEEP, Acquire, Acquire) {
                Ok(_) => {
                    bed = self.opened.wait(bed).unwrap_or_else(PoisonError::into_inner);
                    came = self.came.load(Acquire);
                }
                Err(now) => came = now,
            }
        }
    }

    /// Close it, and wait for those who are inside: what they did is done, and nobody is inside until [`Gate::open`].
    pub fn close(&self) {
        let phase = self.phase.load(Relaxed);
        self.phase.store(phase ^ PHASE, Relaxed);
        // The bits are zero.
        let came = self.came.fetch_add(CLOSED | phase, Acquire) & !BITS;
        let mut looks = 0;
        while self.left.load(Acquire) != came {
            std::hint::spin_loop();
            // Whoever is inside may want this core.
            if looks >= YIELDS {
                yield_now();
            }
            looks += 1;
        }
    }

    /// Open it again. Whoever goes in sees what was done meanwhile.
    pub fn open(&self) {
        if self.came.fetch_and(!BITS, Release) & ASLEEP != 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.opened.notify_all();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::disallowed_methods, reason = "real threads are what is tested")]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn many_are_inside_at_once_or_one_is_alone() {
        const TURNS: u64 = 5_000;
        let (gate, closes) = (Gate::default(), Mutex::new(()));
        let (inside, alone) = (AtomicU64::new(0), AtomicU64::new(0));
        let come_and_go = || {
            for _ in 0..TURNS {
                let _inside = gate.enter();
                inside.fetch_add(1, SeqCst);
                assert_eq!(alone.load(SeqCst), 0, "somebody has it alone");
                inside.fetch_sub(1, SeqCst);
            }
        };
        let close_and_open = || {
            for _ in 0..TURNS / 4 {
                let _one = closes.lock().expect("no panic");
                gate.close();
                alone.store(1, SeqCst);
                assert_eq!(inside.load(SeqCst), 0, "somebody is inside");
                alone.store(0, SeqCst);
                gate.open();
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(come_and_go)));
            (0..2).for_each(|_| drop(scope.spawn(close_and_open)));
        });
        assert_eq!(gate.came.load(SeqCst) & BITS, 0);
    }

    /// The count of those who came goes through zero like any other number.
    #[test]
    fn counts_wrap_around() {
        let gate = Gate::default();
        gate.came.store(0u32.wrapping_sub(2 * ONE), SeqCst);
        gate.left.store(0u32.wrapping_sub(2 * ONE), SeqCst);
        for _ in 0..4 {
            drop((gate.enter(), gate.enter()));
            gate.close();
            gate.open();
        }
    }

    #[test]
    fn who_waits_at_it_is_let_in_before_it_is_closed_again() {
        let gate = Gate::default();
        gate.close();
        std::thread::scope(|scope| {
            let came = scope.spawn(|| drop(gate.enter()));
            while gate.came.load(SeqCst) < ONE {
                std::thread::yield_now();
            }
            gate.open();
            // Waits for it, since it came before.
            gate.close();
            came.join().expect("it is inside, and out");
            gate.open();
        });
    }
}
