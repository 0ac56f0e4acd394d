//! SGLang's page hash chain: which prefix hash a page of tokens has.
//!
//! A page is named by SHA-256 of the hash before it and its own tokens, so that a hash stands for every token up to
//! the page's end. It says nothing of dtype, page size, layout or layers: those belong into the namespace.
//! Source of the rule: SGLang 0.5.23, `mem_cache/utils.py` and `mem_cache/cpp_utils/hash_binding.cpp`.

use sha2::{Digest, Sha256};

use crate::ids::PrefixHash;

/// The hash before a chain's first page: `None` if neither an extra key (a LoRA's, say) nor a cache salt is given.
/// An empty string differs from none.
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

/// The hash of one page that follows `prior` (a page's hash or a [`namespace_seed`]; `None` at a chain's start).
/// Tokens are hashed as 32-bit little-endian numbers; if one of the page needs more, all of it as 64-bit ones behind
/// a byte 0xff. SGLang refuses tokens of 2^63 and more.
pub fn page_hash<T: Copy + Into<u64>>(prior: Option<PrefixHash>, tokens: &[T]) -> PrefixHash {
    hash_words(prior, tokens.iter().map(|token| (*token).into()))
}

/// The hashes of all whole pages of `tokens`, `page_tokens` tokens each, in order. A tail shorter than a page has
/// none; no page has none.
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

/// The hashes of all whole pages of token pairs (EAGLE): page `p` holds the pairs `(t_i, t_i+1)` for `page_tokens`
/// values of `i` from `p * page_tokens`, so that neighbouring pages share a token and `n` tokens make `n - 1` pairs.
pub fn pair_page_hashes<T: Copy + Into<u64>>(
    mut prior: Option<PrefixHash>,
    tokens: &[T],
    page_tokens: usize,
) -> Vec<PrefixHash> {
    let pairs = tokens.len().saturating_sub(1);
    let pages = pairs.checked_div(page_tokens).unwrap_or(0);
    let mut hashes = Vec::with_capacity(pages);
    for page in tokens.windows(page_tokens.saturating_add(1)).step_by(page_tokens.max(1)).take(pages) {
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
