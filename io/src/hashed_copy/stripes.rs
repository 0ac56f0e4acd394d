//! XXH3's long form (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>, "XXH3
//! algorithm description for long inputs"), in steps of one stripe, whose bytes are stored as they
//! are hashed. It uses AVX2, which nearly every x86-64 server has: wider vectors are no faster for
//! bytes that come from memory.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm256_add_epi64,
    _mm256_loadu_si256, _mm256_mul_epu32, _mm256_set_m128i, _mm256_set1_epi64x,
    _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_stream_si256, _mm256_xor_si256,
};

/// Bytes of a stripe.
pub(crate) const STRIPE: usize = 64;
/// Prefetch distance of a copy in bytes: these bytes are on their way from memory during the
/// multiplications for the previous lines. Any distance from 0 to 8192 was equally good on one kind
/// of CPU.
const AHEAD: usize = 4096;
/// Inputs up to this long use other forms of XXH3.
pub(crate) const SHORT_MAX: usize = 240;
/// Stripes between two scrambles: the number of offsets in the secret, 8 bytes apart.
const ROUND: usize = (SECRET.len() - STRIPE) / 8;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const PRIME_MX1: u64 = 0x1656_6791_9E37_79F9;

/// The secret of unseeded hashes.
#[rustfmt::skip]
static SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The hash state: eight words, used as two vectors.
#[derive(Clone, Copy)]
pub(crate) struct Accumulators([u64; 8]);

impl Accumulators {
    /// The initial state.
    pub(crate) const NEW: Accumulators = Accumulators([
        PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
    ]);

    /// Hash `count` stripes from `from` on, the first being stripe `first` of the input, and store
    /// them from `to` on. With `PAST` the stores are non-temporal, and the caller must wait for
    /// them. With `SHARED` each byte is loaded exactly once, however the compiler arranges the
    /// rest: others may write there meanwhile. The bytes [`AHEAD`] after each stripe are
    /// prefetched.
    ///
    /// # Safety
    /// The CPU has AVX2. `count` stripes can be read at `from` and written at `to`, which with
    /// `PAST` is a multiple of 32; the two do not overlap. The bytes at `from` are not written
    /// meanwhile, except by other processes with `SHARED`.
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn copy<const PAST: bool, const SHARED: bool>(
        &mut self,
        to: *mut u8,
        from: *const u8,
        count: usize,
        first: usize,
    ) {
        let acc = self.0.as_mut_ptr().cast::<__m256i>();
        // Loaded in halves, since a build for baseline x86-64 stores the initial state in halves. A
        // load of a value that two instructions stored waits for all earlier stores, those of the
        // previous block among them.
        let halves = self.0.as_ptr().cast::<__m128i>();
        // SAFETY: eight words are four halves.
        let half = |at: usize| unsafe { _mm_loadu_si128(halves.add(at)) };
        let mut acc_now = [_mm256_set_m128i(half(1), half(0)), _mm256_set_m128i(half(3), half(2))];
        let mut at = 0;
        while at < count {
            let position = (first + at) % ROUND;
            let stripes = (ROUND - position).min(count - at);
            // A whole round has a length that the compiler knows, so that it unrolls the loop.
            for n in position..position + if stripes == ROUND { ROUND } else { stripes } {
                let offset = (at + n - position) * STRIPE;
                // SAFETY: stripe `at + n - position` is below `count`, and the secret has a stripe
                // at `8 * n` for every `n` of a round. The prefetched address may be unmapped: a
                // prefetch reads nothing.
                unsafe {
                    let (from, to) = (from.add(offset), to.add(offset));
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                    let secret = SECRET.as_ptr().add(8 * n);
                    for (half, acc) in acc_now.iter_mut().enumerate() {
                        let bytes = 32 * half;
                        let data = load::<SHARED>(from.add(bytes));
                        store::<PAST>(to.add(bytes), data);
                        *acc =
                            accumulated(*acc, data, _mm256_loadu_si256(secret.add(bytes).cast()));
                    }
                }
            }
            at += stripes;
            if position + stripes == ROUND {
                for (half, acc) in acc_now.iter_mut().enumerate() {
                    // SAFETY: the last 64 bytes of the secret.
                    let secret = unsafe {
                        _mm256_loadu_si256(
                            SECRET.as_ptr().add(SECRET.len() - STRIPE + 32 * half).cast(),
                        )
                    };
                    *acc = scrambled(*acc, secret);
                }
            }
        }
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_si256(acc, acc_now[0]);
            _mm256_storeu_si256(acc.add(1), acc_now[1]);
        }
    }

    /// The hash of an input of `length` bytes whose last 64 are `last`, after all stripes before
    /// the last byte were hashed.
    pub(crate) fn finish(&self, last: &[u8; STRIPE], length: u64) -> u128 {
        let secret = &SECRET[SECRET.len() - STRIPE - 7..];
        let lane = |lane: usize| {
            let key = word(last, lane) ^ word(secret, lane);
            let product = (key & 0xFFFF_FFFF) * (key >> 32);
            self.0[lane].wrapping_add(word(last, lane ^ 1)).wrapping_add(product)
        };
        let all = Accumulators([0, 1, 2, 3, 4, 5, 6, 7].map(lane));
        let low = all.merged(&SECRET[11..], length.wrapping_mul(PRIME64_1));
        let high =
            all.merged(&SECRET[SECRET.len() - STRIPE - 11..], !length.wrapping_mul(PRIME64_2));
        u128::from(high) << 64 | u128::from(low)
    }

    fn merged(&self, secret: &[u8], start: u64) -> u64 {
        let fold = |pair: usize| {
            let of = |lane: usize| u128::from(self.0[lane] ^ word(secret, lane));
            let product = of(2 * pair) * of(2 * pair + 1);
            product as u64 ^ (product >> 64) as u64
        };
        let sum = (0..4).map(fold).fold(start, u64::wrapping_add);
        let sum = (sum ^ sum >> 37).wrapping_mul(PRIME_MX1);
        sum ^ sum >> 32
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    u64::from_le_bytes(words[at])
}

/// Copy part of a stripe to private memory; with `SHARED` each byte is loaded exactly once.
///
/// # Safety
/// The CPU has AVX2, and `to.len()` bytes can be read at `from`, which do not overlap `to`. They
/// are not written meanwhile, except by other processes with `SHARED`.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy_partial<const SHARED: bool>(to: &mut [u8], from: *const u8) {
    if !SHARED {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
    let (wide, rest) = to.as_chunks_mut::<32>();
    let tail = from.wrapping_add(32 * wide.len());
    for (at, to) in wide.iter_mut().enumerate() {
        // SAFETY: 32 bytes of `to`, and as many at `from` by the caller's promise.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), load::<SHARED>(from.add(32 * at))) }
    }
    for (at, to) in rest.iter_mut().enumerate() {
        // SAFETY: one of the bytes after those, by the caller's promise.
        *to = unsafe { tail.add(at).read_volatile() };
    }
}

/// Copy a stripe that is not hashed yet, and keep a copy of it; `PAST` and `SHARED` as in
/// [`Accumulators::copy`].
///
/// # Safety
/// As [`Accumulators::copy`], for one stripe.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn copy_kept<const PAST: bool, const SHARED: bool>(
    to: &mut [u8; STRIPE],
    from: *const u8,
    kept: &mut [u8; STRIPE],
) {
    for bytes in [0, 32] {
        // SAFETY: half a stripe of each, by the caller's promise and their types.
        unsafe {
            let data = load::<SHARED>(from.add(bytes));
            _mm256_storeu_si256(kept.as_mut_ptr().add(bytes).cast(), data);
            store::<PAST>(to.as_mut_ptr().add(bytes), data);
        }
    }
}

/// # Safety
/// The CPU has AVX2, and 32 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load<const SHARED: bool>(from: *const u8) -> __m256i {
    if !SHARED {
        // SAFETY: the caller's promise.
        return unsafe { _mm256_loadu_si256(from.cast()) };
    }
    let data;
    // SAFETY: the caller's promise. The compiler neither repeats nor omits inline assembly.
    unsafe {
        asm!("vmovdqu {data}, ymmword ptr [{from}]", data = out(ymm_reg) data, from = in(reg) from,
            options(nostack, readonly, preserves_flags));
    }
    data
}

/// # Safety
/// The CPU has AVX2, and 32 bytes can be written at `to`, which with `PAST` is a multiple of 32.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const PAST: bool>(to: *mut u8, data: __m256i) {
    // SAFETY: the caller's promise.
    unsafe {
        match PAST {
            true => _mm256_stream_si256(to.cast(), data),
            false => _mm256_storeu_si256(to.cast(), data),
        }
    }
}

/// The state after half a stripe.
#[inline]
#[target_feature(enable = "avx2")]
fn accumulated(acc: __m256i, data: __m256i, secret: __m256i) -> __m256i {
    let key = _mm256_xor_si256(data, secret);
    let product = _mm256_mul_epu32(key, _mm256_srli_epi64::<32>(key));
    // Swap the words of each pair.
    let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
    _mm256_add_epi64(product, _mm256_add_epi64(acc, swapped))
}

#[inline]
#[target_feature(enable = "avx2")]
fn scrambled(acc: __m256i, secret: __m256i) -> __m256i {
    let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
    let mixed = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64::<47>(acc)), secret);
    let low = _mm256_mul_epu32(mixed, prime);
    let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
    _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
}
