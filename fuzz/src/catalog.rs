//! A catalog as the store of another process may leave it: a real one, overwritten.

use std::os::fd::{AsFd, OwnedFd};

use pagelith_io::shm::{Catalog, CatalogView, Posted, View};
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, blocks_in, checksum};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::shard::Shard;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{pread, pwrite};

const OBJECTS: u8 = 12;
const ROWS: usize = 16;
/// What the catalog is of.
const BYTES: u64 = 4 << 20;
/// One edit: where, as a word of the memory (two bytes), and what is written there (eight).
const EDIT: usize = 10;

fn key(number: u8) -> ObjectKey {
    let hash = PrefixHash([number; 32]);
    ObjectKey::new(NamespaceId([1; 16]), hash, Role::Target, "kv", "k", Shard::Whole).expect("a key")
}

fn length(number: u8) -> u64 {
    [1, 65_536, 65_537, 300_000][usize::from(number % 4)]
}

fn sums(number: u8) -> Vec<Checksum> {
    blocks_in(0..length(number), BLOCK_BYTES)
        .map(|block| checksum(&[number, (block.start / 32_768) as u8]))
        .collect()
}

/// Memory of a catalog with some objects, as it was shown.
fn posted() -> Vec<u8> {
    let mut catalog = Catalog::new(ROWS, BYTES).expect("memory");
    for number in 0..OBJECTS {
        let place = u64::from(number) * 300_000u64.next_multiple_of(4096);
        let (key, sums) = (key(number), sums(number));
        assert!(
            catalog.post(number.into(), &Posted { key: &key, place, length: length(number), sums: &sums })
        );
    }
    let mut bytes = vec![0; catalog.region().len()];
    let mut read = 0;
    while read < bytes.len() {
        read += pread(catalog.region().as_fd(), &mut bytes[read..], read as u64).expect("it can be read");
    }
    bytes
}

fn handed(bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create("catalog", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
    let mut written = 0;
    while written < bytes.len() {
        written += pwrite(&fd, &bytes[written..], written as u64).expect("it can be written");
    }
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seals");
    fd
}

/// What is found in a catalog with these edits, of those that were posted and of others; `None` if it is none any more. What is found is said to hold,
/// and has as many checksums as blocks.
pub fn run(data: &[u8]) -> Option<usize> {
    let mut bytes = posted();
    let words = bytes.len() / 8;
    for edit in data.chunks_exact(EDIT) {
        // The head, the cells and the rows are all within the first words; the checksums of long objects lie behind.
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % words;
        bytes[8 * at..8 * at + 8].copy_from_slice(&edit[2..]);
    }
    // What is left of an edit makes it shorter.
    let cut = data.chunks_exact(EDIT).remainder().first().map_or(0, |cut| usize::from(*cut) * 64);
    bytes.truncate(bytes.len().saturating_sub(cut).max(8));
    let view = CatalogView::of(View::shared(handed(&bytes), None).expect("memory"))?;
    let keys: Vec<ObjectKey> = (0..2 * OBJECTS).map(key).collect();
    let found = view.find(&keys);
    assert_eq!(found.len(), keys.len());
    for found in found.iter().flatten() {
        assert!(view.behind().holds(found), "nobody writes there now");
        assert_eq!(found.sums.len() as u64, found.length.div_ceil(BLOCK_BYTES.into()));
    }
    let here: Vec<ObjectKey> =
        keys.iter().zip(&found).filter_map(|(key, found)| found.as_ref().map(|_| *key)).collect();
    assert!(view.has_all(&here), "nobody writes there now");
    let rows = keys.iter().filter(|key| view.has_all(std::slice::from_ref(key))).count();
    assert!(rows >= here.len(), "what is found is there");
    Some(found.iter().flatten().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(at: u16, word: u64) -> Vec<u8> {
        [&at.to_le_bytes()[..], &word.to_le_bytes()].concat()
    }

    #[test]
    fn what_is_posted_is_found_and_what_is_overwritten_is_not() {
        assert_eq!(run(&[]), Some(OBJECTS.into()));
        assert_eq!(run(&edit(0, 7)), None, "it is no catalog");
        assert_eq!(run(&edit(1, u64::MAX)), None, "of so many rows");
        assert_eq!(run(&edit(2, u64::MAX)), None, "of so much memory");
        assert_eq!(run(&[255]), None, "it is shorter than it says");
        // The first row's version and length; a length that nothing has.
        let first = 512 + 32;
        assert_eq!(run(&edit(first, 2)), Some(usize::from(OBJECTS) - 1));
        assert_eq!(run(&edit(first + 1, u64::MAX)), Some(usize::from(OBJECTS) - 1));
        assert_eq!(
            run(&edit(first + 24 + 2, u64::MAX)),
            Some(usize::from(OBJECTS)),
            "the place is for who copies to look at"
        );
    }
}
