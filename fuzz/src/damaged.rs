//! A store on the simulated disk whose files are overwritten by the input and reopened: manifest,
//! checkpoint and log through the recovery code.
//!
//! The input is a list of edits. Each has a file, a 4096-byte block of it, the change, and whether
//! the checksum of the structure that starts there is corrected.

use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::record::Record;
use pagelith::layouts::shard::Shard;
use pagelith::layouts::{footer::FooterTail, names};
use pagelith::{
    Config, GetOutcome, GetSlice, MachineLimits, Options, PutSlice, Size, Store, ValidConfig,
};
use pagelith_sim::disk::{CrashMode, DiskSnapshot, FaultPlan};
use pagelith_sim::env::SimWorld;

use crate::{BLOCK, seal};

/// Pages in the store when it was written.
const PAGES: u8 = 12;
const SEGMENT: usize = 1 << 20;
const FILES: [&str; 5] = [
    names::SEGMENTS,
    names::MANIFESTS[0],
    names::MANIFESTS[1],
    names::CHECKPOINTS[0],
    names::CHECKPOINTS[1],
];

/// The result of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenResult {
    /// The store opened.
    pub open: bool,
    /// Objects that were read.
    pub hits: usize,
}

/// A machine with a store, and its disk as the store left it.
pub struct DamagedStore {
    world: SimWorld,
    stores: [DiskSnapshot; 2],
    lengths: [Vec<usize>; 2],
}

fn config() -> ValidConfig {
    let mut c = Config::default();
    c.deadline_ms = 2_000;
    c.namespaces_max = 8;
    c.dram.bytes = Size::mib(1);
    c.ssd.bytes = Size::mib(6);
    c.ssd.dirs = vec!["sim".into()];
    c.ssd.segment_bytes = Some(Size::mib(1));
    c.ssd.checkpoint_segments = 0;
    c.staging.bytes = Size::mib(1);
    c.staging.chunk_bytes = Size::kib(64);
    c.index.max_objects = Some(256);
    let facts = MachineLimits::new(1 << 40, "fuzz".into());
    c.validate(&facts).expect("a valid configuration")
}

fn key(page: u8, part: &str) -> ObjectKey {
    let model = format!("model-{}", page % 2);
    let ns = Namespace { model, ..Namespace::default() }.id();
    ObjectKey::new(ns, PrefixHash([page; 32]), Role::Target, "kv", part, Shard::Whole)
        .expect("a key")
}

/// Components of a page with their lengths: two of its base group, one attached, and one by itself.
const PARTS: [(&str, usize); 4] = [("k", 40_000), ("v", 5_000), ("m", 9_000), ("x", 300)];

fn bytes(page: u8, part: usize) -> Vec<u8> {
    (0..PARTS[part].1)
        .map(|i| (i * 7 + i / 256) as u8 ^ page.wrapping_mul(29) ^ part as u8)
        .collect()
}

fn fill(store: &Store) {
    for page in 0..PAGES {
        let objects = [0, 1, 2, 3].map(|part| bytes(page, part));
        let pieces = objects.each_ref().map(|b| [b.as_slice()]);
        let slice = |part: usize| PutSlice { key: key(page, PARTS[part].0), pieces: &pieces[part] };
        let base = [slice(0), slice(1)];
        store.put_groups(&[&base], Options::default()).remove(0).expect("room");
        store.put_batch(&[slice(3)], Options::default()).remove(0).expect("room");
        store
            .put_attached(&[(key(page, "k"), &[slice(2)])], Options::default())
            .remove(0)
            .expect("room");
        if page == 7 {
            store.clear(key(1, "k").namespace(), Options::default()).expect("a device that works");
            store.flush(Options::default()).expect("a device that works");
        }
    }
    store.remove(&[key(2, "k"), key(4, "x")], Options::default()).expect("a device that works");
    store.flush(Options::default()).expect("a device that works");
}

impl Default for DamagedStore {
    /// The store after a close, with a checkpoint, and after a drop.
    fn default() -> DamagedStore {
        let world = SimWorld::new(1);
        let empty = world.disk.snapshot();
        let end = |close: bool| {
            world.disk.restore(&empty);
            let store = Store::open_in(config(), world.env()).expect("an empty disk");
            fill(&store);
            if close {
                _ = store.close().expect("a device that works")
            } else {
                store.abandon()
            }
            world.crash(CrashMode::KeepAll);
            (world.disk.snapshot(), FILES.map(|name| length(&world, name)).to_vec())
        };
        let ((closed, a), (dropped, b)) = (end(true), end(false));
        DamagedStore { world, stores: [closed, dropped], lengths: [a, b] }
    }
}

fn length(world: &SimWorld, name: &str) -> usize {
    let here = |blocks: usize| world.disk.peek(0, name, (blocks * BLOCK) as u64, 0).is_some();
    (0..).take_while(|blocks| here(*blocks)).last().unwrap_or(0) * BLOCK
}

/// An edit of the input: file, block, offset in it, kind or length, seal.
struct Edit<'a> {
    file: usize,
    block: usize,
    at: usize,
    what: u8,
    seal: bool,
    bytes: &'a [u8],
}

impl<'a> Edit<'a> {
    fn take(input: &mut &'a [u8]) -> Option<Edit<'a>> {
        let (head, rest) = input.split_first_chunk::<6>()?;
        let [file, block, page, low, what, flags] = *head;
        let length = usize::from(what % 32).min(rest.len());
        let length = if what < 0xC0 { length } else { 0 };
        let (bytes, rest) = rest.split_at(length);
        *input = rest;
        Some(Edit {
            file: usize::from(file) % FILES.len(),
            block: usize::from(block) | usize::from(flags >> 4) << 8,
            at: (usize::from(page & 15) << 8 | usize::from(low)) % BLOCK,
            what,
            seal: flags & 1 == 1,
            bytes,
        })
    }
}

impl DamagedStore {
    /// Overwrites the files as the input says and opens the store. Gets return only bytes that were
    /// put, unless the input made a checksum right; nothing panics.
    pub fn run(&self, input: &[u8]) -> OpenResult {
        let Some((which, mut rest)) = input.split_first() else { return OpenResult::default() };
        let which = usize::from(which & 1);
        self.world.disk.restore(&self.stores[which]);
        let mut forged = false;
        while let Some(edit) = Edit::take(&mut rest) {
            forged |= edit.seal;
            self.apply(&edit, self.lengths[which][edit.file]);
        }
        let Ok(store) = Store::open_in(config(), self.world.env()) else {
            return OpenResult::default();
        };
        let mut hits = 0;
        for page in 0..PAGES {
            for (part, (name, length)) in PARTS.iter().enumerate() {
                let mut to = vec![0; *length];
                let get = GetSlice { key: key(page, name), range: None, pieces: &mut [&mut to] };
                let got = store.get_batch(&mut [get], Options::default()).remove(0);
                if let Ok(GetOutcome::Hit { .. }) = got {
                    hits += 1;
                    assert!(
                        forged || to == bytes(page, part),
                        "wrong bytes page={page} part={name}"
                    );
                }
            }
        }
        // The store keeps working: a put and its writes to the log.
        let new = [7; 5000];
        let put = PutSlice { key: key(200, "k"), pieces: &[&new] };
        let _ = store.put_batch(&[put], Options::default());
        let _ = store.flush(Options::default());
        let _ = store.close();
        OpenResult { open: true, hits }
    }

    fn apply(&self, edit: &Edit<'_>, length: usize) {
        let blocks = length / BLOCK;
        if blocks == 0 {
            return;
        }
        let block = edit.block % blocks;
        let name = FILES[edit.file];
        let read = |block: usize, bytes: usize| {
            let bytes = bytes.min(length - block * BLOCK);
            self.world.disk.peek(0, name, (block * BLOCK) as u64, bytes).unwrap_or_default()
        };
        let mut structure = read(block, structure_bytes(name, &read(block, BLOCK), block));
        match edit.what {
            0xC0..0xD0 => structure[..BLOCK].fill(0),
            // A misdirected write, or one from another time.
            0xD0..0xE0 => {
                structure[..BLOCK].copy_from_slice(&read((block + edit.at) % blocks, BLOCK))
            }
            0xE0.. => structure[edit.at] ^= 1 << (edit.what % 8),
            _ => {
                let room = structure.len() - edit.at;
                let bytes = &edit.bytes[..edit.bytes.len().min(room)];
                structure[edit.at..edit.at + bytes.len()].copy_from_slice(bytes);
            }
        }
        if edit.seal {
            let last = name == names::SEGMENTS && (block + 1) * BLOCK % SEGMENT == 0;
            let at = if last { structure.len() - FooterTail::BYTES + 8 } else { 8 };
            seal(&mut structure, at);
        }
        let (dir, name) = (0, name.to_owned());
        let offset = (block * BLOCK) as u64;
        self.world.disk.inject(FaultPlan::Overwrite { dir, name, offset, bytes: structure });
    }
}

/// The length of the structure that starts with this block.
fn structure_bytes(name: &str, bytes: &[u8], block: usize) -> usize {
    if names::CHECKPOINTS.contains(&name) && block % 16 == 1 {
        return pagelith::layouts::checkpoint::CHUNK_BYTES;
    }
    Record::claimed_header_bytes(bytes)
        .filter(|_| name == names::SEGMENTS)
        .map_or(BLOCK, |b| b as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untouched_store_opens_with_all_objects() {
        let damaged = DamagedStore::default();
        // Four odd pages were cleared; then a group with its attached objects and one object were
        // removed.
        let here = (usize::from(PAGES) - 4) * PARTS.len() - 3 - 1;
        for which in [0, 1] {
            assert_eq!(
                damaged.run(&[which]),
                OpenResult { open: true, hits: here },
                "which={which}"
            );
        }
        assert_eq!(damaged.run(&[]), OpenResult::default());
    }

    #[test]
    fn damage_is_detected() {
        let damaged = DamagedStore::default();
        let whole = damaged.run(&[0]).hits;
        // The first block of both manifests, zeroed.
        assert!(!damaged.run(&[0, 1, 0, 0, 0, 0xC0, 0, 2, 0, 0, 0, 0xC0, 0]).open);
        // A payload block of the first record.
        let hits = damaged.run(&[0, 0, 3, 0, 0, 0xE0, 0]).hits;
        assert!(hits < whole, "hits={hits}");
    }
}
