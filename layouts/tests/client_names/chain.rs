//! The page hash chain. Expected values were computed independently of this code, from the rule in
//! `docs/names.md`.

use pagelith_layouts::client_names::chain::{
    namespace_seed, page_hash, page_hashes, pair_page_hashes,
};
use pagelith_layouts::ids::PrefixHash;

fn hash(hex: &str) -> PrefixHash {
    PrefixHash::from_hex(hex).expect("64 digits")
}

#[test]
fn page_hash_depends_on_previous_pages() {
    let pages = [
        hash("cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"),
        hash("4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"),
    ];
    // The tenth token begins an incomplete page.
    assert_eq!(page_hashes(None, &[1u32, 2, 3, 4, 5, 6, 7, 8, 9], 4), pages);
    assert_eq!(
        page_hashes(None, &[1u64, 2, 3, 4, 5, 6, 7, 8], 4),
        pages,
        "the width of the caller's type is none"
    );
    assert_eq!(page_hashes(Some(pages[0]), &[5u32, 6, 7, 8], 4), pages[1..]);
    assert_eq!(page_hashes(None, &[1u32, 2, 3], 4), []);
    assert_eq!(page_hashes(None, &[1u32, 2, 3], 0), []);
}

#[test]
fn namespace_seed_separates_hash_chains() {
    let lora = hash("407c773a7c02b33bd4a62af6bf5fc77997c2c8067811ecf2b39e3839c3f4284b");
    assert_eq!(namespace_seed(None, None), None);
    assert_eq!(namespace_seed(Some("lora-a"), None), Some(lora));
    let empty_salt = hash("906782eeabf820a68eef4455ab98e5e86e311f658f7d7721723a97a90b81427e");
    assert_eq!(namespace_seed(None, Some("")), Some(empty_salt));
    let both_empty = hash("bea08aaebe976c9c4f8ebade6674ba3fe15783c47020e10c4721ad211aae36e4");
    assert_eq!(namespace_seed(Some(""), Some("")), Some(both_empty));
    let first = hash("e4f68dc4af99b6de199d5a048add282da40aa4ef97942ce9eca321bccada9376");
    assert_eq!(page_hash(Some(lora), &[1u32, 2, 3, 4]), first);
}

#[test]
fn page_with_64_bit_token_is_hashed_as_64_bit() {
    let wide = hash("66af2f218931e670270f1b4ea79f49befb670188f60c94856ed7a1743298f181");
    assert_eq!(page_hash(None, &[1u64, 1 << 32]), wide);
    assert_eq!(page_hash(None, &[1u64, u64::from(u32::MAX)]), page_hash(None, &[1u32, u32::MAX]));
}

#[test]
fn pages_of_token_pairs_overlap_by_one_token() {
    let pages = [
        hash("ede8ef26a097f0fd889f9f39f6f5af921370630b164c4a4fa28eb716b2df9269"),
        hash("678c5307f2a02a2aaf8edbeb80ebac13663f70e14a4fc8d5d62b77e702841e4b"),
    ];
    assert_eq!(pair_page_hashes(None, &[1u32, 2, 3, 4, 5], 2), pages);
    assert_eq!(
        pair_page_hashes(None, &[1u32, 2, 3, 4, 5, 6], 2),
        pages,
        "the fifth pair does not complete a page"
    );
    assert_eq!(pair_page_hashes(None, &[1u32, 2, 3, 4], 2), pages[..1]);
    for few in [&[][..], &[1], &[1, 2]] {
        assert_eq!(pair_page_hashes::<u32>(None, few, 2), []);
    }
    assert_eq!(pair_page_hashes(None, &[1u32, 2, 3], 0), []);
    assert_eq!(pair_page_hashes(None, &[1u32, 2, 3], usize::MAX), []);
}
