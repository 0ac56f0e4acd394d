//! An engine's host pool: one allocation with a slot for each page, registered once. Gets read from
//! SSD straight into the slots.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;

use pagelith::layouts::{
    ids::PrefixHash,
    key::{ObjectKey, Role},
    namespace::Namespace,
    shard::Shard,
};
use pagelith::{AlignedBuf, GetSlice, Options, PutSlice, Store, Tier};

const PAGES: usize = 16;
/// Bytes of a page: a multiple of 4096, so that no copy is needed.
const SLOT: usize = 64 << 10;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    // Without a DRAM tier hits come from SSD.
    let store = Store::builder().dram("0B").ssd(dir.path(), "64MiB").open()?;
    let model =
        Namespace { model: "llama-3-8b".into(), page_tokens: 64, ..Namespace::default() }.id();
    let key = |page: u8| {
        ObjectKey::new(model, PrefixHash([page; 32]), Role::Target, "kv", "kv", Shard::Whole)
    };
    let keys: Vec<ObjectKey> = (0..PAGES as u8).map(key).collect::<Result<_, _>>()?;

    // Addresses and lengths of slots are multiples of 4096.
    let mut pool = AlignedBuf::new(PAGES * SLOT)?;
    pool.chunks_mut(SLOT).zip(1..).for_each(|(slot, byte)| slot.fill(byte));
    let registration = store.register_memory(pool.as_ptr(), pool.len())?;
    println!("reads use the registration: {}", registration.is_used());

    let pieces: Vec<[&[u8]; 1]> = pool.chunks(SLOT).map(|slot| [slot]).collect();
    let puts: Vec<PutSlice<'_>> =
        keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
    for outcome in store.put_batch(&puts, Options::default()) {
        outcome?;
    }
    store.flush(Options::default())?;

    pool.fill(0);
    let mut pieces: Vec<[&mut [u8]; 1]> = pool.chunks_mut(SLOT).map(|slot| [slot]).collect();
    let mut gets: Vec<GetSlice<'_, '_>> = keys
        .iter()
        .zip(&mut pieces)
        .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
        .collect();
    let mut from_ssd = 0;
    for outcome in store.get_batch(&mut gets, Options::default()) {
        let outcome = outcome?;
        assert!(outcome.is_hit(), "{outcome:?}");
        from_ssd +=
            usize::from(matches!(outcome, pagelith::GetOutcome::Hit { tier: Tier::Ssd, .. }));
    }
    println!("{from_ssd} of {PAGES} pages came from SSD");
    let is_whole = |(slot, byte): (&[u8], u8)| slot.iter().all(|each| *each == byte);
    assert!(pool.chunks(SLOT).zip(1..).all(is_whole));
    // Before the memory is freed.
    drop(registration);
    store.close()?;
    Ok(())
}
