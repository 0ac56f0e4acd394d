//! What threads use without a lock while its owner may want it gone.
//!
//! [`Readers`] is one word: how many are inside, and whether it is open to more. Both are changed by read-modify-writes of
//! that word, so they happen in one order: who entered before it was closed is counted by whoever closes it, and who comes
//! later is refused and leaves no trace. No fence is needed for that.
//!
//! [`Keeper`] and [`Kept`] are the two sides of a table of values behind such words. Invariants:
//! 1. A place is filled only while it is empty, and opened behind that: who enters finds the value.
//! 2. A value is taken out only after its place was closed and nobody is inside: nobody's borrow ends with it.
//! 3. One keeper a table, and it fills, closes and takes by `&mut`: none of these meets another.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::huge;
use crate::sync::{Arc, AtomicPtr, AtomicU32};

/// The bit that says that it is open; the others are the count.
const OPEN: u32 = 1 << 31;
const COUNT: u32 = OPEN - 1;

/// Places that are made at a time, when the first of them is filled: a table of none costs nothing.
const CHUNK: usize = 1 << 18;

/// How many are inside, and whether more may enter. Closed at first.
#[derive(Debug)]
pub struct Readers(AtomicU32);

impl Default for Readers {
    fn default() -> Readers {
        Readers(AtomicU32::new(0))
    }
}

impl Readers {
    /// Whoever enters from here on sees all that was done before.
    pub fn open(&self) {
        self.0.fetch_or(OPEN, Release);
    }

    /// As `open`, of what is closed and has nobody inside, for who alone opens and closes it.
    fn open_idle(&self) {
        debug_assert!(self.is_idle(), "it is closed, and nobody is inside");
        self.0.store(OPEN, Release);
    }

    /// Nobody enters any more. True if nobody is inside: all that they did is done then.
    pub fn close(&self) -> bool {
        self.0.fetch_and(!OPEN, AcqRel) & COUNT == 0
    }

    /// Close it unless somebody is inside; whether it is closed.
    pub fn close_if_empty(&self) -> bool {
        match self.0.compare_exchange(OPEN, 0, AcqRel, Acquire) {
            Ok(_) => true,
            Err(found) => found == 0,
        }
    }

    /// Enter, if it is open. Whoever enters leaves.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> bool {
        let mut found = self.0.load(Relaxed);
        // Who is refused does not count in for a moment: that could keep another from being the last.
        while found & OPEN != 0 && found & COUNT != COUNT {
            match self.0.compare_exchange_weak(found, found + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
        false
    }

    /// Enter without asking: somebody is inside for sure, or whoever would close it is the one who enters.
    pub fn enter_again(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Leave. True for the last one out of what was closed meanwhile.
    #[inline]
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, AcqRel) == 1
    }

    /// How many are inside. Behind a 0 all that they did is done.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.load(Acquire) & COUNT
    }

    fn is_idle(&self) -> bool {
        self.0.load(Acquire) == 0
    }
}

struct Place<T> {
    readers: Readers,
    value: AtomicPtr<T>,
}

/// Places that are made together.
type Chunk<T> = OnceLock<Box<[Place<T>]>>;

struct Table<T> {
    chunks: Box<[Chunk<T>]>,
    places: usize,
    /// The table has the values that its pointers lead to.
    _values: PhantomData<Arc<T>>,
}

impl<T> Table<T> {
    #[inline]
    fn place(&self, at: usize) -> Option<&Place<T>> {
        self.chunks.get(at / CHUNK)?.get()?.get(at % CHUNK)
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for place in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            let value = place.value.swap(ptr::null_mut(), Relaxed);
            if !value.is_null() {
                // SAFETY: of `Arc::into_raw` in `fill`, and taken out once, by the swap. Whoever is inside borrows the table,
                // so nobody is.
                drop(unsafe { Arc::from_raw(value) });
            }
        }
    }
}

/// The owner's side: who fills places and empties them.
pub struct Keeper<T> {
    table: Arc<Table<T>>,
}

/// The others' side: who uses what is there.
pub struct Kept<T> {
    table: Arc<Table<T>>,
}

impl<T> Keeper<T> {
    /// Of so many places, all empty.
    pub fn new(places: usize) -> Keeper<T> {
        let chunks = (0..places.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        Keeper { table: Arc::new(Table { chunks, places, _values: PhantomData }) }
    }

    /// The others' side of it.
    pub fn kept(&self) -> Kept<T> {
        Kept { table: self.table.clone() }
    }

    /// Put a value where none is, and open the place. False, and nothing is done, if it is not empty or there is no such
    /// place.
    #[must_use]
    pub fn fill(&mut self, at: usize, value: Arc<T>) -> bool {
        if at >= self.table.places {
            return false;
        }
        let chunk = self.table.chunks[at / CHUNK].get_or_init(|| {
            let count = (self.table.places - at / CHUNK * CHUNK).min(CHUNK);
            let mut places = huge::table(count);
            let place = || Place { readers: Readers::default(), value: AtomicPtr::new(ptr::null_mut()) };
            places.resize_with(count, place);
            places.into_boxed_slice()
        });
        let place = &chunk[at % CHUNK];
        if !place.value.load(Relaxed).is_null() {
            return false;
        }
        place.value.store(Arc::into_raw(value).cast_mut(), Relaxed);
        place.readers.open_idle();
        true
    }

    /// Nobody enters the place any more.
    pub fn close(&mut self, at: usize) {
        if let Some(place) = self.table.place(at) {
            place.readers.close();
        }
    }

    /// The value of a place that was closed and that nobody is inside of any more; the place is empty then.
    pub fn take(&mut self, at: usize) -> Option<Arc<T>> {
        let place = self.table.place(at).filter(|place| place.readers.is_idle())?;
        let value = place.value.load(Relaxed);
        place.value.store(ptr::null_mut(), Relaxed);
        // SAFETY: of `Arc::into_raw` in `fill`, and taken out once, by who alone puts values in and takes them out. The place is closed and its count was seen at
        // 0: nobody is inside, what those did who were is done, and nobody enters before the next `fill`.
        (!value.is_null()).then(|| unsafe { Arc::from_raw(value) })
    }

    /// How many are inside of a place.
    pub fn count(&self, at: usize) -> u32 {
        self.table.place(at).map_or(0, |place| place.readers.count())
    }
}

impl<T> Kept<T> {
    /// Enter a place, if it is open.
    #[inline]
    pub fn enter(&self, at: usize) -> Option<Inside<'_, T>> {
        let place = self.table.place(at)?;
        place.readers.enter().then_some(Inside { place, _value: PhantomData })
    }
}

/// Somebody inside of a place, which keeps its value until they leave. Who is dropped without having left stays inside for
/// ever, and the value with it.
#[must_use]
pub struct Inside<'a, T> {
    place: &'a Place<T>,
    _value: PhantomData<&'a T>,
}

impl<T> Inside<'_, T> {
    /// Leave. True for the last one out of a place that was closed meanwhile: its value can be taken now, and nobody else
    /// will say so.
    #[inline]
    pub fn leave(self) -> bool {
        self.place.readers.leave()
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `enter` found the place open, behind the `fill` that opened it, so there is a value; it is not taken before
        // the place is closed and this one, who is counted, has left, which no borrow of it outlives.
        unsafe { &*self.place.value.load(Relaxed) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_is_inside_keeps_the_value_and_the_last_one_out_says_so() {
        let mut keeper = Keeper::new(3);
        let kept = keeper.kept();
        assert!(kept.enter(1).is_none(), "nothing is there");
        let value = Arc::new(7);
        assert!(keeper.fill(1, value.clone()) && !keeper.fill(1, value.clone()));
        assert!(!keeper.fill(3, value.clone()), "there is no such place");
        let (first, second) = (kept.enter(1).expect("open"), kept.enter(1).expect("open"));
        assert_eq!((*first, keeper.count(1)), (7, 2));
        assert_eq!(keeper.take(1), None, "it is open");
        keeper.close(1);
        assert!(kept.enter(1).is_none(), "closed");
        assert_eq!(keeper.take(1), None, "two are inside");
        assert!(!first.leave());
        assert_eq!((*second, keeper.take(1)), (7, None));
        assert!(second.leave(), "the last one out");
        assert_eq!(keeper.take(1), Some(value.clone()));
        assert_eq!((keeper.take(1), keeper.count(1)), (None, 0));
        assert!(keeper.fill(1, value.clone()));
        assert!(!kept.enter(1).expect("open again").leave(), "nobody wants it gone");
        drop((keeper, kept));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn who_is_alone_closes_at_once() {
        let readers = Readers::default();
        assert!(!readers.enter() && readers.close_if_empty(), "closed at first");
        readers.open();
        assert!(readers.enter() && !readers.close_if_empty());
        assert!(!readers.close() && !readers.enter() && readers.leave());
        assert!(readers.close_if_empty());
    }
}
