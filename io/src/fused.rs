//! A copy, and the checksum of what was copied, in one pass: each byte is loaded once, and what is hashed is what is stored.
//!
//! A copy that is hashed behind itself goes over the bytes twice, and loads them again. One pass is as quick as `memcpy` where bytes
//! come from memory, and of bytes that another process may change meanwhile it makes the checksum of the copy, whatever they were.

use pagelith_layouts::checksum::{Checksum, StreamChecksum, checksum};

#[cfg(target_arch = "x86_64")]
use stripes::{Accumulators, SHORT_MAX, STRIPE};

pub use blocks::{Copier, Piece, copy_blocks};

mod blocks;
#[cfg(target_arch = "x86_64")]
mod stripes;

/// Bytes ahead that a copy asks for: what is on its way from memory while the multiplications of the lines before are made. As good as
/// any of 0 to 8192 on one kind of CPU.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 4096;

/// Stretches up to this long are copied plainly: what they begin and end in are parts of lines of the cache, mostly.
#[cfg(target_arch = "x86_64")]
const PLAIN_BYTES: usize = 192;

/// Copies of so many bytes together go past the cache: most of them would be out of it again before anybody looks at them. Of
/// 8 MiB both ways were as quick on one kind of CPU (`docs/decisions/0048-copied-and-hashed-in-one-pass.md`).
const WIDE_BYTES: u64 = 8 << 20;

/// Where stores go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Into the cache: for what is looked at next, and for memory that the cache has.
    Cached,
    /// Past it, where the CPU can: a plain copy first reads what it overwrites. For memory that is not looked at again soon.
    PastCache,
}

impl Stores {
    /// For somebody who is given so many bytes at once, and may look at them next.
    pub fn of(bytes: u64) -> Stores {
        if bytes < WIDE_BYTES { Stores::Cached } else { Stores::PastCache }
    }
}

/// A block that is copied in pieces of any length, one after the other. Whoever makes one waits for what it stores past the cache ([`settle`]).
pub(crate) struct BlockCopy {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "elsewhere all copies are plain"))]
    stores: Stores,
    /// Bytes still to come.
    left: usize,
    sum: Sum,
}

/// Wait for stores past the cache. They may be seen after later ones; whoever is told of these bytes by a lock or an atomic must see them.
fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

enum Sum {
    #[cfg(target_arch = "x86_64")]
    Fused(Fused),
    /// Behind each copy: of short blocks, and where the CPU has no vectors that are known here.
    Behind(Behind),
}

enum Behind {
    Nothing,
    Whole(Checksum),
    Pieces(Box<StreamChecksum>),
}

impl BlockCopy {
    /// Of a block of `len` bytes.
    fn new(len: usize, stores: Stores) -> BlockCopy {
        let mut block = BlockCopy { stores, left: 0, sum: Sum::Behind(Behind::Nothing) };
        block.begin(len);
        block
    }

    /// Another block, in place: see [`Fused::finish`].
    fn begin(&mut self, len: usize) {
        self.left = len;
        match &mut self.sum {
            #[cfg(target_arch = "x86_64")]
            Sum::Fused(fused) if len > SHORT_MAX => fused.begin(len),
            #[cfg(target_arch = "x86_64")]
            sum if len > SHORT_MAX && std::arch::is_x86_feature_detected!("avx2") => {
                *sum = Sum::Fused(Fused::new(len));
            }
            sum => *sum = Sum::Behind(Behind::Nothing),
        }
    }

    /// Copy the next bytes.
    ///
    /// # Panics
    /// If the lengths differ, or are more than what is left of the block.
    fn piece(&mut self, to: &mut [u8], from: &[u8]) {
        assert_eq!(to.len(), from.len(), "copies are between equal lengths");
        // SAFETY: a borrow: so many bytes, that nobody writes meanwhile, and apart from what is borrowed to be written.
        unsafe { self.copy::<false>(to, from.as_ptr()) }
    }

    /// The same, of bytes that another process may write meanwhile. What is copied is what it had there, or a mixture, and the checksum is of
    /// the copy.
    ///
    /// # Safety
    /// `to.len()` bytes at `from` can be read, nothing in this process writes them, and they are no part of `to`.
    ///
    /// # Panics
    /// If these are more bytes than what is left of the block.
    pub(crate) unsafe fn piece_shared(&mut self, to: &mut [u8], from: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { self.copy::<true>(to, from) }
    }

    /// The next bytes have come to where they belong by themselves.
    ///
    /// # Panics
    /// If these are more bytes than what is left of the block.
    pub(crate) fn came(&mut self, bytes: &[u8]) {
        let mut nowhere = [0; 4096];
        let stores = std::mem::replace(&mut self.stores, Stores::Cached);
        bytes.chunks(nowhere.len()).for_each(|bytes| self.piece(&mut nowhere[..bytes.len()], bytes));
        self.stores = stores;
    }

    /// # Safety
    /// `to.len()` bytes at `from` can be read, and are no part of `to`. Nobody writes there meanwhile, but for other processes with `SHARED`.
    unsafe fn copy<const SHARED: bool>(&mut self, to: &mut [u8], from: *const u8) {
        self.left = self.left.checked_sub(to.len()).expect("no more than the block has");
        match &mut self.sum {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise; that the CPU has AVX2 was asked when this was made.
            Sum::Fused(fused) => unsafe { fused.copy::<SHARED>(to, from, self.stores) },
            Sum::Behind(behind) => {
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
                behind.take(to, self.left == 0);
            }
        }
    }

    /// The checksum of what was copied, as little-endian bytes have it. A number, and not bytes in memory: what is stored by two instructions and
    /// loaded by one waits for all stores before it, those of the block among them.
    ///
    /// # Panics
    /// If bytes of the block are missing.
    fn finish(&mut self) -> u128 {
        assert_eq!(self.left, 0, "the block is not whole");
        match &mut self.sum {
            #[cfg(target_arch = "x86_64")]
            Sum::Fused(fused) => fused.finish(),
            Sum::Behind(Behind::Nothing) => u128::from_le_bytes(checksum(&[])),
            Sum::Behind(Behind::Whole(sum)) => u128::from_le_bytes(*sum),
            Sum::Behind(Behind::Pieces(stream)) => u128::from_le_bytes(stream.finish()),
        }
    }
}

impl Behind {
    fn take(&mut self, bytes: &[u8], is_last: bool) {
        match self {
            _ if bytes.is_empty() => {}
            Behind::Nothing if is_last => *self = Behind::Whole(checksum(bytes)),
            Behind::Nothing => {
                let mut stream = Box::new(StreamChecksum::new());
                stream.update(bytes);
                *self = Behind::Pieces(stream);
            }
            Behind::Pieces(stream) => stream.update(bytes),
            Behind::Whole(_) => unreachable!("behind the last bytes there are none"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
struct Fused {
    sum: Accumulators,
    length: usize,
    /// Stripes that were taken in.
    stripes: usize,
    /// The last of them.
    before: [u8; STRIPE],
    /// The bytes behind it.
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

    /// Stripes that are taken in on the way: those before the last byte.
    fn stripes_max(&self) -> usize {
        (self.length - 1) / STRIPE
    }

    /// # Safety
    /// As [`BlockCopy::copy`], no more than there is left of the block, and the CPU has AVX2.
    unsafe fn copy<const SHARED: bool>(&mut self, to: &mut [u8], from: *const u8, stores: Stores) {
        let mut done = 0;
        if self.in_part > 0 {
            done = to.len().min(STRIPE - self.in_part);
            // SAFETY: the caller's promise, of the first bytes.
            unsafe { self.fill_part::<SHARED>(&mut to[..done], from) };
            if self.in_part < STRIPE || self.stripes == self.stripes_max() {
                return;
            }
            // SAFETY: a stripe of this value's own, to another.
            unsafe {
                let (before, part) = (self.before.as_mut_ptr(), self.part.as_ptr());
                self.sum.copy::<false, false>(before, part, 1, self.stripes)
            };
            (self.stripes, self.in_part) = (self.stripes + 1, 0);
        }
        let (to, from) = (&mut to[done..], from.wrapping_add(done));
        let count = (to.len() / STRIPE).min(self.stripes_max() - self.stripes);
        let is_past =
            stores == Stores::PastCache && count * STRIPE > PLAIN_BYTES && to.as_ptr().addr() % 32 == 0;
        // SAFETY: as many stripes lie in `to` and, by the caller's promise, at `from`; what is stored past the cache begins at a
        // multiple of 32.
        unsafe {
            match is_past {
                true => self.stripes::<true, SHARED>(to, from, count),
                false => self.stripes::<false, SHARED>(to, from, count),
            }
        }
    }

    /// Copy whole stripes, and what is behind them: fewer bytes than another, or the block's last ones.
    ///
    /// # Safety
    /// As [`BlockCopy::copy`], the CPU has AVX2, and `to` has so many stripes, with `PAST` from a multiple of 32 on.
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
                // SAFETY: a stripe of `to`, at a multiple of 32 if those before it are, and of what is at `from` by the caller's promise.
                unsafe { stripes::copy_kept::<PAST, SHARED>(rest, from, &mut self.part) };
                self.in_part = STRIPE;
            }
            // SAFETY: the caller's promise.
            Err(_) => unsafe { self.fill_part::<SHARED>(rest, from) },
        }
    }

    /// Copy bytes to `to`, and keep them.
    ///
    /// # Safety
    /// As [`BlockCopy::copy`], and the CPU has AVX2.
    unsafe fn fill_part<const SHARED: bool>(&mut self, to: &mut [u8], from: *const u8) {
        let part = &mut self.part[self.in_part..self.in_part + to.len()];
        // SAFETY: the caller's promise.
        unsafe { stripes::take::<SHARED>(part, from) };
        to.copy_from_slice(part);
        self.in_part += to.len();
    }

    /// Of a block of whole stripes nothing is moved, and nothing read in one load that was stored by several: such a load waits for all stores
    /// before it, also those past the cache.
    fn finish(&self) -> u128 {
        if self.in_part == STRIPE {
            return self.sum.finish(&self.part, self.length as u64);
        }
        let mut last = self.part;
        // The last 64 bytes, of which the stripe before has the first ones.
        last.rotate_left(self.in_part);
        last[..STRIPE - self.in_part].copy_from_slice(&self.before[self.in_part..]);
        self.sum.finish(&last, self.length as u64)
    }
}

#[cfg(test)]
mod tests;
