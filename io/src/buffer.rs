//! Memory that I/O reads into and writes from: aligned, owned, or borrowed under a guard.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapMut, MmapRaw};
use pagelith_layouts::align::align_up;

use crate::shm::Region;
use crate::spare;

/// Keeps borrowed memory valid for as long as a [`Part`] of it exists.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// Bytes from one buffer to the next in one mapping.
fn stride(len: usize) -> usize {
    align_up(len.max(1) as u64) as usize
}

/// An owned, zeroed, page-aligned (4096) buffer, mapped rather than allocated, so that a long one goes back to the
/// system when dropped; what short ones leave is kept for the next, at most 16 MiB of it.
pub struct AlignedBuf {
    map: Map,
    len: usize,
}

enum Map {
    /// All of a mapping; `None` only while it is dropped.
    Whole(Option<MmapMut>),
    /// Its part of a mapping, from this byte on. No two buffers have a byte in common.
    Slice(Arc<MmapRaw>, usize),
    /// The same, of memory that other processes can be shown.
    Shown(Arc<Region>, usize),
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes, at least 1. Fails if the system has no memory.
    pub fn new(len: usize) -> std::io::Result<AlignedBuf> {
        Ok(AlignedBuf { map: Map::Whole(Some(spare::zeroed(len)?)), len })
    }

    /// `count` zeroed buffers of `len` bytes each, side by side in one mapping, which is of huge pages if it is of 4 MiB or more and the system
    /// has them, and goes back when the last of the buffers is dropped. What a device moves to or from a huge page is one
    /// piece to it, and not one for every 4096 bytes. Fails if the system has no memory, or no such addresses.
    pub fn many(count: usize, len: usize) -> std::io::Result<Vec<AlignedBuf>> {
        AlignedBuf::side_by_side(count, len, spare::fresh)
    }

    /// The same, of these lengths, in this order.
    pub fn several(lengths: &[usize]) -> std::io::Result<Vec<AlignedBuf>> {
        let mut total = 0usize;
        let mut places = Vec::with_capacity(lengths.len());
        for len in lengths {
            places.push((total, *len));
            total = total.checked_add(stride(*len)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        }
        let map = Arc::new(MmapRaw::from(spare::fresh(total)?));
        let slice = |(at, len)| AlignedBuf { map: Map::Slice(map.clone(), at), len };
        Ok(places.into_iter().map(slice).collect())
    }

    /// As [`AlignedBuf::many`], of small pages: memory that nobody wrote to is not taken from the system.
    pub fn sparse(count: usize, len: usize) -> std::io::Result<Vec<AlignedBuf>> {
        AlignedBuf::side_by_side(count, len, spare::sparse)
    }

    fn side_by_side(
        count: usize,
        len: usize,
        map: impl FnOnce(usize) -> std::io::Result<MmapMut>,
    ) -> std::io::Result<Vec<AlignedBuf>> {
        let stride = stride(len);
        let total = stride.checked_mul(count).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let map = Arc::new(MmapRaw::from(map(total)?));
        Ok((0..count).map(|i| AlignedBuf { map: Map::Slice(map.clone(), i * stride), len }).collect())
    }

    /// The same, of memory that other processes can be shown, and the memory as what they are shown.
    pub fn shown(count: usize, len: usize) -> std::io::Result<(Vec<AlignedBuf>, Arc<Region>)> {
        let stride = stride(len);
        let total = stride.checked_mul(count.max(1)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let region = Arc::new(Region::new(total)?);
        let slice = |i| AlignedBuf { map: Map::Shown(region.clone(), i * stride), len };
        Ok(((0..count).map(slice).collect(), region))
    }

    /// Give the buffer's pages their memory now; what is in them stays. Of memory that other processes can be shown, all of it.
    /// Fails if the system does not do this (Linux before 5.14) or has not as much memory.
    pub fn prefault(&self) -> std::io::Result<()> {
        match &self.map {
            Map::Whole(map) => {
                map.iter().try_for_each(|map| map.advise_range(Advice::PopulateWrite, 0, self.len))
            }
            Map::Slice(map, at) => map.advise_range(Advice::PopulateWrite, *at, self.len),
            Map::Shown(region, _) => region.prefault(),
        }
    }

    /// Leave the memory, of all buffers that share the mapping, out of children that are forked: a parent that writes
    /// would copy it page by page. It is not there in a child then. Short buffers, whose memory others get next, stay as they are.
    pub fn keep_from_children(&self) {
        // What the system declines costs memory after a fork, and nothing else.
        let _ = match &self.map {
            Map::Whole(Some(map)) if map.len() > spare::LONGEST => map.advise(Advice::DontFork),
            Map::Whole(_) => Ok(()),
            Map::Slice(map, _) => map.advise(Advice::DontFork),
            Map::Shown(region, _) => {
                region.keep_from_children();
                Ok(())
            }
        };
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole buffer as an exclusive part of an operation.
    pub fn into_part(mut self) -> Part {
        let len = self.len;
        // The memory does not move with the buffer's handle.
        let ptr = NonNull::from(&mut self[..]).cast();
        Part { ptr, len, exclusive: true, keep: Held::Whole(self) }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.map {
            Map::Whole(map) => map.as_deref().map_or(&[], |map| &map[..self.len]),
            // SAFETY: `side_by_side` mapped `len` zeroed bytes from there on, for this buffer alone, and the Arc keeps the mapping;
            // the buffer's borrow is the slice's.
            Map::Slice(map, at) => unsafe { std::slice::from_raw_parts(map.as_ptr().add(*at), self.len) },
            // SAFETY: `shown` mapped it the same way, and no other process can write it.
            Map::Shown(region, at) => unsafe { std::slice::from_raw_parts(region.base().add(*at), self.len) },
        }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.map {
            Map::Whole(map) => map.as_deref_mut().map_or(&mut [], |map| &mut map[..self.len]),
            // SAFETY: as above, and the buffer is borrowed exclusively, which no other buffer shares a byte with.
            Map::Slice(map, at) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().add(*at), self.len)
            },
            // SAFETY: as above; other processes may read what is written here, and know that it may change.
            Map::Shown(region, at) => unsafe {
                std::slice::from_raw_parts_mut(region.base().add(*at), self.len)
            },
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match &mut self.map {
            Map::Whole(map) => map.take().into_iter().for_each(spare::keep),
            Map::Slice(..) | Map::Shown(..) => {}
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf(len={})", self.len)
    }
}

enum Held {
    /// All of a buffer: whoever hands one over and gets it back allocates nothing.
    Whole(AlignedBuf),
    /// Some of one.
    Owned(Arc<AlignedBuf>),
    Guarded(#[allow(dead_code, reason = "held for its drop")] Option<Keep>),
}

impl Held {
    /// The same for two.
    fn shared(self) -> (Held, Held) {
        match self {
            Held::Whole(buf) => Held::Owned(Arc::new(buf)).shared(),
            Held::Owned(buf) => (Held::Owned(buf.clone()), Held::Owned(buf)),
            Held::Guarded(keep) => (Held::Guarded(keep.clone()), Held::Guarded(keep)),
        }
    }
}

/// A stretch of memory on its way to, in, or back from an operation. Holding a `Part` *is* the right to the
/// memory: exclusive parts may be written, read-only parts are shared with other readers. While an
/// operation is in flight the disk holds its parts, so nobody can look at memory the kernel may be changing.
pub struct Part {
    ptr: NonNull<u8>,
    len: usize,
    exclusive: bool,
    keep: Held,
}

// SAFETY: a Part is an owner (Held::Whole, Held::Owned) or a borrower whose constructor promised that the memory may be
// used from any thread; the guard it holds is Send + Sync by its type.
unsafe impl Send for Part {}

impl Part {
    /// Exclusive access to `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` is initialised memory, valid for reads and writes until the part is dropped (`keep`
    /// may be what ensures it), and nothing else reads or writes it while the part or an operation holding
    /// the part exists.
    pub unsafe fn exclusive(ptr: NonNull<u8>, len: usize, keep: Option<Keep>) -> Part {
        Part { ptr, len, exclusive: true, keep: Held::Guarded(keep) }
    }

    /// Shared, read-only access to `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` is initialised memory, valid for reads until the part is dropped (`keep` may be what
    /// ensures it), and nothing writes it while the part or an operation holding the part exists.
    pub unsafe fn shared(ptr: NonNull<u8>, len: usize, keep: Option<Keep>) -> Part {
        Part { ptr, len, exclusive: false, keep: Held::Guarded(keep) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for alignment checks and the kernel.
    pub fn addr(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// The pointer, for the sides that hand it to the kernel.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Whether the part may be written.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the constructors promise initialised memory valid for reads while the part lives, and no
        // writer but an operation holding the part, which then is not here to be called.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to be written; `None` for a shared part.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.exclusive {
            return None;
        }
        // SAFETY: as in `bytes`, and an exclusive part is the only access to its memory.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }

    /// The buffer, if the part was made from one and no other part of it is left.
    pub fn into_buf(self) -> Option<AlignedBuf> {
        match self.keep {
            Held::Whole(buf) => Some(buf),
            Held::Owned(buf) => Arc::try_unwrap(buf).ok(),
            Held::Guarded(_) => None,
        }
    }

    /// Two parts, the first of `at` bytes (at most all of them).
    pub fn split(self, at: usize) -> (Part, Part) {
        let at = at.min(self.len);
        // SAFETY: `at` is within the part, or one past its end.
        let second = unsafe { self.ptr.add(at) };
        let Part { ptr, len, exclusive, keep } = self;
        let (keep, of_rest) = keep.shared();
        let rest = Part { ptr: second, len: len - at, exclusive, keep: of_rest };
        (Part { ptr, len: at, exclusive, keep }, rest)
    }

    /// One part again of two that [`Part::split`] made; hands both back if they are not neighbours in memory
    /// under one owner.
    pub fn join(self, next: Part) -> Result<Part, (Part, Part)> {
        let same_owner = match (&self.keep, &next.keep) {
            (Held::Owned(a), Held::Owned(b)) => Arc::ptr_eq(a, b),
            (Held::Guarded(Some(a)), Held::Guarded(Some(b))) => Arc::ptr_eq(a, b),
            (Held::Guarded(None), Held::Guarded(None)) => true,
            _ => false,
        };
        let neighbours = self.addr() + self.len == next.addr() && self.exclusive == next.exclusive;
        if !(same_owner && neighbours) {
            return Err((self, next));
        }
        Ok(Part { len: self.len + next.len, ..self })
    }

    /// Shared bytes as a read-only part.
    pub fn from_shared(bytes: Arc<[u8]>) -> Part {
        let (ptr, len) = (NonNull::from(&bytes[..]).cast(), bytes.len());
        // SAFETY: the bytes live on the heap behind the Arc that the part keeps, are initialised, and nobody
        // can write them while a clone of the Arc exists.
        unsafe { Part::shared(ptr, len, Some(Arc::new(bytes))) }
    }
}

/// Parts that several operations may read at once; they come back when none of them does any more.
#[derive(Clone)]
pub struct Readers(Arc<Mutex<Vec<Part>>>);

impl Readers {
    /// Let `parts` be read.
    pub fn new(parts: Vec<Part>) -> Readers {
        Readers(Arc::new(Mutex::new(parts)))
    }

    /// Look at where they lie. Whoever reads the bytes then does so while nobody can write them.
    pub fn look<R>(&self, look: impl FnOnce(&[Part]) -> R) -> R {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same bytes, to be read.
    pub fn parts(&self) -> Vec<Part> {
        let keep: Keep = self.0.clone();
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = |part: &Part| {
            // SAFETY: `keep` holds the part that its memory is borrowed from, or owned by, and nothing reaches that part,
            // which alone could write, while a reader keeps the Arc from being taken apart.
            unsafe { Part::shared(part.ptr, part.len, Some(keep.clone())) }
        };
        parts.iter().map(reader).collect()
    }

    /// The parts; `None` while they are read.
    pub fn into_parts(self) -> Option<Vec<Part>> {
        let parts = Arc::try_unwrap(self.0).ok()?;
        Some(parts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes parts of memory that is lent for the length of a call. [`Lender::scope`] does not return while any
/// of its parts exists: rather than let the kernel write into memory that its owner has back, it ends the
/// process, so whoever uses it waits for every operation first.
pub struct Lender<'mem> {
    lent: Arc<()>,
    _memory: std::marker::PhantomData<std::cell::Cell<&'mem mut ()>>,
}

impl<'mem> Lender<'mem> {
    /// Run `body` with a lender.
    pub fn scope<R>(body: impl FnOnce(&Lender<'mem>) -> R) -> R {
        struct AllBack(Arc<()>);
        impl Drop for AllBack {
            fn drop(&mut self) {
                // The guard's own count and the lender's; also reached when `body` panics.
                let lent = Arc::strong_count(&self.0) > 1;
                // What other threads did with the memory happens before it is given back.
                std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                if lent {
                    std::process::abort();
                }
            }
        }
        let lender = Lender { lent: Arc::new(()), _memory: std::marker::PhantomData };
        let all_back = AllBack(lender.lent.clone());
        let lender = std::panic::AssertUnwindSafe(lender);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&lender)));
        drop(lender);
        drop(all_back);
        match result {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Lend bytes to be written.
    pub fn exclusive(&self, bytes: &'mem mut [u8]) -> Part {
        let (ptr, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // SAFETY: the borrow lasts for 'mem, which outlives `scope`'s call, and `scope` does not return while
        // the part, which holds a clone of `lent`, exists.
        unsafe { Part::exclusive(ptr, len, Some(self.lent.clone())) }
    }

    /// Lend bytes to be read.
    pub fn shared(&self, bytes: &'mem [u8]) -> Part {
        let (ptr, len) = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: as in `exclusive`, with a shared borrow for shared access.
        unsafe { Part::shared(ptr, len, Some(self.lent.clone())) }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part(len={}, exclusive={})", self.len, self.exclusive)
    }
}

#[cfg(test)]
mod tests;
