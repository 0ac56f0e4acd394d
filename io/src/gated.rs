//! What is behind a [gate](crate::gate::Gate): who has closed it has the value for themselves, and those inside see it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The value for who has closed the gate.
pub struct Gated<T>(Arc<Value<T>>);

/// The value for those inside.
pub struct Seen<T>(Arc<Value<T>>);

struct Value<T>(UnsafeCell<T>);

// SAFETY: it is changed by who has it alone and looked at by several, at different times, as [`Gated::new`] has it.
unsafe impl<T: Send + Sync> Sync for Value<T> {}

impl<T> Gated<T> {
    /// A value behind a gate.
    ///
    /// # Safety
    /// From when somebody is inside that gate with a [`Seen`] of it, whoever reaches this has closed the gate and not opened it again.
    pub unsafe fn new(value: T) -> Gated<T> {
        Gated(Arc::new(Value(UnsafeCell::new(value))))
    }

    /// For those inside.
    #[must_use]
    pub fn seen(&self) -> Seen<T> {
        Seen(self.0.clone())
    }
}

impl<T> Deref for Gated<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: who made it promised that nobody is inside, and nobody else has this.
        unsafe { &*self.0.0.get() }
    }
}

impl<T> DerefMut for Gated<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the same.
        unsafe { &mut *self.0.0.get() }
    }
}

impl<T> Seen<T> {
    /// The value.
    ///
    /// # Safety
    /// The caller is inside the gate for as long as the borrow lasts.
    pub unsafe fn get(&self) -> &T {
        // SAFETY: who has closed the gate would change it, and nobody has.
        unsafe { &*self.0.0.get() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::disallowed_methods, reason = "real threads are what is tested")]
mod tests {
    use super::*;
    use crate::gate::Gate;

    /// Changes come through, whole. (Orders: `sim/concurrency`, with cells in its place.)
    #[test]
    fn those_inside_see_what_who_closed_it_made_of_it() {
        let gate = Gate::default();
        // SAFETY: the gate is closed whenever it is changed below.
        let mut pair = unsafe { Gated::new((0u64, 0u64)) };
        let seen = pair.seen();
        std::thread::scope(|scope| {
            let look = || {
                let mut last = 0;
                while last < 1000 {
                    let _inside = gate.enter();
                    // SAFETY: inside.
                    let (a, b) = *unsafe { seen.get() };
                    assert!(a == b && a >= last);
                    last = a;
                }
            };
            (0..2).for_each(|_| drop(scope.spawn(look)));
            for _ in 0..1000 {
                gate.close();
                let (a, b) = *pair;
                *pair = (a + 1, b + 1);
                gate.open();
            }
        });
        assert_eq!(*pair, (1000, 1000));
    }
}
