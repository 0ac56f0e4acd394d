//! SGLang's page hash chain: the prefix hash of a page of tokens.
//!
//! The hash of a page is SHA-256 of the previous page's hash and the page's own tokens, so that it
//! covers every token up to the end of the page. It does not cover dtype, page size, layout or
//! layers: those belong in the namespace. Source of the rule: SGLang 0.5.23, `mem_cache/utils.py`
//! and `mem_cache/cpp_utils/hash_binding.cpp`.

use sha2::{Digest, Sha256};

use crate::ids::PrefixHash;

/// The hash before a chain's first page: `None` if neither an extra key (for example of a LoRA) nor
/// a cache salt is given. An empty string differs from `None`.
pub fn namespace_seed(extra_key: Option<&str>, cache_salt: Option<&str>) -> Option<PrefixHash> {
    if extra_key.is_none() && cache_salt.is_none() {
        return None;
    }
    let mut h = Sha256::new_with_prefix(b"sglang-cache-namespace-v1");
    for part in [extra_key, cache_salt] {
        match part {
            None => h.update([0]),
            Some(text) => {
                h.update([1]);
                h.update((text.len() as u64).to_le_bytes());
                h.update(text.as_bytes());
            }
        }
    }
    Some(PrefixHash(h.finalize().into()))
}

/// The hash of one page that follows `prior` (a page's hash or a [`namespace_seed`]; `None` at the
/// start of a chain). Tokens are hashed as 32-bit little-endian numbers. If a token of the page
/// needs more bits, a byte 0xff is hashed first and all tokens of the page are hashed as 64-bit
/// numbers. SGLang refuses tokens of 2^63 and more.
pub fn page_hash<T: Copy + Into<u64>>(prior: Option<PrefixHash>, tokens: &[T]) -> PrefixHash {
    hash_words(prior, tokens.iter().map(|token| (*token).into()))
}

/// The hashes of all whole pages of `tokens`, in order, with `page_tokens` tokens each. A tail
/// shorter than a page is ignored; `page_tokens` of 0 gives no hashes.
pub fn page_hashes<T: Copy + Into<u64>>(
    mut prior: Option<PrefixHash>,
    tokens: &[T],
    page_tokens: usize,
) -> Vec<PrefixHash> {
    if page_tokens == 0 {
        return Vec::new();
    }
    let next = |page| *prior.insert(page_hash(prior, page));
    tokens.chunks_exact(page_tokens).map(next).collect()
}

/// The hashes of all whole pages of token pairs (EAGLE). Page `p` has the pairs `(t_i, t_i+1)` for
/// `page_tokens` values of `i` from `p * page_tokens`. Neighbouring pages share a token, and `n`
/// tokens form `n - 1` pairs.
pub fn pair_page_hashes<T: Copy + Into<u64>>(
    mut prior: Option<PrefixHash>,
    tokens: &[T],
    page_tokens: usize,
) -> Vec<PrefixHash> {
    let pairs = tokens.len().saturating_sub(1);
    let pages = pairs.checked_div(page_tokens).unwrap_or(0);
    let mut hashes = Vec::with_capacity(pages);
    for page in
        tokens.windows(page_tokens.saturating_add(1)).step_by(page_tokens.max(1)).take(pages)
    {
        let words = page.windows(2).flatten().map(|token| (*token).into());
        hashes.push(*prior.insert(hash_words(prior, words)));
    }
    hashes
}

fn hash_words(prior: Option<PrefixHash>, words: impl Iterator<Item = u64> + Clone) -> PrefixHash {
    let mut h = Sha256::new();
    if let Some(prior) = prior {
        h.update(prior.0);
    }
    if words.clone().any(|word| word > u64::from(u32::MAX)) {
        h.update([0xff]);
        words.for_each(|word| h.update(word.to_le_bytes()));
    } else {
        words.for_each(|word| h.update((word as u32).to_le_bytes()));
    }
    PrefixHash(h.finalize().into())
}
