//! The owner of a page, by weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based
//! mappings to increase hit rates", 1998; weights as in Schindelhauer and Schomaker, "Weighted
//! distributed hash tables", 2005). Every member computes the same owner from names and weights
//! alone. A peer that joins or leaves moves only its own share.

use pagelith_layouts::checksum::checksum;
use pagelith_layouts::key::ObjectKey;

/// A peer that may own pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    /// Its name, the same at every member.
    pub name: String,
    /// Its share relative to the other weights; above 0.
    pub weight: f64,
}

/// The owner of the key's page, as an index into `owners`; `None` if that is empty. All objects of
/// a page have one owner.
pub fn owner_of(owners: &[Owner], key: &ObjectKey) -> Option<usize> {
    if owners.len() < 2 {
        return (!owners.is_empty()).then_some(0);
    }
    let page = [&key.namespace().0[..], &key.hash().0[..]].concat();
    let score = |owner: &Owner| {
        let hash = checksum(&[&page[..], owner.name.as_bytes()].concat());
        let hash = u64::from_le_bytes(*hash.first_chunk().unwrap_or(&[0; 8]));
        // Uniform in the open interval (0, 1).
        let uniform = (hash as f64 + 0.5) / (u64::MAX as f64 + 1.0);
        -owner.weight / uniform.ln()
    };
    let scores = owners.iter().map(score).enumerate();
    scores.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    fn key(page: u32, component: &str) -> ObjectKey {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&page.to_le_bytes());
        let namespace = NamespaceId([3; 16]);
        ObjectKey::new(namespace, PrefixHash(hash), Role::Target, "kv", component, Shard::Whole)
            .expect("a key")
    }

    fn owners(weights: &[f64]) -> Vec<Owner> {
        let owner = |(i, weight): (usize, &f64)| Owner {
            name: format!("tcp:10.0.0.{i}:7000"),
            weight: *weight,
        };
        weights.iter().enumerate().map(owner).collect()
    }

    #[test]
    fn owner_shares_follow_weights_and_page_has_one_owner() {
        let owners = owners(&[1.0, 2.0, 1.0]);
        let mut counts = [0usize; 3];
        for page in 0..20_000 {
            let owner = owner_of(&owners, &key(page, "k")).expect("an owner");
            assert_eq!(owner_of(&owners, &key(page, "v")), Some(owner));
            counts[owner] += 1;
        }
        for (count, share) in counts.into_iter().zip([5000usize, 10_000, 5000]) {
            assert!(count.abs_diff(share) < 350, "{counts:?}");
        }
        assert_eq!(owner_of(&[], &key(1, "k")), None);
    }

    #[test]
    fn removed_owner_moves_only_its_share() {
        let all = owners(&[1.0, 1.0, 3.0, 1.0]);
        let rest: Vec<Owner> = [0, 1, 3].map(|i| all[i].clone()).to_vec();
        for page in 0..5000 {
            let before = owner_of(&all, &key(page, "k")).expect("an owner");
            let after = owner_of(&rest, &key(page, "k")).expect("an owner");
            assert!(before == 2 || all[before] == rest[after], "page={page} was moved");
        }
    }
}
