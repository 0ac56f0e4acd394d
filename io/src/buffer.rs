//! Memory that I/O reads into and writes from: aligned, owned, or borrowed under a guard.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapMut, MmapRaw};
use pagelith_layouts::align::align_up;

use crate::buffer_cache;
use crate::shm::SharedRegion;

/// Keeps borrowed memory valid for as long as a [`Part`] of it exists.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Distance in bytes between consecutive buffers of one mapping.
fn stride(len: usize) -> usize {
    align_up(len.max(1) as u64) as usize
}

/// An owned, zeroed, page-aligned (4096) buffer, mapped rather than allocated, so that a long one
/// returns its memory to the system when dropped. Mappings of short ones are cached for new
/// buffers, at most 16 MiB.
pub struct AlignedBuf {
    map: Map,
    len: usize,
}

enum Map {
    /// A whole mapping; `None` only while the buffer is dropped.
    Whole(Option<MmapMut>),
    /// A slice of a shared mapping, from this byte offset. The slices of two buffers are disjoint.
    Slice(Arc<MmapRaw>, usize),
    /// A slice of a region, which can be shared with other processes.
    InRegion(Arc<SharedRegion>, usize),
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes, at least 1. Fails if the system has no memory.
    pub fn new(len: usize) -> std::io::Result<AlignedBuf> {
        Ok(AlignedBuf { map: Map::Whole(Some(buffer_cache::zeroed(len)?)), len })
    }

    /// `count` zeroed buffers of `len` bytes each, adjacent in one mapping. The mapping uses huge
    /// pages if it has 4 MiB or more and the system has them; it is unmapped when the last of the
    /// buffers is dropped. A device transfers a huge page as one segment, and not as one for each
    /// 4096 bytes. Fails if the system has no memory, or no such address range.
    pub fn many(count: usize, len: usize) -> std::io::Result<Vec<AlignedBuf>> {
        AlignedBuf::adjacent(count, len, buffer_cache::new_map)
    }

    /// As [`AlignedBuf::many`], with one buffer for each of `lengths`, in that order.
    pub fn with_lengths(lengths: &[usize]) -> std::io::Result<Vec<AlignedBuf>> {
        let mut total = 0usize;
        let mut places = Vec::with_capacity(lengths.len());
        for len in lengths {
            places.push((total, *len));
            total = total.checked_add(stride(*len)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        }
        let map = Arc::new(MmapRaw::from(buffer_cache::new_map(total)?));
        let slice = |(at, len)| AlignedBuf { map: Map::Slice(map.clone(), at), len };
        Ok(places.into_iter().map(slice).collect())
    }

    /// As [`AlignedBuf::many`], in small pages: only pages that are written to take memory.
    pub fn sparse(count: usize, len: usize) -> std::io::Result<Vec<AlignedBuf>> {
        AlignedBuf::adjacent(count, len, buffer_cache::new_sparse_map)
    }

    fn adjacent(
        count: usize,
        len: usize,
        map: impl FnOnce(usize) -> std::io::Result<MmapMut>,
    ) -> std::io::Result<Vec<AlignedBuf>> {
        let stride = stride(len);
        let total = stride.checked_mul(count).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let map = Arc::new(MmapRaw::from(map(total)?));
        Ok((0..count)
            .map(|i| AlignedBuf { map: Map::Slice(map.clone(), i * stride), len })
            .collect())
    }

    /// As [`AlignedBuf::many`], in a region that can be shared with other processes. Returns the
    /// region too.
    pub fn shown(
        count: usize,
        len: usize,
    ) -> std::io::Result<(Vec<AlignedBuf>, Arc<SharedRegion>)> {
        let stride = stride(len);
        let total = stride.checked_mul(count.max(1)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let region = Arc::new(SharedRegion::new(total)?);
        let slice = |i| AlignedBuf { map: Map::InRegion(region.clone(), i * stride), len };
        Ok(((0..count).map(slice).collect(), region))
    }

    /// Make the buffer's pages resident now; their contents stay. For memory in a region this
    /// covers the whole region. Fails if the system does not support it (Linux before 5.14) or has
    /// not enough memory.
    pub fn prefault(&self) -> std::io::Result<()> {
        match &self.map {
            Map::Whole(map) => {
                map.iter().try_for_each(|map| map.advise_range(Advice::PopulateWrite, 0, self.len))
            }
            Map::Slice(map, at) => map.advise_range(Advice::PopulateWrite, *at, self.len),
            Map::InRegion(region, _) => region.prefault(),
        }
    }

    /// Exclude the memory, of all buffers that share the mapping, from forked children: a parent
    /// that writes would otherwise copy it page by page. The memory is unmapped in a child. Short
    /// buffers, whose mappings are reused for other buffers, are not affected.
    pub fn exclude_from_fork(&self) {
        // If the system declines, the cost is memory after a fork, nothing else.
        let _ = match &self.map {
            Map::Whole(Some(map)) if map.len() > buffer_cache::CACHED_MAP_BYTES_MAX => {
                map.advise(Advice::DontFork)
            }
            Map::Whole(_) => Ok(()),
            Map::Slice(map, _) => map.advise(Advice::DontFork),
            Map::InRegion(region, _) => {
                region.exclude_from_fork();
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
        Part { ptr, len, exclusive: true, backing: Backing::Buffer(self) }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.map {
            Map::Whole(map) => map.as_deref().map_or(&[], |map| &map[..self.len]),
            // SAFETY: `adjacent` or `with_lengths` mapped `len` zeroed bytes from there for this
            // buffer alone, and the Arc keeps the mapping. The slice borrows the buffer.
            Map::Slice(map, at) => unsafe {
                std::slice::from_raw_parts(map.as_ptr().add(*at), self.len)
            },
            // SAFETY: `shown` mapped them the same way, and no other process can write them.
            Map::InRegion(region, at) => unsafe {
                std::slice::from_raw_parts(region.base().add(*at), self.len)
            },
        }
    }
}

impl std::ops::DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.map {
            Map::Whole(map) => map.as_deref_mut().map_or(&mut [], |map| &mut map[..self.len]),
            // SAFETY: as above. The buffer is borrowed exclusively, and shares no byte with another
            // buffer.
            Map::Slice(map, at) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().add(*at), self.len)
            },
            // SAFETY: as above. Other processes may read these bytes, and expect that they change.
            Map::InRegion(region, at) => unsafe {
                std::slice::from_raw_parts_mut(region.base().add(*at), self.len)
            },
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match &mut self.map {
            Map::Whole(map) => map.take().into_iter().for_each(buffer_cache::put),
            Map::Slice(..) | Map::InRegion(..) => {}
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf(len={})", self.len)
    }
}

enum Backing {
    /// A whole buffer: handing one over and taking it back allocates nothing.
    Buffer(AlignedBuf),
    /// A buffer that several parts share.
    SharedBuffer(Arc<AlignedBuf>),
    Borrowed(#[allow(dead_code, reason = "held for its drop")] Option<KeepAlive>),
}

impl Backing {
    /// The backing for two parts of the same memory.
    fn split(self) -> (Backing, Backing) {
        match self {
            Backing::Buffer(buf) => Backing::SharedBuffer(Arc::new(buf)).split(),
            Backing::SharedBuffer(buf) => {
                (Backing::SharedBuffer(buf.clone()), Backing::SharedBuffer(buf))
            }
            Backing::Borrowed(keep) => (Backing::Borrowed(keep.clone()), Backing::Borrowed(keep)),
        }
    }
}

/// A range of memory that an operation will use, uses or has used. Holding a `Part` *is* the right
/// to the memory: exclusive parts may be written, read-only parts are shared with other readers.
/// While an operation is in flight the disk holds its parts, so no other code can read memory that
/// the kernel may be changing.
pub struct Part {
    ptr: NonNull<u8>,
    len: usize,
    exclusive: bool,
    backing: Backing,
}

// SAFETY: a Part owns its memory (Backing::Buffer, Backing::SharedBuffer), or borrows it, and its
// constructor promised that any thread may use the memory. The guard that it holds is Send + Sync
// by its type.
unsafe impl Send for Part {}

impl Part {
    /// Exclusive access to `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` is initialised memory, valid for reads and writes until the part is dropped
    /// (`keep` may be what ensures it), and nothing else reads or writes it while the part or an
    /// operation holding the part exists.
    pub unsafe fn exclusive(ptr: NonNull<u8>, len: usize, keep: Option<KeepAlive>) -> Part {
        Part { ptr, len, exclusive: true, backing: Backing::Borrowed(keep) }
    }

    /// Shared, read-only access to `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` is initialised memory, valid for reads until the part is dropped (`keep`
    /// may be what ensures it), and nothing writes it while the part or an operation holding the
    /// part exists.
    pub unsafe fn shared(ptr: NonNull<u8>, len: usize, keep: Option<KeepAlive>) -> Part {
        Part { ptr, len, exclusive: false, backing: Backing::Borrowed(keep) }
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

    /// The pointer, for the backends that hand it to the kernel.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Whether the part may be written.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the constructors promise initialised memory that is valid for reads while the
        // part lives. The only writer is an operation that holds the part, and then this method
        // cannot be called.
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
        match self.backing {
            Backing::Buffer(buf) => Some(buf),
            Backing::SharedBuffer(buf) => Arc::try_unwrap(buf).ok(),
            Backing::Borrowed(_) => None,
        }
    }

    /// Split into two parts; the first has `at` bytes (at most all of them).
    pub fn split(self, at: usize) -> (Part, Part) {
        let at = at.min(self.len);
        // SAFETY: `at` is within the part, or one past its end.
        let second = unsafe { self.ptr.add(at) };
        let Part { ptr, len, exclusive, backing } = self;
        let (backing, rest_backing) = backing.split();
        let rest = Part { ptr: second, len: len - at, exclusive, backing: rest_backing };
        (Part { ptr, len: at, exclusive, backing }, rest)
    }

    /// Join two parts that [`Part::split`] made; hands both back if they are not adjacent in memory
    /// with one owner.
    pub fn join(self, next: Part) -> Result<Part, (Part, Part)> {
        let same_owner = match (&self.backing, &next.backing) {
            (Backing::SharedBuffer(a), Backing::SharedBuffer(b)) => Arc::ptr_eq(a, b),
            (Backing::Borrowed(Some(a)), Backing::Borrowed(Some(b))) => Arc::ptr_eq(a, b),
            (Backing::Borrowed(None), Backing::Borrowed(None)) => true,
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
        // SAFETY: the bytes are on the heap in the Arc that the part keeps, and initialised. They
        // are immutable while a clone of the Arc exists.
        unsafe { Part::shared(ptr, len, Some(Arc::new(bytes))) }
    }
}

/// Parts that several operations may read at once; they are handed back when no operation reads
/// them any more.
#[derive(Clone)]
pub struct SharedParts(Arc<Mutex<Vec<Part>>>);

impl SharedParts {
    /// Share `parts` with readers.
    pub fn new(parts: Vec<Part>) -> SharedParts {
        SharedParts(Arc::new(Mutex::new(parts)))
    }

    /// Access the parts, for their addresses. While the value exists the memory is not written, so
    /// the bytes may be read too.
    pub fn with_parts<R>(&self, look: impl FnOnce(&[Part]) -> R) -> R {
        look(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Read-only parts of the same bytes.
    pub fn parts(&self) -> Vec<Part> {
        let keep: KeepAlive = self.0.clone();
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = |part: &Part| {
            // SAFETY: `keep` holds the part that owns or borrows the memory. Only that part could
            // write, and nothing accesses it while a reader keeps the Arc from being unwrapped.
            unsafe { Part::shared(part.ptr, part.len, Some(keep.clone())) }
        };
        parts.iter().map(reader).collect()
    }

    /// Take the parts back; `None` while readers exist.
    pub fn into_parts(self) -> Option<Vec<Part>> {
        let parts = Arc::try_unwrap(self.0).ok()?;
        Some(parts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes parts of memory that is borrowed for the length of a call. [`BorrowScope::scope`] does not
/// return while any of its parts exists: it aborts the process rather than let the kernel write
/// into memory whose borrow has ended. So its user must wait for every operation first.
pub struct BorrowScope<'mem> {
    loans: Arc<()>,
    _memory: std::marker::PhantomData<std::cell::Cell<&'mem mut ()>>,
}

impl<'mem> BorrowScope<'mem> {
    /// Run `body` with a lender, and abort the process if a part of it still exists afterwards.
    pub fn scope<R>(body: impl FnOnce(&BorrowScope<'mem>) -> R) -> R {
        struct AbortOnLeak(Arc<()>);
        impl Drop for AbortOnLeak {
            fn drop(&mut self) {
                // The guard's own count and the lender's; also reached when `body` panics.
                let on_loan = Arc::strong_count(&self.0) > 1;
                // Accesses of other threads to the memory happen before it is returned.
                std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                if on_loan {
                    std::process::abort();
                }
            }
        }
        let lender = BorrowScope { loans: Arc::new(()), _memory: std::marker::PhantomData };
        let abort_on_loan = AbortOnLeak(lender.loans.clone());
        let lender = std::panic::AssertUnwindSafe(lender);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&lender)));
        drop(lender);
        drop(abort_on_loan);
        match result {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// A part that borrows bytes for writing.
    pub fn exclusive(&self, bytes: &'mem mut [u8]) -> Part {
        let (ptr, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // SAFETY: the borrow lasts for 'mem, which outlives `scope`'s call, and `scope` does not
        // return while the part, which holds a clone of `loans`, exists.
        unsafe { Part::exclusive(ptr, len, Some(self.loans.clone())) }
    }

    /// A part that borrows bytes for reading.
    pub fn shared(&self, bytes: &'mem [u8]) -> Part {
        let (ptr, len) = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: as in `exclusive`, with a shared borrow for shared access.
        unsafe { Part::shared(ptr, len, Some(self.loans.clone())) }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part(len={}, exclusive={})", self.len, self.exclusive)
    }
}

#[cfg(test)]
mod tests;
