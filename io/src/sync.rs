//! Locks, condition variables, atomics and threads: those of std, or those of a checker that
//! schedules threads itself. All state that threads of the store share goes through this module, so
//! that loom and shuttle see each step. A build without `--cfg loom`, `--cfg shuttle` or `--cfg
//! pagelith_tsan` has std's types and nothing else.

pub use std::sync::{Arc, LockResult, PoisonError};

#[cfg(loom)]
pub use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence},
    },
    thread::Builder,
};
#[cfg(all(shuttle, not(loom)))]
pub use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence},
    },
    thread::Builder,
};
#[cfg(not(any(loom, shuttle, pagelith_tsan)))]
pub use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence},
    },
    thread::Builder,
};
#[cfg(pagelith_tsan)]
pub use {
    ordered::{Condvar, Mutex, MutexGuard},
    std::{
        sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence},
        thread::Builder,
    },
};

/// A mutex for a `static`. Loom and shuttle do not see it: their mutexes are created anew for each
/// run.
#[cfg(pagelith_tsan)]
pub use ordered::{Mutex as StaticMutex, MutexGuard as StaticMutexGuard};
#[cfg(not(pagelith_tsan))]
pub use std::sync::{Mutex as StaticMutex, MutexGuard as StaticMutexGuard};

#[cfg(pagelith_tsan)]
mod ordered;

use std::sync::TryLockError;
use std::time::Duration;

/// Tries to lock a mutex of a `static`: tenths of a second, longer than any thread has such a lock.
pub const LOCK_TRIES: u32 = 500_000;

/// Lock a mutex of a `static`; `None` if it is still locked after `tries` tries, between which
/// other threads run. In a forked child it may be locked for ever: by a thread of the parent, which
/// the child does not have.
pub fn try_lock_static<T>(
    mutex: &'static StaticMutex<T>,
    tries: u32,
) -> Option<StaticMutexGuard<'static, T>> {
    for _ in 0..tries {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Wait while `waits` is true, at most `timeout`. Under loom and shuttle time does not pass: a
/// thread that waits for a lost notification is reported as a deadlock.
pub fn wait_while<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    mut waits: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    #[cfg(not(any(loom, shuttle)))]
    {
        condvar
            .wait_timeout_while(guard, timeout, |v| waits(v))
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
    #[cfg(any(loom, shuttle))]
    {
        let mut guard = guard;
        while !timeout.is_zero() && waits(&mut guard) {
            guard = condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        guard
    }
}

/// Mark an access to memory that threads pass to one another without a lock. A checker may switch
/// threads at this point, which otherwise happens at locks only. Does nothing in an ordinary build.
#[inline]
pub fn step() {
    #[cfg(all(shuttle, not(loom)))]
    AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    {
        loom::lazy_static! {
            // One counter for all calls: loom explores the orders of two accesses to one location.
            static ref TOUCHED: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
        }
        TOUCHED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
