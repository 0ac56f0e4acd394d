//! A copy and the checksum of the copied bytes in one pass: each byte is loaded once, and the
//! hashed bytes are the stored ones.
//!
//! A copy followed by a hash passes over the bytes twice, and loads them again. One pass is as fast
//! as `memcpy` for bytes that come from memory. For bytes that another process may change
//! meanwhile, the checksum is that of the copy.

use pagelith_layouts::checksum::{Checksum, StreamChecksum, checksum};

#[cfg(target_arch = "x86_64")]
use stripes::{Accumulators, SHORT_MAX, STRIPE};

pub use blocks::{Copier, SourcePiece, copy_blocks};

mod blocks;
#[cfg(target_arch = "x86_64")]
mod stripes;

/// Runs of stripes up to this long are copied with ordinary stores: most of their lines are only
/// partly covered.
#[cfg(target_arch = "x86_64")]
const PLAIN_BYTES: usize = 192;

/// Copies from this total size on bypass the cache: most of the bytes would be evicted again before
/// they are read. At 8 MiB both kinds of store were equally fast on one kind of CPU
/// (`docs/decisions/0006-hashing-and-copying.md`).
const WIDE_BYTES: u64 = 8 << 20;

/// The kind of store that a copy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Ordinary stores: for bytes that are read next, and for memory that is cached.
    Cached,
    /// Non-temporal stores, where the CPU has them: an ordinary store first reads the line that it
    /// overwrites. For memory that is not read again soon.
    NonTemporal,
}

impl CopyMode {
    /// The kind for a caller that receives `bytes` bytes at once, and may read them next.
    pub fn of(bytes: u64) -> CopyMode {
        if bytes < WIDE_BYTES { CopyMode::Cached } else { CopyMode::NonTemporal }
    }
}

/// The copy of one block, in consecutive pieces of any length. Its user must call [`store_fence`]
/// after non-temporal stores.
pub(crate) struct BlockCopy {
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "on other CPUs all copies are plain")
    )]
    stores: CopyMode,
    /// Bytes of the block that are not copied yet.
    left: usize,
    sum: Sum,
}

/// Wait for non-temporal stores. They may become visible after later ones; a thread that learns of
/// these bytes through a lock or an atomic must see them.
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

enum Sum {
    #[cfg(target_arch = "x86_64")]
    Fused(Fused),
    /// A separate hash after each copy: for short blocks, and on CPUs without supported vector
    /// instructions.
    Separate(SeparateHash),
}

enum SeparateHash {
    Empty,
    Whole(Checksum),
    Pieces(Box<StreamChecksum>),
}

impl BlockCopy {
    /// Begin a block of `len` bytes.
    fn new(len: usize, stores: CopyMode) -> BlockCopy {
        let mut block = BlockCopy { stores, left: 0, sum: Sum::Separate(SeparateHash::Empty) };
        block.begin(len);
        block
    }

    /// Begin another block, reusing this value's memory: see [`Fused::finish`].
    fn begin(&mut self, len: usize) {
        self.left = len;
        match &mut self.sum {
            #[cfg(target_arch = "x86_64")]
            Sum::Fused(fused) if len > SHORT_MAX => fused.begin(len),
            #[cfg(target_arch = "x86_64")]
            sum if len > SHORT_MAX && std::arch::is_x86_feature_detected!("avx2") => {
                *sum = Sum::Fused(Fused::new(len));
            }
            sum => *sum = Sum::Separate(SeparateHash::Empty),
        }
    }

    /// Copy the next bytes.
    ///
    /// # Panics
    /// If the lengths differ, or are more than what is left of the block.
    fn piece(&mut self, to: &mut [u8], from: &[u8]) {
        assert_eq!(to.len(), from.len(), "copies are between equal lengths");
        // SAFETY: `from` is a borrow of `to.len()` bytes, which are not written meanwhile and do
        // not overlap the exclusive borrow `to`.
        unsafe { self.copy::<false>(to, from.as_ptr()) }
    }

    /// As [`BlockCopy::piece`], for bytes that another process may write meanwhile. The copy is
    /// then any mixture of old and new bytes, and the checksum is of the copy.
    ///
    /// # Safety
    /// `to.len()` bytes at `from` can be read, this process does not write them, and they do not
    /// overlap `to`.
    ///
    /// # Panics
    /// If the block has fewer bytes left.
    pub(crate) unsafe fn copy_shared(&mut self, to: &mut [u8], from: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { self.copy::<true>(to, from) }
    }

    /// Hash the next bytes of the block, which are already at their destination.
    ///
    /// # Panics
    /// If the block has fewer bytes left.
    pub(crate) fn hash_in_place(&mut self, bytes: &[u8]) {
        let mut discarded = [0; 4096];
        let stores = std::mem::replace(&mut self.stores, CopyMode::Cached);
        bytes
            .chunks(discarded.len())
            .for_each(|bytes| self.piece(&mut discarded[..bytes.len()], bytes));
        self.stores = stores;
    }

    /// # Safety
    /// `to.len()` bytes at `from` can be read, and do not overlap `to`. They are not written
    /// meanwhile, except by other processes with `SHARED`.
    unsafe fn copy<const SHARED: bool>(&mut self, to: &mut [u8], from: *const u8) {
        self.left = self.left.checked_sub(to.len()).expect("no more than the block has");
        match &mut self.sum {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise; AVX2 was detected when this value was made.
            Sum::Fused(fused) => unsafe { fused.copy::<SHARED>(to, from, self.stores) },
            Sum::Separate(hash) => {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
                hash.update(to, self.left == 0);
            }
        }
    }

    /// The checksum of the copied bytes, as little-endian bytes have it. It is a number, and not
    /// bytes in memory: a load of a value that two instructions stored waits for all earlier
    /// stores, those of the block among them.
    ///
    /// # Panics
    /// If bytes of the block are missing.
    fn finish(&mut self) -> u128 {
        assert_eq!(self.left, 0, "the block is not whole");
        match &mut self.sum {
            #[cfg(target_arch = "x86_64")]
            Sum::Fused(fused) => fused.finish(),
            Sum::Separate(SeparateHash::Empty) => u128::from_le_bytes(checksum(&[])),
            Sum::Separate(SeparateHash::Whole(sum)) => u128::from_le_bytes(*sum),
            Sum::Separate(SeparateHash::Pieces(stream)) => u128::from_le_bytes(stream.finish()),
        }
    }
}

impl SeparateHash {
    fn update(&mut self, bytes: &[u8], is_last: bool) {
        match self {
            _ if bytes.is_empty() => {}
            SeparateHash::Empty if is_last => *self = SeparateHash::Whole(checksum(bytes)),
            SeparateHash::Empty => {
                let mut stream = Box::new(StreamChecksum::new());
                stream.update(bytes);
                *self = SeparateHash::Pieces(stream);
            }
            SeparateHash::Pieces(stream) => stream.update(bytes),
            SeparateHash::Whole(_) => unreachable!("no bytes follow the last ones"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
struct Fused {
    sum: Accumulators,
    length: usize,
    /// Stripes that were hashed.
    stripes: usize,
    /// The last hashed stripe.
    before: [u8; STRIPE],
    /// The bytes after it.
    part: [u8; STRIPE],
    in_part: usize,
}

#[cfg(target_arch = "x86_64")]
impl Fused {
    fn new(length: usize) -> Fused {
        let none = [0; STRIPE];
        Fused { sum: Accumulators::NEW, length, stripes: 0, before: none, part: none, in_part: 0 }
    }

    fn begin(&mut self, length: usize) {
        (self.sum, self.length, self.stripes, self.in_part) = (Accumulators::NEW, length, 0, 0);
    }

    /// Stripes that are hashed during the copy: those that end before the last byte.
    fn stripes_max(&self) -> usize {
        (self.length - 1) / STRIPE
    }

    /// # Safety
    /// As [`BlockCopy::copy`], with at most the rest of the block, and the CPU has AVX2.
    unsafe fn copy<const SHARED: bool>(
        &mut self,
        to: &mut [u8],
        from: *const u8,
        stores: CopyMode,
    ) {
        let mut done = 0;
        if self.in_part > 0 {
            done = to.len().min(STRIPE - self.in_part);
            // SAFETY: the caller's promise, for the first bytes.
            unsafe { self.fill_part::<SHARED>(&mut to[..done], from) };
            if self.in_part < STRIPE || self.stripes == self.stripes_max() {
                return;
            }
            // SAFETY: both are stripes of this value.
            unsafe {
                let (before, part) = (self.before.as_mut_ptr(), self.part.as_ptr());
                self.sum.copy::<false, false>(before, part, 1, self.stripes)
            };
            (self.stripes, self.in_part) = (self.stripes + 1, 0);
        }
        let (to, from) = (&mut to[done..], from.wrapping_add(done));
        let count = (to.len() / STRIPE).min(self.stripes_max() - self.stripes);
        let bypasses_cache = stores == CopyMode::NonTemporal
            && count * STRIPE > PLAIN_BYTES
            && to.as_ptr().addr() % 32 == 0;
        // SAFETY: `to` contains `count` stripes, and so does `from` by the caller's promise.
        // Non-temporal stores begin at a multiple of 32.
        unsafe {
            match bypasses_cache {
                true => self.stripes::<true, SHARED>(to, from, count),
                false => self.stripes::<false, SHARED>(to, from, count),
            }
        }
    }

    /// Copy `count` whole stripes and the bytes after them, which are fewer than a stripe or the
    /// last of the block.
    ///
    /// # Safety
    /// As [`BlockCopy::copy`], the CPU has AVX2, and `to` has `count` stripes, with `PAST` from a
    /// multiple of 32 on.
    unsafe fn stripes<const PAST: bool, const SHARED: bool>(
        &mut self,
        to: &mut [u8],
        from: *const u8,
        count: usize,
    ) {
        let (whole, rest) = to.split_at_mut(count * STRIPE);
        // SAFETY: the caller's promise.
        unsafe { self.sum.copy::<PAST, SHARED>(whole.as_mut_ptr(), from, count, self.stripes) };
        self.stripes += count;
        if !self.length.is_multiple_of(STRIPE) && count > 0 {
            self.before.copy_from_slice(&whole[whole.len() - STRIPE..]);
        }
        let from = from.wrapping_add(whole.len());
        match <&mut [u8; STRIPE]>::try_from(&mut *rest) {
            Ok(rest) => {
                // SAFETY: `rest` is a stripe of `to`, at a multiple of 32 if those before it are;
                // by the caller's promise `from` has as many bytes.
                unsafe { stripes::copy_kept::<PAST, SHARED>(rest, from, &mut self.part) };
                self.in_part = STRIPE;
            }
            // SAFETY: the caller's promise.
            Err(_) => unsafe { self.fill_part::<SHARED>(rest, from) },
        }
    }

    /// Copy bytes to `to`, and keep them in `part`.
    ///
    /// # Safety
    /// As [`BlockCopy::copy`], and the CPU has AVX2.
    unsafe fn fill_part<const SHARED: bool>(&mut self, to: &mut [u8], from: *const u8) {
        let part = &mut self.part[self.in_part..self.in_part + to.len()];
        // SAFETY: the caller's promise.
        unsafe { stripes::copy_partial::<SHARED>(part, from) };
        to.copy_from_slice(part);
        self.in_part += to.len();
    }

    /// For a block of whole stripes no bytes are moved, and no load reads a value that several
    /// instructions stored: such a load waits for all earlier stores, also non-temporal ones.
    fn finish(&self) -> u128 {
        if self.in_part == STRIPE {
            return self.sum.finish(&self.part, self.length as u64);
        }
        let mut last = self.part;
        // The last 64 bytes of the block: the end of the previous stripe, then the partial one.
        last.rotate_left(self.in_part);
        last[..STRIPE - self.in_part].copy_from_slice(&self.before[self.in_part..]);
        self.sum.finish(&last, self.length as u64)
    }
}

#[cfg(test)]
mod tests;
