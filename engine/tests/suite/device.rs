//! A store whose gets and puts use memory of a device: the caller's bytes are copied to it before a
//! put, and from it after a hit.

use std::sync::Arc;

use pagelith::layouts::key::ObjectKey;
use pagelith::{
    DeviceGet, DeviceGroup, DeviceHandle, DevicePut, DeviceRange, DriverKind, GetOutcome, GetSlice,
    Options, PageStore, PutOutcome, PutSlice, Result,
};

use super::fake_device::{DeviceMemory, Fake};

/// A device of a fake driver, bound to a store.
pub struct BoundDevice {
    fake: Arc<Fake>,
    handle: DeviceHandle,
}

/// Memory of the device, and its pieces; none for an object without bytes.
struct Pieces {
    memory: Option<DeviceMemory>,
    ranges: Vec<DeviceRange>,
}

/// A driver whose work runs late, in an order of its own.
pub fn fake() -> Arc<Fake> {
    Fake::new(DriverKind::Cuda, "late=1 seed=5")
}

impl BoundDevice {
    /// Bind the device, which the calling thread initialises.
    pub fn new(fake: Arc<Fake>, store: &dyn PageStore) -> BoundDevice {
        fake.start(0);
        let handle = store.bind_device_of(&fake.driver(), 0).expect("an initialised device");
        BoundDevice { fake, handle }
    }

    /// Memory with pieces of these lengths.
    fn pieces(&self, lengths: impl Iterator<Item = usize> + Clone) -> Pieces {
        let total = lengths.clone().sum();
        let memory = (total > 0).then(|| self.fake.memory(&self.handle, total));
        let (mut ranges, mut at) = (Vec::new(), 0);
        for length in lengths.filter(|length| *length > 0) {
            let whole = memory.as_ref().expect("there are bytes");
            ranges.push(whole.range.slice(at, length).expect("inside"));
            at += length;
        }
        Pieces { memory, ranges }
    }

    /// As the calls of [`PageStore`] that put.
    pub fn put(
        &self,
        store: &dyn PageStore,
        groups: &[(Option<ObjectKey>, &[PutSlice<'_>])],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        let of = |object: &PutSlice<'_>| {
            let pieces = self.pieces(object.pieces.iter().map(|piece| piece.len()));
            pieces.memory.iter().for_each(|memory| memory.write(&object.pieces.concat()));
            pieces
        };
        let copied: Vec<Vec<Pieces>> =
            groups.iter().map(|(_, group)| group.iter().map(of).collect()).collect();
        let puts: Vec<Vec<DevicePut<'_>>> = groups
            .iter()
            .zip(&copied)
            .map(|((_, group), pieces)| {
                let puts = group.iter().zip(pieces);
                puts.map(|(put, pieces)| DevicePut { key: put.key, pieces: &pieces.ranges })
                    .collect()
            })
            .collect();
        let groups: Vec<_> = groups
            .iter()
            .zip(&puts)
            .map(|((base, _), objects)| DeviceGroup { objects, base: *base })
            .collect();
        store.put_from_device(&self.handle, None, &groups, required, options)
    }

    /// As [`PageStore::get_batch`].
    pub fn get(
        &self,
        store: &dyn PageStore,
        gets: &mut [GetSlice<'_, '_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        let pieces = |get: &GetSlice<'_, '_>| self.pieces(get.pieces.iter().map(|p| p.len()));
        let into: Vec<Pieces> = gets.iter().map(pieces).collect();
        let requests: Vec<_> = gets
            .iter()
            .zip(&into)
            .map(|(get, into)| DeviceGet {
                key: get.key,
                range: get.range.clone(),
                pieces: &into.ranges,
            })
            .collect();
        let outcomes = store.get_to_device(&self.handle, None, &requests, options);
        for ((get, into), outcome) in gets.iter_mut().zip(&into).zip(&outcomes) {
            if let (Ok(GetOutcome::Hit { .. }), Some(memory)) = (outcome, &into.memory) {
                let bytes = memory.bytes();
                let mut rest = &bytes[..];
                for piece in get.pieces.iter_mut() {
                    let (own, after) = rest.split_at(piece.len());
                    piece.copy_from_slice(own);
                    rest = after;
                }
            }
        }
        outcomes
    }
}
