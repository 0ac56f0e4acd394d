//! std's locks for ThreadSanitizer. std itself is not instrumented, so the sanitizer sees no
//! ordering in the slow paths of its locks. An instrumented atomic next to each lock adds that
//! ordering.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
use std::time::Duration;

/// As std's.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    inner: std::sync::Mutex<T>,
    order: AtomicUsize,
}

/// As std's.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    order: &'a AtomicUsize,
    /// `None` only while the thread waits on a condition variable.
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// As std's.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { inner: std::sync::Mutex::new(value), order: AtomicUsize::new(0) }
    }

    /// As std's.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let guard = |inner| {
            self.order.fetch_add(1, Ordering::AcqRel);
            MutexGuard { order: &self.order, inner: Some(inner) }
        };
        self.inner.lock().map(guard).map_err(|e| PoisonError::new(guard(e.into_inner())))
    }

    /// As std's.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let guard = |inner| {
            self.order.fetch_add(1, Ordering::AcqRel);
            MutexGuard { order: &self.order, inner: Some(inner) }
        };
        match self.inner.try_lock() {
            Ok(inner) => Ok(guard(inner)),
            Err(TryLockError::Poisoned(e)) => {
                Err(TryLockError::Poisoned(PoisonError::new(guard(e.into_inner()))))
            }
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect("the guard is not in a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("the guard is not in a wait")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    /// This runs before std's guard is dropped, so the next owner of the lock sees it.
    fn drop(&mut self) {
        self.order.fetch_add(1, Ordering::AcqRel);
    }
}

/// As std's.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// As std's.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// As std's.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// As std's.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        timeout: Duration,
        mut waits: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let order = guard.order;
        let inner = guard.inner.take().expect("the guard is not in a wait");
        order.fetch_add(1, Ordering::AcqRel);
        let waited = self.0.wait_timeout_while(inner, timeout, |value| {
            order.fetch_add(1, Ordering::AcqRel);
            let waits = waits(value);
            order.fetch_add(1, Ordering::AcqRel);
            waits
        });
        let back = |(inner, timed_out)| {
            order.fetch_add(1, Ordering::AcqRel);
            guard.inner = Some(inner);
            (guard, timed_out)
        };
        match waited {
            Ok(waited) => Ok(back(waited)),
            Err(poisoned) => Err(PoisonError::new(back(poisoned.into_inner()))),
        }
    }
}
