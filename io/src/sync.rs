//! Locks, waiting and threads: std's, or those of a checker that decides who runs when. Whatever threads of the
//! store share goes through here, so that loom and shuttle see each step of it; a build without
//! `--cfg loom` or `--cfg shuttle` has std's types and nothing else.

pub use std::sync::{Arc, LockResult, PoisonError};

#[cfg(loom)]
pub use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::Builder,
};
#[cfg(all(shuttle, not(loom)))]
pub use shuttle::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::Builder,
};
#[cfg(not(any(loom, shuttle)))]
pub use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64},
    },
    thread::Builder,
};

use std::time::Duration;

/// Wait while `waits` holds, at most `timeout`. Under a checker time does not pass: what waits for a raise that
/// was lost is found as a deadlock.
pub fn wait_while<T>(
    condvar: &Condvar,
    guard: MutexGuard<'_, T>,
    timeout: Duration,
    mut waits: impl FnMut(&mut T) -> bool,
) {
    #[cfg(not(any(loom, shuttle)))]
    {
        let _ = condvar.wait_timeout_while(guard, timeout, |v| waits(v));
    }
    #[cfg(any(loom, shuttle))]
    {
        let mut guard = guard;
        while !timeout.is_zero() && waits(&mut guard) {
            guard = condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
