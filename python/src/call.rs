//! What every call has: how it is to be treated, and the memory that it lends.

use std::time::Duration;

use pagelith::layouts::key::ObjectKey;
use pagelith::{GetSlice, Options, PutSlice};
use pyo3::prelude::*;

use crate::arguments::no_time;
use crate::errors::InvalidError;
use crate::given::{Listed, Memories};
use crate::keys::{Key, keys};
use crate::memory::Memory;
use crate::outcome::PutOutcome;
use crate::reached::Reached;

/// One request of a cache controller: what is asked for under it counts as equally recent.
#[pyclass(frozen, module = "pagelith")]
pub struct Request(pub pagelith::Request);

#[pymethods]
impl Request {
    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// How a call is to be treated.
pub fn options(request: Option<pagelith::Request>, depth: u32, timeout: Option<f64>) -> PyResult<Options> {
    let timeout = seconds("timeout", timeout)?;
    Ok(Options { request, depth, timeout, ..Options::default() })
}

/// How a put is to be treated.
pub fn put_options(
    request: Option<pagelith::Request>,
    depth: u32,
    timeout: Option<f64>,
    wait: Option<f64>,
) -> PyResult<Options> {
    Ok(Options { wait: seconds("wait", wait)?, ..options(request, depth, timeout)? })
}

/// A time that Python gave in seconds; [`crate::arguments`] has looked at it.
pub fn seconds(what: &str, given: Option<f64>) -> PyResult<Option<Duration>> {
    let one = |seconds| Duration::try_from_secs_f64(seconds).map_err(|_| no_time(what, &seconds));
    given.map(one).transpose()
}

/// Objects of a call, to be put.
pub struct Objects<'a> {
    keys: &'a [ObjectKey],
    pieces: Vec<Vec<&'a [u8]>>,
}

impl Objects<'_> {
    pub fn slices(&self) -> Vec<PutSlice<'_>> {
        self.keys.iter().zip(&self.pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect()
    }
}

/// The puts of a call: what is put, and the memory that it is read from, which is held as long as this is there.
pub struct Puts {
    keys: Vec<ObjectKey>,
    memory: Memory,
}

impl Puts {
    pub fn of(given: Vec<Bound<'_, Key>>, sources: &Memories<'_>) -> PyResult<Puts> {
        as_many(given.len(), sources.0.len())?;
        Ok(Puts { keys: keys(given), memory: Memory::to_read(&sources.0)? })
    }

    /// Lend the memory to a call.
    pub fn lend(&self) -> Objects<'_> {
        // SAFETY: the documentation of puts asks that nobody writes there until they have ended, and `memory` is borrowed as long.
        let pieces = unsafe { self.memory.read() };
        Objects { keys: &self.keys, pieces }
    }
}

/// Lend the memory of objects to `put`.
pub fn puts(
    given: Vec<Bound<'_, Key>>,
    sources: &Memories<'_>,
    put: impl FnOnce(Objects<'_>) -> PyResult<Vec<pagelith::Result<pagelith::PutOutcome>>>,
) -> PyResult<Vec<PutOutcome>> {
    let outcomes = put(Puts::of(given, sources)?.lend())?;
    Ok(outcomes.into_iter().map(PutOutcome).collect())
}

/// Make pages of objects: those of one page lie next to each other. What is in them, or a base, comes from any page.
pub fn put_pages(
    store: &Reached,
    objects: &Objects<'_>,
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

/// What the pages of a call are put with: a base, or all that a page consists of.
pub fn together(
    base: Option<ObjectKey>,
    required: Option<Vec<Bound<'_, Key>>>,
) -> PyResult<(Option<ObjectKey>, Option<Vec<ObjectKey>>)> {
    if base.is_some() && required.is_some() {
        return Err(InvalidError::new_err("what is attached to a base is whole: base and required"));
    }
    Ok((base, required.map(keys)))
}

/// Some of an object's bytes, from and to.
pub type Span = Option<(u64, u64)>;

/// The gets of a call: what is asked for, and the memory that it is read into, which is held as long as this is there.
pub struct Gets {
    keys: Vec<ObjectKey>,
    ranges: Vec<Span>,
    memory: Memory,
}

impl Gets {
    pub fn of(
        given: Vec<Bound<'_, Key>>,
        destinations: &Memories<'_>,
        ranges: Option<Listed<Span>>,
    ) -> PyResult<Gets> {
        as_many(given.len(), destinations.0.len())?;
        let keys = keys(given);
        let ranges = ranges.map_or_else(|| vec![None; keys.len()], |ranges| ranges.0);
        if ranges.len() != keys.len() {
            let (keys, ranges) = (keys.len(), ranges.len());
            return Err(InvalidError::new_err(format!("a range for each key keys={keys} ranges={ranges}")));
        }
        Ok(Gets { keys, ranges, memory: Memory::to_write(&destinations.0)? })
    }

    /// Lend the memory to a call.
    pub fn lend(&mut self) -> Destinations<'_> {
        // SAFETY: the documentation of gets asks that nobody touches it until they have ended; `memory` is borrowed as long, and was
        // taken to be written.
        let pieces = unsafe { self.memory.write() };
        Destinations { keys: &self.keys, ranges: &self.ranges, pieces }
    }
}

/// Objects of a call, to be got.
pub struct Destinations<'a> {
    keys: &'a [ObjectKey],
    ranges: &'a [Span],
    pieces: Vec<Vec<&'a mut [u8]>>,
}

impl Destinations<'_> {
    pub fn get(&mut self, store: &Reached, options: Options) -> Vec<pagelith::Result<pagelith::GetOutcome>> {
        let wanted = self.keys.iter().zip(self.ranges).zip(&mut self.pieces);
        let mut gets: Vec<_> = wanted
            .map(|((key, range), pieces)| GetSlice {
                key: *key,
                range: range.map(|(from, to)| from..to),
                pieces,
            })
            .collect();
        store.get(&mut gets, options)
    }
}

fn as_many(keys: usize, memories: usize) -> PyResult<()> {
    match keys == memories {
        true => Ok(()),
        false => Err(InvalidError::new_err(format!("a memory for each key keys={keys} memories={memories}"))),
    }
}
