//! A lock that many threads want for some microseconds each.
//!
//! To sleep and be woken takes longer than such a section, most of all in a virtual machine: where everybody who waits sleeps, the lock lies
//! idle half of the time, while whoever was woken comes up. So at most two threads are awake that wait: one that tries for the lock
//! itself, and one that follows it. Whoever becomes the second wakes nobody while it has the lock: it lets the third come up while it is
//! still waiting itself. Nobody comes in front of those who wait: whoever gives the lock back and wants it again at once would have it
//! every time, since it knows first that it is free.
//!
//! The gates guard nothing, nor does the count: what is right does not hang on them.

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::{AtomicU32, Mutex, MutexGuard, PoisonError};

/// A value behind such a lock.
#[derive(Debug)]
pub struct Turnstile<T> {
    value: Mutex<T>,
    /// How many wait.
    waiting: AtomicU32,
    /// Had by who tries for the value.
    first: Mutex<()>,
    /// Had by who tries for `first`. The others sleep here.
    second: Mutex<()>,
}

impl<T> Turnstile<T> {
    /// A new one.
    pub fn new(value: T) -> Turnstile<T> {
        let (first, second) = (Mutex::new(()), Mutex::new(()));
        Turnstile { value: Mutex::new(value), waiting: AtomicU32::new(0), first, second }
    }

    /// The value, and whether others had it when it was asked for. A panic of who had it leaves it as it was.
    pub fn lock(&self) -> (MutexGuard<'_, T>, bool) {
        if self.waiting.load(Relaxed) == 0
            && let Some(value) = at_once(&self.value)
        {
            return (value, false);
        }
        self.waiting.fetch_add(1, Relaxed);
        let value = self.wait();
        self.waiting.fetch_sub(1, Relaxed);
        (value, true)
    }

    fn wait(&self) -> MutexGuard<'_, T> {
        let second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        let first = awake(&self.first);
        drop(second);
        let value = awake(&self.value);
        drop(first);
        value
    }
}

/// Lock without sleeping, unless it takes long.
fn awake<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    briefly(mutex, TRIES).unwrap_or_else(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Try so often, each time after twice as long, up to some [`PAUSES_LOG2`].
fn briefly<T>(mutex: &Mutex<T>, tries: u32) -> Option<MutexGuard<'_, T>> {
    for at in 0..tries {
        if let Some(guard) = at_once(mutex) {
            return Some(guard);
        }
        (0..1u32 << at.min(PAUSES_LOG2)).for_each(|_| std::hint::spin_loop());
        // Whoever has it may want this core.
        if at >= AWAKE {
            std::thread::yield_now();
        }
    }
    None
}

#[cfg(not(any(loom, shuttle, pagelith_tsan)))]
fn at_once<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Checkers let threads take turns at locks themselves.
#[cfg(any(loom, shuttle, pagelith_tsan))]
fn at_once<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    Some(mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// At most how many of the CPU's pauses, as a power of two, lie between two tries: some 40 ns each on current Intel processors, a third of
/// that on AMD's.
const PAUSES_LOG2: u32 = 5;
/// How often who is awake tries, some fifty microseconds; and from when on it lets others have its core in between.
const TRIES: u32 = 40;
const AWAKE: u32 = 12;

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::disallowed_methods, reason = "real threads are what is tested")]
mod tests {
    use super::*;

    #[test]
    fn each_has_it_alone_and_everybody_has_it() {
        const THREADS: u64 = 8;
        const TURNS: u64 = 2_000;
        let turnstile = Turnstile::new((0u64, 0u64));
        std::thread::scope(|scope| {
            let each = || {
                for _ in 0..TURNS {
                    let (mut value, _) = turnstile.lock();
                    value.0 += 1;
                    std::hint::black_box(&mut value);
                    assert_eq!(value.0, value.1 + 1, "somebody else is in it");
                    value.1 += 1;
                }
            };
            (0..THREADS).for_each(|_| drop(scope.spawn(each)));
        });
        let (value, others) = turnstile.lock();
        assert_eq!((*value, others), ((THREADS * TURNS, THREADS * TURNS), false));
    }

    #[test]
    fn a_panic_leaves_it_to_the_others() {
        let turnstile = Turnstile::new(1);
        std::thread::scope(|scope| {
            let panics = || {
                let (mut value, _) = turnstile.lock();
                *value = 2;
                panic!("on purpose");
            };
            assert!(scope.spawn(panics).join().is_err());
        });
        assert_eq!(*turnstile.lock().0, 2);
    }
}
