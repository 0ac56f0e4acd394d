//! Options and memory of one call.

use std::time::Duration;

use pagelith::layouts::key::ObjectKey;
use pagelith::{DeviceGet, DeviceGroup, DevicePut, GetSlice, Options, PutSlice};
use pyo3::prelude::*;

use crate::arguments::invalid_seconds;
use crate::device_memory::{DeviceArgs, DeviceMemory};
use crate::errors::InvalidError;
use crate::handle::StoreHandle;
use crate::keys::{Key, keys};
use crate::memory::Memory;
use crate::outcome::PutOutcome;
use crate::sequences::{ListOf, Memories};

/// One request of an engine: all objects that its calls name count as equally recent.
#[pyclass(frozen, module = "pagelith")]
pub struct Request(pub pagelith::RequestEpoch);

#[pymethods]
impl Request {
    fn __repr__(&self) -> String {
        format!("Request({})", self.0.0)
    }
}

/// Options of a call.
pub fn options(
    request: Option<pagelith::RequestEpoch>,
    depth: u32,
    timeout: Option<f64>,
) -> PyResult<Options> {
    let timeout = seconds("timeout", timeout)?;
    Ok(Options::default().request(request).depth(depth).timeout(timeout))
}

/// Options of a get.
pub fn get_options(
    request: Option<pagelith::RequestEpoch>,
    depth: u32,
    timeout: Option<f64>,
    prefill_tokens_per_s: Option<u64>,
) -> PyResult<Options> {
    let rate = prefill_tokens_per_s.unwrap_or(0);
    Ok(options(request, depth, timeout)?.prefill_tokens_per_s(rate))
}

/// Options of a put.
pub fn put_options(
    request: Option<pagelith::RequestEpoch>,
    depth: u32,
    timeout: Option<f64>,
    wait: Option<f64>,
) -> PyResult<Options> {
    Ok(options(request, depth, timeout)?.wait(seconds("wait", wait)?))
}

/// A duration in seconds that [`crate::arguments`] has already checked.
pub fn seconds(arg_name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let one = |seconds| {
        Duration::try_from_secs_f64(seconds).map_err(|_| invalid_seconds(arg_name, &seconds))
    };
    value.map(one).transpose()
}

/// The memory of a call, until the value is dropped.
enum CallMemory {
    Host(Memory),
    Device(DeviceMemory),
}

/// The objects of a put call, with their source memory borrowed.
pub struct PutBatch<'a> {
    keys: &'a [ObjectKey],
    sources: Sources<'a>,
}

enum Sources<'a> {
    Host(Vec<Vec<&'a [u8]>>),
    Device(&'a DeviceMemory),
}

/// How the objects of a put belong together.
pub enum PutKind {
    /// Each alone.
    Objects,
    /// All as one group, attached to the base.
    Page(Option<ObjectKey>),
    /// Adjacent objects of one page as one group, attached to the base; or as parts of groups that
    /// consist of these objects. Base and those objects may be keys of any page.
    Pages(Option<ObjectKey>, Option<Vec<ObjectKey>>),
}

impl PutBatch<'_> {
    /// The objects in memory of the host.
    pub fn slices(&self) -> Vec<PutSlice<'_>> {
        let Sources::Host(pieces) = &self.sources else { return Vec::new() };
        let slices = self.keys.iter().zip(pieces);
        slices.map(|(key, pieces)| PutSlice { key: *key, pieces }).collect()
    }

    pub fn put(&self, store: &StoreHandle, kind: &PutKind, options: Options) -> PutOutcomes {
        if let Sources::Device(memory) = self.sources {
            return put_from_device(store, self.keys, memory, kind, options);
        }
        let slices = self.slices();
        match kind {
            PutKind::Objects => store.put_batch(&slices, options),
            PutKind::Page(base) => store.put_pages(*base, &[&slices], options),
            PutKind::Pages(base, required) => {
                let groups: Vec<_> = slices.chunk_by(|a, b| a.key.hash() == b.key.hash()).collect();
                match required {
                    Some(required) => store.put_parts(required, &groups, options),
                    None => store.put_pages(*base, &groups, options),
                }
            }
        }
    }
}

type PutOutcomes = Vec<pagelith::Result<pagelith::PutOutcome>>;

fn put_from_device(
    store: &StoreHandle,
    keys: &[ObjectKey],
    memory: &DeviceMemory,
    kind: &PutKind,
    options: Options,
) -> PutOutcomes {
    let objects = keys.iter().zip(&memory.objects);
    let puts: Vec<_> = objects.map(|(key, pieces)| DevicePut { key: *key, pieces }).collect();
    let (groups, base, required): (Vec<&[DevicePut<'_>]>, _, _) = match kind {
        PutKind::Objects => (puts.chunks(1).collect(), None, None),
        PutKind::Page(base) => (vec![&puts[..]], *base, None),
        PutKind::Pages(base, required) => {
            (puts.chunk_by(|a, b| a.key.hash() == b.key.hash()).collect(), *base, required.as_ref())
        }
    };
    let group = |objects: &&'_ [DevicePut<'_>]| objects.first().map(|object| object.key.hash());
    let based = groups.iter().map(group).map(|page| base.zip(page));
    let based: Vec<_> = based.map(|of| of.map(|(base, page)| base.on_page(page))).collect();
    let groups = groups.into_iter().zip(based);
    let groups: Vec<_> = groups.map(|(objects, base)| DeviceGroup { objects, base }).collect();
    let required = required.map_or(&[][..], Vec::as_slice);
    store.put_from_device(&memory.device, memory.after.as_ref(), &groups, required, options)
}

/// The arguments of a put call. The source memory stays exported until this value is dropped.
pub struct PutArgs {
    keys: Vec<ObjectKey>,
    memory: CallMemory,
}

impl PutArgs {
    pub fn of(
        key_args: Vec<Bound<'_, Key>>,
        sources: &Memories<'_>,
        devices: &DeviceArgs<'_>,
    ) -> PyResult<PutArgs> {
        check_counts(key_args.len(), sources.0.len())?;
        let memory = match DeviceMemory::of(&sources.0, devices, false)? {
            Some(memory) => CallMemory::Device(memory),
            None => CallMemory::Host(Memory::to_read(&sources.0)?),
        };
        Ok(PutArgs { keys: keys(key_args), memory })
    }

    /// Borrows the source memory for a call.
    pub fn lend(&self) -> PutBatch<'_> {
        let sources = match &self.memory {
            // SAFETY: the documentation of puts forbids writes to the memory until the put has
            // ended, and `memory` is borrowed for that long.
            CallMemory::Host(memory) => Sources::Host(unsafe { memory.read() }),
            CallMemory::Device(memory) => Sources::Device(memory),
        };
        PutBatch { keys: &self.keys, sources }
    }
}

/// Calls `put` with the keys and their source memory.
pub fn puts(
    key_args: Vec<Bound<'_, Key>>,
    sources: &Memories<'_>,
    devices: &DeviceArgs<'_>,
    put: impl FnOnce(PutBatch<'_>) -> PyResult<PutOutcomes>,
) -> PyResult<Vec<PutOutcome>> {
    let outcomes = put(PutArgs::of(key_args, sources, devices)?.lend())?;
    Ok(outcomes.into_iter().map(PutOutcome).collect())
}

/// The group options of a call: either a base object, or the complete list of a page's objects.
pub fn group_options(
    base: Option<ObjectKey>,
    required: Option<Vec<Bound<'_, Key>>>,
) -> PyResult<PutKind> {
    if base.is_some() && required.is_some() {
        return Err(InvalidError::new_err(
            "base and required exclude each other: a group attached to a base is put whole",
        ));
    }
    Ok(PutKind::Pages(base, required.map(keys)))
}

/// A byte range (from, to) of an object; `None` selects all of it.
pub type ByteRange = Option<(u64, u64)>;

/// The arguments of a get call. The destination memory stays exported until this value is dropped.
pub struct GetArgs {
    keys: Vec<ObjectKey>,
    ranges: Vec<ByteRange>,
    memory: CallMemory,
}

impl GetArgs {
    pub fn of(
        key_args: Vec<Bound<'_, Key>>,
        destinations: &Memories<'_>,
        ranges: Option<ListOf<ByteRange>>,
        devices: &DeviceArgs<'_>,
    ) -> PyResult<GetArgs> {
        check_counts(key_args.len(), destinations.0.len())?;
        let keys = keys(key_args);
        let ranges = ranges.map_or_else(|| vec![None; keys.len()], |ranges| ranges.0);
        if ranges.len() != keys.len() {
            let (keys, ranges) = (keys.len(), ranges.len());
            return Err(InvalidError::new_err(format!(
                "ranges must have one entry per key keys={keys} ranges={ranges}"
            )));
        }
        let memory = match DeviceMemory::of(&destinations.0, devices, true)? {
            Some(memory) => CallMemory::Device(memory),
            None => CallMemory::Host(Memory::to_write(&destinations.0)?),
        };
        Ok(GetArgs { keys, ranges, memory })
    }

    /// Borrows the destination memory for a call.
    pub fn lend(&mut self) -> GetBatch<'_> {
        let into = match &mut self.memory {
            // SAFETY: the documentation of gets forbids any access to the memory until the get has
            // ended; `memory` is borrowed for that long, and was exported as writable.
            CallMemory::Host(memory) => Destinations::Host(unsafe { memory.write() }),
            CallMemory::Device(memory) => Destinations::Device(memory),
        };
        GetBatch { keys: &self.keys, ranges: &self.ranges, into }
    }
}

/// The objects of a get call, with their destination memory borrowed.
pub struct GetBatch<'a> {
    keys: &'a [ObjectKey],
    ranges: &'a [ByteRange],
    into: Destinations<'a>,
}

enum Destinations<'a> {
    Host(Vec<Vec<&'a mut [u8]>>),
    Device(&'a DeviceMemory),
}

impl GetBatch<'_> {
    pub fn get(
        &mut self,
        store: &StoreHandle,
        options: Options,
    ) -> Vec<pagelith::Result<pagelith::GetOutcome>> {
        let wanted = self.keys.iter().zip(self.ranges);
        let wanted = wanted.map(|(key, range)| (*key, range.map(|(from, to)| from..to)));
        match &mut self.into {
            Destinations::Host(pieces) => {
                let gets = wanted.zip(pieces);
                let mut gets: Vec<_> =
                    gets.map(|((key, range), pieces)| GetSlice { key, range, pieces }).collect();
                store.get_batch(&mut gets, options)
            }
            Destinations::Device(memory) => {
                let gets = wanted.zip(&memory.objects);
                let gets: Vec<_> =
                    gets.map(|((key, range), pieces)| DeviceGet { key, range, pieces }).collect();
                store.get_to_device(&memory.device, memory.after.as_ref(), &gets, options)
            }
        }
    }
}

fn check_counts(keys: usize, memories: usize) -> PyResult<()> {
    match keys == memories {
        true => Ok(()),
        false => Err(InvalidError::new_err(format!(
            "there must be one memory per key keys={keys} memories={memories}"
        ))),
    }
}
