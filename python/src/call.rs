//! Options and memory of one call.

use std::time::Duration;

use pagelith::layouts::key::ObjectKey;
use pagelith::{GetSlice, Options, PutSlice};
use pyo3::prelude::*;

use crate::arguments::invalid_seconds;
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

/// The objects of a put call, with their source memory borrowed.
pub struct PutBatch<'a> {
    keys: &'a [ObjectKey],
    pieces: Vec<Vec<&'a [u8]>>,
}

impl PutBatch<'_> {
    pub fn slices(&self) -> Vec<PutSlice<'_>> {
        self.keys
            .iter()
            .zip(&self.pieces)
            .map(|(key, pieces)| PutSlice { key: *key, pieces })
            .collect()
    }
}

/// The arguments of a put call. The source memory stays exported until this value is dropped.
pub struct PutArgs {
    keys: Vec<ObjectKey>,
    memory: Memory,
}

impl PutArgs {
    pub fn of(key_args: Vec<Bound<'_, Key>>, sources: &Memories<'_>) -> PyResult<PutArgs> {
        check_counts(key_args.len(), sources.0.len())?;
        Ok(PutArgs { keys: keys(key_args), memory: Memory::to_read(&sources.0)? })
    }

    /// Borrows the source memory for a call.
    pub fn lend(&self) -> PutBatch<'_> {
        // SAFETY: the documentation of puts forbids writes to the memory until the put has ended,
        // and `memory` is borrowed for that long.
        let pieces = unsafe { self.memory.read() };
        PutBatch { keys: &self.keys, pieces }
    }
}

/// Calls `put` with the keys and their source memory.
pub fn puts(
    key_args: Vec<Bound<'_, Key>>,
    sources: &Memories<'_>,
    put: impl FnOnce(PutBatch<'_>) -> PyResult<Vec<pagelith::Result<pagelith::PutOutcome>>>,
) -> PyResult<Vec<PutOutcome>> {
    let outcomes = put(PutArgs::of(key_args, sources)?.lend())?;
    Ok(outcomes.into_iter().map(PutOutcome).collect())
}

/// Puts one group per page: adjacent objects with the same page hash form a group. The keys in
/// `required`, and `base`, may be those of any page.
pub fn put_pages(
    store: &StoreHandle,
    objects: &PutBatch<'_>,
    base: Option<ObjectKey>,
    required: Option<&[ObjectKey]>,
    options: Options,
) -> Vec<pagelith::Result<pagelith::PutOutcome>> {
    let slices = objects.slices();
    let groups: Vec<_> = slices.chunk_by(|a, b| a.key.hash() == b.key.hash()).collect();
    match required {
        Some(required) => store.put_parts(required, &groups, options),
        None => store.put_pages(base, &groups, options),
    }
}

/// The group options of a call: either a base object, or the complete list of a page's objects.
pub fn group_options(
    base: Option<ObjectKey>,
    required: Option<Vec<Bound<'_, Key>>>,
) -> PyResult<(Option<ObjectKey>, Option<Vec<ObjectKey>>)> {
    if base.is_some() && required.is_some() {
        return Err(InvalidError::new_err(
            "base and required exclude each other: a group attached to a base is put whole",
        ));
    }
    Ok((base, required.map(keys)))
}

/// A byte range (from, to) of an object; `None` selects all of it.
pub type ByteRange = Option<(u64, u64)>;

/// The arguments of a get call. The destination memory stays exported until this value is dropped.
pub struct GetArgs {
    keys: Vec<ObjectKey>,
    ranges: Vec<ByteRange>,
    memory: Memory,
}

impl GetArgs {
    pub fn of(
        key_args: Vec<Bound<'_, Key>>,
        destinations: &Memories<'_>,
        ranges: Option<ListOf<ByteRange>>,
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
        Ok(GetArgs { keys, ranges, memory: Memory::to_write(&destinations.0)? })
    }

    /// Borrows the destination memory for a call.
    pub fn lend(&mut self) -> GetBatch<'_> {
        // SAFETY: the documentation of gets forbids any access to the memory until the get has
        // ended; `memory` is borrowed for that long, and was exported as writable.
        let pieces = unsafe { self.memory.write() };
        GetBatch { keys: &self.keys, ranges: &self.ranges, pieces }
    }
}

/// The objects of a get call, with their destination memory borrowed.
pub struct GetBatch<'a> {
    keys: &'a [ObjectKey],
    ranges: &'a [ByteRange],
    pieces: Vec<Vec<&'a mut [u8]>>,
}

impl GetBatch<'_> {
    pub fn get(
        &mut self,
        store: &StoreHandle,
        options: Options,
    ) -> Vec<pagelith::Result<pagelith::GetOutcome>> {
        let wanted = self.keys.iter().zip(self.ranges).zip(&mut self.pieces);
        let mut gets: Vec<_> = wanted
            .map(|((key, range), pieces)| GetSlice {
                key: *key,
                range: range.map(|(from, to)| from..to),
                pieces,
            })
            .collect();
        store.get_batch(&mut gets, options)
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
