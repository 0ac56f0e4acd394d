//! Puts out of memory of a device: copied to staging memory, and put from there, where the bytes
//! get their checksums. The copies of one half of the staging memory run while the other half is
//! put.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::device::{CallerStream, Copies, DeviceHandle, DeviceRange};
use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;

use super::bound::{CountedBytes, device_error};
use super::call::DeviceCall;
use super::pieces::{DeviceGroup, DevicePut, split, total};
use super::store::DeviceStore;
use crate::api::error::{Error, Result};
use crate::api::outcome::PutOutcome;
use crate::api::request::{Options, PutSlice};

/// Put groups out of memory of a device, or parts of groups that consist of `required`.
pub fn put(
    store: &dyn DeviceStore,
    device: &DeviceHandle,
    after: Option<&CallerStream>,
    (groups, required): (&[DeviceGroup<'_>], &[ObjectKey]),
    options: Options,
) -> Vec<Result<PutOutcome>> {
    let deadline = store.deadline(&options);
    let begun = store.begin(options).and_then(|options| {
        store.devices().check(device)?;
        store.staging().map(|staging| (options, staging.capacity() as u64 / 4))
    });
    let (options, batch_bytes) = match begun {
        Ok(begun) => begun,
        Err(error) => return groups.iter().map(|_| Err(error.clone())).collect(),
    };
    store.devices().release_late();
    let call = DeviceCall { store, device, after, deadline };
    let outcomes = Vec::new();
    let mut batch = DeviceGroupPuts { call, groups, required, options, batch_bytes, outcomes };
    let (mut next, mut earlier) = (0, None);
    loop {
        // Copies that are late keep their memory, so no others follow them.
        let copy_batch = if batch.call.is_late() { None } else { batch.begin(next) };
        match (copy_batch, earlier.take()) {
            (None, None) if next < groups.len() => {
                if !batch.call.wait_for_memory() {
                    batch.fail(next..groups.len(), &Error::busy("no staging memory in time"));
                    break;
                }
            }
            (None, None) => break,
            (copy_batch, ended) => {
                next = copy_batch.as_ref().map_or(next, |copy_batch| copy_batch.groups.end);
                ended.into_iter().for_each(|copy_batch| batch.end(copy_batch));
                earlier = copy_batch;
            }
        }
    }
    batch.outcomes
}

struct DeviceGroupPuts<'a> {
    call: DeviceCall<'a>,
    groups: &'a [DeviceGroup<'a>],
    required: &'a [ObjectKey],
    options: Options,
    /// Bytes that are staged together, unless one group has more.
    batch_bytes: u64,
    /// The outcomes of the groups that were put or have failed.
    outcomes: Vec<Result<PutOutcome>>,
}

/// Groups whose bytes are copied to staging memory together.
struct CopyBatch {
    groups: Range<usize>,
    /// Or why none of the groups is put.
    copies: Result<Copies>,
    /// The copies have it too, until the device is done.
    _counted: Arc<Vec<CountedBytes>>,
}

impl DeviceGroupPuts<'_> {
    /// Begin to copy groups from `from` on, as many as fit into half of the staging memory. `None`
    /// if none is left, or no memory is free.
    fn begin(&self, from: usize) -> Option<CopyBatch> {
        let (mut parts, mut counted, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = from;
        let mut refused = None;
        while let Some(group) = self.groups.get(next) {
            let pieces = || group.objects.iter().flat_map(|object| object.pieces);
            let length: u64 = group.objects.iter().map(|object| total(object.pieces)).sum();
            if bytes > 0 && bytes + length > self.batch_bytes {
                break;
            }
            match self.stage(group, length) {
                Ok(Some(None)) => {}
                Ok(Some(Some((part, of_part)))) => {
                    parts.push((part, pieces().cloned().collect()));
                    counted.push(of_part);
                }
                Ok(None) => break,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
            bytes += length;
            next += 1;
        }
        match (next > from, refused) {
            (false, None) => None,
            // A group that is rejected is a batch of its own.
            (false, Some(error)) => Some(CopyBatch {
                groups: from..from + 1,
                copies: Err(error),
                _counted: Arc::default(),
            }),
            (true, _) => {
                let counted = Arc::new(counted);
                let copies = self.copy(parts, &counted);
                Some(CopyBatch { groups: from..next, copies, _counted: counted })
            }
        }
    }

    /// Staging memory for a group, which is none for no bytes; `None` if all is in use now.
    fn stage(&self, group: &DeviceGroup<'_>, length: u64) -> Result<Option<Option<Staged>>> {
        self.call.check_staging(length, 0)?;
        group.objects.iter().try_for_each(|object| self.call.check(object.pieces))?;
        match length {
            0 => Ok(Some(None)),
            length => Ok(self.call.stage(length as usize)?.map(Some)),
        }
    }

    fn copy(
        &self,
        parts: Vec<(Part, Vec<DeviceRange>)>,
        counted: &Arc<Vec<CountedBytes>>,
    ) -> Result<Copies> {
        let mut copies = self.call.begin()?;
        copies.hold(Box::new(counted.clone()));
        for (part, pieces) in parts {
            for (piece, from) in split(part, &pieces) {
                copies.to_host(from, piece).map_err(|why| device_error(&why))?;
            }
        }
        copies.submit().map_err(|why| device_error(&why))?;
        Ok(copies)
    }

    /// Wait for the copies of a batch, and put its groups.
    fn end(&mut self, copy_batch: CopyBatch) {
        let CopyBatch { groups, copies, _counted } = copy_batch;
        let copied = copies.and_then(|mut copies| {
            self.call.wait(&mut copies)?;
            Ok(copies.into_parts())
        });
        match copied {
            Ok(parts) => {
                let mut parts = parts.into_iter();
                let objects = self.groups[groups.clone()].iter().flat_map(|group| group.objects);
                let joined = objects.map(|object| joined(parts.by_ref().take(object.pieces.len())));
                let joined: Vec<Vec<Part>> = joined.collect();
                self.put(groups, &joined);
            }
            Err(error) => self.fail(groups, &error),
        }
    }

    /// Put groups out of host memory, given for each object.
    fn put(&mut self, groups: Range<usize>, parts: &[Vec<Part>]) {
        let depth = self.options.depth.saturating_add(groups.start as u32);
        let groups = &self.groups[groups];
        let pieces: Vec<Vec<&[u8]>> =
            parts.iter().map(|parts| parts.iter().map(Part::bytes).collect()).collect();
        let mut pieces = pieces.iter();
        let slices: Vec<Vec<PutSlice<'_>>> = groups
            .iter()
            .map(|group| {
                let of =
                    |(object, pieces): (&DevicePut<'_>, _)| PutSlice { key: object.key, pieces };
                group.objects.iter().zip(pieces.by_ref().map(Vec::as_slice)).map(of).collect()
            })
            .collect();
        let bases = groups.iter().map(|group| group.base);
        let slices: Vec<_> = bases.zip(slices.iter().map(Vec::as_slice)).collect();
        let options = Options { depth, timeout: Some(self.call.left()), ..self.options };
        let outcomes = self.call.store.put_borrowed(&slices, self.required, options);
        self.outcomes.extend(outcomes);
    }

    fn fail(&mut self, groups: Range<usize>, error: &Error) {
        self.outcomes.extend(groups.map(|_| Err(error.clone())));
    }
}

/// The parts of one object, which lie side by side, as one.
fn joined(parts: impl Iterator<Item = Part>) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        let joined = match all.pop() {
            Some(before) => before.join(part),
            None => Ok(part),
        };
        match joined {
            Ok(whole) => all.push(whole),
            Err((before, part)) => all.extend([before, part]),
        }
    }
    all
}

/// Staging memory of a group, and what counts it.
type Staged = (Part, CountedBytes);
