//! A table of values that threads read without a lock, while its owner may retire them.
//!
//! [`ReaderCount`] is one word: the number of readers, and an open bit. Both change by
//! read-modify-writes of that word, so all changes have one order. A reader that entered before the
//! close is counted when it is closed; a later one is refused and changes nothing. This needs no
//! fence.
//!
//! [`GuardedTableOwner`] and [`GuardedTable`] are the two sides of a table of values with such
//! words.
//!
//! Invariants:
//! 1. A slot is filled only while it is empty, and opened after that: a reader that enters finds
//!    the value.
//! 2. A value is taken out only after its slot was closed and its count is 0: no borrow of it
//!    remains.
//! 3. Each table has one owner, which fills, closes and takes by `&mut`, so these operations are
//!    serial.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::hugepage;
use crate::sync::{Arc, AtomicPtr, AtomicU32};

/// The open bit; the other bits are the count.
const OPEN: u32 = 1 << 31;
const COUNT: u32 = OPEN - 1;

/// Slots per chunk. A chunk is allocated when its first slot is filled, so an empty table costs
/// nothing.
const CHUNK: usize = 1 << 18;

/// A count of readers and whether more may enter. Initially closed.
#[derive(Debug)]
pub struct ReaderCount(AtomicU32);

impl Default for ReaderCount {
    fn default() -> ReaderCount {
        ReaderCount(AtomicU32::new(0))
    }
}

impl ReaderCount {
    /// Open it. A reader that enters after this sees all earlier writes.
    pub fn open(&self) {
        self.0.fetch_or(OPEN, Release);
    }

    /// As `open`, for a word that is closed with count 0, by the only thread that opens and closes
    /// it.
    fn open_idle(&self) {
        debug_assert!(self.is_idle(), "it must be closed, with count 0");
        self.0.store(OPEN, Release);
    }

    /// Close it: no reader enters any more. True if the count is 0: all accesses of readers
    /// happened before.
    pub fn close(&self) -> bool {
        self.0.fetch_and(!OPEN, AcqRel) & COUNT == 0
    }

    /// Close it if the count is 0; returns whether it is closed.
    pub fn close_if_empty(&self) -> bool {
        match self.0.compare_exchange(OPEN, 0, AcqRel, Acquire) {
            Ok(_) => true,
            Err(found) => found == 0,
        }
    }

    /// Enter, if it is open. Each successful enter needs one leave.
    #[inline]
    #[must_use]
    pub fn enter(&self) -> bool {
        let mut found = self.0.load(Relaxed);
        // A refused reader does not increment the count even for a moment: that could keep another
        // reader from being the last.
        while found & OPEN != 0 && found & COUNT != COUNT {
            match self.0.compare_exchange_weak(found, found + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
        false
    }

    /// Enter without checking the open bit: the caller knows that the count is not 0, or is the
    /// thread that would close it.
    pub fn enter_again(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Leave. True for the last reader after the close.
    #[inline]
    pub fn leave(&self) -> bool {
        self.0.fetch_sub(1, AcqRel) == 1
    }

    /// The count of readers. After a 0 all accesses of earlier readers have happened.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0.load(Acquire) & COUNT
    }

    fn is_idle(&self) -> bool {
        self.0.load(Acquire) == 0
    }
}

struct GuardedSlot<T> {
    readers: ReaderCount,
    value: AtomicPtr<T>,
}

/// Slots that are allocated together.
type Chunk<T> = OnceLock<Box<[GuardedSlot<T>]>>;

struct Table<T> {
    chunks: Box<[Chunk<T>]>,
    slots: usize,
    /// The table owns the values that its pointers refer to.
    _values: PhantomData<Arc<T>>,
}

impl<T> Table<T> {
    #[inline]
    fn slot(&self, at: usize) -> Option<&GuardedSlot<T>> {
        self.chunks.get(at / CHUNK)?.get()?.get(at % CHUNK)
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for slot in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            let value = slot.value.swap(ptr::null_mut(), Relaxed);
            if !value.is_null() {
                // SAFETY: the pointer is from `Arc::into_raw` in `fill`, and taken out once, by the
                // swap. A reader borrows the table, so none exists.
                drop(unsafe { Arc::from_raw(value) });
            }
        }
    }
}

/// The owner's side: it fills slots and empties them.
pub struct GuardedTableOwner<T> {
    table: Arc<Table<T>>,
}

/// The readers' side: it enters slots.
pub struct GuardedTable<T> {
    table: Arc<Table<T>>,
}

impl<T> GuardedTableOwner<T> {
    /// A table of `slots` slots, all empty.
    pub fn new(slots: usize) -> GuardedTableOwner<T> {
        let chunks = (0..slots.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        GuardedTableOwner { table: Arc::new(Table { chunks, slots, _values: PhantomData }) }
    }

    /// The readers' side of the table.
    pub fn table(&self) -> GuardedTable<T> {
        GuardedTable { table: self.table.clone() }
    }

    /// Put a value into an empty slot, and open the slot. Returns false, and does nothing, if the
    /// slot is not empty or does not exist.
    #[must_use]
    pub fn fill(&mut self, at: usize, value: Arc<T>) -> bool {
        if at >= self.table.slots {
            return false;
        }
        let chunk = self.table.chunks[at / CHUNK].get_or_init(|| {
            let count = (self.table.slots - at / CHUNK * CHUNK).min(CHUNK);
            let mut slots = hugepage::table(count);
            let slot = || GuardedSlot {
                readers: ReaderCount::default(),
                value: AtomicPtr::new(ptr::null_mut()),
            };
            slots.resize_with(count, slot);
            slots.into_boxed_slice()
        });
        let slot = &chunk[at % CHUNK];
        if !slot.value.load(Relaxed).is_null() {
            return false;
        }
        slot.value.store(Arc::into_raw(value).cast_mut(), Relaxed);
        slot.readers.open_idle();
        true
    }

    /// Close the slot: no reader enters it any more.
    pub fn close(&mut self, at: usize) {
        if let Some(slot) = self.table.slot(at) {
            slot.readers.close();
        }
    }

    /// Take the value of a closed slot with count 0; the slot is empty then.
    pub fn take(&mut self, at: usize) -> Option<Arc<T>> {
        let slot = self.table.slot(at).filter(|slot| slot.readers.is_idle())?;
        let value = slot.value.load(Relaxed);
        slot.value.store(ptr::null_mut(), Relaxed);
        // SAFETY: the pointer is from `Arc::into_raw` in `fill`, and taken out once, by the only
        // thread that fills and empties slots. The slot is closed and its count was seen at 0: no
        // reader is inside, the accesses of earlier readers have happened, and no reader enters
        // before the next `fill`.
        (!value.is_null()).then(|| unsafe { Arc::from_raw(value) })
    }

    /// The number of readers inside of a slot.
    pub fn count(&self, at: usize) -> u32 {
        self.table.slot(at).map_or(0, |slot| slot.readers.count())
    }
}

impl<T> GuardedTable<T> {
    /// Enter a slot, if it is open.
    #[inline]
    pub fn enter(&self, at: usize) -> Option<ReadGuard<'_, T>> {
        let slot = self.table.slot(at)?;
        slot.readers.enter().then_some(ReadGuard { slot, _value: PhantomData })
    }
}

/// A reader inside of a slot, which keeps its value until the reader leaves. If it is dropped
/// without [`ReadGuard::leave`], the reader counts as inside for ever, and the value stays.
#[must_use]
pub struct ReadGuard<'a, T> {
    slot: &'a GuardedSlot<T>,
    _value: PhantomData<&'a T>,
}

impl<T> ReadGuard<'_, T> {
    /// Leave. True for the last reader of a slot that was closed meanwhile: its value can be taken
    /// now, and no other reader reports this.
    #[inline]
    pub fn leave(self) -> bool {
        self.slot.readers.leave()
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `enter` found the slot open, after the `fill` that opened it, so it has a value.
        // The value is taken only after the slot is closed and this reader, which is counted, has
        // left; no borrow through it outlives that.
        unsafe { &*self.slot.value.load(Relaxed) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn guarded_value_stays_until_last_reader_leaves() {
        let mut owner = GuardedTableOwner::new(3);
        let table = owner.table();
        assert!(table.enter(1).is_none(), "it is empty");
        let value = Arc::new(7);
        assert!(owner.fill(1, value.clone()) && !owner.fill(1, value.clone()));
        assert!(!owner.fill(3, value.clone()), "no such slot");
        let (first, second) = (table.enter(1).expect("open"), table.enter(1).expect("open"));
        assert_eq!((*first, owner.count(1)), (7, 2));
        assert_eq!(owner.take(1), None, "it is open");
        owner.close(1);
        assert!(table.enter(1).is_none(), "closed");
        assert_eq!(owner.take(1), None, "two readers are inside");
        assert!(!first.leave());
        assert_eq!((*second, owner.take(1)), (7, None));
        assert!(second.leave(), "the last reader");
        assert_eq!(owner.take(1), Some(value.clone()));
        assert_eq!((owner.take(1), owner.count(1)), (None, 0));
        assert!(owner.fill(1, value.clone()));
        assert!(!table.enter(1).expect("open again").leave(), "it was not closed");
        drop((owner, table));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn close_if_empty_succeeds_without_readers() {
        let readers = ReaderCount::default();
        assert!(!readers.enter() && readers.close_if_empty(), "initially closed");
        readers.open();
        assert!(readers.enter() && !readers.close_if_empty());
        assert!(!readers.close() && !readers.enter() && readers.leave());
        assert!(readers.close_if_empty());
    }
}
